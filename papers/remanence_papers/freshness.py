"""Which stored pages today's code did not print: `python -m remanence_papers.freshness docs/reproductions`.

A page is signed with the hash of all functions and classes of this project that its reproduction names, directly or
through others, and with the hashes of the data files that it read. Comments, docstrings, formatting and the words of
errors do not count. Data are compared with the files of a second folder, where one is given, and pages with each other:
two pages of one scale that read different files of one name cannot both be right. Three pages are printed by scripts;
`remanence_papers.scripts` signs them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from remanence_papers.printing import other_data
from remanence_papers.registry import REPRODUCTIONS
from remanence_papers.scripts import SIGNATURES, stale_scripts
from remanence_papers.signatures import code_signature


def stale(folder: Path, data: Path | None = None) -> dict[str, str]:
    """The stored pages under a folder that today's code did not print from these data, each with the reason."""
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in _stored(folder)}
    usual = _usual([document for document in documents.values() if _reason(document) is None])
    found = {str(path): why for path, document in documents.items() if (why := _why(document, data, usual))}
    return found | stale_scripts(folder)


def _stored(folder: Path) -> list[Path]:
    """Its pages, without those of single seeds that a run keeps in a hidden folder."""
    return [
        path
        for path in sorted(folder.rglob("*.json"))
        if path.name != SIGNATURES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def _reason(document: Mapping[str, Any]) -> str | None:
    """Why another code than today's printed it."""
    entry = REPRODUCTIONS.get(document.get("name", ""))
    signature = document.get("signature")
    if entry is None:
        return "no reproduction has this name"
    if signature is None:
        return "it was printed before pages were signed"
    if signature["code"] != code_signature(entry.home):
        return "code that it depends on has changed"
    return None


def _why(document: Mapping[str, Any], data: Path | None, usual: Mapping[tuple[str, str], str]) -> str | None:
    if reason := _reason(document):
        return reason
    signature, scale = document["signature"], document.get("scale", "")
    odd = [name for name, value in signature["data"].items() if usual[scale, name] != value]
    if wrong := sorted({*other_data(signature["data"], data), *odd}):
        return f"it read another {', '.join(wrong)}"
    return None


def _usual(documents: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """The hash that most of these pages of a scale have for a file."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for document in documents:
        for name, value in document.get("signature", {}).get("data", {}).items():
            counts[document.get("scale", ""), name][value] += 1
    return {key: counter.most_common(1)[0][0] for key, counter in counts.items()}


def main(arguments: Sequence[str]) -> None:
    """Name them."""
    folder = Path(arguments[0] if arguments else "docs/reproductions")
    found = stale(folder, Path(arguments[1]) if len(arguments) > 1 else None)
    for path, reason in found.items():
        typer.echo(f"{path}: {reason}")
    typer.echo(
        f"Of {len(_stored(folder))} pages and three scripts, {len(found)} are stale. `make pages` prints those of the "
        "small scale and of scripts; those of the paper's scale need a GPU and data: "
        f"`remanence reproduce --all --scale paper --data FOLDER --out {folder}/paper`."
    )


if __name__ == "__main__":
    main(sys.argv[1:])
