import numpy as np
import pytest
import torch
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor, Ridge, TweedieRegressor

from conftest import synthetic
from remanence import (
    GLM,
    ClosedForm,
    Gaussian,
    InputError,
    LeaveOneOut,
    Logistic,
    Multinomial,
    Records,
    Tweedie,
    play,
)
from remanence.scale.seeds import stream
from remanence.tables.glm.families import Family
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


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
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
    labels = labelled(family, 6).labels.double().expand(3, -1)
    predictor = torch.randn(3, family.outputs, 6, dtype=torch.float64)
    assert torch.allclose(family.label(predictor, family.residual(predictor, labels)), labels)


def test_the_canonical_label_formula_is_wrong_for_gamma_regression():
    # y = μ − r, which holds for canonical links, against y = μ − r·μ at μ = 2, y = 3.
    predictor, label = torch.full((1, 1, 1), 2.0).log().double(), torch.tensor([[3.0]]).double()
    residual = Tweedie(2.0).residual(predictor, label)
    assert float(predictor.exp() - residual) == pytest.approx(2.5)
    assert float(Tweedie(2.0).label(predictor, residual)) == pytest.approx(3.0)


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
    release = GLM(family, penalty=penalty).release(data[1:], data[:1][None], stream(0, "training", "cpu"))
    estimator.fit(data.features.numpy(), data.labels.numpy())
    assert np.allclose(release["coefficient"][0], np.atleast_2d(estimator.coef_), atol=1e-7)
    # A constant that all classes' intercepts share changes no probability: scikit-learn leaves it where it started.
    ours, theirs = (np.atleast_1d(each) for each in (release["intercept"][0], estimator.intercept_))
    shared = (ours - theirs).mean() if len(ours) > 1 else 0.0
    assert np.allclose(ours, theirs + shared, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(
    "options",
    [{}, {"fit_intercept": False}, {"intercept_penalty": 2.0}, {"noise": 0.1}],
    ids=str,
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
        alone = mechanism.release(
            data[4:], data[index : index + 1][None], stream(0, "training", "cpu")
        ).flat()
        assert torch.allclose(together[index], alone[0], atol=1e-9)


def test_weighted_records_count_as_often_as_they_weigh():
    data = synthetic(20)
    twice = Records(data.features, data.labels, torch.where(torch.arange(20) < 5, 2.0, 1.0).double())
    repeated = data[torch.cat([torch.arange(20), torch.arange(5)])]
    fit = GLM(Logistic())
    weighted = fit.release(twice[1:], twice[:1][None], stream(0, "training", "cpu")).flat()
    plain = fit.release(repeated[1:], repeated[:1][None], stream(0, "training", "cpu")).flat()
    assert torch.allclose(weighted, plain, atol=1e-9)


def test_the_remaining_gradient_is_that_of_the_summed_loss():
    data = synthetic()
    mechanism = GLM(Logistic(), penalty=1.0)
    release = mechanism.release(data[1:], data[:1][None], stream(0, "training", "cpu"))
    assert mechanism.remaining_gradient(data[1:], data[:1][None], release).max() <= 1e-10
    theta = torch.cat([release["intercept"][..., None], release["coefficient"]], -1)[0] + 0.01
    theta.requires_grad_()
    raw = torch.cat([torch.ones(40, 1), data.features], 1).double()
    loss = (
        mechanism.family.loss((theta @ raw.mT)[None], data.labels).sum() + 0.5 * theta[:, 1:].square().sum()
    )
    (gradient,) = torch.autograd.grad(loss, theta)
    level = gradient[:, :1]
    mean, scale = data.features[1:].mean(0), data.features[1:].std(0, correction=0)
    expected = torch.cat([level, (gradient[:, 1:] - mean * level) / scale], 1).norm()
    moved = type(release)(
        {"coefficient": theta.detach()[None, :, 1:], "intercept": theta.detach()[None, :, 0]}
    )
    assert float(mechanism.remaining_gradient(data[1:], data[:1][None], moved)) == pytest.approx(
        float(expected)
    )


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
        mechanism.release(data[1:], data[:1][None], stream(0, "training", "cpu"))
