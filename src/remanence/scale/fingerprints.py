"""One hash for what an outcome depends on: settings, data, the user's files, this package and its libraries.

A function counts with its code, its defaults and its closure. What no hash sees, such as a global or a file that
training reads, is caught by playing one recorded unit again (`Run.map`).
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Mapping
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_PACKAGE = Path(__file__).parent.parent
_NUMERICAL = ("torch", "numpy", "scipy", "scikit-learn")


def fingerprint(*values: Any) -> str:
    """The hash of settings, tensors, functions, and anything made of them: the same in every process.

    Fields of a dataclass that take no part in its comparison take no part here.

    >>> fingerprint("a", 1) == fingerprint("a", 1), fingerprint("a", 1) == fingerprint("a", 2)
    (True, False)
    >>> add = lambda n: lambda x: x + n
    >>> fingerprint(add(1)) == fingerprint(add(1)), fingerprint(add(1)) == fingerprint(add(2))
    (True, False)
    """
    return _Walk().digest(values).hex()


@functools.cache
def code_version() -> str:
    """The hash of this package's source: no unit outlives a change of the code."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def versions() -> dict[str, str]:
    """What computes: Python, this package by its source, and the libraries whose arithmetic decides the last bits."""
    told = {"python": ".".join(map(str, sys.version_info[:3])), "remanence": code_version()}
    return {**told, **{name: version(name) for name in _NUMERICAL}}


def sources(start: Path) -> dict[str, str]:
    """The hashes of a user's file, and of every module beneath its folder that is loaded and was not installed."""
    start = start.resolve()
    loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    beside = {Path(file).resolve() for file in loaded if file}
    own = {start, *(file for file in beside if file.is_relative_to(start.parent) and not _is_installed(file))}
    return {
        file.relative_to(start.parent).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(own)
        if file.is_file()
    }


def arithmetic() -> dict[str, str]:
    """The settings of torch's arithmetic in this process."""
    matrix, fixed = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    found = {"numbers": torch.get_default_dtype(), "matrices": matrix, "deterministic": fixed}
    return {name: str(value) for name, value in found.items()}


def device_kind(device: torch.device | str) -> str:
    """Devices of one kind compute the same bits: the GPU's name, or cpu."""
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


def _is_installed(file: Path) -> bool:
    """Whether a file belongs to Python, to this package, or to an environment that may be next to the user's code."""
    places = {_PACKAGE, Path(sysconfig.get_paths()["stdlib"]).resolve()}
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or bool(places & set(file.parents))


class _Walk:
    """Visits each thing once."""

    def __init__(self) -> None:
        # With the value: otherwise its id might be another's by then.
        self.done: dict[int, tuple[object, bytes]] = {}

    def digest(self, value: Any) -> bytes:
        if id(value) not in self.done:
            self.done[id(value)] = value, b"itself"  # what it is to its own parts
            written = hashlib.sha256(f"{type(value).__module__}.{type(value).__qualname__}:".encode())
            self._write(value, written.update)
            self.done[id(value)] = value, written.digest()
        return self.done[id(value)][1]

    def _write(self, value: Any, take: Callable[[Any], object]) -> None:
        """Write a value so that different ones are written differently, parts within brackets."""

        def each(*items: Any) -> None:
            take(b"(")
            for item in items:
                take(self.digest(item))
            take(b")")

        def by_name(items: Mapping[str, Any]) -> None:
            take(b"{")
            for name, item in items.items():
                take(f"{name!r}:".encode("utf-8", "surrogatepass") + self.digest(item))
            take(b"}")

        match value:
            case Enum():
                each(value.name, value.value)
            case None | bool() | int() | float() | complex() | str() | Path() | torch.dtype() | range():
                take(repr(value).encode("utf-8", "surrogatepass"))
            case bytes() | bytearray():
                take(value)
            case torch.Tensor():
                there = value.detach().cpu()
                dense = there if value.layout == torch.strided else there.to_dense()
                each(
                    str(value.dtype), str(value.layout), tuple(value.shape), value.requires_grad, vars(value)
                )
                take(dense.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8).numpy())
            case np.ndarray() if type(value) is np.ndarray:
                each(str(value.dtype), value.shape)
                if value.dtype.hasobject:
                    each(*value.ravel().tolist())
                else:
                    take(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            case torch.Generator():
                each(value.get_state())
            case Mapping():
                each(None)
                if all(isinstance(key, str) for key in value):
                    by_name(value)
                else:
                    each(*value.items())
            case list() | tuple():
                each(*value)
            case set() | frozenset():
                each(*sorted(map(self.digest, value)))
            case type():
                each(value.__module__, value.__qualname__)
            case ModuleType():
                each(value.__name__)
            case BuiltinFunctionType():
                own = () if isinstance(value.__self__, ModuleType) else (value.__self__,)
                each(value.__module__, value.__qualname__, *own)
            case MethodType():
                each(value.__func__, value.__self__)
            case FunctionType():
                each(value.__module__, value.__qualname__)
                cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
                closure = {name: cell.cell_contents for name, cell in cells if cell != _EMPTY}
                defaults = {"defaults": value.__defaults__, "keywords": value.__kwdefaults__}
                by_name({"code": value.__code__, **defaults, **closure})
            case CodeType():
                each(value.co_code, value.co_names, value.co_consts, value.co_varnames, value.co_freevars)
                each(value.co_flags, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
            case _ if dataclasses.is_dataclass(value):
                by_name({f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare})
            case _:
                each(*_reduced(value))


_EMPTY = CellType()


def _reduced(value: Any) -> tuple[Any, ...]:
    """What a pickle would hold; nothing beyond its type for what cannot be copied, such as a lock."""
    try:
        known = copyreg.dispatch_table.get(type(value))
        found = known(value) if known else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001, whatever a user's class raises
        return ()
    return found if isinstance(found, tuple) else (found,)
