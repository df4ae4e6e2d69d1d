import copy
import math

import pytest
import torch
from small_models import trained

from remanence.bounds import Segment
from remanence.exceptions import InputError
from remanence.games.texts.audit_canaries import Claim, audit_canaries, judge
from remanence.games.texts.audit_text import audit_text
from remanence.games.texts.canaries import Design, TextCanaries, codes, natural, strange
from remanence.games.texts.tiny import as_language_model, made_up_records, train
from remanence.results.verdict import Policy, Verdict


def test_canaries_are_in_or_out_by_a_coin_and_the_same_seed_gives_the_same(tmp_path):
    made = codes(400, digits=6, seed=3)
    assert made.inserted + made.left_out != list(made.records)
    assert len(made.inserted) + len(made.left_out) == len(made) == 400
    assert 160 < len(made.inserted) < 240  # four deviations of a fair coin
    assert len({record["prefix"] for record in made.records}) == 400
    assert all(len(r["secret"]) == 6 and r["secret"].isdecimal() for r in made.records)
    assert made.candidates == 10**6
    again = codes(400, digits=6, seed=3)
    assert (again.records, again.chosen.tolist()) == (made.records, made.chosen.tolist())
    assert codes(400, seed=4).chosen.tolist() != made.chosen.tolist()
    made.save(tmp_path / "canaries.json")
    read = TextCanaries.load(tmp_path / "canaries.json")
    assert (read.records, read.chosen.tolist(), read.design) == (
        made.records,
        made.chosen.tolist(),
        Design.CODES,
    )
    assert strange(10, letters=5, seed=0).candidates == 26**5
    assert natural(made_up_records(10, seed=0), seed=0).candidates is None


@pytest.mark.parametrize("text", ["", "{}", '{"records": [], "chosen": [true], "design": "CODES"}', "[1]"])
def test_files_that_hold_no_canaries_are_refused(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match="canaries cannot be read"):
        TextCanaries.load(tmp_path / "c.json")


def test_canaries_and_claims_without_a_meaning_are_refused():
    for make in (
        lambda: codes(1, seed=0),
        lambda: codes(5, template="same", seed=0),
        lambda: codes(5, digits=0, seed=0),
        lambda: strange(5, letters=0, seed=0),
        lambda: natural([{"text": "a"}], seed=0),
        Claim,
        lambda: Claim(1.0, dpsgd=(Segment(1.0),)),
        lambda: Claim(-1.0),
        lambda: Claim(1.0, delta=0),
    ):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (Claim(0.0, 1e-9), 0.5),
        (Claim(math.log(3), 1e-9), 0.75),
        (Claim(800.0), 1.0),
        (Claim(dpsgd=(Segment(1.0, steps=1),)), 0.6914624612740131),  # Φ(1/2), by hand
    ],
    ids=str,
)
def test_the_ceiling_of_a_claim_is_what_in_and_out_allow(claim, expected):
    assert float(claim.ceiling().success) == pytest.approx(expected, abs=1e-6)


def gaussian(noise, seed, count=1200):
    """Scores of a mechanism whose every canary is a Gaussian mechanism of its own: μ = 1 / noise, exactly."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(2, (count,), generator=generator).bool()
    return chosen + noise * torch.randn(count, generator=generator), chosen


def test_a_correct_claim_is_never_contradicted_over_ten_seeds_and_half_the_noise_is():
    claim = Claim(dpsgd=(Segment(1.0, steps=1),))
    right = [judge(*gaussian(1.0, seed), claim) for seed in range(10)]
    half = [judge(*gaussian(0.5, seed), claim) for seed in range(10)]
    assert not any(entry.rejects_the_claim for entry in right)
    assert all(entry.rejects_the_claim for entry in half)
    assert judge(*gaussian(1e-6, 0), claim).rejects_the_claim  # noise forgotten
    assert all(entry.main.lower <= 0.6915 for entry in right)  # never above what anybody can achieve


def test_scores_that_know_nothing_prove_nothing():
    scores = torch.randn(500, generator=torch.Generator().manual_seed(0))
    chosen = torch.randint(2, (500,), generator=torch.Generator().manual_seed(1)).bool()
    found = judge(scores, chosen, Claim(0.0))
    assert found.findings["epsilon_at_least"] == 0
    assert found.findings["p_value_of_the_claim"] > 0.05
    assert found.main.lower <= 0.5


def test_a_fine_tuning_without_noise_contradicts_a_small_epsilon_and_not_a_large_one(tmp_path):
    made = natural(made_up_records(160, seed=7), seed=0)
    base = trained()[0]
    tuned = copy.deepcopy(base.logits).requires_grad_(True)
    train(tuned, [r["prefix"] + r["secret"] for r in made.inserted], steps=120, seed=2)
    model = as_language_model(tuned, "tuned")
    result = audit_canaries(model, made, base=base, claim=Claim(1.0))
    assert result.verdict is Verdict.CONTRADICTED
    epsilon = result.strongest.findings["epsilon_at_least"]
    assert epsilon > 1.5
    path = result.save(tmp_path)
    assert type(result).load(path).verdict is Verdict.CONTRADICTED
    assert not any(record["prefix"] in path.read_text() for record in made.records)
    assert (
        audit_canaries(model, made, base=base, claim=Claim(20.0), policy=Policy(0.7)).verdict
        is Verdict.EXPOSED
    )
    assert audit_canaries(model, made, base=base, policy=Policy(0.7)).verdict is Verdict.EXPOSED
    # The same canaries as texts: those that are in come out, those that are out are the control.
    texts = audit_text(model, made.inserted, base=base, unseen=made.left_out)
    assert texts.verdict is Verdict.EXPOSED
    assert texts.strongest.control.rate < 0.05
    with pytest.raises(InputError, match=r"above 0\.5"):
        audit_canaries(model, made, policy=Policy(0.4))


def test_a_model_that_saw_no_canary_contradicts_nothing_whatever_the_coins():
    base, tuned = trained()
    for seed in range(5):
        made = natural(made_up_records(120, seed=11), seed=seed)
        result = audit_canaries(tuned, made, base=base, claim=Claim(0.0))
        assert result.verdict is Verdict.PROTECTED  # no attack tells more than a coin, as the claim proves
