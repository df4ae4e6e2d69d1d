"""What came back of a table, by column and by group: printed, and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from remanence.auditing import AuditResult
from remanence.cli.playing import console
from remanence.core.checks import extra
from remanence.core.plain_text import inert, plain
from remanence.core.rates import CONFIDENCE, SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.protocol import AnyGame
from remanence.results.evidence import Evidence
from remanence.scale.files import write_files
from remanence.tables.attacks import WholeObject
from remanence.tables.command import TableOptions
from remanence.tables.game import LeaveOneOut
from remanence.tables.mechanism import FittedModel
from remanence.tables.reading import read_table
from remanence.tables.single_columns import MAIN, Columns, PartRate
from remanence.tables.stored import StoredRows


def column_findings(result: AuditResult, model: FittedModel) -> list[dict[str, Any]]:
    """For each column, how many rows gave its value to the best attack, and the success of a guess."""
    kinds = {column.name: "word" if column.categories else "number" for column in model.rows.columns}
    found = []
    for each in zip(*(_parts(evidence) for evidence in result.evidence), strict=True):
        best = max(each, key=lambda part: part.main.successes)
        kind = kinds.get(best.name, "label")
        found.append({"column": best.name, "kind": kind, **_counts(best.main), "guess": best.guess})
    return found


def _parts(evidence: Evidence) -> tuple[PartRate, ...]:
    return next((each.parts for each in evidence.findings if isinstance(each, Columns)), ())


def group_findings(result: AuditResult, groups: np.ndarray, threshold: float) -> list[dict[str, Any]]:
    """For each group, how many whole rows, and how many values of each column, the strongest attack recovered.

    The most exposed come first. All intervals hold jointly.
    """
    best = result.strongest
    own = groups[best.arrays["record"].numpy()]
    names = sorted(set(own.tolist()), key=str)
    whole = best.arrays["succeeded"][:, 0].bool().numpy()
    met = {part.name: (best.arrays[MAIN + part.name] <= threshold).numpy() for part in _parts(best)}
    confidence = 1 - (1 - CONFIDENCE) / (len(names) * (1 + len(met)))

    def counts(here: np.ndarray) -> dict[str, Any]:
        return _counts(SuccessRate(int(here.sum()), len(here), confidence))

    found = []
    for name in names:
        columns = [{"column": column, **counts(right[own == name])} for column, right in met.items()]
        called = name if isinstance(name, int | float) else str(name)
        found.append({"group": called, **counts(whole[own == name]), "columns": columns})

    def share(group: dict[str, Any]) -> float:
        return sum(each["recovered"] for each in (group, *group["columns"])) / group["rows"]

    return sorted(found, key=share, reverse=True)


def _counts(rate: SuccessRate) -> dict[str, Any]:
    return {"recovered": rate.successes, "rows": rate.trials, "lower": rate.lower, "upper": rate.upper}


def show_table(
    result: AuditResult, game: AnyGame, folder: Path, options: TableOptions, *, rows: bool
) -> None:
    """Print what came back, by column and by group, and write it to columns.json; and `rows` to rows.csv."""
    assert options.data is not None
    frame, by = read_table(options.data), (options.by or "").split(",")
    cells = {name: frame[name].astype(object).where(frame[name].notna(), "(empty)") for name in by if name}
    limit = game.criterion.threshold
    groups = {name: group_findings(result, column.to_numpy(), limit) for name, column in cells.items()}
    assert isinstance(game, LeaveOneOut)
    model = game.mechanism
    assert isinstance(model, FittedModel)
    plans = (plan for _, plan in model.fitting.plans if isinstance(plan, StoredRows))
    held = [{"path": plan.path, "rows": plan.count} for plan in plans]
    columns = column_findings(result, model)
    document = {"columns": columns, "by": groups, "stored_rows": held}
    write_files(folder, {"columns.json": (json.dumps(document, indent=2) + "\n").encode()})
    out = console()
    for entry in held:
        out.print(f"{entry['path']} holds {entry['rows']} rows of the table verbatim.", highlight=False)
    shown = Table("column", "kind", "came back", "by a guess", title="Whose values came back")
    for row in columns:
        shown.add_row(plain(row["column"]), row["kind"], _rate(row), f"{row['guess'] * 1000:.0f} in 1000")
    out.print(shown)
    for name, found in groups.items():
        names = [plain(each["column"]) for each in found[0]["columns"]]
        table = Table(plain(name), "whole rows", *names, title=f"Came back, by {plain(name)}")
        for row in found:
            by_column = (str(each["recovered"]) for each in row["columns"])
            table.add_row(plain(row["group"]), _rate(row), *by_column)
        out.print(table)
    if rows and game.release:
        written = write_rows(model, game.data, game.release, folder)
        out.print(f"Rows, for your eyes only: {written}", highlight=False, soft_wrap=True)


def _rate(row: dict[str, Any]) -> str:
    return f"{row['recovered']} of {row['rows']} ({row['lower'] * 1000:.0f} to {row['upper'] * 1000:.0f} in 1000)"


def write_rows(model: FittedModel, data: Records, release: Release, folder: Path) -> Path:
    """All recovered rows, in the table's own values, in a file that only its owner can read."""
    pd = extra("pandas", "tables", "pandas, which writes tables")
    found = WholeObject().expose(model, data, release).records
    table, labels = model.table(Records(found.flat[:, 0], found.labels[:, 0]))
    frame = pd.DataFrame(table, columns=[column.name for column in model.rows.columns])
    cells = frame.assign(label=labels).rename(columns=inert).map(inert)
    write_files(folder, {"rows.csv": cells.to_csv(index=False).encode()})  # for its owner alone
    return folder / "rows.csv"
