"""The files that somebody's code is made of: its own and all that they import, unless it was installed."""

from __future__ import annotations

import ast
import hashlib
import itertools
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent.parent
_INSTALLED = {"site-packages", "dist-packages"}
_ENDINGS = (".py", *EXTENSION_SUFFIXES)
_NUMERICAL = ("torch", "numpy", "scipy", "scikit-learn")


@cache
def code_version() -> str:
    """The hash of this package's source: no unit outlives a change of the code."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    """What computes: Python, this package by its source, and the libraries whose arithmetic decides the last bits."""
    told = {"python": ".".join(map(str, sys.version_info[:3])), "remanence": code_version()}
    return {**told, **{name: version(name) for name in _NUMERICAL}}


def sources(start: Path) -> dict[str, str]:
    """The hashes of a file and of all that it imports, by their places as seen from it.

    Imports are read, not only looked up among those that have happened: one within a function happens later. What is
    installed counts by its version.
    """
    start = start.resolve()
    folder = start.parent
    loaded = [
        Path(getattr(module, "__file__", None) or "/").resolve() for module in list(sys.modules.values())
    ]
    files = {start, *(file for file in loaded if file.is_relative_to(folder) and is_own(file, folder))}
    return _hashes(files, folder)


def imported_sources(names: Iterable[str], beside: Path) -> dict[str, str]:
    """The same for what some names stand for when they are imported in that file."""
    folder = beside.resolve().parent
    return _hashes({file for name in names for file in _imported(name, folder)[0]}, folder)


def own_file(module: ModuleType | dict[str, object]) -> Path | None:
    """Where a module of the user's own lies; None for what is installed or has no file."""
    given = module if isinstance(module, dict) else vars(module)
    file = given.get("__file__")
    if not isinstance(file, str):
        return None
    path = Path(file).resolve()
    return path if is_own(path, path.parent) else None


def is_library(name: str) -> bool:
    """Whether a module of this name belongs to Python, to this package, or was installed."""
    top = name.split(".", maxsplit=1)[0]
    if top in sys.stdlib_module_names or top == _PACKAGE.name:
        return True
    module = sys.modules.get(top)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return module is not None and any(places) and not any(_lies_outside(Path(p)) for p in places if p)


def is_own(file: Path, folder: Path) -> bool:
    """Whether it is source of the user's own; an environment may lie beneath the folder, too."""
    return file.name.endswith(_ENDINGS) and _lies_outside(file, folder) and file.is_file()


def _lies_outside(file: Path, folder: Path | None = None) -> bool:
    """Whether it belongs to no installation; a system's Python is in /usr, where a project may be as well."""
    folder = folder or file.parent
    fixed, prefixes = _installations(sys.prefix, sys.base_prefix)
    if _INSTALLED & set(file.parts) or _beneath(file, fixed):
        return False
    return not any(_beneath(file, (place,)) and not _beneath(folder, (place,)) for place in prefixes)


def _beneath(path: Path, places: tuple[str, ...]) -> bool:
    return f"{path}{os.sep}".startswith(places)


@lru_cache(maxsize=8)
def _installations(*prefixes: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    paths = sysconfig.get_paths()
    fixed = (_PACKAGE, paths["stdlib"], paths["platstdlib"])
    ends = [tuple(f"{Path(place).resolve()}{os.sep}" for place in places) for places in (fixed, prefixes)]
    return ends[0], ends[1]


def _hashes(files: set[Path], folder: Path) -> dict[str, str]:
    waiting, libraries = list(files), dict[str, str]()
    while waiting:
        file = waiting.pop()
        state = file.stat()
        for level, name in _imports(file, state.st_mtime_ns, state.st_size):
            if level:
                start = [*file.parents][level - 1 : level]
                found = {path for path in _files(start, name) if is_own(path, folder)}
            else:
                found, library = _imported(name, folder)
                libraries |= library
            waiting += found - files
            files = files | found
    hashes = {Path(os.path.relpath(file, folder)).as_posix(): _sha256(file) for file in files}
    return dict(sorted(hashes.items())) | dict(sorted(libraries.items()))


def _imported(name: str, folder: Path) -> tuple[set[Path], dict[str, str]]:
    """The files of the user's own that a name may stand for; or the version of the library that it belongs to."""
    top = name.split(".", maxsplit=1)[0]
    if top == _PACKAGE.name:
        return set(), {}
    root = _root(top, folder, tuple(sys.path), sys.prefix, sys.base_prefix)
    if root is not None:
        return {path for path in _files([root], name) if is_own(path, folder)}, {}
    version = None if top in sys.stdlib_module_names else _version(top)
    return set(), {} if version is None else {top: version}


@lru_cache(maxsize=4096)
def _root(top: str, folder: Path, places: tuple[str, ...], *_prefixes: str) -> Path | None:
    """The folder in which Python finds a name, as long as that is the user's own."""
    for place in (folder, *(Path(place).resolve() for place in places)):
        if (place / top).is_dir() or any((place / f"{top}{ending}").is_file() for ending in _ENDINGS):
            inside = place / top / "__init__.py" if (place / top).is_dir() else place / f"{top}.py"
            return place if _lies_outside(inside, folder) else None
    return _elsewhere(top, folder)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@lru_cache(maxsize=512)
def _version(name: str) -> str | None:
    try:
        return f"version {version(name)}"
    except (PackageNotFoundError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _imports(file: Path, _modified: int, _size: int) -> tuple[tuple[int, str], ...]:
    """The level and the name of every import in a file, wherever it stands."""
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()  # not Python that could run
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = f"{node.module}." if node.module else ""
            found += [(node.level, f"{module}{alias.name}") for alias in node.names]
    return tuple(dict.fromkeys(found))


def _elsewhere(top: str, folder: Path) -> Path | None:
    """Where an editable installation points to."""
    try:
        spec = None if top in sys.stdlib_module_names else find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    places = [*(spec.submodule_search_locations or ())] if spec else []
    places += [spec.origin] if spec and spec.origin and not places else []
    found = [Path(place).resolve() for place in places]
    return found[0].parent if found and _lies_outside(found[0], folder) else None


def _files(starts: Iterable[Path], name: str) -> Iterator[Path]:
    for start, ending in itertools.product(starts, _ENDINGS):
        place = start
        for part in name.split("."):
            place /= part
            yield from (place.with_name(f"{part}{ending}"), place / f"__init__{ending}")
