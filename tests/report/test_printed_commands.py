"""Every command that a report or a page of the docs prints: it runs, and says the same."""

import html
import re
import shlex
from dataclasses import replace

import pytest
from typer.main import get_command

import remanence
from audit_results import result
from remanence import AuditResult, Verdict
from remanence.cli.main import app
from remanence.report.html import report
from remanence.report.remedies import command, python
from remanence.targets import TARGETS
from test_project import PACKAGE, ROOT

AUDITS = [
    "audit wine-pipeline",
    "audit diabetes-shortlist --trials 40",
    "audit digits-noisy-sum --trials 60 --max-success 0.2 --seed 3",
    "audit digits-dpsgd --trials 40 --attack prior-aware --accept-unproven",
]


@pytest.mark.parametrize("line", AUDITS)
def test_the_command_on_a_report_gives_the_same_result(line, run, tmp_path):
    code, *_ = run(*line.split(), "--out", "run")
    first = AuditResult.load(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    printed = html.unescape(re.search(r'aria-label="Command"><code>(.*?)</code>', page).group(1))
    assert printed == f"remanence {line} --out run"
    assert run(*shlex.split(printed)[1:])[0] == code
    assert AuditResult.load(tmp_path / "run").digest() == first.digest()


def test_the_call_on_a_report_gives_the_same_verdict():
    for target, trials in (("wine-pipeline", None), ("diabetes-shortlist", 40)):
        game = TARGETS[target]()
        found = remanence.audit(game, trials=trials, target=target)
        call = python(found)
        names = {name: getattr(remanence, name) for name in remanence.__all__ if name in call}
        again = eval(call, {**names, "game": game})  # noqa: S307
        assert again.verdict is found.verdict
        assert [entry.main for entry in again.evidence] == [entry.main for entry in found.evidence]
        assert command(found) == ""


@pytest.mark.parametrize(
    "stored",
    ["rm -rf /", "remanence audit x; rm -rf /", "remanence audit $(true)", "remanence 'x", "sudo remanence"],
)
def test_a_stored_command_that_is_not_ours_is_not_shown(stored):
    found = result(Verdict.EXPOSED)
    other = replace(found, environment={**found.environment, "command": stored})
    assert command(other) == ""
    assert 'aria-label="Command"' not in report(other)


def spoken(text: str) -> list[list[str]]:
    """The commands that a text mentions as code: `remanence ...`."""
    found = re.findall(r"`(remanence [a-z][^`\n]*)`", text) + re.findall(
        r"^\$ (remanence .*)$", text, re.MULTILINE
    )
    return [shlex.split(line.replace("...", "").replace("…", "")) for line in found]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted(PACKAGE.rglob("*.py"))]


def test_no_page_and_no_hint_names_a_command_or_an_option_that_is_not_there():
    commands, wrong = get_command(app).commands, []
    for page in [*PAGES, *sorted(PACKAGE.rglob("*.jinja"))]:
        for _, name, *rest in spoken(page.read_text()):
            known = {"--help"} | {
                o for p in getattr(commands.get(name), "params", ()) for o in (*p.opts, *p.secondary_opts)
            }
            named = [word.partition("=")[0] for word in rest if word.startswith("--")]
            wrong += [f"{page.name}: {name} {option}" for option in named if option not in known]
            wrong += [] if name in commands else [f"{page.name}: {name}"]
    assert wrong == []
