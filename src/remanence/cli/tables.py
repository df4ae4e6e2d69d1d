"""Audits of fitted models and the tables that they were fitted on, from files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remanence.cli.output import console
from remanence.exceptions import InputError, MisfitError, RemanenceError
from remanence.plain_text import inert, plain
from remanence.scale.files import write_files
from remanence.scale.reading import UnusableFileError, measured

if TYPE_CHECKING:
    from remanence.auditing import AuditResult
    from remanence.games.leave_one_out import LeaveOneOut

_MOST_CELLS = 2**31  # of a table: 16 GiB of numbers
_PANEL = "A fitted model and its table"


@dataclass(frozen=True)
class TableOptions:
    """A fitted model's table, and what to know about it."""

    data: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="The table that the model was fitted on, .csv or .parquet. The target is then a .skops file, or "
            "path/to/file.py:function that returns the fitted model.",
        ),
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="The column that the model predicts; what learns without labels needs none.",
        ),
    ] = None
    weights: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, help="The column of the sample weights that fit() was given."),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Columns to tell results apart by, such as sex,region: who is exposed more.",
        ),
    ] = None

    known: Annotated[
        str,
        typer.Option(
            rich_help_panel=_PANEL,
            help="What the adversary knows: all-but-one, the other rows; none; or columns:a,b, the other rows and "
            "these columns of the missing one.",
        ),
    ] = "all-but-one"
    fixed_totals: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Columns whose totals a design fixes, as the arm of a balanced trial: a guess knows these too.",
        ),
    ] = None

    def stored(self) -> dict[str, str | None]:
        """As a run folder keeps it."""
        return {**vars(self), "data": str(self.data)} if self.data else {}


def load_table_game(target: str, options: TableOptions) -> LeaveOneOut:
    """The game of a model file and a table file."""
    from remanence.games.table_knowledge import with_fixed_totals, with_known
    from remanence.integrations.model_files import load_estimator
    from remanence.integrations.sklearn_tables import learns_from_labels
    from remanence.mechanisms.tables.parts import final_estimator

    assert options.data is not None
    estimator, frame = load_estimator(target), read_table(options.data)
    columns_named(options.by, frame.columns, "--by")
    weights = columns_named(options.weights, frame.columns, "--weights")
    label = options.label or ""
    labels = _label_column(frame, options.label, needed=learns_from_labels(final_estimator(estimator)))
    features = frame.drop(columns=[name for name in (label, *weights) if name])
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and set(map(str, names)) <= set(map(str, features.columns)):
        unused = [str(name) for name in features.columns if name not in set(names)]
        if unused:
            typer.echo(f"Not used by the model, and left out: {', '.join(unused)}.", err=True)
        features = features[list(names)]  # columns go by their names, whatever their order in the file
    own = frame[weights[0]] if weights else None
    game = _first_that_belongs(estimator, features, labels, own)
    fixed = columns_named(options.fixed_totals, [*game_columns(game), label], "--fixed-totals")
    game = with_fixed_totals(game, fixed, label)
    if options.known == "all-but-one":
        return game
    if options.known == "none":
        return with_known(game, others=False)
    if not options.known.startswith("columns:"):
        raise InputError(
            "It is not clear what the adversary knows.",
            needs="all-but-one, none, or columns: and names with commas between",
            got=f"--known {options.known}",
            hint=f"--known columns:{game_columns(game)[0]}",
        )
    given = columns_named(options.known.removeprefix("columns:"), game_columns(game), "--known columns:")
    return with_known(game, columns=given)


def _label_column(frame: Any, label: str | None, *, needed: bool) -> Any:
    """The labels; None for a model that learns without any."""
    if label is None and not needed:
        return None
    if label is None or label not in frame.columns:
        raise InputError(
            "The label is missing.",
            needs="--label with one of the table's columns",
            got=f"--label {label}; the columns {', '.join(map(str, frame.columns))}"[:300],
            hint=f"--label {list(frame.columns)[-1]}",
        )
    if frame[label].isna().any():
        raise InputError(
            f"The label {label!r} has gaps.",
            needs="a label in every row",
            got=f"{int(frame[label].isna().sum())} empty cells",
            hint="the table as it was passed to fit()",
        )
    return frame[label].astype(str) if frame[label].dtype.kind == "O" else frame[label]


def _first_that_belongs(estimator: Any, features: Any, labels: Any, weights: Any) -> LeaveOneOut:
    """The game with the labels as the model was given them: a file does not tell which number stood for which word."""
    from remanence.integrations.sklearn import table_game
    from remanence.mechanisms.tables.checked import codings

    refused = None
    for coding in codings(estimator, labels):
        try:
            own = labels if coding is None else labels.map(coding).rename(labels.name)
            game = table_game(estimator, features, own, weights)
        except MisfitError as error:
            refused = refused or error
            continue
        if coding is not None:
            said = ", ".join(f"{word} for {code}" for word, code in coding.items())
            typer.echo(f"The model was fitted on other labels than the table's. Taken: {said}.", err=True)
        return game
    assert refused is not None
    raise refused


def columns_named(names: str | None, columns: Sequence[Any], option: str) -> list[str]:
    """The columns that an option names, with commas between."""
    chosen, known = [name for name in (names or "").split(",") if name], [str(name) for name in columns]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InputError(
            f"There is no such column for {option}.",
            needs=", ".join(known)[:300],
            got=", ".join(unknown),
            hint="names of the table's columns, with commas between",
        )
    return chosen


def game_columns(game: LeaveOneOut) -> list[str]:
    """The columns of a table's game, by name."""
    from remanence.mechanisms.tables.fitted import FittedModel

    assert isinstance(game.mechanism, FittedModel)
    return [column.name for column in game.mechanism.rows.columns]


def read_table(path: Path) -> Any:
    """A CSV or Parquet file as a DataFrame."""
    from remanence.integrations.model_files import needed

    pd = needed("pandas")
    try:
        measured(path)
    except UnusableFileError as error:
        raise InputError(
            "There is no such table.",
            needs="a .csv or .parquet file",
            got=f"{path}: {error}",
            hint="check the path",
        ) from None
    try:
        if path.suffix.lower() not in (".parquet", ".pq"):
            return pd.read_csv(path)
        with needed("pyarrow.parquet", "pyarrow").ParquetFile(path) as file:
            cells = file.metadata.num_rows * file.metadata.num_columns
            if cells > _MOST_CELLS:  # a run of equal values takes a few bytes, and is unpacked all the same
                raise UnusableFileError(f"{cells:,} cells, and {_MOST_CELLS:,} are the most that is read")
            return file.read().to_pandas()
    except RemanenceError:
        raise
    except Exception as error:  # noqa: BLE001, whatever a stranger's file makes pandas or pyarrow raise
        raise InputError(
            "The table cannot be read.",
            needs="a CSV file with a line of column names, or Parquet",
            got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)[:200]}",
            hint="frame.to_csv(path, index=False)",
        ) from None


def show_table(result: AuditResult, game: object, folder: Path, options: TableOptions, *, rows: bool) -> None:
    """Print what came back, by column and by group, and write it to columns.json; and `rows` to rows.csv."""
    from rich.table import Table

    from remanence.games.leave_one_out import LeaveOneOut
    from remanence.mechanisms.tables.fitted import FittedModel
    from remanence.mechanisms.tables.identifiers import identifiers_in
    from remanence.report.columns import column_findings, group_findings

    assert isinstance(game, LeaveOneOut)
    assert options.data is not None
    frame, by = read_table(options.data), (options.by or "").split(",")
    columns = column_findings(result, game)
    groups = {
        name: group_findings(
            result, frame[name].astype(object).where(frame[name].notna(), "(empty)").to_numpy()
        )
        for name in by
        if name
    }
    held = [{"path": path, "rows": count} for path, count in _stored(game)]
    assert isinstance(game.mechanism, FittedModel)
    named = identifiers_in(game.mechanism.estimator, frame)
    document = {
        "columns": columns,
        "by": groups,
        "stored_rows": held,
        "identifiers": [vars(each) for each in named],
    }
    write_files(folder, {"columns.json": (json.dumps(document, indent=2) + "\n").encode()})
    out = console()
    for entry in held:
        out.print(f"{entry['path']} holds {entry['rows']} rows of the table as they are.", highlight=False)
    for each in named:
        said = f"{each.path} holds {each.count} values of the column {each.column}, which tells rows apart."
        out.print(plain(said), highlight=False)
    shown = Table("column", "kind", "came back", "by a guess", title="Whose values came back")
    for row in columns:
        shown.add_row(plain(row["column"]), row["kind"], _rate(row), f"{row['guess'] * 1000:.0f} in 1000")
    out.print(shown)
    for name, found in groups.items():
        table = Table(plain(name), "rows that came back", title=f"By {plain(name)}")
        for row in found:
            table.add_row(plain(row["group"]), _rate(row))
        out.print(table)
    if rows:
        out.print(f"Rows, for your eyes only: {write_rows(game, folder)}", highlight=False, soft_wrap=True)


def _rate(row: dict[str, Any]) -> str:
    return f"{row['recovered']} of {row['rows']} ({row['lower'] * 1000:.0f} to {row['upper'] * 1000:.0f} in 1000)"


def _stored(game: LeaveOneOut) -> list[tuple[str, int]]:
    from remanence.attacks.tables.from_object import stored_in
    from remanence.mechanisms.tables.fitted import FittedModel

    if not isinstance(game.mechanism, FittedModel):
        return []
    return [(plan.path, plan.count) for plan in stored_in(game.mechanism)]


def write_rows(game: LeaveOneOut, folder: Path) -> Path:
    """All rows as they came back, in their own words, in a file that only its owner can read."""
    from remanence.attacks.tables.from_object import WholeObject
    from remanence.data.records import Records
    from remanence.integrations.model_files import needed
    from remanence.mechanisms.tables.fitted import FittedModel

    assert isinstance(game.mechanism, FittedModel)
    assert game.release is not None
    found = WholeObject().expose(game.mechanism, game.data, game.release).records
    table, labels = game.mechanism.table(Records(found.flat[:, 0], found.labels[:, 0]))
    pd = needed("pandas")
    names = [column.name for column in game.mechanism.rows.columns]
    frame = pd.DataFrame(table, columns=names) if not hasattr(table, "columns") else table
    cells = frame.assign(label=labels).rename(columns=inert).map(inert)
    write_files(folder, {"rows.csv": cells.to_csv(index=False).encode()})  # for its owner alone
    return folder / "rows.csv"
