import pytest
import torch
from test_glm import FAMILIES, labelled

from conftest import synthetic
from remanence import (
    GLM,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    Game,
    Gaussian,
    IncompatibleGameError,
    LeaveOneOut,
    Logistic,
    Multinomial,
    Records,
    Tweedie,
    Uninformed,
    play,
)
from remanence.results.caveats import OPTIMISER_NOT_CONVERGED


def exposure(mechanism, data, attack=None, **criterion):
    return play(LeaveOneOut(mechanism, data, Criterion(label_scale=1.0, **criterion)), attack or ClosedForm())


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(
    "options",
    [{}, {"intercept_penalty": 2.0}, {"penalty": 0.01}],
    ids=str,
)
def test_every_record_and_label_comes_back(family, options):
    evidence = exposure(GLM(family, **options), labelled(family), threshold=1e-5)
    assert evidence.main.rate == 1
    assert evidence.label_rate.rate == 1
    assert evidence.control.rate == 0


@pytest.mark.parametrize("family", [Logistic(), Multinomial(3)], ids=repr)
@pytest.mark.parametrize("weights", ["balanced", (1.0, 3.0, 0.5)], ids=str)
def test_class_weights_do_not_hide_a_record(family, weights):
    weights = weights if weights == "balanced" else weights[: family.classes]
    mechanism = GLM(family, class_weights=weights)
    assert exposure(mechanism, labelled(family), threshold=1e-5).main.rate > 0.99


def test_record_weights_do_not_hide_a_record():
    data = labelled(Multinomial(3))
    weights = torch.rand(len(data), generator=torch.Generator().manual_seed(3)).double() + 0.2
    evidence = exposure(GLM(Multinomial(3)), Records(data.features, data.labels, weights), threshold=1e-5)
    assert evidence.main.rate == 1


def test_without_an_intercept_the_record_solves_one_equation_per_label():
    # (x, 1) and (−x, 0) are the same to a logistic model without an intercept, so a record near
    # the origin comes back up to its sign, and its label with it.
    data = synthetic(60)
    data = Records(data.features - data.features.mean(0), data.labels)
    mechanism = GLM(Logistic(), fit_intercept=False)
    release = LeaveOneOut(mechanism, data).mechanism.release(data[1:], data[:1][None], torch.Generator())
    guess = ClosedForm().expose(mechanism, data, release).records
    same = (guess.features[:, 0] - data.features).norm(dim=1) / data.features.norm(dim=1) < 1e-6
    mirrored = (guess.features[:, 0] + data.features).norm(dim=1) / data.features.norm(dim=1) < 1e-6
    labels = guess.labels[:, 0] == data.labels
    # The rest took the second solution for the scale.
    assert (same | mirrored).double().mean() > 0.6
    assert labels[same].all()
    assert not labels[mirrored].any()


def test_a_fresh_target_comes_back_in_every_trial():
    data = labelled(Gaussian())
    game = Game(
        GLM(Gaussian(), penalty=0.5),
        Uninformed(),
        data[10:],
        Criterion(threshold=1e-6, label_scale=1.0),
        targets=EmpiricalPrior(data[:10]),
    )
    evidence = play(game, ClosedForm(), trials=50)
    assert evidence.main.successes == 50
    # A stranger is drawn from the same ten records, so one in ten is the target itself:
    # between 0 and 13 of 50 with probability above 1 − 1e-4.
    assert evidence.control.successes <= 13


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_the_predicted_error_bounds_the_measured_one_and_follows_the_tolerance(tolerance):
    data = synthetic()
    mechanism = GLM(Logistic(), penalty=1.0, tolerance=tolerance)
    exact = GLM(Logistic(), penalty=1.0).release(data[1:], data[:1][None], torch.Generator())
    push = torch.randn(exact["coefficient"].shape, generator=torch.Generator().manual_seed(1)).double()
    sloppy = type(exact)(
        {"coefficient": exact["coefficient"] + 0.01 * tolerance * push, "intercept": exact["intercept"]}
    )
    mean, scale = data.features.mean(0), data.features.std(0, correction=0)
    from remanence import relative_error

    criterion = Criterion(relative_error(mean, scale), label_scale=1.0)
    evidence = play(LeaveOneOut(mechanism, data, criterion, sloppy), ClosedForm())
    # Standard units of 39 and of 40 records differ by less than a tenth.
    assert (evidence.arrays["error"][:, 0] <= 1.1 * evidence.arrays["predicted_error"]).all()
    assert evidence.errors.median < 3 * evidence.errors.median_predicted < 300 * evidence.errors.median


def test_a_sloppy_optimum_raises_the_caveat_and_names_the_records():
    data = synthetic()
    exact = GLM(Logistic()).release(data[1:], data[:1][None], torch.Generator())
    sloppy = type(exact)({"coefficient": exact["coefficient"] * 1.02, "intercept": exact["intercept"]})
    evidence = play(LeaveOneOut(GLM(Logistic()), data, Criterion(label_scale=1.0), sloppy), ClosedForm())
    assert OPTIMISER_NOT_CONVERGED in evidence.caveats
    assert evidence.main.rate < 0.1
    failed = evidence.arrays["record"][~evidence.arrays["succeeded"][:, 0]].tolist()
    assert set(failed) <= set(evidence.unresolved)


def test_noise_on_the_weights_lowers_success():
    data = labelled(Gaussian(), 60)
    rates = []
    for noise in (0.0, 1e-5, 1e-3, 1e-1):
        game = Game(
            GLM(Gaussian(), noise=noise),
            Uninformed(),
            data[20:],
            Criterion(label_scale=1.0),
            targets=EmpiricalPrior(data[:20]),
        )
        evidence = play(game, ClosedForm(), trials=100)
        rates.append(evidence.main.rate)
        # Noise by design is no failure of the optimiser.
        assert OPTIMISER_NOT_CONVERGED not in evidence.caveats
    assert rates[0] == 1
    assert rates[-1] == 0
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
        play(LeaveOneOut(mechanism, labelled(mechanism.family)), ClosedForm())
