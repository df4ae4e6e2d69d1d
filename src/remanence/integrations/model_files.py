"""Fitted models from files, of which nothing is ever executed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from remanence.exceptions import InputError
from remanence.scale.reading import GIB, UnusableFileError, members

_MOST = 16 * GIB  # of a model, unpacked
_EXECUTES = (".pkl", ".pickle", ".joblib", ".sav", ".pt")
_CONVERT = (
    "python -c \"from joblib import load; from skops.io import dump; dump(load('{}'), 'model.skops')\", "
    "if you trust the file"
)
# What selections and searches hold: they compute numbers from arrays, and nothing else.
_FUNCTIONS = "sklearn.feature_selection.", "sklearn.metrics."
_DATA = (
    "numpy.dtype",
    "scipy.interpolate._bsplines.BSpline",
    "scipy._lib.array_api_compat.numpy._aliases.asarray",
)


def load_estimator(target: str) -> Any:
    """A fitted model from a .skops file or from what a function returns; nothing is ever unpickled."""
    path, colon, function = target.rpartition(":")
    if colon and path.endswith(".py"):
        from remanence.scale.user_code import call_factory

        return call_factory(Path(path), function, "a fitted model")
    file = Path(target)
    if not file.is_file():
        raise InputError(
            "There is no such model.",
            needs="a .skops file, or path/to/file.py:function",
            got=target,
            hint="check the path",
        )
    if file.suffix.lower() == ".onnx":
        raise InputError(
            "ONNX files are not read yet.",
            needs="a .skops file of the estimator that the ONNX file was made from",
            got=file.name,
            hint="skops.io.dump(model, 'model.skops'); what the estimator gives away, its export may give away too",
        )
    if file.suffix.lower() in _EXECUTES or not _is_skops(file):
        raise InputError(
            "This file is not opened: a pickle or joblib file executes code when it is loaded.",
            needs="a .skops file, which holds data only",
            got=f"{file.name}, which is none",
            hint=_CONVERT.format(file.name),
        )
    return _load_skops(file)


def _is_skops(file: Path) -> bool:
    try:
        return "schema.json" in members(file, _MOST)
    except UnusableFileError:
        return False


def _load_skops(file: Path) -> Any:
    skops = needed("skops.io", "skops")
    try:
        unknown = skops.get_untrusted_types(file=file)
    except Exception as error:  # noqa: BLE001, whatever a stranger's file makes it raise
        raise _broken(file, error) from None
    refused = [name for name in unknown if not _is_data(name)]
    if refused:
        raise InputError(
            "The model holds objects that are not scikit-learn's.",
            needs="classes of scikit-learn and arrays",
            got=", ".join(refused)[:300],
            hint="path/to/file.py:function that returns the fitted model, if the code is yours",
        )
    try:
        return skops.load(file, trusted=unknown)
    except Exception as error:  # noqa: BLE001
        raise _broken(file, error) from None


def _broken(file: Path, error: Exception) -> InputError:
    return InputError(
        "The model cannot be read.",
        needs="a .skops file as skops.io.dump writes it",
        got=f"{file.name}: {next(iter(str(error).splitlines()), type(error).__name__)[:200]}",
        hint="skops.io.dump(model, 'model.skops')",
    )


def _is_data(name: str) -> bool:
    """Whether a name is that of a class within scikit-learn, or of a function that only computes."""
    module, _, attribute = name.rpartition(".")
    if name in _DATA:
        return True
    if module.split(".")[0] != "sklearn":
        return False
    try:
        held = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    return isinstance(held, type) or (callable(held) and f"{module}.".startswith(_FUNCTIONS))


def needed(module: str, package: str | None = None) -> Any:
    """A package that reads files, or a sentence that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"The package {package or module} is not installed.",
            needs="what reads tables and models from files",
            got="an environment without it",
            hint="pip install 'remanence[tables]'",
        ) from None
