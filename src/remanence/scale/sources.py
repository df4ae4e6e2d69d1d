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
    found = {file for name in names for file in _files(_roots(folder, name), name)}
    return _hashes({file for file in found if is_own(file, folder)}, folder)


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
    # A system's Python is installed in /usr, where a project of one's own may be as well.
    folder = folder or file.parent
    installed = [Path(place).resolve() for place in (sys.prefix, sys.base_prefix)]
    return not (
        _INSTALLED & set(file.parts)
        or any(file.is_relative_to(place) for place in (_PACKAGE, *_standard_library()))
        or any(file.is_relative_to(place) and not folder.is_relative_to(place) for place in installed)
    )


@cache
def _standard_library() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib")})


def _hashes(files: set[Path], folder: Path) -> dict[str, str]:
    waiting, libraries = list(files), set[str]()
    while waiting:
        file = waiting.pop()
        state = file.stat()
        found = set[Path]()
        for level, name in _imports(file, state.st_mtime_ns, state.st_size):
            starts = [*file.parents][level - 1 : level] if level else _roots(folder, name)
            beside = {path for path in _files(starts, name) if is_own(path, folder)}
            found |= beside
            if not level and not beside and name.split(".")[0] not in sys.stdlib_module_names:
                libraries.add(name.split(".")[0])
        waiting += found - files
        files |= found
    hashes = {Path(os.path.relpath(file, folder)).as_posix(): _sha256(file) for file in files}
    return dict(sorted(hashes.items())) | {
        name: told for name in sorted(libraries) if (told := _version(name))
    }


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


def _roots(folder: Path, name: str) -> list[Path]:
    """Where a name may be found: beside the file, on Python's path, or where an editable installation points."""
    roots = [folder, *(Path(place).resolve() for place in sys.path)]
    top = name.split(".", maxsplit=1)[0]
    if top not in sys.stdlib_module_names:
        roots += _elsewhere(top)
    return roots


@lru_cache(maxsize=512)
def _elsewhere(top: str) -> tuple[Path, ...]:
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ()
    places = [*(spec.submodule_search_locations or ())] if spec else []
    places += [spec.origin] if spec and spec.origin and not places else []
    return tuple(Path(place).resolve().parent for place in places)


def _files(starts: Iterable[Path], name: str) -> Iterator[Path]:
    for start, ending in itertools.product(starts, _ENDINGS):
        place = start
        for part in name.split("."):
            place /= part
            yield from (place.with_name(f"{part}{ending}"), place / f"__init__{ending}")
