import math
from dataclasses import replace

import pytest
import torch

from audit_results import result
from remanence import (
    InputError,
    Policy,
    SuccessRate,
    Verdict,
)
from remanence.bounds.bound import Bound
from remanence.core.baseline import Baseline
from remanence.core.references import Reference
from remanence.results.claims import PrivacyTest
from remanence.results.evidence import ErrorSummary, Evidence
from remanence.results.findings import ProvenRecords, Words
from remanence.results.verdict import decide, decisive
from remanence.results.verification import missing_caveats
from remanence.tables.single_columns import Columns, PartRate

GUESS = Baseline(0.0, 0.0, "exact")


def found(successes, trials=1000, *, control=0, guess=GUESS, **more):
    return Evidence("any", SuccessRate(successes, trials), SuccessRate(control, trials), guess, **more)


def proof(success, *, on_average=False):
    return Bound("any", math.log(success), (), Reference("any", "any"), on_average=on_average)


NOTHING, SOME, EVERYTHING = found(0), found(200), found(1000)
REFUTED = PrivacyTest(30, 30, 8.0, 1e-5, 1.0, 0.001)


@pytest.mark.parametrize(
    ("evidence", "bounds", "verdict"),
    [
        ([NOTHING], [], Verdict.UNPROVEN),
        ([NOTHING], [0.9], Verdict.UNPROVEN),
        ([NOTHING], [0.05], Verdict.PROTECTED),
        ([NOTHING], [0.0999999], Verdict.PROTECTED),
        ([NOTHING], [0.9, 0.05], Verdict.PROTECTED),
        ([NOTHING], [0.05, 0.9], Verdict.PROTECTED),
        ([found(50)], [0.06], Verdict.PROTECTED),  # between 0.037 and 0.065: not certainly above the proof
        ([], [0.05], Verdict.PROTECTED),
        ([SOME], [], Verdict.EXPOSED),
        ([SOME], [0.9], Verdict.EXPOSED),
        ([SOME], [0.05], Verdict.CONTRADICTED),
        ([SOME], [0.9, 0.05], Verdict.CONTRADICTED),
        ([SOME], [0.05, 0.9], Verdict.CONTRADICTED),
        ([NOTHING, EVERYTHING], [0.9], Verdict.CONTRADICTED),
        ([found(12, 100)], [], Verdict.UNPROVEN),  # 12 % seen, but 10 % is not excluded
        ([found(1, 1, proven=1)], [], Verdict.EXPOSED),  # a fact, however few they are
        ([found(1, 1, proven=1)], [0.05], Verdict.EXPOSED),
        ([found(0, findings=(REFUTED,))], [0.05], Verdict.CONTRADICTED),
        # What equals something blind exposes nothing, and can still contradict a proof.
        ([found(900, control=900)], [], Verdict.UNPROVEN),
        ([found(500, guess=Baseline(0.5, 0.5, "exact"))], [], Verdict.UNPROVEN),
        ([found(900, control=900)], [0.5], Verdict.CONTRADICTED),
        # Nothing is protected where even the control is above the limit.
        ([found(50)], [0.09], Verdict.PROTECTED),
        ([found(50, control=200)], [0.09], Verdict.UNPROVEN),
        ([found(50, control=500)], [0.09], Verdict.UNPROVEN),
        ([found(50, control=1000)], [0.09], Verdict.UNPROVEN),
    ],
)
def test_the_verdict_follows_the_decision_table(evidence, bounds, verdict):
    assert decide(evidence, [proof(success) for success in bounds], Policy(0.1)) is verdict


@pytest.mark.parametrize(
    ("p_value", "refuted", "word"),
    [
        (0.5, False, "consistent with the recording"),
        (0.5, True, "refuted by what was measured"),
        (0.01, False, "suspicious, record again (p = 0.01)"),
        (0.01, True, "refuted by what was measured"),
        (1e-4, True, "refuted (p = 0.0001)"),
    ],
)
def test_a_test_of_a_claim_says_what_it_found(p_value, refuted, word):
    noise = {"claimed_noise_multiplier": 1.0, "measured_noise_multiplier": 0.98}
    ends = {"measured_noise_multiplier_from": 0.95, "measured_noise_multiplier_to": 1.02}
    test = PrivacyTest(30, 20, 0.5, 1e-5, 4.0, p_value, accused_at=1e-3, **noise, **ends)
    measured = "noise claimed 1.00, measured 0.98 (0.95 to 1.02)"
    assert test.claim(refuted=refuted) == f"The claim: {word}; {measured}."
    assert (test.contradicts, test.suspicious) == (p_value <= 1e-3, p_value == 0.01)


def test_a_baseline_on_average_is_one_after_storage():
    for on_average in (True, False):
        guess = Baseline(0.2, 0.1, "few", on_average=on_average)
        assert Evidence.from_json(found(0, guess=guess).to_json(Policy(0.5)), {}).baseline == guess


@pytest.mark.parametrize("findings", [(), (PrivacyTest(30, 15, 0.0, 1e-5),)])
def test_a_caveat_that_follows_from_the_rates_is_missed(findings):
    missing = missing_caveats(found(900, control=900, findings=findings), Policy(0.1))
    due = ("no-better-than-control", "saturated-control")
    assert missing == [f"any: the caveat {caveat} is missing" for caveat in due]


def test_errors_are_summed_up_by_their_median_and_their_worst():
    errors, left = torch.tensor([3.0, 1.0, 2.0, math.nan, 0.5]), torch.tensor([1.0, 4.0, 2.0])
    assert ErrorSummary.of(errors, left / 2, left) == ErrorSummary(2.0, math.inf, 1.0, 4.0)
    assert ErrorSummary.of(errors[:3], None, None) == ErrorSummary(2.0, 3.0)
    assert ErrorSummary.of(torch.full((2, 1), math.nan), None, None) == ErrorSummary()


@pytest.mark.parametrize(
    ("proven", "of", "said"),
    [
        (None, None, "30 of 40"),
        (0, 50, "30 of 40"),
        (9, 50, "9 of 50"),
        (9, None, "30 of 40"),
        (41, None, "41"),
    ],
)
def test_what_an_attack_has_done_is_counted_in_proven_records_where_there_are_some(proven, of, said):
    evidence = found(30, 40, proven=proven, proven_of=of)
    ending = "trials, of an unknown number" if said == "41" else "trials"
    assert result(Verdict.PROTECTED).done(evidence) == f"recovered the target in {said} {ending}"
    several = replace(evidence, main=replace(evidence.main, clusters=8), proven=None)
    assert result(Verdict.PROTECTED).done(several) == "recovered 30 of 40 targets in 8 trials"
    facts = [each for each in evidence.found if isinstance(each, ProvenRecords)]
    assert [fact.tells and fact.exposes(Policy(0.1)) for fact in facts] == [True] * bool(proven)


def test_a_ceiling_on_average_proves_nothing_about_these_records():
    average = proof(0.05, on_average=True)
    assert decide([NOTHING], [average], Policy(0.1)) is Verdict.UNPROVEN
    assert decide([found(900)], [average], Policy(0.95)) is Verdict.UNPROVEN
    assert decide([found(900)], [average], Policy(0.3)) is Verdict.EXPOSED
    # A tighter average beside it does not hide that the claim of each record is broken, or proven.
    assert decide([found(900)], [average, proof(0.5)], Policy(0.95)) is Verdict.CONTRADICTED
    assert decide([NOTHING], [average, proof(0.08)], Policy(0.1)) is Verdict.PROTECTED
    assert decide([NOTHING], [proof(0.05)], Policy(proof(0.05).success)) is Verdict.PROTECTED  # at the limit


@pytest.mark.parametrize("successes", range(0, 101, 10))
def test_no_attack_result_alone_ever_yields_protected(successes):
    assert decide([found(successes, 100)], [], Policy(0.99)) is not Verdict.PROTECTED


def test_the_exit_codes_are_the_documented_ones():
    assert {verdict.name: verdict.exit_code for verdict in Verdict} == {
        "PROTECTED": 0,
        "EXPOSED": 1,
        "CONTRADICTED": 1,
        "UNPROVEN": 3,
    }


@pytest.mark.parametrize("limit", [0.0, 1.0, -0.1, float("nan"), 2.0])
def test_a_policy_is_a_share_strictly_between_none_and_all(limit):
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        Policy(limit)


@pytest.mark.parametrize(
    ("main", "control", "baseline", "tells"),
    [
        (160, 160, Baseline(1.0, 0.0, "loose"), False),  # strangers are found as often
        (160, 10, Baseline(1.0, 0.0, "loose"), True),
        (120, 100, Baseline(0.5, 0.5, "exact"), False),  # above the guess, and not above its control
        (120, 80, Baseline(0.5, 0.5, "exact"), True),
        (80, 0, Baseline(0.5, 0.5, "exact"), False),  # above its control, and not above a guess
        (80, 0, Baseline(0.9, 0.3, "loose"), True),  # a guess was seen to achieve less
        (80, 0, Baseline(0.9, 0.5, "close"), False),
        (160, 160, Baseline(0.0, 0.0, "exact"), False),
        # 25 of 160 is a rate of 0.156 and at most 0.222; 40 and 60 of 160 are at least 0.185 and 0.299.
        (40, 25, Baseline(0.05, 0.0, "few pictures", on_average=True), False),
        (60, 25, Baseline(0.05, 0.0, "few pictures", on_average=True), True),
    ],
)
def test_an_attack_tells_something_above_its_control_and_above_a_guess(main, control, baseline, tells):
    evidence = Evidence("any", SuccessRate(main, 160), SuccessRate(control, 160), baseline)
    assert evidence.tells is tells


COLUMN = Columns((PartRate("age", SuccessRate(900, 1000), SuccessRate(0, 1000), 0.01),))
AS_HIGH = found(950, control=950)  # a high rate that needs no release


@pytest.mark.parametrize(
    ("decides", "other", "bounds"),
    [
        (found(300), AS_HIGH, []),
        (found(0, findings=(COLUMN,)), AS_HIGH, []),
        (found(1, 1000, proven=1), AS_HIGH, []),
        (found(0, findings=(REFUTED,)), AS_HIGH, []),
        (found(50), AS_HIGH, []),  # below the limit, and yet the only one that tells
        (found(300), found(200, proven=3), [proof(0.25)]),  # beats a proof
        (AS_HIGH, NOTHING, []),  # nothing decides
    ],
)
def test_the_attack_that_decides_is_told_about_and_not_the_highest_rate(decides, other, bounds):
    for order in ([decides, other], [other, decides]):
        assert decisive(order, bounds, Policy(0.1))[0] is decides


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        (found(300), "whole-records"),
        (found(300, proven=2, proven_of=9), "proven-records"),  # a fact comes before a rate
        (found(0, findings=(COLUMN,)), "columns"),
        (found(50, findings=(COLUMN,)), "columns"),  # whole records are below the limit
        (found(300, findings=(REFUTED,)), "privacy-test"),
        (found(0), "whole-records"),
        (found(900, control=900), "whole-records"),
    ],
)
def test_the_finding_that_decides_is_the_one_that_every_view_begins_with(evidence, kind):
    assert decisive([evidence], [], Policy(0.1))[1].kind == kind


def test_a_finding_of_a_door_that_is_not_installed_is_shown_and_decides_as_it_was_stored():
    entry = {"kind": "from-elsewhere", "exposes": True, "anything": 3}
    stored = found(0).to_json(Policy(0.1)) | {"findings": [entry]}
    read = Evidence.from_json(stored, {})
    assert decide([read], [], Policy(0.1)) is Verdict.EXPOSED
    assert "from-elsewhere" in read.findings[0].headline(Words())
    assert read.to_json(Policy(0.1))["findings"] == [entry]
    quiet = Evidence.from_json(stored | {"findings": [entry | {"exposes": False}]}, {})
    assert decide([quiet], [], Policy(0.1)) is Verdict.UNPROVEN
    refuting = Evidence.from_json(stored | {"findings": [entry | {"contradicts": True}]}, {})
    assert decide([refuting], [], Policy(0.1)) is Verdict.CONTRADICTED


@pytest.mark.parametrize(
    "wrong",
    [{"p_value_of_the_claim": "0.5"}, {"delta": None}, {"claimed_noise_multiplier": 1.0}],
    ids=str,
)
def test_a_stored_test_of_a_claim_has_all_of_its_numbers(wrong):
    stored = REFUTED.to_json()
    assert PrivacyTest.from_json(stored) == REFUTED
    for entry in ({**stored, **wrong}, {"surest_guesses": 30}):
        with pytest.raises(ValueError, match="the test of the claim"):
            PrivacyTest.from_json(entry)


def test_a_limit_that_a_game_lowered_needs_no_caveat_that_its_audit_did_not_give():
    """Canaries of one run: an honest result of `remanence run` was said to contradict itself."""
    lowered = found(300)
    lowered = replace(lowered, main=replace(lowered.main, floor=0.0))
    assert missing_caveats(lowered, Policy(0.9)) == []


def test_in_python_the_lowest_ceiling_is_the_one_that_is_told():
    found = result(Verdict.PROTECTED)
    looser = Bound("another proof", math.log(0.59), (), Reference("another", "another"))
    (least,) = found.bounds
    most = f"Proven: no attack exceeds {math.ceil(least.success * 1000)} in 1000 for one record."
    assert most in str(replace(found, bounds=(looser, least)))
    average = replace(looser, log_success=math.log(0.25), on_average=True)
    lines = [line for line in str(replace(found, bounds=(average, least))).splitlines() if "Proven" in line]
    assert len(lines) == 2
    assert lines[0] == most
    assert lines[1].endswith("Proven: no attack exceeds 251 in 1000 for one record on average over records.")
    nothing = str(replace(found, bounds=(replace(looser, log_success=0.0),)))
    assert "Proven" not in nothing
