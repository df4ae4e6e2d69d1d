"""What came back of a table, by column and by group: printed, and in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remanence.cli.output import console
from remanence.core.checks import extra
from remanence.core.plain_text import inert, plain
from remanence.scale.files import write_files
from remanence.tables.command import TableOptions
from remanence.tables.reading import read_table

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.core.records import Records
    from remanence.core.releases import Release
    from remanence.protocol import AnyGame
    from remanence.tables.fitted import FittedModel


def show_table(
    result: AuditResult, game: AnyGame, folder: Path, options: TableOptions, *, rows: bool
) -> None:
    """Print what came back, by column and by group, and write it to columns.json; and `rows` to rows.csv."""
    from rich.table import Table

    from remanence.tables.columns import column_findings, group_findings
    from remanence.tables.fitted import FittedModel
    from remanence.tables.from_object import stored_in
    from remanence.tables.leave_one_out import LeaveOneOut

    assert options.data is not None
    frame, by = read_table(options.data), (options.by or "").split(",")
    cells = {name: frame[name].astype(object).where(frame[name].notna(), "(empty)") for name in by if name}
    limit = game.criterion.threshold
    groups = {name: group_findings(result, column.to_numpy(), limit) for name, column in cells.items()}
    model, held, columns = game.mechanism, [], []
    if isinstance(model, FittedModel):
        held = [{"path": plan.path, "rows": plan.count} for plan in stored_in(model)]
        columns = column_findings(result, model)
    document = {"columns": columns, "by": groups, "stored_rows": held}
    write_files(folder, {"columns.json": (json.dumps(document, indent=2) + "\n").encode()})
    out = console()
    for entry in held:
        out.print(f"{entry['path']} holds {entry['rows']} rows of the table as they are.", highlight=False)
    if columns:
        shown = Table("column", "kind", "came back", "by a guess", title="Whose values came back")
        for row in columns:
            shown.add_row(plain(row["column"]), row["kind"], _rate(row), f"{row['guess'] * 1000:.0f} in 1000")
        out.print(shown)
    for name, found in groups.items():
        names = [each["column"] for each in found[0]["columns"]]
        table = Table(plain(name), "whole rows", *map(plain, names), title=f"Came back, by {plain(name)}")
        for row in found:
            table.add_row(
                plain(row["group"]), _rate(row), *(str(each["recovered"]) for each in row["columns"])
            )
        out.print(table)
    if rows and isinstance(game, LeaveOneOut) and game.release and isinstance(model, FittedModel):
        told = write_rows(model, game.data, game.release, folder)
        out.print(f"Rows, for your eyes only: {told}", highlight=False, soft_wrap=True)


def _rate(row: dict[str, Any]) -> str:
    return f"{row['recovered']} of {row['rows']} ({row['lower'] * 1000:.0f} to {row['upper'] * 1000:.0f} in 1000)"


def write_rows(model: FittedModel, data: Records, release: Release, folder: Path) -> Path:
    """All rows as they came back, in their own words, in a file that only its owner can read."""
    from remanence.core.records import Records
    from remanence.tables.from_object import WholeObject

    found = WholeObject().expose(model, data, release).records
    table, labels = model.table(Records(found.flat[:, 0], found.labels[:, 0]))
    pd = extra("pandas", "tables", "pandas, which writes tables")
    names = [column.name for column in model.rows.columns]
    frame = pd.DataFrame(table, columns=names) if not hasattr(table, "columns") else table
    cells = frame.assign(label=labels).rename(columns=inert).map(inert)
    write_files(folder, {"rows.csv": cells.to_csv(index=False).encode()})  # for its owner alone
    return folder / "rows.csv"
