"""Write the pages of docs that the code determines: `python tools/pages.py [--check]`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click
import typer

from remanence.cli.main import app
from remanence.core.doors import doors
from remanence.report.words import GLOSSARY
from remanence.results.caveats import Caveat

DOCS = Path(__file__).parent.parent / "docs"
MADE = "<!-- Written by `python tools/pages.py`. -->\n"


def caveats() -> str:
    """Every caveat, those of any game first and then door by door."""
    modules = {
        "Any game": "remanence.results.caveats",
        **{door.name.capitalize(): door.caveats for door in doors() if door.caveats},
    }
    parts = [
        "# Caveats\n",
        MADE,
        "A caveat is a reason not to trust a number. Each attack in `audit.json` carries its own, and the report lists "
        "all of them. No caveat makes a result PROTECTED: only a bound can.\n",
    ]
    for title, module in modules.items():
        parts.append(f"## {title}\n")
        found = vars(import_module(module)).values()
        parts += [_caveat(each) for each in found if isinstance(each, Caveat)]
    return "\n".join(parts)


def _caveat(each: Caveat) -> str:
    return f"### `{each.id}`\n\n- **Raised if** {each.raised_if}\n- **Means:** {each.means}\n- **Do:** {each.do}\n"


def glossary() -> str:
    """The words of a report."""
    told = "The same words in code, on the command line, in `audit.json`, in reports and here.\n"
    rows = [f"| {word} | {meaning} |" for word, meaning in GLOSSARY.items()]
    return "\n".join(["# Glossary\n", MADE, told, "| word | meaning |", "|---|---|", *rows, ""])


def command_line() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name="remanence")
    parts = ["# Command line\n", MADE, f"{_plain(group.help)}\n"]
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        assert command is not None
        parts.append(f"## `remanence {name}`\n\n{_plain(command.help)}\n")
        rows = []
        for each in command.params:
            if each.name == "help" or getattr(each, "hidden", False):
                continue
            named = each.human_readable_name if isinstance(each, click.Argument) else ", ".join(each.opts)
            rows.append(f"| `{named}` | {_cell(getattr(each, 'help', '') or '')} | {_default(each)} |")
        parts += ["| | | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(parts).rstrip() + "\n"


def _default(parameter: click.Parameter) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return _cell(shown)
    value = parameter.default
    if value is None or value is False or callable(value) or not shown:
        return ""
    return f"`{getattr(value, 'value', value)}`"


def _plain(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n")).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


PAGES = {"caveats.md": caveats, "glossary.md": glossary, "cli.md": command_line}


def main() -> None:
    stale = [name for name, page in PAGES.items() if not _same(DOCS / name, page())]
    if "--check" in sys.argv:
        print(f"Stale: {', '.join(stale) or 'none'}")
        sys.exit(bool(stale))
    for name in stale:
        (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"Written: docs/{name}")


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    main()
