"""What a function or a class of somebody's own refers to, by the names that its author gave."""

from __future__ import annotations

import builtins
import dis
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from remanence.scale.sources import imported_sources, is_library, own_file

MARK = "__depends_on__"
# What Python and its standard library keep in a class, beside what its author wrote.
_BOOKKEEPING = {
    "__abstractmethods__", "__annotations__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__",
    "__firstlineno__", "__match_args__", "__module__", "__orig_bases__", "__parameters__", "__qualname__",
    "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl", "_member_map_", "_value2member_map_",
    "_sunder_unused_", "_new_member_", "_member_type_", "_use_args_", "_generate_next_value_", "_unhashable_values_",
}  # fmt: skip
_BY_TEXT = {"globals", "eval", "exec", "locals"}  # any name of the module may be meant
_BY_NAME = {"getattr", "vars", "__dict__", "attrgetter"}  # any attribute
_FROM_OUTSIDE = {"environ", "environb", "getenv", "expandvars"}


@lru_cache(maxsize=4096)
def is_own_type(kind: type) -> bool:
    """Whether somebody wrote this type, and did not install it."""
    return isinstance(kind.__module__, str) and not is_library(kind.__module__)


def state_of(value: Any) -> dict[str, Any]:
    """All attributes of an object, whatever a pickle of it would hold."""
    own = {} if isinstance(value, type) else dict(getattr(value, "__dict__", {}))
    for kind in type.mro(type(value)):
        for name, item in vars(kind).items():
            if type(item).__name__ == "member_descriptor" and is_own_type(kind) and hasattr(value, name):
                own[name] = getattr(value, name)
    return own


def contents_of_class(kind: type) -> dict[str, Any]:
    """What a class does and holds, and what it derives from; of an installed one, what somebody put into it."""
    if not is_own_type(kind):
        return {name: item for name, item in vars(kind).items() if _is_own_function(item)}
    own = {name: item for name, item in sorted(vars(kind).items()) if name not in _BOOKKEEPING}
    readable = {
        n: i for n, i in own.items() if type(i).__name__ not in ("member_descriptor", "getset_descriptor")
    }
    return {**readable, "bases": kind.__bases__}


def contents_of_function(function: FunctionType) -> dict[str, Any]:
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
    texts = dict.fromkeys(text for code in codes for text in code.co_consts if isinstance(text, str))
    given = function.__globals__
    everything = [name for name in given if not name.startswith("__")] if _BY_TEXT & names.keys() else []
    outside = {name: given[name] for name in (*names, *texts, *everything) if name in given}
    outside |= {n: i for n, i in vars(builtins).items() if n in names and n not in given and _is_set(i)}
    outside |= {f"attribute {name}": item for name, item in vars(function).items() if name != MARK}
    outside |= {f"file {text}": text for text in texts if named_file(text)}
    for name, item in list(outside.items()):
        if isinstance(item, ModuleType):
            outside |= _attributes(item, {**names, **texts}, name)
    if _FROM_OUTSIDE & names.keys():
        asked = [*texts, *(item for item in [*outside.values(), *found.values()] if isinstance(item, str))]
        outside |= {f"environment {name}": os.environ.get(name) for name in asked if name.isidentifier()}
    later = {str(i.argval) for code in codes for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME"}
    later |= {f"{name}.{inner}" for name in later for inner in names}
    file = given.get("__file__")
    beside = Path(file) if isinstance(file, str) else Path("notebook")
    imports = {f"file {name}": told for name, told in imported_sources(sorted(later), beside).items()}
    kept = {name: item for name, item in outside.items() if item is not os.environ}
    return {"code": function.__code__, **found, **kept, **imports}


def named_file(text: str | Path) -> str | None:
    """The file that a setting names, if there is one."""
    name = str(text)
    if len(name) > 1000 or "\0" in name or not ("." in name or os.sep in name):
        return None
    return name if Path(name).is_file() else None


def _attributes(module: ModuleType, names: Mapping[str, Any], path: str, depth: int = 4) -> dict[str, Any]:
    """What a function may read of a module: of an installed one, what somebody set there."""
    own = own_file(module) is not None or not (hasattr(module, "__file__") or is_library(module.__name__))
    any_of_it = own and not _BY_NAME.isdisjoint(names)
    found = {}
    for name, item in list(vars(module).items()):
        if isinstance(item, ModuleType):
            if name in names and depth:
                found |= _attributes(item, names, f"{path}.{name}", depth - 1)
        elif (name in names and (own or _is_set(item))) or (any_of_it and _is_set(item) and name[:2] != "__"):
            found[f"{path}.{name}"] = item
    return found


def _is_set(item: Any) -> bool:
    """Whether it is a plain value, or a function or a class into which somebody put something."""
    if isinstance(item, type):
        return not is_own_type(item) and any(map(_is_own_function, vars(item).values()))
    return _is_own_function(item) or type(item) in (int, float, str, tuple)


def _is_own_function(item: Any) -> bool:
    return isinstance(item, FunctionType) and not is_library(item.__module__ or "builtins")


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
