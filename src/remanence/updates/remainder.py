"""Gradients less those of samples that were found in them; of a large layer, some rows are made at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self, final

import torch
from torch import Tensor

from remanence.updates.dense_layers import LARGE, DenseHead, Layers
from remanence.updates.parts import norm, row_slices, working


@final
@dataclass(frozen=True)
class Remainder:
    """What samples leave of gradients that have a dimension for trials."""

    whole: Layers
    first: tuple[Tensor, Tensor | None]  # what is left of the first layer
    second: Tensor | None  # and of the second; None of a large one, of which only columns are made
    parts: list[tuple[Tensor, Tensor]]  # what enters each layer and the loss's derivative in what it puts out
    sizes: Tensor  # (trials, layers), norms of the gradients

    @classmethod
    def of(cls, head: DenseHead, layers: Layers, inputs: Tensor, labels: Tensor, shares: Tensor) -> Self:
        """All that follows from samples; those with the label −1 are none."""
        sizes = torch.stack([torch.stack([norm(one) for one in own]) for own, _ in layers], 1)
        return cls._of(head, layers, sizes, inputs, labels, shares)

    def by(self, head: DenseHead, inputs: Tensor, labels: Tensor, shares: Tensor) -> Self:
        """What other samples leave of the same gradients, whose norms are known."""
        return self._of(head, self.whole, self.sizes, inputs, labels, shares)

    @classmethod
    def _of(
        cls, head: DenseHead, layers: Layers, sizes: Tensor, inputs: Tensor, labels: Tensor, shares: Tensor
    ) -> Self:
        parts = head.parts(inputs, labels.clamp(min=0), shares * (labels >= 0))
        (weight, bias), after = layers[0], layers[1][0]
        small = len(layers) == 2 or after[0].numel() <= LARGE
        return cls(
            layers,
            (_less(weight, *parts[0]), None if bias is None else bias - parts[0][1].sum(-2)),
            _less(after, *parts[1]) if small else None,
            parts,
            sizes,
        )

    def columns(self, trial: Tensor, neuron: Tensor) -> Tensor:
        """What is left of some columns of the second layer, `(columns, outputs)`."""
        if self.second is not None:
            return self.second[trial, :, neuron]
        values, delta = self.parts[1]
        own = self.whole[1][0][trial, :, neuron].to(delta)
        return own - torch.einsum("ns,nso->no", values[trial, :, neuron], delta[trial])

    @cached_property
    def unexplained(self) -> Tensor:
        """The share of each layer's gradient that is left, by norm: `(trials, layers)`."""
        pairs = zip(self.whole, self.parts, strict=True)
        left = torch.stack([_left(own, *parts) for (own, _), parts in pairs], 1)
        return (left / self.sizes).where(self.sizes > 0, 0.0)


def _less(weight: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    own = weight.to(working(weight))
    return torch.baddbmm(own, delta.mT.to(own), values.to(own), alpha=-1)


def _left(weight: Tensor, values: Tensor, delta: Tensor) -> Tensor:
    """The norm, for each trial, of a layer's gradient less its parts."""
    squares = values.new_zeros(len(weight), dtype=torch.float64)
    for rows in row_slices(weight[0]):
        squares += _less(weight[:, rows], values, delta[..., rows]).flatten(1).norm(dim=1).square()
    return squares.sqrt()
