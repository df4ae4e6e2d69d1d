"""`remanence table`: which rows of my table come back out of this fitted model?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remanence.cli.grouped import options, stored
from remanence.cli.playing import Shared, play
from remanence.core.exceptions import InputError, MisfitError

if TYPE_CHECKING:
    from remanence.protocol import AnyGame
    from remanence.tables.sklearn import TableGame


@options("A fitted model and its table")
class TableOptions:
    """A fitted model's table, and what to know about it."""

    data: Annotated[Path | None, "The table that the model was fitted on, .csv or .parquet."] = None
    label: Annotated[str | None, "The column that the model predicts; unsupervised models need none."] = None
    trusted: Annotated[
        str | None, "Comma-separated types in the .skops file that you trust and skops does not."
    ] = None
    weights: Annotated[str | None, "The column of the sample weights that fit() was given."] = None
    by: Annotated[
        str | None, "Columns to break results down by, such as sex,region: which group is more exposed."
    ] = None

    known: Annotated[
        str,
        "What the adversary knows: all-but-one, the other rows; none; or columns:a,b, the other rows and "
        "these columns of the missing one.",
    ] = "all-but-one"


def table(
    model: Annotated[
        str | None,
        typer.Argument(help="A fitted model: a .skops file, or path/to/file.py:function that returns it."),
    ] = None,
    *,
    table: TableOptions,
    show_reconstructions: Annotated[
        bool, "Write the recovered rows to rows.csv, for your eyes only. They are training data."
    ] = False,
    shared: Shared,
) -> None:
    """Tell which rows and columns of a table come back out of the model that was fitted on it.

    The model is refused if it was not fitted on this table. Needs `pip install '.[tables]'` for .skops and
    .parquet files.
    """
    from remanence.tables.findings import show_table

    if model is None or table.data is None:
        raise InputError(
            "A fitted model is audited with its table.",
            needs="a model, and --data with the table that it was fitted on",
            got="no model" if model is None else f"{model} without --data",
            hint="remanence table model.skops --data train.csv --label outcome",
        )
    play(
        lambda _: load_table_game(model, table),
        replace(shared, device="cpu"),
        command="table",
        target=model,
        stored={"model": model, **stored(table), "show_reconstructions": show_reconstructions},
        keep=show_reconstructions,
        show=lambda result, game, folder: show_table(result, game, folder, table, rows=show_reconstructions),
    )


def load_table_game(target: str, options: TableOptions) -> AnyGame:
    """The game of a model file and a table file."""
    from remanence.tables.parts import final_estimator
    from remanence.tables.reading import codes_as_numbers, load_estimator, read_table
    from remanence.tables.rows import classes_of
    from remanence.tables.sklearn import learns_from_labels, with_known

    assert options.data is not None
    estimator = load_estimator(target, list(filter(None, (options.trusted or "").split(","))))
    frame = read_table(options.data)
    columns_named(options.by, frame.columns, "--by")
    weights = columns_named(options.weights, frame.columns, "--weights")
    label = options.label or ""
    labels = _label_column(frame, options.label, needed=learns_from_labels(final_estimator(estimator)))
    if label and not any(isinstance(name, str) for name in classes_of(estimator)):
        labels = codes_as_numbers(labels.to_frame())[label]
    features = frame.drop(columns=[name for name in (label, *weights) if name])
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and set(map(str, names)) <= set(map(str, features.columns)):
        unused = [str(name) for name in features.columns if name not in set(names)]
        if unused:
            typer.echo(f"Not used by the model, and left out: {', '.join(unused)}.", err=True)
        features = features[list(names)]  # columns are matched by name, whatever their order in the file
    own = frame[weights[0]] if weights else None
    game = _first_that_belongs(estimator, features, labels, own)
    columns = [column.name for column in game.mechanism.rows.columns]
    if options.known == "all-but-one":
        return game
    if options.known == "none":
        return with_known(game, others=False)
    kind, _, names = options.known.partition(":")
    if kind != "columns" or not names.strip(","):
        raise InputError(
            "It is not clear what the adversary knows.",
            needs="all-but-one, none, or columns: and comma-separated names",
            got=f"--known {options.known}",
            hint=f"--known columns:{columns[0]}",
        )
    return with_known(game, columns=columns_named(names, columns, "--known columns:"))


def _label_column(frame: Any, label: str | None, *, needed: bool) -> Any:
    """The labels; None for an unsupervised model."""
    if label is None and not needed:
        return None
    if label is None or label not in frame.columns:
        got = f"{f'--label {label}' if label else 'none'}; the columns {', '.join(map(str, frame.columns))}"
        needs, hint = "--label with one of the table's columns", f"--label {list(frame.columns)[-1]}"
        raise InputError("The label is missing.", needs=needs, got=got[:300], hint=hint)
    if frame[label].isna().any():
        raise InputError(
            f"The label {label!r} has gaps.",
            needs="a label in every row",
            got=f"{int(frame[label].isna().sum())} of {len(frame)} cells empty",
            hint="the table as it was passed to fit()",
        )
    return frame[label].astype(str) if frame[label].dtype.kind == "O" else frame[label]


def _first_that_belongs(estimator: Any, features: Any, labels: Any, weights: Any) -> TableGame:
    """The game of what fit() was given: a file does not say whether 01234 was a number, nor what stands for a label."""
    from remanence.tables.reading import codes_as_numbers
    from remanence.tables.rows import codings
    from remanence.tables.sklearn import table_game

    refused, numbers = None, codes_as_numbers(features)
    readings = [features] if numbers is features else [numbers, features]
    for coding, table in itertools.product(codings(estimator, labels), readings):
        try:
            own = labels if coding is None else labels.map(coding).rename(labels.name)
            game = table_game(estimator, table, own, weights)
            game.fits()
        except (MisfitError, InputError) as error:
            refused = (refused or error) if table is features else refused
            continue
        if coding is not None:
            said = ", ".join(f"{word} for {code}" for word, code in coding.items())
            typer.echo(f"The model was fitted on other labels than the table's. Taken: {said}.", err=True)
        return game
    assert refused is not None
    raise refused


def columns_named(names: str | None, columns: Sequence[Any], option: str) -> list[str]:
    """The columns that an option names, separated by commas."""
    chosen, known = [name for name in (names or "").split(",") if name], [str(name) for name in columns]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise InputError(
            f"There is no such column for {option}.",
            needs=", ".join(known)[:300],
            got=", ".join(unknown),
            hint="comma-separated names of the table's columns",
        )
    return chosen
