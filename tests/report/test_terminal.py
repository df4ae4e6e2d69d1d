"""An audit in a terminal of 80, 100 and 120 columns: nothing is cut, and the names that people type are whole."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from audit_results import result
from remanence import Verdict
from remanence.core.catalogue import catalogue
from remanence.report.terminal import audit_view, summary_table
from remanence.targets import TARGETS

SNAPSHOTS = Path(__file__).parent / "snapshots"


def printed(view, width: int) -> str:
    terminal = Console(width=width, file=io.StringIO(), markup=False, emoji=False)
    terminal.print(view)
    return "\n".join(line.rstrip() for line in terminal.file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_an_audit_looks_as_it_did_and_nothing_is_cut(width):
    """Look at the difference before you store it anew: `PYTHONPATH=tests python tests/report/test_terminal.py`."""
    text = views(width)
    assert text == (SNAPSHOTS / f"terminal-{width}.txt").read_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert all(each.strongest.attack in text for each in map(result, Verdict))


@pytest.mark.parametrize(("command", "names"), [("attacks", catalogue()), ("targets", TARGETS)])
@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_name_of_a_list_is_whole(command, names, width, monkeypatch, run):
    monkeypatch.setattr("remanence.cli.audit.console", lambda: Console(width=width, highlight=False))
    lines = re.sub("[│┃]", " ", run(command)[1]).splitlines()
    first = {line.split()[0] for line in lines if line.split()}
    assert set(names) <= first


def views(width: int) -> str:
    results = [result(verdict) for verdict in Verdict]
    parts = [summary_table(results, width), *(audit_view(each, width) for each in results)]
    # The fourteenth digit of an error is no promise.
    return re.sub(r"\d(\.\d)?e-1\d", "about 0", "\n".join(printed(part, width) for part in parts))


if __name__ == "__main__":
    SNAPSHOTS.mkdir(exist_ok=True)
    for columns in (80, 100, 120):
        (SNAPSHOTS / f"terminal-{columns}.txt").write_text(views(columns))
