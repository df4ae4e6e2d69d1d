"""The site: every block on it runs, and every page is reached."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys

import pytest

from conftest import ROOT, settings_arguments
from remanence import SuccessRate
from remanence.report.words import GLOSSARY

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = "docs/evidence/", "docs/reproductions/"  # what commands of the repository printed, not commands
BLOCKS = [
    (str(page.relative_to(ROOT)), kind, text)
    for page in PAGES
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
]


def blocks(language: str) -> list:
    found = [(page, text) for page, kind, text in BLOCKS if kind == language]
    return [pytest.param(text, id=f"{page}-{number}") for number, (page, text) in enumerate(found)]


def test_every_block_is_of_a_kind_that_a_test_runs():
    """`text` is for outlines and output: nothing that a reader could run as it stands."""
    for page, kind, text in BLOCKS:
        known = kind in ("python", "toml", "yaml", "text") or text.startswith(("$ remanence ", "make demo "))
        assert known or page.startswith(PRINTED), f"{page}: {text[:60]}"


def exists(name: str) -> bool:
    """Whether a module has this name, or something in one; what needs a library that is not installed may have it."""
    *first, last = name.split(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:  # one of the first parts is no package
        pass
    if not first:
        return False
    try:
        return hasattr(importlib.import_module(".".join(first)), last)
    except ModuleNotFoundError as error:
        ours = (error.name or "").startswith("remanence")
        return exists(".".join(first)) if ours else True


def test_every_name_of_ours_that_is_written_out_exists():
    """In pages, docstrings and hints: "remanence.bounds.dpsgd", but for the groups of entry points."""
    project = (ROOT / "pyproject.toml").read_text()
    groups = {
        "remanence.attacks",
        "remanence.commands",
        *re.findall(r'entry-points\."(remanence\.\w+)"', project),
    }
    sources = [*PAGES, *(path for room in ("src", "papers") for path in sorted((ROOT / room).rglob("*.py")))]
    written: dict[str, str] = {}
    for path in sources:
        for name in re.findall(r"\bremanence(?:_papers)?(?:\.[A-Za-z_]\w*)+", path.read_text()):
            written.setdefault(name, str(path.relative_to(ROOT)))
    assert "remanence.bounds.final_weights" in written
    assert {name: path for name, path in written.items() if name not in groups and not exists(name)} == {}


@pytest.mark.parametrize("block", blocks("python"))
def test_every_python_block_of_the_docs_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "block"}
    exec(compile(block, "block", "exec"), namespace)  # noqa: S102
    assert len(namespace) > 2, "a block that does nothing shows nothing"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        pytest.param(*part.split("\n", 1), id=f"{page}: {part.partition(chr(10))[0]}")
        for page, kind, text in BLOCKS
        if not kind
        for part in text.split("$ remanence ")[1:]
    ],
)
def test_every_console_block_of_the_docs_prints_what_it_shows(command, expected, run):
    printed = " ".join(run(*command.split())[1].split())
    for part in expected.split("\n...\n"):
        assert " ".join(part.split()) in printed


@pytest.mark.parametrize("text", blocks("toml"))
def test_every_settings_file_of_the_docs_is_one(text, run, tmp_path):
    (tmp_path / "audit.toml").write_text(text)
    command, target, *_ = settings_arguments(tmp_path / "audit.toml")
    assert target
    if command == "audit" and not target.endswith(":factory"):  # files and the factory are the reader's own
        assert run("audit", "audit.toml")[0] == 0
        assert list(tmp_path.rglob("report.html"))


@pytest.mark.parametrize("text", blocks("yaml"))
def test_the_workflow_of_the_docs_runs(text, run, tmp_path):
    (tmp_path / "audit.toml").write_text('target = "digits-noisy-sum"\ntrials = 40\n')
    commands = re.findall(r"- run: (remanence .*)", text)
    assert len(commands) == 2
    for command in commands:
        words, _, redirected = command.partition(" >> ")
        code, out, _ = run(*words.split()[1:])
        assert code == 0
        assert not redirected or out.startswith("## PROTECTED")
    for path in re.findall(r"path: ([\w/.]+)", text):
        assert (tmp_path / path).exists()


@pytest.mark.parametrize("text", [block for block in blocks("python") if "def test_" in block.values[0]])
def test_the_tests_of_the_docs_pass(text, audit_release):
    written: dict = {}
    exec(text, written)  # noqa: S102
    tests = [value for name, value in written.items() if name.startswith("test_")]
    assert len(tests) == text.count("def test_")
    for test in tests:
        test(audit_release)


def test_the_glossary_is_the_reports():
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert dict(rows[1:]) == GLOSSARY


def test_every_page_is_reached_from_the_menu_or_another_page():
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "/." not in page.as_posix()]
    for page in pages:
        others = "".join(other.read_text() for other in pages if other != page)
        assert page.name in menu or f"{page.name})" in others, f"nothing leads to {page}"
    entries = re.findall(r": ([\w/-]+\.md)", menu)
    assert len(entries) > 20
    assert [entry for entry in entries if not (ROOT / "docs" / entry).exists()] == []


def test_pages_that_the_code_determines_are_written_by_it():
    """`python tools/pages.py` writes them."""
    command = [sys.executable, str(ROOT / "tools" / "pages.py"), "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert found.stdout.strip() == "Stale: none", found.stderr


def test_there_are_few_pages_to_read():
    """Logs, reproductions and errata are evidence, and four pages are written by the code."""
    written = {"caveats.md", "glossary.md", "cli.md", "papers.md", "errata.md"}
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    logs = ("evidence", "reproductions")
    assert sum(page.name not in written and page.parts[0] not in logs for page in pages) <= 30


def test_the_page_of_audit_json_names_keys_that_exist():
    schema = json.loads((ROOT / "src/remanence/results/audit.schema.json").read_text())
    page = (ROOT / "docs" / "audit-json.md").read_text()
    named = re.findall(r"`([\w.\[\]]+)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    top = {name.partition("[")[0].partition(".")[0] for name in named if not name.startswith(".")}
    assert top <= schema["properties"].keys()
    assert top >= schema["properties"].keys()
    own = {name.partition("[].")[2].partition(".")[0] for name in named if name.startswith("evidence[].")}
    own |= {name[1:] for name in named if name.startswith(".")}
    assert own <= schema["$defs"]["evidence"]["properties"].keys()


PROSE = {  # by command: what a page says beside it, and what it finds
    "audit diabetes-ridge": [("docs/reading.md", "recovered 442 of 442 records", "successes", 442)],
    "audit digits-noisy-sum --trials 60": [
        ("docs/reading.md", "no attack exceeds 33.9 in 1000", "ceiling", 0.0339),
        ("docs/reading.md", "attack 33, limit 100", "rate", 0.033),
    ],
    "audit digits-dpsgd": [
        ("docs/report.md", "the attack 400 (332 to 471)", "rate", 0.400),
        ("docs/report.md", "no attack more than 555", "ceiling", 0.555),
    ],
}


@pytest.mark.parametrize("command", PROSE)
def test_a_number_in_prose_is_what_its_command_prints(command, run, tmp_path):
    run(*command.split(), "--out", "run")
    found = json.loads((tmp_path / "run" / "audit.json").read_text())
    best = max(found["evidence"], key=lambda entry: entry["main"]["lower"])
    for page, said, what, value in PROSE[command]:
        assert said in " ".join((ROOT / page).read_text().split())
        shown = min(b["success"] for b in found["bounds"]) if what == "ceiling" else best["main"][what]
        assert shown == pytest.approx(value, abs=5e-4)


def test_zero_of_twenty_leaves_what_the_page_says():
    assert "Zero successes in 20 trials still allow 168 in 1000" in (ROOT / "docs" / "reading.md").read_text()
    assert SuccessRate(0, 20).upper == pytest.approx(0.168, abs=5e-4)


def test_the_readme_s_classifier_is_as_exposed_as_it_says(capsys):
    (block,) = [block.values[0] for block in blocks("python") if "my classifier" in block.values[0]]
    exec(block, {})  # noqa: S102
    assert "998 in 1000" in capsys.readouterr().out
    assert "EXPOSED: 998 times in 1000" in block
