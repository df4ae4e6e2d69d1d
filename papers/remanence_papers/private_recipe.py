"""A recipe for a head with a given ε: the five steps of Maciazek and Allison 2025, Appendix E."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.checks import instance, number, whole
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.stratified import StratifiedPrior
from remanence.heads.transfer_head import TransferHead
from remanence.scale.progress import track

_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the learning rate
_DECAYS = (0.0, 1e-4, 1e-2)
_NORMS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_TOLERANCE = 0.01  # accuracy that clipping may cost


@dataclass(frozen=True)
class Tried:
    """A recipe that was tried in one of the steps, and the mean accuracy of its heads with its standard error."""

    step: int
    head: TransferHead
    accuracy: float
    error: float


@dataclass(frozen=True)
class PrivateRecipe:
    """The recipe that was chosen, the (ε, δ) that it has, and everything that was tried."""

    head: TransferHead
    epsilon: float
    delta: float
    accuracy: float  # of heads that no choice was made by
    tried: tuple[Tried, ...]


def private_recipe(
    recipe: TransferHead,
    pool: Records,
    validation: Records,
    *,
    epsilon: float,
    delta: float | None = None,
    per_class: int | tuple[int, ...] = 1,
    heads: int = 100,
    seed: int = 0,
) -> PrivateRecipe:
    """Choose a DP-SGD recipe for linear heads on this many pictures of each class.

    1. Batches as large as Poisson sampling allows, a rate of (N − 1) / N, for the epochs of the recipe.
    2. Learning rate and weight decay where training without privacy is most accurate.
    3. The smallest clipping norm that, without noise, costs at most one hundredth of accuracy.
    4. The noise multiplier for (ε, δ), with δ = N^-1.1 unless it is given.
    5. The learning rate once more, now with noise.

    Every accuracy is the mean over `heads` heads on sets from `pool`, asked about `validation`. Both must be public:
    a choice that looks at private pictures is not covered by ε.
    """
    for name, given in {"pool": pool, "validation": validation}.items():
        if not isinstance(given, Records) or not len(given):
            got = "none" if isinstance(given, Records) else type(given).__name__
            hint = "embed(Records(pictures, labels), backbone)"
            raise InputError(f"{name} cannot be used.", needs="Records, at least one", got=got, hint=hint)
    number("epsilon", epsilon, above=0)
    if delta is not None:
        number("delta", delta, above=0, below=1)
    for count in per_class if isinstance(per_class, tuple) else (per_class,):
        whole("per_class", count, least=0)
    whole("heads", heads, least=2)
    whole("seed", seed, least=0)
    hint = "TransferHead(classes, epochs, learning_rate)"
    instance("recipe", recipe, TransferHead, "a TransferHead", hint)
    if recipe.hidden is not None or recipe.optimizer != "sgd" or recipe.class_weights is not None:
        raise InputError(
            "There is no private recipe for this head.",
            needs="one linear layer, SGD and no class weights",
            got=f"hidden {recipe.hidden}, optimizer {recipe.optimizer!r}, class_weights {recipe.class_weights}",
            hint=hint,
        )
    prior = StratifiedPrior(pool, per_class)
    size = whole("records of a set", prior.set_size, least=2, hint="per_class=2")
    tried: list[Tried] = []

    def measure(step: int, head: TransferHead, fresh: int = 0) -> Tried:
        generator = torch.Generator(pool.labels.device).manual_seed(seed + fresh)
        accuracy = head.accuracy(head.release(None, prior.sample(heads, generator), generator), validation)
        return Tried(step, head, float(accuracy.mean()), float(accuracy.std()) / heads**0.5)

    def best(step: int, candidates: Iterable[TransferHead]) -> Tried:
        options = list(candidates)
        tried.extend(
            measure(step, head) for head in track(options, total=len(options), what=f"step {step} of 5")
        )
        return max(tried[-len(options) :], key=lambda one: one.accuracy)

    plain = replace(recipe, batch_size=None, noise_multiplier=None, sample_rate=1.0)
    rates = [factor * recipe.learning_rate for factor in _FACTORS]
    open_ = best(2, (replace(plain, learning_rate=r, weight_decay=d) for r in rates for d in _DECAYS))
    rate = (size - 1) / size
    epochs = max(1, round(rate * recipe.epochs))  # one step of DP-SGD per epoch of the recipe
    sampled = replace(open_.head, epochs=epochs, sample_rate=rate, noise_multiplier=0.0)
    best(3, (replace(sampled, max_grad_norm=norm) for norm in _NORMS))
    clipped = tried[-len(_NORMS) :]
    enough = [one for one in clipped if one.accuracy >= open_.accuracy - _TOLERANCE]
    chosen = enough[0] if enough else max(clipped, key=lambda one: one.accuracy)
    allowed = size**-1.1 if delta is None else delta
    steps = chosen.head.steps
    noise = noise_for_epsilon(epsilon, delta=allowed, sample_rate=rate, steps=steps)
    noisy = replace(chosen.head, noise_multiplier=noise)
    rates = [factor * noisy.learning_rate for factor in _FACTORS]
    final = best(5, (replace(noisy, learning_rate=r) for r in rates))
    return PrivateRecipe(final.head, epsilon, allowed, measure(5, final.head, fresh=1).accuracy, tuple(tried))
