"""What is installed is known: pinned, hashed, without versions that have advisories, and the same wheel every time."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker

ROOT = Path(__file__).parent.parent.parent
LOCKS = sorted((ROOT / "locks").glob("*.txt"))


def names(path: Path) -> set[str]:
    found = re.findall(r"(?m)^([A-Za-z0-9_.-]+)==", path.read_text())
    return {re.sub(r"[-_.]+", "-", name).lower() for name in found}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_one_version_and_hashes(path):
    parts = re.split(r"(?m)^(?=\S)", path.read_text())[1:]
    assert parts
    for part in parts:
        assert re.match(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+]+", part), part
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", part), part


@pytest.mark.parametrize(
    ("extras", "locks"),
    [
        ((), ("run", "torch")),
        (("dev", "explore", "opacus"), ("ci", "torch")),
        (("docs",), ("ci", "docs", "torch")),
        (("browser",), ("ci", "browser", "torch")),
        (("tables",), ("tables", "torch")),
        (("text",), ("text", "torch")),
        (("opacus",), ("peft", "torch")),
        (("flower",), ("flower", "torch")),
        (("nvflare",), ("nvflare", "torch")),
        (("ray",), ("cluster", "torch")),
    ],
)
def test_whatever_an_extra_asks_for_is_locked(extras, locks):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    further = (each for extra in extras for each in project["optional-dependencies"][extra])
    wanted = [*project["dependencies"], *further]
    found = set().union(*(names(ROOT / "locks" / f"{name}.txt") for name in locks))
    asked = {re.sub(r"[-_.]+", "-", re.split(r"[<>=\[; ]", each)[0]).lower() for each in wanted}
    assert not asked - found, "make locks"


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_the_versions_that_are_tested(path):
    lines = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.strip("#")[:1].isalnum()
    ]
    pins = dict(line.strip().split("==") for line in lines)
    locked = dict(re.findall(r"(?m)^([A-Za-z0-9_.-]+)==([^\s;\\]+)", path.read_text()))
    other = {name for name in pins.keys() & locked.keys() if pins[name] != locked[name]}
    # These three need versions of their own, and .ci/locks resolves them freely.
    assert bool(other) == (path.stem in ("cluster", "flower", "nvflare"))


def test_a_release_says_where_it_was_built():
    github = (ROOT / ".github/workflows/release.yml").read_text()
    gitlab = (ROOT / ".gitlab-ci.yml").read_text()
    for words in ("make wheel sbom", "attest-build-provenance", "id-token: write", "attestations: write"):
        assert words in github
    assert 'RUNNER_GENERATE_ARTIFACTS_METADATA: "true"' in gitlab
    assert "make wheel sbom" in gitlab


def test_whatever_is_installed_is_locked_with_hashes():
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for line in makefile.splitlines() if "pip install" in line]
    assert [line.split(" :=")[0] for line in lines] == ["LOCKED", "OURSELVES"]
    assert "--require-hashes --no-deps" in lines[0]
    assert "--no-deps --no-build-isolation" in lines[1]
    ours = [line.split("$(OURSELVES) ")[1] for line in makefile.splitlines() if "$(OURSELVES)" in line]
    assert ours == ["$(2)", "-e . -e papers"]
    assert set(re.findall(r"\$\(call environment,\w+,([^)]*)\)", makefile)) == {"-e .", "."}


def test_lower_bounds_leave_out_versions_with_known_advisories():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "jinja2>=3.1.6" in project["dependencies"]
    assert "h11>=0.16" in project["optional-dependencies"]["explore"]


def test_every_threat_names_a_test_that_exists():
    table = re.findall(r"(?m)^\| .*tests/.*$", (ROOT / "SECURITY.md").read_text())
    assert len(table) >= 8
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", "\n".join(table)):
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), name


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_package_that_depends_on_python_s_version_is_locked_for_the_one_that_ci_has(lock):
    machine = {"python_full_version": "3.11.7", "python_version": "3.11"}
    fits: dict[str, list[bool]] = {}
    for name, marker in re.findall(r"(?m)^([\w.-]+)==\S+ ; (.+?) \\$", lock.read_text()):
        if "python" in marker and "platform" not in marker and "implementation" not in marker:
            fits.setdefault(name, []).append(Marker(marker).evaluate(machine))
    assert [name for name, found in fits.items() if not any(found)] == []
