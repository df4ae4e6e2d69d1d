"""Pages that a script prints, signed as all others are: `python -m remanence_papers.scripts docs/reproductions`.

A script prints a whole page, or the tables of one that says more: those stand in the page under the same heading.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from remanence_papers.signatures import script_signature

SIGNATURES = "scripts.json"
_ALIKE = 24  # characters by which a table, or a list, is found again


@dataclass(frozen=True)
class Script:
    """What prints a page; `whole` if the page is nothing else."""

    path: str  # from the root of the repository
    whole: bool = True


SCRIPTS = {
    "hayes-bounds": Script("benchmarks/hayes_bounds"),
    "hayes-monte-carlo": Script("benchmarks/monte_carlo.py"),
    "balle-glm": Script("benchmarks/glm.py", whole=False),
}


def stale_scripts(folder: Path, root: Path | None = None) -> dict[str, str]:
    """The pages of scripts in a folder that today's code did not print, each with the reason."""
    root = root or folder.resolve().parent.parent
    signed = _signed(folder)
    found = {}
    for name, script in SCRIPTS.items():
        page = folder / f"{name}.md"
        if not page.exists() or not (root / script.path).exists():
            continue
        if name not in signed:
            found[str(page)] = "it was printed before pages were signed"
        elif signed[name] != script_signature(root / script.path):
            found[str(page)] = "code that it depends on has changed"
    return found


def filled(page: str, printed: str) -> str:
    """A page with its tables and lists replaced by those of the same beginning that a script printed.

    >>> filled("Text.\\n\\n| a | b |\\n|--:|--:|\\n| 1 | 2 |\\n\\nMore.\\n", "| a | b |\\n|--:|--:|\\n| 3 | 4 |\\n")
    'Text.\\n\\n| a | b |\\n|--:|--:|\\n| 3 | 4 |\\n\\nMore.\\n'
    """
    new = {lines[0][:_ALIKE]: lines for lines in _blocks(printed) if lines[0][:1] in "|-"}
    return "\n".join(
        line for lines in _blocks(page) for line in (new.get(lines[0][:_ALIKE], lines) if lines[0] else lines)
    )


def _blocks(text: str) -> Iterator[list[str]]:
    """Tables and lists, and every other line by itself."""
    block: list[str] = []
    for line in text.split("\n"):
        mark = line[:1] if line[:2] in ("| ", "|-", "- ") else ""
        if block and (not mark or block[0][:1] != mark):
            yield block
            block = []
        if mark:
            block.append(line)
        else:
            yield [line]
    if block:
        yield block


def _signed(folder: Path) -> dict[str, str]:
    path = folder / SIGNATURES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def main(arguments: Sequence[str]) -> None:
    """Run the scripts whose pages are stale, from the root of the repository."""
    folder = Path(arguments[0] if arguments else "docs/reproductions")
    for page in map(Path, stale_scripts(folder)):
        script = SCRIPTS[page.stem]
        command = [sys.executable, script.path]
        ran = subprocess.run(  # noqa: S603
            command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        text = ran.stdout if script.whole else filled(page.read_text(encoding="utf-8"), ran.stdout)
        page.write_text(text, encoding="utf-8")
        signed = _signed(folder) | {page.stem: script_signature(Path(script.path))}
        (folder / SIGNATURES).write_text(
            json.dumps(signed, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
        typer.echo(page)


if __name__ == "__main__":
    main(sys.argv[1:])
