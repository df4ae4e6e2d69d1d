"""Fitted models from files, of which nothing is ever executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remanence.core.checks import extra, refusing
from remanence.core.exceptions import InputError
from remanence.scale.reading import GIB, UnusableFileError, read_archive
from remanence.tables.parts import require_fitted

_MOST = 16 * GIB  # of a model, unpacked
_EXECUTES = (".pkl", ".pickle", ".joblib", ".sav", ".pt")
_CONVERT = (
    "python -c \"from joblib import load; from skops.io import dump; dump(load('{}'), 'model.skops')\", "
    "if you trust the file"
)


def load_estimator(target: str) -> Any:
    """A fitted model from a .skops file, or what a function returns. Nothing is unpickled."""
    path, colon, function = target.rpartition(":")
    if colon and path.endswith(".py"):
        from remanence.scale.user_code import call_factory

        made = call_factory(Path(path), function, "a fitted model")
        require_fitted(made)
        return made
    file = Path(target)
    if not file.is_file():
        raise InputError(
            "There is no such model.",
            needs="a .skops file, or path/to/file.py:function",
            got=target,
            hint="check the path",
        )
    parts = {} if file.suffix.lower() in _EXECUTES else _parts(file)
    if "schema.json" not in parts:
        raise InputError(
            "This file is not opened: a pickle or joblib file executes code when it is loaded.",
            needs="a .skops file, which holds data only",
            got=f"{file.name}, which is none",
            hint=_CONVERT.format(file.name),
        )
    return _load_skops(file, parts)


def _parts(file: Path) -> dict[str, bytes]:
    try:
        return read_archive(file, _MOST)
    except UnusableFileError:
        return {}


def _load_skops(file: Path, parts: dict[str, bytes]) -> Any:
    skops = extra("skops.io", "tables", "skops, which reads fitted models")
    from remanence.tables.skops_files import check_parts, keep_inside, packed

    needs, hint = "a .skops file as skops.io.dump writes it", "skops.io.dump(model, 'model.skops')"
    with refusing(Exception, "The model cannot be read.", needs=needs, got=file.name, hint=hint):
        refused = check_parts(parts)
        if refused:
            raise InputError(
                "The model holds objects that no fitted model of scikit-learn needs.",
                needs="estimators of scikit-learn, numbers and arrays",
                got=", ".join(refused)[:300],
                hint="path/to/file.py:function that returns the fitted model, if the code is yours",
            )
        content = packed(parts)
        model = skops.loads(content, trusted=skops.get_untrusted_types(data=content))
        keep_inside(model)
    return model
