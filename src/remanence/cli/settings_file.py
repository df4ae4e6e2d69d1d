"""audit.toml: the options of an audit in a file, for people who would rather not repeat them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from remanence.core.checks import refusing
from remanence.scale.reading import MIB, UnusableFileError, parse_toml, read_bytes
from remanence.targets import TARGETS

_PLACES = (
    "out",
    "journal",
    "data",
    "model",
    "adapter",
    "base",
    "tokenizer",
    "texts",
    "unseen",
    "canaries",
    "names",
    "head",
    "backbone",
    "images",
    "public",
)


def read_settings(path: Path) -> dict[str, Any]:
    """The options by their names, with paths as seen from here; refuses, with the place, what is not one."""
    schema = json.loads((files("remanence.cli") / "audit-toml.schema.json").read_text(encoding="utf-8"))
    needs = f"a TOML file with target or model and, if you like, {', '.join(list(schema['properties'])[1:])}"
    hint = 'target = "model.py:factory" and max_success = 0.1'
    with refusing(UnusableFileError, "The settings cannot be used.", needs=needs, got=path, hint=hint):
        settings = parse_toml(read_bytes(path, MIB), schema)
    if settings.get("target", "") not in TARGETS and "target" in settings:
        settings["target"] = str(path.parent / settings["target"])
    for name in _PLACES:
        if name in settings and "://" not in settings[name]:
            settings[name] = str(path.parent / settings[name])
    return settings
