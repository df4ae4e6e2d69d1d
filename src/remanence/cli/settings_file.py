"""audit.toml: the options of a command in a file, for people who would rather not repeat them.

command = "table"          # audit, table, head, update, text or run; audit if left out
target = "model.skops"     # the command's argument
data = "train.csv"
max_success = 0.1

[about]
title = "Patients 2026"
owner = "..."
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from remanence.core.checks import instance, one_of, refusing
from remanence.scale.reading import MIB, UnusableFileError, parse_toml, read_bytes

_ABOUT = ("title", "owner", "purpose", "data")


def arguments_from(
    path: Path, group: click.Group, context: click.Context
) -> tuple[list[str], dict[str, str]]:
    """The file as arguments of its command, with paths as seen from here, and what it says about the audit."""
    hint = 'target = "model.py:factory" and max_success = 0.1'
    needs = "a TOML file with a target and options of a command"
    with refusing(UnusableFileError, "The settings cannot be used.", needs=needs, got=path, hint=hint):
        settings = parse_toml(read_bytes(path, MIB))
    about = settings.pop("about", {})
    instance("[about]", about, dict, "a table of texts", '[about], and title = "..." below it')
    for each in about:
        one_of("this name under [about]", each, _ABOUT)
    name = str(settings.pop("command", "audit"))
    one_of("this command", name, group.list_commands(context))
    command = group.get_command(context, name)
    assert command is not None
    flags = [each for each in command.params if isinstance(each, click.Option)]
    options = {each.opts[0].removeprefix("--").replace("-", "_"): each for each in flags}
    found = [name]
    for key, value in settings.items():
        one_of(f"this option of {name}", key, ["target", *options])
        if key == "target":
            found.append(_placed(value, path.parent))
            continue
        option = options[key]
        values = value if isinstance(value, list) and option.multiple else [value]
        for each in values:
            instance(key, each, (str, int, float), "a text or a number", f"{key} = ..., with one value")
        if option.is_flag:
            instance(key, value, bool, "true or false, without quotes", f"{key} = true")
            found += (option.opts if value else option.secondary_opts)[:1]
        else:
            is_path = isinstance(option.type, click.Path)
            found += [f"{option.opts[0]}={_placed(each, path.parent, certain=is_path)}" for each in values]
    return found, {key: str(value) for key, value in about.items()}


def _placed(value: Any, folder: Path, *, certain: bool = False) -> str:
    """A path as seen from here. A text that names a file beside the settings is that file."""
    text = str(value)
    file = text.rpartition(":")[0] if ".py:" in text else text
    if "://" in text or not isinstance(value, str):
        return text
    return str(folder / text) if certain or (folder / file).exists() else text
