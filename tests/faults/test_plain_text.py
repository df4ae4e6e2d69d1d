"""Nothing that a file or a folder's name brings along commands a terminal, a CI host or a reader."""

import csv
import json
import os
import stat

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from audit_results import result
from remanence import AuditResult, InputError, Verdict
from remanence.core.plain_text import plain, plainly
from remanence.report import markdown
from remanence.results.storage import DOCUMENT
from remanence.scale.journal import Journal, Plan
from remanence.tables.findings import write_rows
from remanence.tables.sklearn import table_game

EVIL = "[/red]\x1b[2J\n::error::owned\u202e @everyone https://evil.example www.evil.example #1 \u2028::warning::x"


@given(st.text())
def test_any_text_becomes_one_visible_line_that_stays_as_it_is(text):
    shown = plain(text)
    assert len(shown.splitlines()) <= 1
    assert not shown.lstrip().startswith(("::", "##"))
    assert not any(ord(character) in {0x1B, 0x202E, 0x2066, 0x7F} for character in shown)
    assert plain(shown) == shown
    shown.encode()


def test_ordinary_text_is_left_alone():
    for text in ("κ ≤ 0.1, σ × 2 – fine", "größer ✓ 日本語", "a [bold] name", "C:\\files"):
        assert plain(text) == text
    assert plainly({"a": ["b", 1, None]}) == {"a": ["b", 1, None]}


def test_an_error_is_four_lines_whatever_it_quotes():
    told = str(InputError(EVIL, needs=EVIL, got=EVIL, hint=EVIL))
    assert len(told.split("\n")) == 4
    assert "\x1b" not in told
    assert not any(line.lstrip().startswith("::") for line in told.split("\n"))


def poisoned(folder):
    result(Verdict.EXPOSED).save(folder)
    document = json.loads((folder / DOCUMENT).read_text())
    document["target"] = EVIL
    document["threat_model"]["sees"] = EVIL
    document["evidence"][0]["caveats"] = [{"id": EVIL, "means": EVIL, "do": EVIL}]
    document["environment"]["device"] = EVIL
    (folder / DOCUMENT).write_text(json.dumps(document))


@pytest.mark.parametrize("command", ["show RUN", "report RUN --format markdown", "status RUN"])
def test_a_poisoned_result_in_a_poisoned_folder_is_shown(tmp_path, run, command):
    folder = tmp_path / "[/red] [bold]\x1b[2J name"
    journal = Journal(folder)
    journal.begin({"options": {"command": "audit", "target": EVIL}})
    journal.announce([Plan(EVIL, "x", 10, 2)])
    poisoned(folder)
    code, out, err = run(*(str(folder) if word == "RUN" else word for word in command.split()))
    assert code in (0, 1)
    for line in (out + err).split("\n"):
        assert "\x1b[2J" not in line
        assert "\u202e" not in line
        assert not line.lstrip().startswith("::")
    assert "[/red]" in out.replace("\\", "")


def test_markdown_calls_nobody_and_opens_nothing(tmp_path):
    poisoned(tmp_path)
    text = markdown.summary(AuditResult.load(tmp_path))
    assert "@everyone" not in text
    assert "https://" not in text
    assert "www.evil" not in text
    assert " #1" not in text
    assert "&#64;everyone" in text


NASTY = ["=HYPERLINK(1)", "+1", "-2+3", "@SUM(1)", "\t=1", "fine", " =1", "\r=2"]


def test_cells_and_names_of_columns_are_inert(tmp_path):
    frame = pd.DataFrame({"=cmd()": NASTY * 4, "town": ["a", "b"] * 16})
    labels = [n % 2 for n in range(32)]
    model = make_pipeline(OneHotEncoder(), KNeighborsClassifier(1)).fit(frame, labels)
    game = table_game(model, frame, labels)
    path = write_rows(game.mechanism, game.data, game.release, tmp_path)
    with path.open(newline="") as file:
        names, *rows = csv.reader(file)
    cells = {cell for row in [names, *rows] for cell in row}
    assert "'=cmd()" in names
    assert {"'=HYPERLINK(1)", "'+1", "'@SUM(1)", "fine", "' =1"} <= cells
    assert not {cell for cell in cells if cell.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r")}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600  # noqa: PTH116
