"""Fitted models and tables from files. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from remanence.core.checks import extra, refusing
from remanence.core.exceptions import InputError
from remanence.scale.reading import GIB, UnusableFileError, is_whole_array, measured, read_archive
from remanence.tables.parts import require_fitted

_MOST = 16 * GIB  # of a model, unpacked
_MOST_CELLS = 2**31  # of a table: 16 GiB of numbers
_EXECUTES = (".pkl", ".pickle", ".joblib", ".sav", ".pt")
_TABLE = "a .csv or .parquet file"


def load_estimator(target: str, trusted: Sequence[str] = ()) -> Any:
    """A fitted model from a .skops file, or what a function returns.

    skops opens the types that it trusts itself, and those that are named in `trusted`.
    """
    path, colon, function = target.rpartition(":")
    if colon and path.endswith(".py"):
        from remanence.scale.user_code import call_factory

        model = call_factory(Path(path), function, "a fitted model")
        require_fitted(model)
        return model
    file = Path(target)
    if not file.is_file() or file.suffix == ".py":
        raise InputError(
            "There is no such model.",
            needs="a .skops file, or path/to/file.py:function",
            got=target,
            hint=f"{target}:function, which returns the fitted model" if file.is_file() else "check the path",
        )
    parts: dict[str, bytes] = {}
    if file.suffix.lower() not in _EXECUTES:
        with suppress(UnusableFileError):
            parts = read_archive(file, _MOST)
    if "schema.json" not in parts:
        raise InputError(
            "This file is not opened: a pickle or joblib file executes code when it is loaded.",
            needs="a .skops file, which holds data only",
            got=f"{file.name}, which is not one",
            hint='python -c "from joblib import load; from skops.io import dump; '
            f"dump(load('{file.name}'), 'model.skops')\", if you trust the file",
        )
    skops = extra("skops.io", "tables", "skops, which reads fitted models")
    needs, hint = "a .skops file as skops.io.dump writes it", "skops.io.dump(model, 'model.skops')"
    with refusing(Exception, "The model cannot be read.", needs=needs, got=file.name, hint=hint):
        for name, content in parts.items():
            if name.endswith(".npy") and not is_whole_array(content):
                raise UnusableFileError(f"{name[:80]} holds objects, or is truncated")
        unknown = sorted(set(skops.get_untrusted_types(file=file)) - set(trusted))
        if unknown:
            raise InputError(
                "The model holds types that skops does not trust by itself.",
                needs="types that you know: opening a type can run its code",
                got=", ".join(unknown)[:300],
                hint=f"--trusted {','.join([*trusted, *unknown])}, if the file is yours",
            )
        model = skops.load(file, trusted=list(trusted))
    require_fitted(model)
    # A folder of joblib's, which would be unpickled.
    return model.set_params(**dict.fromkeys(name for name in model.get_params() if name.endswith("memory")))


def read_table(path: Path) -> Any:
    """A CSV or Parquet file as a DataFrame."""
    pd = extra("pandas", "tables", "pandas, which reads tables")
    with refusing(
        UnusableFileError, "There is no such table.", needs=_TABLE, got=path, hint="check the path"
    ):
        measured(path)
    hint = "a line of column names first, as frame.to_csv(path, index=False) writes it"
    with refusing(Exception, "The table cannot be read.", needs=_TABLE, got=path, hint=hint):
        if path.suffix.lower() not in (".parquet", ".pq"):
            text = pd.read_csv(path, dtype=str)
            if len(text.columns) == 1 and ";" in str(text.columns[0]):
                raise UnusableFileError("semicolons between the columns, where commas are expected")
            return _with_codes(pd.read_csv(path), text)
        with extra("pyarrow.parquet", "tables", "pyarrow, which reads Parquet").ParquetFile(path) as file:
            cells = file.metadata.num_rows * file.metadata.num_columns
            if cells > _MOST_CELLS:  # a run of equal values is a few bytes, but is unpacked in full
                raise UnusableFileError(f"{cells:,} cells; the limit is {_MOST_CELLS:,}")
            return file.read().to_pandas()


def _with_codes(frame: Any, text: Any) -> Any:
    """A table in which numbers that begin with a zero, such as the postcode 01234, stay text."""
    for name in frame.columns:
        if frame[name].dtype.kind in "iuf" and text[name].str.fullmatch(r"0\d+").any():
            frame[name] = text[name]
    return frame


def codes_as_numbers(frame: Any) -> Any:
    """The same table with codes such as 01234 as numbers; itself where it holds none."""
    import pandas as pd

    words, digits = frame.select_dtypes(exclude="number"), r"-?\d+(\.\d+)?"
    codes = [name for name in words if words[name].dropna().astype(str).str.fullmatch(digits).all()]
    if not codes:
        return frame
    numbers = frame.copy()
    numbers[codes] = words[codes].apply(pd.to_numeric)
    return numbers
