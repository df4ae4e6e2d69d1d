"""Which stored pages today's code did not print: `python -m remanence_papers.freshness docs/reproductions`.

A page is signed with the hash of all functions and classes of this project that its reproduction names, directly or
through others, and with the hashes of the data files that it read. Comments, docstrings, formatting and the words of
errors do not count. With `--print-again` the stale pages of the small scale are printed again where they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from remanence_papers import registry, views
from remanence_papers.registry import REPRODUCTIONS
from remanence_papers.reproduction import Settings
from remanence_papers.signatures import code_signature

_AGAIN = "--print-again"


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
        elif document["signature"]["code"] != code_signature(entry.home):
            found[str(path)] = "code that it depends on has changed"
    return found


def main(arguments: Sequence[str]) -> None:
    """Name them, and say how long printing them again takes; or do it."""
    folders = [each for each in arguments if each != _AGAIN]
    folder = Path(folders[0] if folders else "docs/reproductions")
    found, all_of_them = stale(folder), len(list(folder.rglob("*.json")))
    for path, reason in found.items():
        typer.echo(f"{path}: {reason}")
    small = {
        Path(path): REPRODUCTIONS[Path(path).stem] for path in found if Path(path).parent.name == "small"
    }
    minutes = sum(entry.minutes for entry in small.values())
    typer.echo(
        f"{len(found)} of {all_of_them} pages are stale. `make pages` prints the {len(small)} of the small scale, "
        f"in about {minutes:.0f} minutes on one core; those of the paper's scale need a GPU and data, one by one: "
        "`remanence reproduce NAME --scale paper --data FOLDER --out FOLDER`."
    )
    for path, entry in small.items() if _AGAIN in arguments else ():
        typer.echo(f"{path}, about {entry.minutes:g} minutes")
        views.save(registry.run(entry, Settings("small", None)), path.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
