"""How a reconstructor network reads a head: with the symmetry of its layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.stratified import StratifiedPrior
from remanence.heads.span import project, span_coefficients
from remanence.reconstructor.readers import FlatReader, Reader, Tensors

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead

_EPSILON = 1e-8
_CACHE = 2**20  # bytes of heads whose embeddings are estimated at once on a CPU


class HiddenReader(FlatReader):
    """A head with hidden units, whose order means nothing: sorted by what they say at the end, and summed up.

    Gradients of the first layer carry the embeddings times a unit's outgoing weight, so that the units' rows, each
    times that weight and added up, show them whatever the order.
    """

    def __init__(self, shadows: Tensors, classes: int) -> None:
        super().__init__(self.prepare(shadows), classes)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Sort the units by their outgoing weights, and add what does not depend on their order."""
        if "summed" in tensors:
            return tensors
        weight, bias, out = tensors["weight"], tensors["bias"], tensors["out_weight"]
        order = out[:, 0].argsort(1)  # (trials, hidden)
        rows = torch.arange(len(order), device=order.device)[:, None]
        return {
            "summed": out @ weight,  # (trials, outputs, numbers)
            "weight": weight[rows, order],
            "bias": bias[rows, order],
            "out_weight": out.gather(2, order.unsqueeze(1).expand(-1, out.shape[1], -1)),
            "out_bias": tensors["out_bias"],
        }


class HeadReader(Reader):
    """The asked class's row of a linear head, and what the other rows say about it.

    A head's rows sum to what its initial weights sum to, so that a row shows its class's embedding only up to
    what all classes share. Embeddings behind a ReLU are never negative and often 0, which gives the common part
    back: `estimate_embeddings` solves for them under that constraint. The coordinatewise minimum over the rows
    says the same more crudely, and does not depend on the recipe.
    """

    rows: Tensor
    means: Tensor
    mean: Tensor
    deviation: Tensor

    def __init__(self, shadows: Tensors, head: TransferHead, prior: StratifiedPrior) -> None:
        super().__init__()
        pool = prior.records
        assert pool.embedding is not None
        self.head, self.classes = _in_full_batches(head, prior.set_size), head.classes
        self.register_buffer("rows", prior.classes.long())  # of the classes that may be asked for
        labels, middle = head.classes_of(pool), pool.embedding.mean(0)
        own = [pool.embedding[labels == c] for c in range(self.classes)]
        means = torch.stack([part.mean(0) if len(part) else middle for part in own])
        self.register_buffer("means", means)
        self.nonnegative = bool((pool.embedding >= 0).all())
        views = self._views(self.prepare(shadows))
        self.register_buffer("mean", views.mean(0))  # (classes, numbers)
        self.register_buffer("deviation", views.std(0).clamp(min=_EPSILON))
        self.size = views.shape[-1] + self.classes

    def prepare(self, tensors: Tensors) -> Tensors:
        """Estimate all classes' embeddings."""
        estimate = estimate_embeddings(self.head, tensors["weight"], self.means, nonnegative=self.nonnegative)
        return {**tensors, "estimate": estimate}

    def forward(self, tensors: Tensors, asked: Tensor | None) -> Tensor:
        """Everything in standard units of the asked class."""
        assert asked is not None
        row, trials = self.rows[asked], torch.arange(len(asked), device=asked.device)
        views = self._views(tensors, row[:, None], trials[:, None])[:, 0]
        values = (views - self.mean[row]) / self.deviation[row]
        return torch.cat([values, one_hot(row, self.classes).to(values)], 1)

    def _views(self, tensors: Tensors, asked: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """The estimate, the row, its bias, and the row above the smallest of all: `(trials, asked, numbers)`."""
        weight, bias, estimate = tensors["weight"], tensors["bias"], tensors["estimate"]
        floor = weight.amin(1, keepdim=True)
        if asked is not None:
            weight, bias, estimate = weight[rows, asked], bias[rows, asked], estimate[rows, asked]
        return torch.cat([estimate, weight, weight - floor, bias.unsqueeze(-1)], -1)


def estimate_embeddings(
    head: TransferHead, weight: Tensor, means: Tensor, *, nonnegative: bool, rounds: int = 2, steps: int = 20
) -> Tensor:
    """Each class's mean embedding from the rows of a linear head that saw all records in every step, without learning.

    Training without initial weights on one record per class would give W = Aᵀ X, with coefficients A that depend
    on X. Starting from the classes' usual means, A is computed by training, then X by projected gradient steps on
    ‖Aᵀ X − W‖² (staying above 0 where embeddings do), and again. Where training saturates, A hides the scale of X and
    the estimate is poor; the reader also has the row itself.
    """
    few = len(weight) if weight.is_cuda else max(1, _CACHE // (4 * weight[0].numel()))
    if len(weight) > few:
        parts = [
            estimate_embeddings(head, part, means, nonnegative=nonnegative, rounds=rounds, steps=steps)
            for part in weight.split(few)
        ]
        return torch.cat(parts)
    estimate = means.expand(len(weight), -1, -1)
    for _ in range(rounds):
        mixing = span_coefficients(head, estimate)  # (trials, classes of the head, classes)
        estimate = project(mixing, weight, estimate, steps=steps, nonnegative=nonnegative)
    return estimate


def _in_full_batches(head: TransferHead, set_size: int) -> TransferHead:
    """A head with as many steps, each on all records: near enough for an estimate."""
    if head.noise_multiplier is not None:
        return replace(head, epochs=head.steps, sample_rate=1.0)
    if head.batch_size is None or head.batch_size >= set_size:
        return replace(head, batch_size=None)
    return replace(head, batch_size=None, epochs=head.epochs * (set_size // head.batch_size))
