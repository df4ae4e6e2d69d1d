"""docs/papers.md: what it lists exists, its numbers are its pages', and it is the page that the command writes."""

import json
from pathlib import Path

from remanence_papers import items
from remanence_papers.registry import REPRODUCTIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_item_has_a_place_a_status_and_a_page_that_exists():
    every = items.items()
    assert len({item.name for item in every}) == len(every) == 168
    assert {item.status for item in every} <= items.STATUSES.keys()
    assert all(item.remark for item in every if item.status in ("below", "missing"))
    assert not [wrong for wrong in items.unknown(DOCS) if "no reproduction" in wrong]


def test_the_page_is_what_the_command_writes_apart_from_what_is_stale():
    def without_stale(text):
        lines = text.replace(", stale |", " |").splitlines()
        cells = [line for line in lines if line.startswith(("| B", "| H")) and line[3].isdigit()]
        return [line for line in lines if not line.startswith("| ")], cells

    assert without_stale((DOCS / "papers.md").read_text()) == without_stale(items.rendered(DOCS))


def test_a_number_is_read_off_the_row_that_is_asked_for(tmp_path):
    rows = [
        {"whose": "ours, network", "k": 1, "rate": {"rate": 0.25, "lower": 0.2, "upper": 0.3, "trials": 9}},
        {"whose": "ours, network", "k": 2, "rate": 0.5},
    ]
    folder = tmp_path / "reproductions" / "paper"
    folder.mkdir(parents=True)
    name = next(iter(REPRODUCTIONS))
    document = {"name": name, "rows": rows, "settings": {"limit": 7.5}}
    (folder / f"{name}.json").write_text(json.dumps(document))
    pages = items.Pages(tmp_path / "reproductions")
    assert pages.number(name, "rate @ whose=ours, network, k=1") == "0.250 (0.200 to 0.300)"
    assert pages.number(name, "rate @ k=2, whose=ours, network") == "0.500"
    assert pages.number(name, "rate @ k=3") == "–"
    assert pages.number(name, "limit") == "7.5"
    assert pages.stale == {f"paper/{name}"}
