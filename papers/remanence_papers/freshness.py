"""Which stored pages today's code did not print: `python -m remanence_papers.freshness docs/reproductions`.

A page is signed with the hash of all modules of this project that its reproduction imports, directly or through others,
and with the hashes of the data files that it read. Comments, docstrings and formatting do not count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from remanence_papers.registry import REPRODUCTIONS
from remanence_papers.signatures import code_signature


def stale(folder: Path) -> dict[str, str]:
    """The stored documents under a folder that today's code did not print, each with the reason."""
    found = {}
    for path in sorted(folder.rglob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        entry = REPRODUCTIONS.get(document.get("name", ""))
        if entry is None:
            found[str(path)] = "no reproduction has this name"
        elif "signature" not in document:
            found[str(path)] = "it was printed before pages were signed"
        elif document["signature"]["code"] != code_signature(entry.home.partition(":")[0]):
            found[str(path)] = "code that it depends on has changed"
    return found


def main(arguments: Sequence[str]) -> None:
    """Name them, and the command that prints them again."""
    folder = Path(arguments[0] if arguments else "docs/reproductions")
    found, all_of_them = stale(folder), len(list(folder.rglob("*.json")))
    for path, reason in found.items():
        typer.echo(f"{path}: {reason}")
    typer.echo(
        f"{len(found)} of {all_of_them} pages are stale; `remanence reproduce NAME --out FOLDER` prints one again."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
