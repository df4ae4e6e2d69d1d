"""docs/papers.md: every item of the four papers with our number beside the paper's, and where to look.

`python -m remanence_papers.items docs` writes it. Numbers are read off the stored pages, so that none can differ from
its page; an item whose page today's code did not print says so.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from remanence_papers.freshness import stale
from remanence_papers.registry import REPRODUCTIONS
from remanence_papers.reproduction import as_text

PAPERS = {
    "B": "Balle, Cherubin, Hayes 2022",
    "H": "Hayes, Mahloujifar, Balle 2023",
    "M": "Maciazek, Allison 2025",
    "P": "Pan et al. 2022",
}
STATUSES = {
    "above": "done, and better than the paper's, or exact where the paper estimates",
    "equal": "done, and agrees",
    "below": "done, and falls short of the paper or contradicts it; the remark says why",
    "different": "done in another setting, which the remark names",
    "small": "at the small scale only",
    "missing": "not done",
}
_NUMBER = re.compile(r"\{([^:{}]+): ([^{}]+?)\}")


@dataclass(frozen=True)
class Item:
    """One definition, theorem, table, figure or claim."""

    name: str
    what: str
    page: str
    ours: str
    paper: str
    status: str
    remark: str


def items() -> list[Item]:
    """All of them, in the papers' order."""
    lines = (Path(__file__).parent / "items.txt").read_text(encoding="utf-8").splitlines()
    return [
        Item(*(part.strip() for part in line.split("|")))
        for line in lines
        if line and not line.startswith("#")
    ]


class Pages:
    """Stored pages of a folder, from which numbers are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stale = {Path(path).relative_to(folder).with_suffix("").as_posix() for path in stale(folder)}

    @cache  # noqa: B019  # one object per run
    def document(self, name: str) -> Mapping[str, Any] | None:
        """A page by its name, of the paper's scale unless it says another."""
        path = self.folder / f"{_place(name)}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def number(self, name: str, asked: str) -> str:
        """One cell, as its page has it: `column @ key=value, key=value`, or a setting of the page."""
        document = self.document(name)
        column, _, conditions = asked.partition(" @ ")
        if document is None:
            return "–"
        if not conditions:
            return as_text(document["settings"].get(column)) or "–"
        for row in document["rows"]:
            if all(_is(row, each) for each in _split(conditions, row)):
                return as_text(row.get(column)) or "–"
        return "–"


def _place(name: str) -> str:
    return name if "/" in name else f"paper/{name}"


def _split(conditions: str, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of a column and its value; a value may hold commas."""
    columns = "|".join(re.escape(key) for key in row)
    parts = re.split(rf"(?:^|, )({columns})=", conditions)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True)) or [("", conditions)]


def _is(row: Mapping[str, Any], condition: tuple[str, str]) -> bool:
    key, wanted = condition
    cell = row.get(key)
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        try:
            return float(cell) == float(wanted)
        except ValueError:
            return False
    return str(cell) == wanted


def rendered(folder: Path) -> str:
    """The page."""
    pages, every = Pages(folder / "reproductions"), items()
    lines = [
        "# The four papers, item by item",
        "",
        "Printed by `make papers`. Numbers are read off the pages that they link to; a page says its command, data, "
        "settings, seconds, seeds, and what is less than in the paper. Ranges in brackets are intervals at 95 %, or "
        "the least and the greatest over seeds. A page marked *stale* was printed by older code than today's, so its "
        "numbers may differ from what its command prints now. What the papers get wrong is in the "
        "[errata](errata.md).",
        "",
        *(f"- **{status}**: {meaning}" for status, meaning in STATUSES.items()),
        "",
        "| paper | items | " + " | ".join(STATUSES) + " | on stale pages |",
        "|---|" + "--:|" * (len(STATUSES) + 2),
    ]
    for letter, paper in PAPERS.items():
        own = [item for item in every if item.name[0] == letter]
        counts = Counter(_status(item, pages) for item in own)
        old = sum(_place(item.page) in pages.stale for item in own if item.page)
        numbers = [len(own), *(counts[status] for status in STATUSES), old]
        lines.append(f"| {paper} | " + " | ".join(map(str, numbers)) + " |")
    for letter, paper in PAPERS.items():
        lines += [
            "",
            f"## {paper}",
            "",
            "| | item | ours | the paper's | status | page |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(item, pages) for item in every if item.name[0] == letter]
    return "\n".join([*lines, ""])


def _line(item: Item, pages: Pages) -> str:
    asked = _NUMBER.findall(item.ours)
    printed = all(pages.document(name) is not None for name, _ in asked)
    ours = _NUMBER.sub(lambda found: pages.number(found[1], found[2]), item.ours) if printed else ""
    status = f"**{_status(item, pages)}**" + (f": {item.remark}" if item.remark else "")
    return f"| {item.name} | {item.what} | {ours} | {item.paper} | {status} | {_link(item.page, pages)} |"


def _status(item: Item, pages: Pages) -> str:
    """As listed; where the page is not printed at its scale, small if the small one is, and missing else."""
    if item.status == "missing" or not item.page or item.page.endswith(".md") or pages.document(item.page):
        return item.status
    return "small" if pages.document(f"small/{item.page}") else "missing"


def _link(page: str, pages: Pages) -> str:
    if not page:
        return ""
    if page.endswith(".md"):
        name = page.removesuffix(".md")
        return f"[{name}](reproductions/{page})" + (", stale" if name in pages.stale else "")
    if pages.document(page) is None and pages.document(f"small/{page}") is not None:
        page = f"small/{page}"
    if pages.document(page) is None:
        return f"`{page.split('/')[-1]}`, not printed"
    return f"[{page}](reproductions/{_place(page)}.md)" + (", stale" if _place(page) in pages.stale else "")


def unknown(folder: Path) -> list[str]:
    """What the list names and no page has: a page without a reproduction, or a cell that is not there."""
    pages, wrong = Pages(folder / "reproductions"), []
    for item in items():
        page = item.page.split("/")[-1]
        if page and not page.endswith(".md") and page not in REPRODUCTIONS:
            wrong.append(f"{item.name}: no reproduction is named {page}")
        for name, asked in _NUMBER.findall(item.ours):
            if pages.document(name) is not None and pages.number(name, asked) == "–":
                wrong.append(f"{item.name}: {name} has no {asked}")
    return wrong


def main(arguments: Sequence[str]) -> None:
    """Write the page into a folder of documents."""
    folder = Path(arguments[0] if arguments else "docs")
    (folder / "papers.md").write_text(rendered(folder), encoding="utf-8")
    for wrong in unknown(folder):
        print(wrong, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
