"""Does a head belong: was it made by this recipe from these pictures?

The owner holds both, so it can be tested. Heads are made anew by the recipe, and what training determines is compared
(`traits.py`). All heads, the one in question included, are measured by the same symmetric rule. So a head that belongs
is as likely to be the furthest off as any of the others, whatever the recipe, and the p-value is exact.

Whether the test can tell these pictures from similar ones is measured too: heads of the recipe on public pictures of
the same classes are put to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor

from remanence.core.exceptions import MisfitError
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.embedding import without_pictures
from remanence.heads.head import Head
from remanence.heads.traits import Measure, one_sided
from remanence.heads.transfer_head import TransferHead

SIBLINGS = 199  # heads that are made anew: a p-value of 1 in 200 is the smallest
LEVEL = 0.01  # below it a head is refused, and so is one in a hundred of those that belong
_OTHERS = 40  # heads on other pictures that are put to the test
_MEANS = 100  # heads that tell what training on these pictures, and on others, puts there
_USUAL = 20  # heads that tell how large layers are
_SHRINK = 0.1  # towards independent coordinates, which a few hundred heads cannot tell apart
_LIKELY = 0.05  # what another recipe must reach to be named

Scores = dict[str, Tensor]


@final
@dataclass(frozen=True)
class Fit:
    """How a head compares with heads that were made by the recipe from the same pictures."""

    p_value: float  # how often one of those is as far off
    furthest: str  # in what it differs most
    power: SuccessRate | None = None  # of heads on other pictures of the same classes, how many are refused

    @property
    def belongs(self) -> bool:
        """Whether it may have been made like this."""
        return self.p_value > LEVEL

    def refusal(self, recipe: Head, instead: str) -> MisfitError:
        """Why a head that was not made like this has no verdict; `instead` is how it may have been made."""
        return MisfitError(
            "This head was not made like this.",
            needs=f"a head of this recipe on these pictures: {recipe_words(recipe)}",
            got=f"one that is further off than heads made anew, p = {self.p_value:.3g}; most of all in {self.furthest}",
            hint=instead
            or "the epochs, optimizer, batches, initialisation and preprocessing that made it; the same pictures, "
            "with their labels in the same order",
        )


def fit(
    recipe: Head,
    own: Records,
    public: Records,
    head: Weights,
    generator: torch.Generator,
    *,
    others: int = _OTHERS,
) -> Fit:
    """Make heads anew on your pictures `(pictures,)` and see where this one stands among them.

    So many heads on `others`, public pictures of the same classes, tell what the test can tell.
    """
    counts = tuple(torch.unique(own.labels, return_counts=True)[1].tolist())
    sets = StratifiedPrior(without_pictures(public), counts)
    same = without_pictures(own)[None][torch.zeros(SIBLINGS, dtype=torch.int64, device=own.labels.device)]

    def made(how: Head, pictures: Records) -> Weights:
        return _as_precise(how.release(None, pictures, generator), head)

    bare = _without_a_start(recipe)
    trained = made(bare, same[:_MEANS]), made(bare, sets.sample(_MEANS, generator))
    measure = Measure.of(recipe, own, public, trained, made(recipe, same[:_USUAL]))
    siblings = measure(made(recipe, same), generator)
    found = compare(measure(_as_precise(head, head), generator), siblings)
    if not others or not found.belongs:
        return found
    strangers = measure(made(recipe, sets.sample(others, generator)), generator)
    refused = [
        not compare({name: values[k : k + 1] for name, values in strangers.items()}, siblings).belongs
        for k in range(others)
    ]
    return replace(found, power=SuccessRate(sum(refused), others))


def likelier(recipe: Head, own: Records, public: Records, head: Weights, generator: torch.Generator) -> str:
    """Of a few recipes that are easily taken for this one, those that would fit, in words; nothing if none does."""
    if not isinstance(recipe, TransferHead):  # nobody can guess what else a loop might do
        return ""
    found = {}
    for changes in _neighbours(recipe, len(own)):
        p_value = fit(replace(recipe, **changes), own, public, head, generator, others=0).p_value
        if p_value > _LIKELY:
            found[", ".join(f"{name}={value!r}" for name, value in changes.items())] = p_value
    told = " or ".join(
        f"{name} (p = {p:.2g})" for name, p in sorted(found.items(), key=lambda item: -item[1])[:2]
    )
    return f"TransferHead(..., {told}), which would fit" if told else ""


def _neighbours(recipe: TransferHead, pictures: int) -> Iterator[dict[str, Any]]:
    """What people forget to say."""
    for factor in (1 / 10, 1 / 5, 1 / 3, 1 / 2, 2, 3, 5, 10):
        yield {"epochs": max(1, round(recipe.epochs * factor))}
    for start in ("pytorch", 0.002, 0.01, 0.0):
        if start != recipe.initialisation:
            yield {"initialisation": start}
    if recipe.noise_multiplier is not None:
        return
    for size in (None, 4, 8, 16, 32):
        if size != recipe.batch_size and (size is None or size < pictures):
            yield {"batch_size": size}
    for momentum in (0.0, 0.9):
        if momentum != recipe.momentum and recipe.optimizer == "sgd":
            yield {"momentum": momentum}
    for decay in (0.0, 1e-4, 1e-2, 0.1):
        if decay != recipe.weight_decay:
            yield {"weight_decay": decay}
    for name, rate in (("adam", 0.001), ("adam", 0.01), ("sgd", 0.01), ("sgd", 0.1)):
        if name != recipe.optimizer:
            yield {"optimizer": name, "learning_rate": rate}


def compare(head: Scores, siblings: Scores) -> Fit:
    """Where a head, measured, stands among others that were measured alike."""
    scores = {
        name: _standard(_distances(name, torch.cat([values, siblings[name]])))
        for name, values in head.items()
    }
    furthest = torch.stack(list(scores.values())).max(0).values
    p_value = float((furthest >= furthest[0]).double().mean())
    return Fit(p_value, max(scores, key=lambda name: float(scores[name][0])))


def _without_a_start(recipe: Head) -> Head:
    """The same from weights of 0, where that is possible: nothing random hides what training does."""
    if isinstance(recipe, TransferHead) and recipe.hidden is None:
        return replace(recipe, initialisation=0.0)
    return recipe


def _as_precise(heads: Weights, like: Weights) -> Weights:
    """In the released head's own precision, and back."""
    return Weights({name: values.to(like[name].dtype).float() for name, values in heads.tensors.items()})


def _distances(name: str, values: Tensor) -> Tensor:
    """How far each head is from all of them, `(heads,)`, in units of how they vary."""
    if not values.shape[1]:
        return torch.zeros(len(values), dtype=values.dtype, device=values.device)
    if name in one_sided:
        return values[:, 0]
    apart = values - values.mean(0)
    apart = apart / apart.std(0).clamp(min=1e-30)
    if apart.shape[1] > len(apart) // 4:  # too many for how they vary together
        return apart.square().mean(1)
    together = apart.mT @ apart / len(apart)
    unit = torch.eye(len(together), dtype=apart.dtype, device=apart.device)
    solved = torch.linalg.solve((1 - _SHRINK) * together + _SHRINK * unit, apart.mT).mT
    return (apart * solved).mean(1)


def _standard(distances: Tensor) -> Tensor:
    """In units in which different kinds of distances can be compared: from the middle one to the larger ones."""
    middle = distances.median()
    spread = (distances.quantile(0.9) - middle).clamp(min=1e-30)
    return (distances - middle) / spread


def recipe_words(recipe: Head) -> str:
    """What is done, and nothing that is not."""
    shown = {name: value for name, value in recipe.settings().items() if value not in (None, False, 0.0)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
