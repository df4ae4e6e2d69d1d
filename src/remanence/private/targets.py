"""Built-in training runs with noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.core.examples import example

if TYPE_CHECKING:
    from remanence.core.records import Records
    from remanence.game import Game


def digits_noisy_sum() -> Game:
    """The sum of 1,797 pictures of norm 1 with Gaussian noise: a shortlist of 100 against a proven ceiling."""
    from remanence import bounds
    from remanence.core.errors import Criterion, mismatch
    from remanence.core.priors import FinitePrior
    from remanence.game import Game
    from remanence.private.noisy_sum import NoisySum

    data = example("digits", scale=16.0)
    mechanism = NoisySum(noise_multiplier=2.0)
    bound = bounds.of(mechanism, 1 / 100)
    return Game(mechanism, FinitePrior(data[:100]), data[100:], Criterion(mismatch, 0.5), bounds=(bound,))


def digits_dpsgd() -> Game:
    """Full-batch DP-SGD at (10, 1e-5) on 500 pictures; a shortlist of 32 against the whole transcript."""
    return _digits_dpsgd(noise_multiplier=5.0, sample_rate=1.0, learning_rate=5.0)


def digits_dpsgd_poisson() -> Game:
    """The same with a tenth of the records in each batch, and noise for about the same ε."""
    return _digits_dpsgd(noise_multiplier=0.8, sample_rate=0.1, learning_rate=1.0)


def digits_dpsgd_pictures() -> Game:
    """DP-SGD with little noise and no shortlist: an adversary with 1,097 other digits draws the picture."""
    from remanence import bounds
    from remanence.core.distances import nearest_neighbour_errors
    from remanence.core.errors import Criterion, mean_squared_error
    from remanence.core.priors import EmpiricalPrior
    from remanence.game import Game
    from remanence.training.dpsgd import DPSGD
    from remanence.training.perceptron import Perceptron

    data = _pictures()
    known, targets, collected = data[:500], data[500:700], EmpiricalPrior(data[700:])
    mechanism = DPSGD(Perceptron((64, 10, 10)), 0.4, steps=20, max_grad_norm=0.1, learning_rate=5.0)
    threshold = float(nearest_neighbour_errors(targets, collected.records).mean())
    close = Criterion(mean_squared_error, threshold)
    bound = bounds.of(mechanism, collected.baseline(close).value)
    return Game(mechanism, collected, known, close, EmpiricalPrior(targets), bounds=(bound,))


def _digits_dpsgd(*, noise_multiplier: float, sample_rate: float, learning_rate: float) -> Game:
    from remanence import bounds
    from remanence.core.errors import Criterion, mismatch
    from remanence.core.priors import FinitePrior
    from remanence.game import Game
    from remanence.training.dpsgd import DPSGD
    from remanence.training.perceptron import Perceptron

    data = _pictures()
    mechanism = DPSGD(
        Perceptron((64, 10, 10)),
        noise_multiplier,
        steps=100,
        sample_rate=sample_rate,
        max_grad_norm=0.1,
        learning_rate=learning_rate,
    )
    bound = bounds.of(mechanism, 1 / 32)
    return Game(
        mechanism, FinitePrior(data[:32]), data[32:532], Criterion(mismatch, threshold=0.5), bounds=(bound,)
    )


def _pictures() -> Records:
    from remanence.core.records import Records

    digits = example("digits", scale=8.0)
    return Records(digits.features.float() - 1, digits.labels)  # pixels in [−1, 1]
