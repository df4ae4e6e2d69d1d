"""Generalised linear models at their optimum, and the missing record in closed form: as exact as the optimiser."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge, TweedieRegressor

from conftest import synthetic
from remanence import (
    GLM,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    Game,
    Gaussian,
    IncompatibleGameError,
    InputError,
    LeaveOneOut,
    Logistic,
    Multinomial,
    Records,
    Tweedie,
    Uninformed,
    play,
    relative_error,
)
from remanence.results.caveats import OPTIMISER_NOT_CONVERGED
from remanence.scale.seeds import stream
from remanence.tables.glm.families import Family, SquaredHinge
from remanence.tables.glm.model import standard_units
from remanence.testing import check_mechanism

FAMILIES: list[Family] = [Gaussian(), Logistic(), Multinomial(3), *(Tweedie(p) for p in (1.0, 1.5, 2.0, 3.0))]


def labelled(family: Family, count: int = 40) -> Records:
    """Data in the family's domain."""
    data = synthetic(count, classes=family.classes or 2)
    if family.classes:
        return data
    generator = torch.Generator().manual_seed(1)
    labels = data.features[:, 0] + torch.randn(count, generator=generator, dtype=torch.float64)
    return Records(data.features / 3, labels if isinstance(family, Gaussian) else labels.exp().clamp(0.1, 9))


def trained(mechanism, data):
    """The model of all records; the first one plays the target."""
    return mechanism.release(data[1:], data[:1][None], stream(0, "training", "cpu"))


@pytest.mark.parametrize("family", [*FAMILIES, SquaredHinge(2), SquaredHinge(3)], ids=repr)
def test_residual_and_curvature_are_the_derivatives_of_the_loss(family):
    labels = labelled(family, 5).labels.double()
    predictor = torch.randn(2, family.outputs, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(family.loss(predictor, labels).sum(), predictor)
    assert torch.allclose(gradient, family.residual(predictor, labels))
    curvature = family.curvature(predictor, labels)
    residual = family.residual(predictor, labels)
    for output in range(family.outputs):
        (row,) = torch.autograd.grad(residual[:, output].sum(), predictor, retain_graph=True)
        # Where the loss is not convex (power above 2) the expectation stands in.
        convex = curvature[:, output, output] * 0 + 1 if not isinstance(family, Tweedie) else row[:, 0] > 0
        assert torch.allclose(row * convex.unsqueeze(1), curvature[:, output] * convex.unsqueeze(1))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_the_label_is_recovered_from_its_residual(family):
    # For gamma and the like, the canonical formula y = μ − r is wrong.
    labels = labelled(family, 6).labels.double().expand(3, -1)
    predictor = torch.randn(3, family.outputs, 6, dtype=torch.float64)
    assert torch.allclose(family.label(predictor, family.residual(predictor, labels)), labels)


ESTIMATORS = [
    (Gaussian(), 2.0, Ridge(alpha=2.0, tol=1e-14)),
    (Logistic(), 0.5, LogisticRegression(C=2.0, tol=1e-12, solver="newton-cholesky")),
    (Multinomial(3), 0.5, LogisticRegression(C=2.0, tol=1e-12, solver="newton-cholesky")),
    (Tweedie(1.0), 40 * 0.1, PoissonRegressor(alpha=0.1, tol=1e-12, solver="newton-cholesky")),
    (Tweedie(2.0), 40 * 0.1, GammaRegressor(alpha=0.1, tol=1e-12, solver="newton-cholesky")),
    (Tweedie(1.5), 40 * 0.1, TweedieRegressor(power=1.5, alpha=0.1, tol=1e-12, solver="newton-cholesky")),
]


@pytest.mark.parametrize(("family", "penalty", "estimator"), ESTIMATORS, ids=lambda value: repr(value)[:30])
def test_training_finds_the_same_optimum_as_scikit_learn(family, penalty, estimator):
    data = labelled(family)
    release = trained(GLM(family, penalty=penalty), data)
    estimator.fit(data.features.numpy(), data.labels.numpy())
    assert np.allclose(release["coefficient"][0], np.atleast_2d(estimator.coef_), atol=1e-7)
    # A constant that all classes' intercepts share changes no probability: scikit-learn leaves it where it started.
    ours, theirs = (np.atleast_1d(each) for each in (release["intercept"][0], estimator.intercept_))
    shared = (ours - theirs).mean() if len(ours) > 1 else 0.0
    assert np.allclose(ours, theirs + shared, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(
    "options", [{}, {"fit_intercept": False}, {"intercept_penalty": 2.0}, {"noise": 0.1}], ids=str
)
def test_every_glm_keeps_the_contract_of_a_mechanism(family, options):
    data = labelled(family)
    check_mechanism(GLM(family, **options), data[3:], data[:3][:, None])


@pytest.mark.parametrize("options", [{}, {"class_weights": "balanced"}], ids=str)
def test_a_batch_of_runs_equals_the_runs_one_by_one(options):
    data = synthetic(30)
    mechanism = GLM(Logistic(), **options)
    together = mechanism.release(data[4:], data[:4][:, None], stream(0, "training", "cpu")).flat()
    for index in range(4):
        alone = trained(mechanism, data[torch.tensor([index, *range(4, 30)])]).flat()
        assert torch.allclose(together[index], alone[0], atol=1e-9)


def test_weighted_records_count_as_often_as_they_weigh():
    data = synthetic(20)
    twice = Records(data.features, data.labels, torch.where(torch.arange(20) < 5, 2.0, 1.0).double())
    repeated = data[torch.cat([torch.arange(20), torch.arange(5)])]
    weighted, plain = (trained(GLM(Logistic()), each).flat() for each in (twice, repeated))
    assert torch.allclose(weighted, plain, atol=1e-9)


def test_the_remaining_gradient_is_that_of_the_summed_loss():
    data = synthetic()
    mechanism = GLM(Logistic(), penalty=1.0)
    release = trained(mechanism, data)
    assert mechanism.remaining_gradient(data[1:], data[:1][None], release).max() <= 1e-10
    theta = torch.cat([release["intercept"][..., None], release["coefficient"]], -1)[0] + 0.01
    theta.requires_grad_()
    raw = torch.cat([torch.ones(40, 1), data.features], 1).double()
    losses, penalty = mechanism.family.loss((theta @ raw.mT)[None], data.labels), theta[:, 1:].square().sum()
    (gradient,) = torch.autograd.grad(losses.sum() + 0.5 * penalty, theta)
    level = gradient[:, :1]
    mean, scale = data.features[1:].mean(0), data.features[1:].std(0, correction=0)
    expected = torch.cat([level, (gradient[:, 1:] - mean * level) / scale], 1).norm()
    theta = theta.detach()[None]
    moved = type(release)({"coefficient": theta[..., 1:], "intercept": theta[..., 0]})
    found = mechanism.remaining_gradient(data[1:], data[:1][None], moved)
    assert float(found) == pytest.approx(float(expected))


def test_single_precision_data_are_trained_and_attacked_in_double():
    data = synthetic()
    single = Records(data.features.float(), data.labels)
    assert play(LeaveOneOut(GLM(Logistic()), single), ClosedForm()).main.rate == 1


def bad_labels(values):
    data = synthetic(8)
    return Records(data.features, torch.tensor(values))


@pytest.mark.parametrize(
    ("mechanism", "data", "message"),
    [
        (GLM(Logistic()), bad_labels([1] * 8), "single class"),
        (GLM(Tweedie(1.0)), bad_labels([-1.0] * 8), "at least 0"),
        (GLM(Tweedie(2.0)), bad_labels([0.0] * 8), "above 0"),
        (GLM(Gaussian(), penalty=0.0), synthetic(4, features=9), "9|10 parameters and no penalty"),
        (GLM(Logistic(), l1_penalty=1.0), synthetic(8), "already trained"),
        (GLM(Logistic()), Records(synthetic(8).features * float("nan"), synthetic(8).labels), "finite"),
    ],
    ids=["one class", "negative count", "zero amount", "too many features", "l1", "nan"],
)
def test_what_cannot_be_trained_is_refused_with_a_reason(mechanism, data, message):
    with pytest.raises(InputError, match=message):
        trained(mechanism, data)


LABELLED = Criterion(label_scale=1.0)


def exposure(mechanism, data, release=None, criterion=LABELLED):
    return play(LeaveOneOut(mechanism, data, criterion, release), ClosedForm())


def moved(release, scale=1.0, push=0.0):
    """A model off its optimum."""
    coefficient = release["coefficient"] * scale + push
    return type(release)({"coefficient": coefficient, "intercept": release["intercept"]})


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("options", [{}, {"intercept_penalty": 2.0}, {"penalty": 0.01}], ids=str)
def test_every_record_and_label_comes_back(family, options):
    evidence = exposure(GLM(family, **options), labelled(family), criterion=replace(LABELLED, threshold=1e-5))
    assert (evidence.main.rate, evidence.label_rate.rate, evidence.control.rate) == (1, 1, 0)


@pytest.mark.parametrize("family", [Logistic(), Multinomial(3)], ids=repr)
@pytest.mark.parametrize("weights", ["balanced", (1.0, 3.0, 0.5), None], ids=str)
def test_class_weights_and_record_weights_do_not_hide_a_record(family, weights):
    data = labelled(family)
    weights = weights[: family.classes] if isinstance(weights, tuple) else weights
    if weights is None:
        own = torch.rand(len(data), generator=torch.Generator().manual_seed(3)).double() + 0.2
        data = replace(data, weights=own)
    mechanism, criterion = GLM(family, class_weights=weights), replace(LABELLED, threshold=1e-5)
    assert exposure(mechanism, data, criterion=criterion).main.rate > 0.99


def test_without_an_intercept_the_record_solves_one_equation_per_label():
    # (x, 1) and (−x, 0) are the same to a logistic model without an intercept, so a record near
    # the origin comes back up to its sign, and its label with it.
    data = synthetic(60)
    data = Records(data.features - data.features.mean(0), data.labels)
    mechanism = GLM(Logistic(), fit_intercept=False)
    guess = ClosedForm().expose(mechanism, data, trained(mechanism, data)).records
    off = ((guess.features[:, 0] - sign * data.features).norm(dim=1) for sign in (1, -1))
    same, mirrored = (each / data.features.norm(dim=1) < 1e-6 for each in off)
    labels = guess.labels[:, 0] == data.labels
    # The rest took the second solution for the scale.
    assert (same | mirrored).double().mean() > 0.6
    assert labels[same].all()
    assert not labels[mirrored].any()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_the_predicted_error_bounds_the_measured_one_and_follows_the_tolerance(tolerance):
    data = synthetic()
    mechanism = GLM(Logistic(), penalty=1.0, tolerance=tolerance)
    exact = trained(GLM(Logistic(), penalty=1.0), data)
    push = torch.randn(exact["coefficient"].shape, generator=torch.Generator().manual_seed(1)).double()
    criterion = Criterion(relative_error(*standard_units(data)), label_scale=1.0)
    evidence = exposure(mechanism, data, moved(exact, push=0.01 * tolerance * push), criterion)
    # Standard units of 39 and of 40 records differ by less than a tenth.
    assert (evidence.arrays["error"][:, 0] <= 1.1 * evidence.arrays["predicted_error"]).all()
    assert evidence.errors.median < 3 * evidence.errors.median_predicted < 300 * evidence.errors.median


def test_a_sloppy_optimum_raises_the_caveat_and_names_the_records():
    data, mechanism = synthetic(), GLM(Logistic())
    evidence = exposure(mechanism, data, moved(trained(mechanism, data), scale=1.02))
    assert OPTIMISER_NOT_CONVERGED in evidence.caveats
    assert evidence.main.rate < 0.1
    failed = evidence.arrays["record"][~evidence.arrays["succeeded"][:, 0]].tolist()
    assert set(failed) <= set(evidence.unresolved)


def test_a_fresh_target_comes_back_in_every_trial_and_noise_on_the_weights_lowers_success():
    data, rates = labelled(Gaussian(), 60), []
    for noise in (0.0, 1e-5, 1e-3, 1e-1):
        mechanism, targets = GLM(Gaussian(), noise=noise), EmpiricalPrior(data[:20])
        game = Game(mechanism, Uninformed(), data[20:], LABELLED, targets=targets)
        evidence = play(game, ClosedForm(), trials=100)
        rates.append(evidence.main.rate)
        # Noise by design is no failure of the optimiser.
        assert OPTIMISER_NOT_CONVERGED not in evidence.caveats
        # A stranger is drawn from the same twenty records, so one in twenty is the target itself:
        # at most 16 of 100 with probability above 1 − 1e-4.
        assert evidence.control.successes <= 16
    assert (rates[0], rates[-1]) == (1, 0)
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (GLM(Gaussian(), fit_intercept=False), "an intercept"),
        (GLM(Tweedie(1.0), fit_intercept=False), "an intercept"),
        (GLM(Logistic(), fit_intercept=False, class_weights="balanced"), "with weights"),
    ],
    ids=repr,
)
def test_what_has_no_solution_is_refused_before_playing(mechanism, message):
    with pytest.raises(IncompatibleGameError, match=message):
        exposure(mechanism, labelled(mechanism.family))
