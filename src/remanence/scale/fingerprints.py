"""One hash for a value and all that it is made of: equal settings and data hash alike in every process."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

# What these contain is known by their versions, ours by the hash of its files.
_LIBRARIES = {"remanence", "torch", "numpy", "scipy", "sklearn", "builtins", "functools", "collections"}
_PACKAGE = Path(__file__).parent.parent
_INSTALLED = {"site-packages", "dist-packages"}


def fingerprint(*values: Any) -> str:
    """The hash of settings, tensors, functions with what they close over, and anything made of them.

    Fields of a dataclass that take no part in its comparison take no part here.

    >>> fingerprint("a", 1) == fingerprint("a", 1), fingerprint("a", 1) == fingerprint("a", 2)
    (True, False)
    >>> add = lambda n: lambda x: x + n
    >>> fingerprint(add(1)) == fingerprint(add(1)), fingerprint(add(1)) == fingerprint(add(2))
    (True, False)
    """
    digest = hashlib.sha256()
    _feed(values, digest.update, [])
    return digest.hexdigest()


@cache
def code_version() -> str:
    """The hash of this package's source: no unit outlives a change of the code."""
    digest = hashlib.sha256()
    root = _PACKAGE
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def code_beside(path: Path) -> str:
    """The hash of a file and of all that it imports from its folder: what somebody's function may be made of.

    Imports are read, not only looked up among those that have happened: one within a function happens later.
    """
    folder = path.parent.resolve()
    loaded = [Path(getattr(module, "__file__", None) or "/") for module in list(sys.modules.values())]
    loaded = [file.resolve() for file in loaded if not _INSTALLED & set(file.parts)]
    files = {folder / path.name, *(file for file in loaded if _is_beside(file, folder))}
    waiting = list(files)
    while waiting:
        found = {file for file in _imports(waiting.pop(), folder) if _is_beside(file, folder)} - files
        files |= found
        waiting += found
    digest = hashlib.sha256()
    for file in sorted(files):
        name = file.relative_to(folder).as_posix().encode()
        digest.update(name + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _is_beside(file: Path, folder: Path) -> bool:
    """Whether it is source of the user's own beneath the folder, where an environment may be too."""
    installed = (Path(place).resolve() for place in (_PACKAGE, sys.prefix, sys.base_prefix))
    return (
        file.suffix == ".py"
        and file.is_relative_to(folder)
        and not _INSTALLED & set(file.parts)
        # A system's Python is installed in /usr, where a project of one's own may be as well.
        and not any(file.is_relative_to(place) and not folder.is_relative_to(place) for place in installed)
        and file.is_file()
    )


def _imports(file: Path, folder: Path) -> Iterator[Path]:
    """Where what a file imports would be found beneath the folder, wherever in the file the import stands."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # not Python that could run
    roots = [folder, *(Path(place).resolve() for place in sys.path)]
    for node in nodes:
        if isinstance(node, ast.Import):
            starts, names = roots, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            starts = [*file.parents][node.level - 1 : node.level] if node.level else roots
            module = f"{node.module}." if node.module else ""
            names = [f"{module}{alias.name}" for alias in node.names]
        else:
            continue
        for start, name in itertools.product(starts, names):
            for part in name.split("."):
                start /= part
                yield from (start.with_name(f"{part}.py"), start / "__init__.py")


def device_kind(device: torch.device | str) -> str:
    """Devices of one kind compute the same bits: the GPU's name, or cpu."""
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


def _feed(value: Any, take: Callable[[bytes], object], parents: list[int]) -> None:
    """Write a value so that different ones are written differently, parts within brackets after their type."""

    def parts(*items: Any) -> None:
        take(b"(")
        for item in items:
            _feed(item, take, [*parents, id(value)])
        take(b")")

    if id(value) in parents:
        take(b"itself")
        return
    kind = type(value)
    take(f"{kind.__module__}.{kind.__qualname__}:".encode())
    if value is None or isinstance(value, bool | int | float | complex | str | Path | torch.dtype | range):
        take(repr(value).encode() + b";")
    elif isinstance(value, bytes):
        take(hashlib.sha256(value).digest())
    elif isinstance(value, Enum):
        take(value.name.encode() + b";")
    elif isinstance(value, torch.Tensor):
        parts(str(value.dtype), tuple(value.shape), value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        parts(str(value.dtype), value.shape, value.tobytes())
    elif isinstance(value, torch.Generator):
        parts(value.get_state())
    elif isinstance(value, Mapping):
        parts(*sorted(((fingerprint(key), item) for key, item in value.items()), key=lambda pair: pair[0]))
    elif isinstance(value, list | tuple):
        parts(*value)
    elif isinstance(value, set | frozenset):
        parts(*sorted(fingerprint(item) for item in value))
    elif isinstance(value, type):
        parts(value.__module__, value.__qualname__, *_methods(value))
    elif isinstance(value, ModuleType | BuiltinFunctionType):
        take(f"{getattr(value, '__module__', '')}.{value.__name__};".encode())
    elif isinstance(value, MethodType):
        parts(value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts(value.__module__, value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__)
        parts(*cells, *_neighbours(value))
    elif isinstance(value, CodeType):
        parts(value.co_code, value.co_names, value.co_consts)
    elif dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if field.compare]
        parts(kind, *((name, getattr(value, name)) for name in fields))
    else:
        parts(*_reduced(value))


def _methods(kind: type) -> list[Any]:
    """What a class of the user's own does."""
    if kind.__module__.split(".")[0] in _LIBRARIES:
        return []
    return [item for item in vars(kind).values() if isinstance(item, FunctionType)]


def _neighbours(function: FunctionType) -> list[Any]:
    """Functions and plain values of the user's own file that a function uses by name."""
    if (function.__module__ or "").split(".")[0] in _LIBRARIES:
        return []
    used = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [
        item
        for item in used
        if isinstance(item, bool | int | float | str | torch.Tensor)
        or (isinstance(item, FunctionType) and item.__module__ == function.__module__)
    ]


def _reduced(value: Any) -> tuple[Any, ...]:
    """What a pickle would hold; the type alone where nothing can be read."""
    try:
        found = value.__reduce_ex__(4)
    except (TypeError, AttributeError):
        return (type(value),)
    return found if isinstance(found, tuple) else (found,)
