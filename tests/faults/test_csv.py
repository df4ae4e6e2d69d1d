"""A table of rows that came back is opened in a spreadsheet: nothing in it is a formula."""

import csv
import os
import stat

import pandas as pd
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from remanence.tables.findings import write_rows
from remanence.tables.sklearn import table_game

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
