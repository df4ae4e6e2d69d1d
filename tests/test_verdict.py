import pytest

from remanence import InputError, Policy, SuccessRate, Verdict
from remanence.verdict import decide

NOTHING, SOME, EVERYTHING = SuccessRate(0, 1000), SuccessRate(200, 1000), SuccessRate(1000, 1000)


@pytest.mark.parametrize(
    ("attacks", "bound", "verdict"),
    [
        ([NOTHING], None, Verdict.UNPROVEN),
        ([NOTHING], 0.9, Verdict.UNPROVEN),
        ([NOTHING], 0.05, Verdict.PROTECTED),
        ([NOTHING], 0.1, Verdict.PROTECTED),
        ([], 0.05, Verdict.PROTECTED),
        ([SOME], None, Verdict.EXPOSED),
        ([SOME], 0.9, Verdict.EXPOSED),
        ([SOME], 0.05, Verdict.CONTRADICTED),
        ([NOTHING, EVERYTHING], 0.9, Verdict.CONTRADICTED),
        ([SuccessRate(12, 100)], None, Verdict.UNPROVEN),  # 12 % seen, but 10 % is not excluded
    ],
)
def test_the_verdict_follows_the_decision_table(attacks, bound, verdict):
    assert decide(attacks, bound, Policy(0.1)) is verdict


@pytest.mark.parametrize("successes", range(0, 101, 10))
def test_no_attack_result_alone_ever_yields_protected(successes):
    assert decide([SuccessRate(successes, 100)], None, Policy(0.99)) is not Verdict.PROTECTED


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


def test_a_rejected_claim_is_contradicted_whatever_the_rates_are():
    assert decide([SuccessRate(0, 100)], 0.05, Policy(0.1), rejected=True) is Verdict.CONTRADICTED
