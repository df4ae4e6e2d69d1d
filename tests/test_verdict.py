import pytest
import torch
from torch import nn

from remanence import (
    InputError,
    Policy,
    Reconstructor,
    Records,
    SuccessRate,
    TransferHead,
    Verdict,
    audit_head,
    squared_and_absolute_error,
)
from remanence.adversary.priors import Baseline
from remanence.auditing import AuditResult
from remanence.results.evidence import Evidence
from remanence.results.verdict import decide

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


@pytest.mark.parametrize(
    ("main", "control", "baseline", "tells"),
    [
        (160, 160, Baseline(1.0, 0.0, "loose"), False),  # strangers are found as often
        (160, 10, Baseline(1.0, 0.0, "loose"), True),
        (120, 100, Baseline(0.5, 0.5, "exact"), True),  # above the guess, whatever the control happened to be
        (80, 0, Baseline(0.5, 0.5, "exact"), True),
        (1, 1, Baseline(0.0, 0.0, "exact"), True),
    ],
)
def test_an_attack_tells_something_above_a_guess_or_above_its_control(main, control, baseline, tells):
    evidence = Evidence("any", SuccessRate(main, 160), SuccessRate(control, 160), baseline)
    assert evidence.tells is tells


def test_a_head_that_reveals_nothing_is_not_exposed_by_a_loose_threshold():
    generator = torch.Generator().manual_seed(0)
    pictures, labels = torch.rand(400, 8, 8, generator=generator), torch.arange(400) % 4
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    recipe = TransferHead(4, 3, release_noise=1e6)
    public = Records(pictures[8:], labels[8:])
    result = audit_head(
        backbone,
        pictures[:8],
        labels[:8],
        recipe,
        prior=public,
        error=squared_and_absolute_error,  # whose guesses are records only: none of them gives the limit away
        limit=0.1,
        attacks=[Reconstructor(steps=10, batch=32)],
        trials=40,
    )
    assert result.strongest.main.lower > result.policy.max_success  # grey pictures are close to all noise
    assert result.verdict is Verdict.UNPROVEN
    assert AuditResult.from_json(result.to_json(), {}).verdict is Verdict.UNPROVEN
