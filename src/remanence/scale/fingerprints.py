"""One hash for a value and all that it depends on: equal settings, data and code hash alike in every process."""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import hashlib
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from remanence.core.checks import refusing
from remanence.core.exceptions import InputError
from remanence.scale.dependencies import (
    MARK,
    contents_of_class,
    contents_of_function,
    is_own_type,
    named_file,
    state_of,
)
from remanence.scale.sources import own_file, sources

T = TypeVar("T")
_MOST_PARTS = 400  # that are kept by name


def fingerprint(*values: Any) -> str:
    """The hash of settings, tensors, functions with all that they use, and anything made of them.

    Fields of a dataclass that take no part in its comparison take no part here.

    >>> fingerprint("a", 1) == fingerprint("a", 1), fingerprint("a", 1) == fingerprint("a", 2)
    (True, False)
    >>> add = lambda n: lambda x: x + n
    >>> fingerprint(add(1)) == fingerprint(add(1)), fingerprint(add(1)) == fingerprint(add(2))
    (True, False)
    """
    return _Walk().digest(values, "").hex()


def parts(**values: Any) -> dict[str, str]:
    """The hashes of named values, in full, and of what they are made of, so that a later change can be named."""
    walk = _Walk()
    for name, value in values.items():
        walk.named[name] = walk.digest(value, name).hex()
    return walk.named


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The innermost parts that differ.

    >>> changed({"game": "1", "game.train": "2", "seed": "0"}, {"game": "3", "game.train": "4", "seed": "0"})
    ['game.train']
    """
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return [name for name in differing if not any(other.startswith(f"{name}.") for other in differing)]


def depends_on(*files: str | Path, version: str | None = None) -> Callable[[T], T]:
    """Say what a function or a class depends on beyond its code: files that it reads, or a version that you keep.

    With a version, nothing else is looked at: change it whenever the outcome may change.

    >>> @depends_on(version="2")
    ... def train(records, seed):
    ...     return {"mean": records.features.mean(0)}
    """

    def mark(function: T) -> T:
        setattr(function, MARK, (tuple(str(Path(file).absolute()) for file in files), version))
        return function

    return mark


def arithmetic() -> dict[str, str]:
    """How torch computes in this process, as far as somebody may have set it."""
    matrix, fixed = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    found = {"numbers": torch.get_default_dtype(), "matrices": matrix, "deterministic": fixed}
    return {name: str(value) for name, value in found.items()}


def device_kind(device: torch.device | str) -> str:
    """Devices of one kind compute the same bits: the GPU's name, or cpu."""
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


class _Walk:
    """Visits each thing once; `named` has what a person would recognise."""

    def __init__(self) -> None:
        self.named: dict[str, str] = {}
        self.done: dict[
            int, tuple[object, bytes]
        ] = {}  # with the value, or its id might be another's by then
        self.under_way: set[int] = set()

    def digest(self, value: Any, path: str) -> bytes:
        if id(value) in self.done:
            return self.done[id(value)][1]
        if id(value) in self.under_way:
            return b"itself"
        self.under_way.add(id(value))
        written = hashlib.sha256(f"{type(value).__module__}.{type(value).__qualname__}:".encode())
        try:
            self._write(value, path, written.update)
        except InputError:
            raise
        except Exception:  # noqa: BLE001, too deep, or a class of somebody's that raises
            raise _unreadable(path, value) from None
        finally:
            self.under_way.discard(id(value))
        self.done[id(value)] = value, written.digest()
        return written.digest()

    def _write(self, value: Any, path: str, take: Callable[[Any], object]) -> None:
        """Write a value so that different ones are written differently, parts within brackets."""

        def each(*items: Any) -> None:
            take(b"(")
            for item in items:
                take(self.digest(item, path))
            take(b")")

        def by_name(items: Mapping[str, Any]) -> None:
            take(b"{")
            for name, item in items.items():
                place = f"{path}.{name}"
                found = self.digest(item, place)
                if isinstance(item, str | Path) and (file := named_file(item)) is not None:
                    found += _contents(file)
                if len(self.named) < _MOST_PARTS:
                    self.named.setdefault(place, found.hex()[:16])
                take(f"{name!r}:".encode("utf-8", "surrogatepass") + found)
            take(b"}")

        declared = _declared(value)
        if declared is not None:
            files, version = declared
            by_name({f"file {Path(file).name}": _contents(file) for file in files})
            if version is not None:
                each(getattr(value, "__qualname__", ""), version)
                return
        match value:
            case Enum():
                each(value.name, value.value)
            case None | bool() | int() | float() | complex() | str() | Path() | torch.dtype() | range():
                take(repr(value).encode("utf-8", "surrogatepass"))
            case bytes() | bytearray():
                take(value)
            case torch.Tensor():
                dense = (
                    value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
                )
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
                each(value.default_factory if isinstance(value, defaultdict) else None)
                if all(isinstance(key, str) for key in value):
                    by_name(value)
                else:
                    each(*value.items())
            case list() | tuple():
                each(*value)
            case set() | frozenset():
                each(*sorted(self.digest(item, path) for item in value))
            case type():
                each(value.__module__, value.__qualname__)
                by_name(contents_of_class(value))
            case ModuleType():
                file = own_file(value)
                each(value.__name__ if file is None else "own")
                by_name({} if file is None else sources(file))
            case BuiltinFunctionType():
                owner = value.__self__
                each(
                    value.__module__, value.__qualname__, *([] if isinstance(owner, ModuleType) else [owner])
                )
            case MethodType():
                each(value.__func__, value.__self__)
            case FunctionType():
                each(value.__module__, value.__qualname__)
                by_name(contents_of_function(value))
            case CodeType():
                each(value.co_code, value.co_names, value.co_consts, value.co_varnames, value.co_freevars)
                each(value.co_flags, value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
                each(value.co_cellvars, value.co_exceptiontable)
            case property():
                each(value.fget, value.fset)
            case staticmethod() | classmethod():
                each(value.__func__)
            case functools.cached_property():
                each(value.func)
            case _ if dataclasses.is_dataclass(value):
                each(type(value))
                by_name({f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.compare})
            case functools._lru_cache_wrapper():
                each(value.__wrapped__)
            case _:
                each(*_reduced(value, path))
        if is_own_type(type(value)):  # which may do and hold more than what it derives from
            each(type(value))
            by_name(state_of(value))


def _declared(value: Any) -> tuple[tuple[str, ...], str | None] | None:
    given = getattr(value, "__dict__", None)
    return given.get(MARK) if isinstance(given, Mapping) else None


def _contents(file: str) -> bytes:
    summary, needs = "A file that training depends on cannot be read.", "every file that depends_on names"
    hint = "put it there, or take it out of depends_on"
    with refusing(OSError, summary, needs=needs, got=file, hint=hint):
        state = Path(file).stat()
        # Before ten seconds have passed, a change may not show in the time.
        settled = time.time_ns() - state.st_mtime_ns > 10**10
        place = str(Path(file).absolute())
        return (_hashed if settled else _hashed.__wrapped__)(place, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=256)
def _hashed(file: str, *_state: int) -> bytes:
    with Path(file).open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _reduced(value: Any, path: str) -> tuple[Any, ...]:
    """What a pickle would hold."""
    if isinstance(value, np.ufunc) and not any(
        getattr(sys.modules.get(name), value.__name__, None) is value for name in ("numpy", "scipy.special")
    ):
        raise _unreadable(path, value)  # a function of somebody's is within
    try:
        known = copyreg.dispatch_table.get(type(value))
        found = known(value) if known else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001, whatever somebody's class raises
        raise _unreadable(path, value) from None
    return found if isinstance(found, tuple) else (found,)


def _unreadable(path: str, value: object) -> InputError:
    return InputError(
        "What this training depends on cannot be read, so that what is finished could not be told from what is stale.",
        needs="functions, and values that can be copied",
        got=f"{path.strip('.') or 'a value'}: a {type(value).__module__}.{type(value).__qualname__}",
        hint='remanence.depends_on(version="1") over the function that uses it, and another version when it changes',
    )
