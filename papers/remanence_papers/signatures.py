"""The signature of a page: the code that printed it, and the data that it read."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_OURS = ("remanence", "remanence_papers")
READ: set[Path] = set()  # data files that the reproduction that runs has read


def code_signature(module: str) -> str:
    """The hash of a module and of all that it imports of this project, directly or through others.

    >>> code_signature("remanence.checks") == code_signature("remanence.exceptions")
    False
    """
    digest = hashlib.sha256()
    for name in sorted(closure(module)):
        digest.update(f"{name} {_meaning(name)}\n".encode())
    return digest.hexdigest()


def data_signature(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def closure(module: str) -> set[str]:
    """A module and the modules of this project that it needs.

    >>> sorted(closure("remanence.checks"))
    ['remanence.checks', 'remanence.exceptions', 'remanence.plain_text']
    """
    found, left = set(), [module]
    while left:
        name = left.pop()
        if name not in found and _source(name) is not None:
            found.add(name)
            left += _imports(name)
    return found


@cache
def _source(module: str) -> Path | None:
    """The file of a module; a package is only a place where modules are."""
    spec = find_spec(module)
    origin = None if spec is None or spec.origin is None else Path(spec.origin)
    return origin if origin is not None and origin.suffix == ".py" and origin.name != "__init__.py" else None


@cache
def _tree(module: str) -> ast.Module:
    path = _source(module)
    assert path is not None
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(module: str) -> list[str]:
    """What a module imports anywhere in it, of this project; nothing that only a type checker reads."""
    found = []
    for node in _live(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _OURS:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in _OURS]
    return [name for name in found if _exists(name)]


def _live(node: ast.AST) -> list[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return []
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in _live(child))]


@cache
def _exists(name: str) -> bool:
    try:
        return _source(name) is not None
    except (ImportError, AttributeError):
        return False


@cache
def _meaning(module: str) -> str:
    """The hash of what a module says to Python: no comments, no docstrings, no formatting."""
    tree = ast.parse(ast.unparse(_tree(module)))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body[0] = ast.Pass()
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
