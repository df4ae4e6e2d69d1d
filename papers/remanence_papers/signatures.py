"""The signature of a page: the code that printed it, and the data that it read."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

Place = tuple[str, str]  # a module, and a name that it defines

_OURS = ("remanence", "remanence_papers")
# Rooms that change no number: words, storage, progress. `remanence.scale.seeds` draws, and counts.
_SILENT = (
    "remanence.core.catalogue",
    "remanence.core.doors",
    "remanence.core.exceptions",
    "remanence.core.references",
    "remanence.results.caveats",
    "remanence.results.findings",
    "remanence.results.verdict",
    "remanence.scale",
    "remanence.updates.caveats",
    "remanence_papers.signatures",
)
_LOUD = ("remanence.scale.seeds",)
_NOTES = ("annotation", "returns", "type_comment")
_SENTENCE = 3  # spaces: a text of four words or more is read by people, and no option is that long
_BESIDE, _ALL = "", "*"  # what a module does that defines no name; all that it defines
READ: set[Path] = set()  # data files that the reproduction that runs has read


def code_signature(home: str) -> str:
    """The hash of all code of this project that something depends on; `home` is a module, or `module:name` in it.

    >>> code_signature("remanence.core.checks:whole") == code_signature("remanence.core.checks:number")
    False
    """
    module, _, name = home.partition(":")
    start = [(module, each) for each in ([name] if name else _definitions(module))]
    digest = hashlib.sha256()
    for place in sorted(closure(start)):
        digest.update(f"{place} {_meaning(*place)}\n".encode())
    return digest.hexdigest()


def script_signature(script: Path) -> str:
    """The hash of a script, or of a folder of them, and of all code of this project that it imports."""
    digest = hashlib.sha256()
    start: set[Place] = set()
    for file in sorted(script.glob("*.py")) if script.is_dir() else [script]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in _live(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in _OURS:
                start.update(place for alias in node.names for place in _home(str(node.module), alias.name))
        digest.update(f"{file.name} {_canonical(tree)}\n".encode())
    for place in sorted(closure(list(start))):
        digest.update(f"{place} {_meaning(*place)}\n".encode())
    return digest.hexdigest()


def data_signature(path: Path) -> str:
    """The hash of a file."""
    facts = path.stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


@cache
def _digest(path: Path, _size: int, _changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def closure(start: list[Place]) -> set[Place]:
    """Definitions, and the definitions of this project that they name, directly or through others.

    Statements of a module that define nothing count with each of its definitions. A method comes with its class, and a
    class with every definition that names it; a definition found by a string is not seen. Rooms that change no number
    are left out.

    >>> sorted(closure([("remanence.core.checks", "is_whole")]))
    [('remanence.core.checks', ''), ('remanence.core.checks', 'is_whole')]
    """
    found: set[Place] = set()
    left = list(start)
    while left:
        place = left.pop()
        if place not in found and not _is_silent(place[0]):
            found.add(place)
            left += [(place[0], _BESIDE), *_named(*place)]
    return found


def _is_silent(module: str) -> bool:
    return module not in _LOUD and any(f"{module}.".startswith(f"{room}.") for room in _SILENT)


@cache
def _source(module: str) -> Path | None:
    """The file of a module; of a package, what says which names it hands on."""
    spec = find_spec(module)
    origin = None if spec is None or spec.origin is None else Path(spec.origin)
    if origin is None or origin.suffix != ".py":
        return None
    stub = origin.with_suffix(".pyi")
    return stub if stub.exists() else origin


@cache
def _tree(module: str) -> ast.Module:
    path = _source(module)
    assert path is not None
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """The statements that define each name of a module; what defines nothing has no name."""
    found: dict[str, list[ast.stmt]] = {_BESIDE: []}
    for statement in _tree(module).body:
        for name in _defined(statement):
            found.setdefault(name, []).append(statement)
    return found


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign | ast.AugAssign) else targets
    names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    documented = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return names or ([] if documented or not _live(statement) else [_BESIDE])


@cache
def _imported(module: str) -> dict[str, Place]:
    """Where each name comes from that a module imports of this project, anywhere in it."""
    found: dict[str, Place] = {}
    for node in _live(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            home = (
                f"{module}.{node.module}" if node.level else node.module
            )  # a package's stub says where from its own
            for alias in node.names if home.split(".")[0] in _OURS else ():
                inner = f"{home}.{alias.name}"
                found[alias.asname or alias.name] = (inner, _ALL) if _exists(inner) else (home, alias.name)
        elif isinstance(node, ast.Import):
            found |= {
                alias.asname or alias.name.split(".")[0]: (alias.name, _ALL)
                for alias in node.names
                if alias.name.split(".")[0] in _OURS
            }
    return found


@cache
def _named(module: str, name: str) -> list[Place]:
    """The places of all names of this project in a definition; `module.name` is one of them."""
    definitions, imported = _definitions(module), _imported(module)
    nodes = [inner for statement in definitions.get(name, []) for inner in _live(statement)]
    found: list[Place] = []
    parts: set[ast.AST] = set()
    for node in nodes:  # whoever has it comes before what it is had of
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole = imported.get(node.value.id, ("", ""))
            if whole[1] == _ALL:
                found += _home(whole[0], node.attr)
                parts.add(node.value)
        elif isinstance(node, ast.Name) and node not in parts:
            if node.id in definitions:
                found.append((module, node.id))
            elif node.id in imported:
                found += _home(*imported[node.id])
    return found


def _home(module: str, name: str) -> list[Place]:
    """Where a name is defined that is imported from a module, which may have it from elsewhere."""
    if not _exists(module):
        return []
    definitions, imported = _definitions(module), _imported(module)
    if name == _ALL:
        return [(module, each) for each in definitions]
    if name in definitions:
        return [(module, name)]
    return _home(*imported[name]) if name in imported else _home(f"{module}.{name}", _ALL)


def _live(node: ast.AST) -> list[ast.AST]:
    """All nodes that run, parents first: none under `if TYPE_CHECKING`, and no annotations."""
    found, left = [], [node]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        found.append(node)
        notes = [getattr(node, name, None) for name in _NOTES]
        left += [child for child in ast.iter_child_nodes(node) if child not in notes]
    return found


@cache
def _exists(name: str) -> bool:
    try:
        return _source(name) is not None
    except (ImportError, AttributeError):
        return False


@cache
def _meaning(module: str, name: str) -> str:
    """The hash of the statements that define a name."""
    text = "".join(_canonical(each) for each in _definitions(module).get(name, []))
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(node: object) -> str:
    """What a tree says to Python, as text: no comments, docstrings, annotations, errors, formatting or sentences.

    The text is the same for every Python: newer ones have further fields, empty where nothing is new.

    >>> _canonical(ast.parse("x: int = 1  # one"))
    "Module(AnnAssign(Name('x'Store())Constant(1)1))"
    """
    if isinstance(node, list):
        return "".join(_canonical(each) for each in node)
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return ""
    if isinstance(node, ast.Raise):
        return "Raise"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= _SENTENCE:
        return "sentence"
    values = (getattr(node, field, None) for field in node._fields if field not in _NOTES)
    return f"{type(node).__name__}({''.join(_canonical(each) for each in values if each not in (None, []))})"
