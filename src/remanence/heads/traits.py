"""What training determines in a head, as numbers that heads can be compared by.

How a head answers on the training pictures, its losses and margins, the sizes of its layers, what it says in
directions that public pictures have and the training pictures lack, and what it has of these pictures rather than of
others of the same classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.heads.head import Head
from remanence.heads.layers import outgoing
from remanence.heads.transfer_head import TransferHead

_BLUR = 1e-4  # of a layer's size: two programs that train alike differ by less
_DIRECTIONS = 8  # of public pictures beyond the training pictures
_OTHERS = "what other pictures would have put there"
_OTHERS_SHARE = "what other pictures would have put there, for its size"
_START = "the weights that it must have started from"
one_sided = frozenset({_OTHERS, _OTHERS_SHARE, _START})  # more is further off, and less is not


@final
@dataclass(frozen=True)
class Measure:
    """Measures heads by what training determines; what it compares with is fixed beforehand.

    `trained` is what training on these pictures puts into a head, by itself, and `towards` leads from there to what
    training on other pictures of the same classes puts there.
    """

    recipe: Head
    own: Records
    trained: Tensor  # the first layer of the mean head
    shared: Tensor  # the same as rows, within the span of the pictures
    towards: Tensor  # (rows * numbers,)
    span: Tensor  # an orthonormal basis of what the pictures span
    beyond: Tensor  # directions of public pictures outside
    sizes: dict[str, float]  # of a number in each layer

    @classmethod
    def of(
        cls,
        recipe: Head,
        own: Records,
        public: Records,
        trained: tuple[Weights, Weights],
        usual: Weights,
    ) -> Measure:
        """From heads that were `trained` on these pictures and on others, and a few `usual` ones of the recipe."""
        inputs = recipe.inputs_of(own).double()
        basis = torch.linalg.svd(inputs, full_matrices=False)
        span, size = basis.Vh[1e-6 * basis.S[0] < basis.S], float(basis.S[0])
        rows, others = (_rows(heads, recipe).mean(0) for heads in trained)
        theirs = recipe.inputs_of(public).double()
        left = theirs - (theirs @ span.mT) @ span
        groups = torch.stack([left[public.labels == label].mean(0) for label in torch.unique(public.labels)])
        directions = torch.linalg.svd(groups, full_matrices=False)
        beyond = directions.Vh[1e-6 * size < directions.S][:_DIRECTIONS]
        sizes = {name: float(values.square().mean().sqrt()) for name, values in usual.tensors.items()}
        first = trained[0]["weight"].double().mean(0)
        shared, towards = (rows @ span.mT).flatten(), (others - rows).flatten()
        return cls(recipe, own, first, shared, towards, span, beyond, sizes)

    def __call__(self, heads: Weights, generator: torch.Generator) -> dict[str, Tensor]:
        """What training determines, `(heads, numbers)` each, by names that a message can use."""
        heads, recipe = self._blurred(heads, generator), self.recipe
        answers, labels = (
            recipe.answer(heads, self.own).double(),
            recipe.classes_of(self.own),
        )  # (heads, records, classes)
        index = labels.expand(len(answers), -1).unsqueeze(2)
        centred = answers - answers.mean(2, keepdim=True)
        moved = centred - centred.mean(
            1, keepdim=True
        )  # without what the initial weights say about every picture
        others = answers.scatter(2, index, -torch.inf).amax(2)
        margins = answers.gather(2, index).squeeze(2) - others
        losses = cross_entropy(answers.flatten(0, 1), labels.repeat(len(answers)), reduction="none")
        losses = losses.view_as(margins)
        own_share = moved.gather(2, index).squeeze(2)
        sums = [
            losses.mean(1).log(),
            losses.amax(1).log(),
            margins.mean(1),
            margins.amin(1),
            own_share.mean(1),
        ]
        sizes = [
            tensor.flatten(1).double().norm(dim=1).clamp(min=1e-30).log() for tensor in heads.tensors.values()
        ]
        rows = _rows(heads, recipe)
        inside = (rows @ self.span.mT).flatten(1)
        shared, length = inside @ self.shared, inside.norm(dim=1).clamp(min=1e-30)
        elsewhere = rows.flatten(1) @ self.towards
        return {
            "its answers on the training pictures": moved.flatten(1),
            "its margins on the training pictures": margins,
            "what it says about each training picture's own class": own_share,
            "its loss on the training pictures": torch.stack(sums, 1),
            "the size of its weights": torch.stack(sizes, 1),
            "what it shares with heads made anew": torch.stack([shared, shared / length], 1),
            "what it says beyond the training pictures": _seen(heads, self.beyond).flatten(1),
            _OTHERS: elsewhere[:, None],
            _OTHERS_SHARE: (elsewhere / length)[:, None],
            **self._started(heads),
        }

    def _started(self, heads: Weights) -> dict[str, Tensor]:
        """How far the start must have been outside of what nn.Linear draws, if training did what it does here.

        Initial weights lie within ±1/√numbers, all of them. Training on other pictures moved some of them elsewhere.
        """
        drawn = isinstance(self.recipe, TransferHead) and self.recipe.initialisation == "pytorch"
        if not drawn or self.recipe.hidden is not None:
            return {}
        weight = heads["weight"].double() - self.trained
        outside = (weight.abs() - weight.shape[2] ** -0.5).clamp(min=0)
        return {_START: outside.flatten(1).sum(1, keepdim=True)}

    def _blurred(self, heads: Weights, generator: torch.Generator) -> Weights:
        """With a little noise on every head alike: rounding is no other recipe."""
        blurred = {}
        for name, values in heads.tensors.items():
            noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
            blurred[name] = values + _BLUR * self.sizes[name] * noise
        return Weights(blurred)


def _seen(heads: Weights, directions: Tensor | None = None) -> Tensor:
    """What a head says along some directions, `(heads, rows, directions)`; the order of hidden units means nothing."""
    seen = heads["weight"].double() if directions is None else heads["weight"].double() @ directions.mT
    return seen if (last := outgoing(heads.tensors)) is None else last.double() @ seen


def _rows(heads: Weights, recipe: Head) -> Tensor:
    """All that it says, less what its rows have in common, `(heads, rows, numbers)`."""
    rows = _seen(heads)
    return rows - rows.mean(1, keepdim=True) if recipe.outputs > 1 else rows
