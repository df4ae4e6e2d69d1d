"""Promises about the code as a whole: imports go one way, nothing phones home."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import remanence
from remanence.results.claims import PrivacyTest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "remanence"

DOORS = {"heads", "networks", "private", "tables", "texts", "updates"}

# Rooms that come earlier never import later ones, and no door imports another.
LAYERS = [
    {"core", "scale"},
    {"bounds"},
    {"results"},
    {"protocol"},
    {"game"},
    {"auditing"},
    {"report", "targets", "testing", "pytest_plugin"},
    {"cli"},
    {"training"},
    {"reconstructor"},
    DOORS,
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def imports(path: Path) -> set[str]:
    """Every module of ours that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names if name.startswith("remanence.")}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("remanence.")}
    return found


def noun(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def wrong(path: Path) -> set[str]:
    """The rooms and doors that a file imports and may not."""
    here = noun(path)
    later = {name for name in imports(path) - {here} if LEVEL[name] > LEVEL[here]}
    return later | (imports(path) & DOORS - {here} if here in DOORS else set())


def test_imports_go_one_way_and_no_door_imports_another():
    rooms = {noun(path) for path in modules()}
    assert rooms <= LEVEL.keys(), "a room has no layer; add it here and to ARCHITECTURE.md"
    assert {path: wrong(path) for path in modules() if wrong(path)} == {}


def test_no_sentence_of_a_view_or_a_command_names_a_class_of_a_door():
    """Messages, hints and reports; a docstring may give an example."""
    classes = {
        node.name
        for path in modules()
        if noun(path) in DOORS
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in remanence.__all__
    }
    named = {name for name in classes if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", name)} | {"Membership"}
    assert {"LeaveOneOut", "TransferHead"} <= named  # "Gaussian" and "Exact" are words too
    found: dict[str, set[str]] = {}
    for path in (path for path in modules() if LEVEL["results"] <= LEVEL[noun(path)] <= LEVEL["cli"]):
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told)
        words = {word for node in texts for word in re.findall(r"\w+", str(node.value))}
        if words & named:
            found[str(path.relative_to(PACKAGE))] = words & named
    assert found == {}


def keys_of_doors() -> set[str]:
    """The names under which doors store numbers, over all frozen audits, but for names that are settings too."""
    frozen = json.loads((ROOT / "tests" / "goldens" / "frozen.json").read_text()).values()
    entries = [entry for case in frozen if isinstance(case, dict) for entry in case.get("evidence", ())]
    shared = {*PrivacyTest.__dataclass_fields__, "steps", "diverged_trainings"}
    return {name for entry in entries for name in entry.get("numbers", ())} - shared


def test_no_key_of_a_door_s_numbers_is_named_outside_it():
    keys = keys_of_doors()
    assert "gaussian_mu_at_least" in keys
    named: dict[str, set[str]] = {key: set() for key in keys}
    for path in modules():
        nodes = ast.walk(ast.parse(path.read_text()))
        for key in keys & {node.value for node in nodes if isinstance(node, ast.Constant)}:
            named[key].add(noun(path))
    assert {key: rooms for key, rooms in named.items() if len(rooms) > 1 or rooms - DOORS} == {}
    # Trials have numbers too, of which the game interprets three.
    core = [path for path in modules() if noun(path) not in DOORS]
    read = {path.name for path in core if re.search(r"\.numbers(\[|\.get\()", path.read_text())}
    assert read == set()


def test_no_module_opens_a_connection_or_unpickles():
    clients = r"socket|urllib|(?<!starlette\.)requests|http\.client|httpx|posthog|sentry"
    banned = rf"\b({clients}|pickle\.load|joblib\.load|allow_pickle)\b"
    for path in modules():
        text = path.read_text()
        assert not re.search(banned, text), path
        assert "torch.load(" not in text or "weights_only=True" in text, path


def test_no_test_hides_within_another_where_pytest_does_not_look():
    for path in (ROOT / "tests").rglob("*.py"):
        functions = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        ]
        inner = {node.name for each in functions for part in each.body for node in ast.walk(part)
                 if isinstance(node, ast.FunctionDef)}  # fmt: skip
        assert not [name for name in inner if name.startswith("test_")], path


def test_the_test_suite_itself_cannot_reach_the_network():
    import socket

    from pytest_socket import SocketBlockedError

    with pytest.warns(UserWarning, match="socket"), pytest.raises(SocketBlockedError):
        socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def test_every_public_name_resolves_and_no_other():
    assert [name for name in remanence.__all__ if getattr(remanence, name) is None] == []
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = remanence.no_such_thing


def test_the_schema_travels_in_the_wheel(tmp_path):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/remanence"]
    assert (PACKAGE / "results" / "audit.schema.json").exists()
    assert (PACKAGE / "py.typed").exists()


def test_constraints_pin_every_dependency_exactly():
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(
        re.fullmatch(r"[A-Za-z0-9_.-]+==[^=]+", line) for line in pins if line and not line.startswith("#")
    )
    names = {line.split("==")[0].lower().replace("_", "-") for line in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][name] for name in ("dev", "explore", "browser", "docs")]
    wanted = [*project["dependencies"], *(item for extra in extras for item in extra)]
    assert {re.split(r"[\[<>=~!]", item)[0].lower() for item in wanted} <= names
    assert "torch==2.13.0" in pins


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, remanence; assert not {'torch', 'numpy', 'scipy', 'sklearn'} & sys.modules.keys()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
