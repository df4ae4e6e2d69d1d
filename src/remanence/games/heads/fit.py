"""Does a head belong: was it made by this recipe from these pictures?

The owner holds both, so it can be tested. Heads are made anew by the recipe, and what training determines is compared:
how each answers on the training pictures, its losses and margins, the sizes of its layers, and what it says in
directions that public pictures have and the training pictures lack, where training leaves nothing. All heads, the one
in question included, are measured by the same symmetric rule. So a head that belongs is as likely to be the furthest
off as any of the others, whatever the recipe, and the p-value is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from remanence.data.records import Records
from remanence.data.releases import Weights
from remanence.exceptions import MisfitError
from remanence.mechanisms.heads.layers import outgoing
from remanence.mechanisms.heads.transfer_head import TransferHead

SIBLINGS = 199  # heads that are made anew: a p-value of 1 in 200 is the smallest
LEVEL = 0.01  # below it a head is refused, and so is one in a hundred of those that belong
_BLUR = 1e-4  # of a layer's size: two programs that train alike differ by less
_SHRINK = 0.1  # towards independent coordinates, which a few hundred heads cannot tell apart
_LIKELY = 0.05  # what another recipe must reach to be named
_DIRECTIONS = 8  # of public pictures beyond the training pictures


@final
@dataclass(frozen=True)
class Fit:
    """How a head compares with heads that were made by the recipe from the same pictures."""

    p_value: float  # how often one of those is as far off
    furthest: str  # in what it differs most

    @property
    def belongs(self) -> bool:
        """Whether it may have been made like this."""
        return self.p_value > LEVEL

    def refusal(self, recipe: TransferHead, instead: str) -> MisfitError:
        """Why a head that was not made like this has no verdict; `instead` is how it may have been made."""
        return MisfitError(
            "This head was not made like this.",
            needs=f"a head of this recipe on these pictures: {_told(recipe)}",
            got=f"one that is further off than heads made anew, p = {self.p_value:.3g}; most of all in {self.furthest}",
            hint=instead
            or "the epochs, optimizer, batches, initialisation and preprocessing that made it; the same pictures, "
            "with their labels in the same order",
        )


def fit(
    recipe: TransferHead, own: Records, public: Records, head: Weights, generator: torch.Generator
) -> Fit:
    """Make heads anew on your pictures `(pictures,)` and see where this one stands among them."""
    light = Records(own.labels[:, None], own.labels, embedding=own.embedding)  # pictures are not read
    zeros = torch.zeros(SIBLINGS, dtype=torch.int64, device=own.labels.device)
    siblings = recipe.release(None, light[None][zeros], generator)
    both = Weights.concatenate([_as_precise(head, head), _as_precise(siblings, head)])
    return compare(both, recipe, own, public, generator)


def likelier(
    recipe: TransferHead, own: Records, public: Records, head: Weights, generator: torch.Generator
) -> str:
    """Of a few recipes that are easily taken for this one, those that would fit, in words; nothing if none does."""
    found = {}
    for changes in _neighbours(recipe, len(own)):
        p_value = fit(replace(recipe, **changes), own, public, head, generator).p_value
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


def compare(
    heads: Weights, recipe: TransferHead, own: Records, public: Records, generator: torch.Generator
) -> Fit:
    """Where the first of these heads stands among the others."""
    traits = _traits(_blurred(heads, generator), recipe, own, public)
    scores = {name: _standard(_distances(values.double())) for name, values in traits.items()}
    furthest = torch.stack(list(scores.values())).max(0).values
    p_value = float((furthest >= furthest[0]).double().mean())
    return Fit(p_value, max(scores, key=lambda name: float(scores[name][0])))


def _traits(heads: Weights, recipe: TransferHead, own: Records, public: Records) -> dict[str, Tensor]:
    """What training determines, `(heads, numbers)` each, by names that a message can use."""
    answers, labels = recipe.answer(heads, own).double(), recipe.classes_of(own)  # (heads, records, classes)
    centred = answers - answers.mean(2, keepdim=True)
    moved = centred - centred.mean(
        1, keepdim=True
    )  # without what the initial weights say about every picture
    right = answers.gather(2, labels.expand(len(answers), -1).unsqueeze(2)).squeeze(2)
    others = answers.scatter(2, labels.expand(len(answers), -1).unsqueeze(2), -torch.inf).amax(2)
    margins = right - others
    losses = cross_entropy(answers.flatten(0, 1), labels.repeat(len(answers)), reduction="none")
    losses = losses.view_as(margins)
    own_share = moved.gather(2, labels.expand(len(answers), -1).unsqueeze(2)).squeeze(2)
    sums = torch.stack(
        [losses.mean(1).log(), losses.amax(1).log(), margins.mean(1), margins.amin(1), own_share.mean(1)], 1
    )
    sizes = [
        tensor.flatten(1).double().norm(dim=1).clamp(min=1e-30).log() for tensor in heads.tensors.values()
    ]
    return {
        "its answers on the training pictures": moved.flatten(1),
        "its margins on the training pictures": margins,
        "what it says about each training picture's own class": own_share,
        "its loss on the training pictures": sums,
        "the size of its weights": torch.stack(sizes, 1),
        "what it shares with heads made anew": _shared(heads, recipe.inputs_of(own), public, recipe),
        "what it says beyond the training pictures": _beyond(heads, recipe.inputs_of(own), public, recipe),
    }


def _shared(heads: Weights, own: Tensor, public: Records, recipe: TransferHead) -> Tensor:
    """How much each head has of what all others have in common, as a whole and beyond its classes, `(heads, 4)`.

    Initial weights average out. What remains is what these pictures put there: some of it any pictures of such
    classes would, and the rest is their own. Both are also taken as shares of the head's size, because some recipes
    train some heads much longer than others.
    """
    kept, _ = _span(own)
    rows = _rows(heads, kept)
    rows = (rows - rows.mean(1, keepdim=True) if recipe.outputs > 1 else rows).flatten(1)
    common = (rows.sum(0) - rows) / (len(rows) - 1)  # of all heads but each
    theirs, labels = recipe.inputs_of(public).double(), recipe.classes_of(public)
    belongs = one_hot(labels, recipe.classes).to(theirs)
    groups = belongs.mT @ (theirs @ kept.mT) / belongs.sum(0).clamp(min=1)[:, None]
    usual = groups - groups.mean(0) if recipe.outputs > 1 else groups[1:] - groups[:1]
    usual = normalize(usual.flatten(), dim=0)
    special = common - (common @ usual)[:, None] * usual
    amounts = torch.stack([(rows * common).sum(1), (rows * special).sum(1)], 1)
    return torch.cat([amounts, amounts / rows.norm(dim=1, keepdim=True).clamp(min=1e-30)], 1)


def _span(own: Tensor) -> tuple[Tensor, float]:
    """An orthonormal basis of what the training pictures span, and their size."""
    basis = torch.linalg.svd(own.double(), full_matrices=False)
    return basis.Vh[1e-6 * basis.S[0] < basis.S], float(basis.S[0])


def _rows(heads: Weights, directions: Tensor) -> Tensor:
    """What a head says along some directions, `(heads, rows, directions)`; the order of hidden units means nothing."""
    seen = heads["weight"].double() @ directions.mT
    return seen if (last := outgoing(heads.tensors)) is None else last.double() @ seen


def _beyond(heads: Weights, own: Tensor, public: Records, recipe: TransferHead) -> Tensor:
    """The first layer along directions that public pictures have and the training pictures lack."""
    theirs = recipe.inputs_of(public).double()
    kept, size = _span(own)
    left = theirs - (theirs @ kept.mT) @ kept
    groups = [left[public.labels == label].mean(0) for label in torch.unique(public.labels)]
    directions = torch.linalg.svd(torch.stack(groups), full_matrices=False)
    return _rows(heads, directions.Vh[1e-6 * size < directions.S][:_DIRECTIONS]).flatten(1)


def _as_precise(heads: Weights, like: Weights) -> Weights:
    """In the released head's own precision, and back."""
    return Weights({name: values.to(like[name].dtype).float() for name, values in heads.tensors.items()})


def _blurred(heads: Weights, generator: torch.Generator) -> Weights:
    """With a little noise on every head alike: rounding is no other recipe."""
    blurred = {}
    for name, values in heads.tensors.items():
        size = values.square().mean().sqrt().clamp(min=1e-30)
        noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
        blurred[name] = values + _BLUR * size * noise
    return Weights(blurred)


def _distances(values: Tensor) -> Tensor:
    """How far each head is from all of them, `(heads,)`, in units of how they vary."""
    if not values.shape[1]:
        return torch.zeros(len(values), dtype=values.dtype, device=values.device)
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


def _told(recipe: TransferHead) -> str:
    shown = {name: value for name, value in recipe.settings().items() if value not in (None, False, 0.0)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())
