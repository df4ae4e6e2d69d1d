"""The two-sided story for people: attacks in our own games that come near their ceilings and never pass them."""

import math
from dataclasses import replace

import pytest
import torch
from worst_cases import CASES, SIGNS, attacked

from remanence import (
    Criterion,
    FinitePrior,
    Game,
    InputError,
    NoisySum,
    Records,
    TransferHead,
    mismatch,
)
from remanence.bounds import Person, dpsgd, of
from remanence.tables.glm.families import Gaussian, Logistic, Multinomial
from remanence.tables.glm.model import GLM


@pytest.mark.parametrize("name", CASES)
def test_the_best_attack_comes_near_its_ceiling_and_never_passes_it(name):
    bound, evidence = attacked(name)
    assert evidence.main.lower <= bound.success
    assert evidence.main.upper >= bound.success - CASES[name][1]
    assert evidence.control.lower <= 0.5 <= evidence.control.upper


HEAD = TransferHead(
    2, 40, 0.2, weight_decay=0.5, noise_multiplier=3.0, max_grad_norm=0.01, initialisation=0.0
)


def test_the_final_weights_of_a_head_hide_as_well_as_proven_and_no_better():
    # So tight a clipping makes every step a constant one, which is the worst case of the theorem.
    trials, embedding = 20_000, torch.tensor([3.0, 4.0])
    labels = torch.randint(2, (trials, 1), generator=torch.Generator().manual_seed(0))
    seen = embedding.expand(trials, 1, 2).contiguous()
    targets = Records(torch.zeros(trials, 1, 1), labels.float(), embedding=seen)
    release = HEAD.release(None, targets, torch.Generator().manual_seed(1))
    score = (release["weight"] @ embedding + release["bias"]).flatten()
    rate = float(((score > 0) == (labels[:, 0] == 1)).double().mean())
    bound = of(HEAD, 0.5, feature_norm=5.0)
    assert bound.name == "final weights"
    assert rate == pytest.approx(bound.success, abs=4 * math.sqrt(0.25 / trials))
    assert bound.success < dpsgd(0.5, noise_multiplier=3.0, steps=40).success - 0.05
    assert any("longer than 5" in assumption for assumption in bound.assumptions)
    three = of(HEAD, 0.5, feature_norm=5.0, person=Person(3))
    assert three.success > bound.success
    assert three.whose == "a person with at most 3 records"


@pytest.mark.parametrize(
    "changed",
    [
        {"classes": 3},  # clipping several outputs may expand
        {"two_outputs": True},
        {"weight_decay": 0.0},
        {"momentum": 0.5},
        {"sample_rate": 0.5, "epochs": 20},
        {"learning_rate": 0.4},  # steps do not contract
    ],
)
def test_a_head_that_may_not_forget_keeps_the_ceiling_of_every_step(changed):
    head = TransferHead(**{**vars(HEAD), **changed})
    bound = of(head, 0.1, feature_norm=5.0)
    plain = dpsgd(0.1, noise_multiplier=3.0, sample_rate=head.sample_rate, steps=40)
    assert bound.name == "DP-SGD"
    assert bound.success == plain.success


def test_noise_on_penalised_logistic_weights_is_a_gaussian_mechanism():
    model = GLM(Logistic(), penalty=20.0, fit_intercept=False, noise=0.05)
    bound = of(model, 0.5, feature_norm=2.0)
    trials = 20_000
    labels = torch.randint(2, (trials, 1), generator=torch.Generator().manual_seed(0))
    features = torch.tensor([2.0, 0.0]).double().expand(trials, 1, 2).contiguous()
    release = model.release(None, Records(features, labels.double()), torch.Generator().manual_seed(1))
    rate = float(((release["coefficient"][:, 0, 0] > 0) == (labels[:, 0] == 1)).double().mean())
    slack = 4 * math.sqrt(0.25 / trials)
    assert rate <= bound.success + slack
    # The residual of a record that pulls alone is below a half, and the proof allows 1.
    assert rate >= dpsgd(0.5, noise_multiplier=2 * 0.05 * 20 / 2).success - 0.06


@pytest.mark.parametrize(
    "model",
    [
        GLM(Logistic(), penalty=20.0, noise=0.05),  # the intercept is not penalised
        GLM(Logistic(), penalty=0.0, fit_intercept=False, noise=0.05),
        GLM(Gaussian(), penalty=20.0, fit_intercept=False, noise=0.05),  # residuals have no limit
        GLM(Logistic(), penalty=20.0, fit_intercept=False),
        GLM(Logistic(), penalty=20.0, fit_intercept=False, noise=0.05, class_weights="balanced"),
    ],
)
def test_a_model_without_a_proof_is_refused(model):
    with pytest.raises(InputError, match="no proven ceiling"):
        of(model, 0.1, feature_norm=1.0)
    penalised = GLM(Multinomial(3), penalty=9.0, intercept_penalty=9.0, noise=0.1)  # all weights
    assert of(penalised, 0.1, feature_norm=1.0).success < 1


def test_an_audit_says_that_its_data_hold_several_records_of_one_person():
    known = Records(torch.tensor([[0.0], [0.5], [0.5]]), torch.zeros(3))
    mechanism = NoisySum(noise_multiplier=2.0)
    for person, raised in ((None, True), (Person(2), False)):
        bound = of(mechanism, 0.5, person=person)
        game = Game(mechanism, FinitePrior(SIGNS), known, Criterion(mismatch, threshold=0.5), bounds=(bound,))
        found = {caveat.id: caveat.seen for caveat in game.caveats()}
        assert ("several-records-of-one" in found) == raised
        assert found.get("several-records-of-one", "1 of").startswith("1 of")
    unique = replace(game, known_data=known[:2], bounds=(of(mechanism, 0.5),))
    assert "several-records-of-one" not in {caveat.id for caveat in unique.caveats()}
