"""Reports for machines: the verdict maps as documented, and nothing that a file brings along breaks them."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from markupsafe import escape

from audit_results import AGE, one_column, poisoned, result
from remanence import Policy, SuccessRate, Verdict, audit
from remanence.report.dossier import criteria
from remanence.report.junit import junit
from remanence.report.markdown import compare, model_card, summary
from remanence.report.remedies import python
from remanence.report.sarif import sarif
from remanence.report.writing import FORMATS
from remanence.targets import TARGETS

SARIF = {  # kind, level, rule
    Verdict.PROTECTED: ("pass", "none", "RMN001/reconstruction"),
    Verdict.UNPROVEN: ("open", "none", "RMN001/reconstruction"),
    Verdict.EXPOSED: ("fail", "error", "RMN001/reconstruction"),
    Verdict.CONTRADICTED: ("fail", "error", "RMN002/bound-violated"),
}


@pytest.mark.parametrize("verdict", Verdict)
def test_sarif_says_pass_fail_or_open(verdict):
    found = result(verdict)
    run = json.loads(sarif(found))["runs"][0]
    (entry,) = run["results"]
    assert (entry["kind"], entry["level"], entry["ruleId"]) == SARIF[verdict]
    assert run["tool"]["driver"]["rules"][entry["rule"]["index"]]["id"] == entry["ruleId"].partition("/")[0]
    assert entry["properties"]["rate"] == found.strongest.main.rate
    assert entry["properties"]["lower"] == found.strongest.main.lower


def test_sarif_points_at_the_file_and_recognises_the_same_subject_again():
    found = replace(result(Verdict.EXPOSED), target="models/my model.py:factory")
    (entry,) = json.loads(sarif(found))["runs"][0]["results"]
    place = entry["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "models/my%20model.py"
    (again,) = json.loads(sarif(replace(found, policy=Policy(0.5))))["runs"][0]["results"]
    (other,) = json.loads(sarif(replace(found, subject={"sha256": {}})))["runs"][0]["results"]
    assert entry["partialFingerprints"] == again["partialFingerprints"] != other["partialFingerprints"]


def test_to_run_it_again_takes_as_many_trials_not_as_many_records():
    found = result(Verdict.EXPOSED)
    several = replace(found.evidence[0], main=SuccessRate(90, 120, clusters=40))
    assert "trials=40," in python(replace(found, evidence=(several,)))
    single = replace(several, main=SuccessRate(90, 120))
    assert "trials=120," in python(replace(found, evidence=(single,)))


LUCKY = SuccessRate(39, 40)


@pytest.mark.parametrize(
    ("changed", "outcome", "said"),
    [
        ({"main": SuccessRate(0, 40), "proven": 2}, "failure", "2 records are proven"),
        ({"main": SuccessRate(0, 40), "findings": (AGE,)}, "failure", "The column age came back in 36 of 40"),
        ({"main": SuccessRate(10, 40)}, "skipped", "nothing certain found"),
        ({"main": LUCKY, "control": LUCKY}, "skipped", "than without the release"),
    ],
)
def test_junit_counts_an_attack_as_the_verdict_does(changed, outcome, said):
    found = result(Verdict.EXPOSED)
    found = replace(found, evidence=(replace(found.evidence[0], **changed),))
    attack = next(ET.fromstring(junit(found)).iter("testcase"))  # noqa: S314
    (told,) = attack
    assert told.tag == outcome
    assert said in (told.text or "")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"main": SuccessRate(1, 40), "proven": 1}, "proven to be in what is released"),
        ({"main": SuccessRate(0, 40), "findings": (AGE,)}, "Single columns come back more often"),
        ({}, "An attack succeeds more often than the limit allows."),
    ],
)
def test_exposed_says_by_what(changed, said):
    found = result(Verdict.EXPOSED)
    found = replace(found, evidence=(replace(found.evidence[0], **changed),))
    for view in (summary(found), str(found), junit(found), sarif(found), model_card(found)):
        assert said in view
    assert "1 of them are" not in summary(found)


def test_every_view_tells_about_the_attack_that_decides():
    found = result(Verdict.EXPOSED)
    high = SuccessRate(40, 40)
    idle = replace(found.evidence[0], attack="as-high", main=high, control=high)
    both = replace(found, evidence=(idle, replace(found.evidence[0], main=SuccessRate(30, 40))))
    decides = found.evidence[0].attack
    assert f"by {decides}." in summary(both)
    assert "as-high recovered more, but not certainly more than without the release." in summary(both)
    assert f'attack: "{decides}"' in model_card(both)
    (entry,) = json.loads(sarif(both))["runs"][0]["results"]
    assert entry["properties"]["attack"] == decides
    assert decides in str(both)


@pytest.mark.parametrize("verdict", Verdict)
def test_junit_fails_skips_or_passes(verdict):
    found = result(verdict)
    (suite,) = ET.fromstring(junit(found))  # noqa: S314
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.attrib["tests"]) == len(found.evidence) + len(found.bounds) + 1
    for outcome in ("failure", "skipped"):
        counted = int(suite.attrib["failures" if outcome == "failure" else outcome])
        assert counted == sum(case.find(outcome) is not None for case in cases)
    for told in (each for case in cases for each in case):  # what is skipped has no message in the schema
        assert told.attrib == ({"message": told.text} if told.tag == "failure" else {})
    last = cases[-1]
    outcome = {Verdict.PROTECTED: [], Verdict.UNPROVEN: ["skipped"]}.get(verdict, ["failure"])
    assert [child.tag for child in last] == outcome
    assert (int(suite.attrib["failures"]) > 0) == (verdict.exit_code == 1)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_summary_fits_a_pull_request_and_a_card_has_keys(verdict):
    found = result(verdict)
    text = summary(found)
    assert text.startswith(f"## {verdict}: ")
    assert len(text.splitlines()) <= 60
    card = model_card(found).splitlines()
    assert card[:2] == ["---", "remanence:"]
    keys = dict(line.strip().split(": ", 1) for line in card[2 : card.index("---", 1)])
    values = {name: json.loads(value) for name, value in keys.items()}
    assert values["verdict"] == verdict
    assert values["attack_upper"] == found.strongest.main.upper
    assert values["bound"] == (found.bounds[0].success if found.bounds else None)


@pytest.mark.parametrize("name", ["junit", "sarif", "markdown", "model-card"])
def test_whatever_a_file_brings_along_the_format_holds(name):
    text = FORMATS[name](poisoned(result(Verdict.CONTRADICTED)))
    if name == "junit":
        assert "alert(1)" in next(ET.fromstring(text).iter("testcase")).attrib["name"]  # noqa: S314
    elif name == "sarif":
        assert "alert(1)" in json.loads(text)["runs"][0]["results"][0]["message"]["text"]
    else:
        assert "alert(1)" in text
        assert "<" not in text


def with_rate(verdict: Verdict, successes: int, trials: int):
    found = result(verdict)
    best = replace(found.strongest, main=SuccessRate(successes, trials))
    return replace(found, evidence=(best,))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(10, 200, "certainly more"), (200, 10, "certainly less"), (100, 101, "no certain change")],
)
def test_a_rate_has_changed_where_the_intervals_do_not_overlap(before, after, change):
    found = compare(with_rate(Verdict.UNPROVEN, before, 300), with_rate(Verdict.UNPROVEN, after, 300))
    assert [row[3] for row in found.rows] == [change]
    assert bool(found.worse) == (change == "certainly more")


def test_a_worse_verdict_a_lost_proof_and_other_settings_are_named():
    found = compare(result(Verdict.PROTECTED), result(Verdict.CONTRADICTED))
    changed = {row[0]: row[1:] for row in found.rows}
    assert changed["verdict"] == ("PROTECTED", "CONTRADICTED", "worse")
    assert changed["limit"] == ("0.6", "0.55", "differs")
    assert found.worse == ("the verdict",)  # the wrong claim is the lower ceiling
    lost = compare(result(Verdict.PROTECTED), result(Verdict.UNPROVEN))
    assert lost.worse == ("the verdict", "the ceiling")
    assert "| ceiling | " in lost.markdown()
    assert "Worse: the verdict; the ceiling." in lost.markdown()
    moved = compare(result(Verdict.UNPROVEN), replace(result(Verdict.UNPROVEN), target="another"))
    assert ("target", "a noisy sum", "another", "differs") in moved.rows


def test_other_tools_read_the_number_that_decided():
    found = one_column()
    assert found.verdict is Verdict.EXPOSED
    assert "attack_rate: 0.9\n" in model_card(found)
    assert json.loads(sarif(found))["runs"][0]["results"][0]["properties"]["rate"] == 0.9
    attack, _ = ET.fromstring(junit(found)).iter("failure")  # noqa: S314
    said = (
        "The column age came back in 36 of 40 records; a guess finds it 10 times in 1000. Limit 100 in 1000"
    )
    assert attack.text == said


@pytest.mark.parametrize("verdict", Verdict)
def test_a_dossier_answers_each_question_once(verdict):
    found = result(verdict)
    rows = criteria(found)
    assert len({who for who, _, _ in rows}) == len(rows)
    for who, _, shown in rows:
        for other in re.findall(r"As under (.*?)\.(?= |$)", shown):
            assert other in [name for name, _, _ in rows[: [w for w, _, _ in rows].index(who)]]
    long = [shown for _, _, shown in rows if not shown.startswith(("As under", "Not tested"))]
    assert len(set(long)) == len(long)
    page = FORMATS["dossier-html"](found)
    assert all(str(escape(asks)) in page for _, asks, _ in rows)


def test_a_dossier_states_epsilon_where_noise_is_proven():
    found = audit(TARGETS["digits-noisy-sum"](), target="a noisy sum", trials=5)
    assert "ε 1.994 at δ 1e-05" in FORMATS["dossier"](found)
