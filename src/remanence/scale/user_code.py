"""A user's own file, run as an import would run it."""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType

from remanence.core.exceptions import InputError, RemanenceError


def functions_in(path: Path) -> list[str]:
    """The names of a file's own functions, read and not run."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def call_factory(path: Path, factory: str, what: str) -> object:
    """What the function of this name in this file returns."""
    spec = importlib.util.spec_from_file_location(f"remanence_factory_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(
            "The file with the factory was not found.",
            needs="an existing Python file ending in .py",
            got=str(path),
            hint="a path relative to the current folder, then a colon and the function's name",
        )
    module = importlib.util.module_from_spec(spec)
    try:
        _execute(spec.loader, module, path)
        function = getattr(module, factory, None)
        if not callable(function):
            raise InputError(
                f"{path} has no function named {factory!r}.",
                needs=f"a function without arguments that returns {what}",
                got=f"a file with {', '.join(functions_in(path)) or 'no functions'}",
                hint=f"{path}:{next(iter(functions_in(path)), 'factory')}",
            )
        return function()
    except RemanenceError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            "The factory raised an error.",
            needs=f"a function that returns {what}",
            got=f"{type(error).__name__}: {error} ({_place(error, path)})",
            hint=f"call {factory}() on its own first, in a Python session",
        ) from error


def _execute(loader: Loader, module: ModuleType, path: Path) -> None:
    """Run the file as an import would: known by its name, and with its neighbours within reach."""
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        loader.exec_module(module)
    finally:
        # Unknown again: its functions then travel to worker processes by value.
        sys.modules.pop(module.__name__, None)


def _place(error: BaseException, path: Path) -> str:
    """The line of the user's own file that the error passed through last."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return f"{path}, line {lines[-1]}" if lines else f"while loading {path}"
