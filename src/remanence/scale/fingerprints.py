"""One hash for a value and all that it depends on: equal settings, data and code hash alike in every process."""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import functools
import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

from remanence.exceptions import InputError
from remanence.scale.sources import imported_sources, is_library, own_file, sources

T = TypeVar("T")
_MOST_PARTS = 400  # that are kept by name
_MARK = "__depends_on__"
# What Python and its standard library keep in a class, beside what its author wrote.
_BOOKKEEPING = {
    "__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__",
    "__firstlineno__", "__match_args__", "__module__", "__orig_bases__", "__parameters__", "__qualname__",
    "__static_attributes__", "__weakref__", "_abc_impl", "_member_map_", "_value2member_map_", "_sunder_unused_",
    "_new_member_", "_member_type_", "_use_args_", "_generate_next_value_", "_unhashable_values_",
}  # fmt: skip


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
        setattr(function, _MARK, (tuple(str(Path(file).absolute()) for file in files), version))
        return function

    return mark


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
        except RecursionError:
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
                if len(self.named) < _MOST_PARTS:
                    self.named.setdefault(place, found.hex()[:16])
                take(f"{name!r}:".encode() + found)
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
                each(str(value.dtype), tuple(value.shape))
                take(dense.contiguous().flatten().view(torch.uint8).numpy())
            case np.ndarray() if not value.dtype.hasobject:
                each(str(value.dtype), value.shape)
                take(np.ascontiguousarray(value).tobytes())
            case np.ndarray():
                each(value.shape, *value.ravel().tolist())
            case torch.Generator():
                each(value.get_state())
            case Mapping() if all(isinstance(key, str) for key in value):
                by_name({key: value[key] for key in sorted(value)})
            case Mapping():
                pairs = sorted(((self.digest(key, path), item) for key, item in value.items()), key=_first)
                each(*pairs)
            case list() | tuple():
                each(*value)
            case set() | frozenset():
                each(*sorted(self.digest(item, path) for item in value))
            case type():
                each(value.__module__, value.__qualname__)
                by_name(_contents_of_class(value))
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
                by_name(_contents_of_function(value))
            case CodeType():
                each(value.co_code, value.co_names, value.co_consts, value.co_varnames, value.co_freevars)
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


_first = operator.itemgetter(0)


def _declared(value: Any) -> tuple[tuple[str, ...], str | None] | None:
    given = getattr(value, "__dict__", None)
    return given.get(_MARK) if isinstance(given, Mapping) else None


def _contents(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise InputError(
            "A file that training depends on cannot be read.",
            needs="every file that depends_on names",
            got=f"{file}: {error.strerror}",
            hint="put it there, or take it out of depends_on",
        ) from None


def _contents_of_class(kind: type) -> dict[str, Any]:
    """What a class of the user's own does and holds, and what it derives from."""
    if is_library(kind.__module__):
        return {}
    own = {name: item for name, item in sorted(vars(kind).items()) if name not in _BOOKKEEPING}
    readable = {
        n: i for n, i in own.items() if type(i).__name__ not in ("member_descriptor", "getset_descriptor")
    }
    return {**readable, "bases": kind.__bases__}


def _contents_of_function(function: FunctionType) -> dict[str, Any]:
    """The code of a function, and what it refers to, by the names that its author gave."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {
        "defaults": function.__defaults__,
        "keywords": function.__kwdefaults__,
        **{name: cell.cell_contents for name, cell in cells if not _is_empty(cell)},
    }
    if is_library(function.__module__ or "builtins"):
        return found
    codes = list(_codes(function.__code__))
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    outside = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, item in list(outside.items()):
        if isinstance(item, ModuleType) and own_file(item) is not None:
            outside |= {f"{name}.{inner}": vars(item)[inner] for inner in names if inner in vars(item)}
    later = {str(i.argval) for code in codes for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    later |= {f"{name}.{inner}" for name in later for inner in names}
    file = function.__globals__.get("__file__")
    beside = Path(file) if isinstance(file, str) else Path("notebook")
    imports = {f"file {name}": told for name, told in imported_sources(sorted(later), beside).items()}
    return {"code": function.__code__, **found, **outside, **imports}


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of all functions, lambdas and comprehensions within."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _reduced(value: Any, path: str) -> tuple[Any, ...]:
    """What a pickle would hold."""
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
