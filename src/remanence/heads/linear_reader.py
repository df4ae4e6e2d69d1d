"""The first attack on every head: a ridge regression from the asked class's row to the picture, one per class.

Nothing is learnt but one matrix for each class, from heads that the adversary trains on pictures of their own: seconds
on a laptop, and often as good as a network. The network starts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.checks import whole
from remanence.core.distances import public_errors
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import REMANENCE
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.head import GivenEmbeddings, Head
from remanence.reconstructor.shadows import ShadowFarm, Shadows, split

Tensors = Mapping[str, Tensor]
Read = tuple[Head | GivenEmbeddings, StratifiedPrior]  # whose rows are read, for which classes

_SHADOWS = 4000
_WEIGHTS = tuple(10.0**power for power in range(-6, 3))  # of the penalty, over the mean variance that is read
_HELD_OUT = 300  # shadows that choose among them
_AT_LEAST = 1e-30


@final
@dataclass(frozen=True)
class LinearReader(Attack[Weights]):
    """Ridge regression from a head to one picture of each class, its weight chosen on shadows that are held out.

    It reads the class's row less the mean of all rows. Where a class has several pictures it draws their mean.
    """

    shadows: int = _SHADOWS
    info: ClassVar[AttackInfo] = AttackInfo(
        "linear-reader",
        "Trains shadow heads on its own pictures, and one ridge regression per class from a head to the picture.",
        "a transfer-learned head; similar public pictures; the training recipe",
        "weights",
        REMANENCE,
    )

    def __post_init__(self) -> None:
        whole("shadows", self.shadows, least=2, hint="LinearReader(shadows=4000)")

    def check(self, knowledge: Knowledge) -> Read:
        """Heads, and public pictures to train shadows on."""
        head, prior = knowledge.mechanism, knowledge.prior
        if isinstance(head, Head | GivenEmbeddings) and isinstance(prior, StratifiedPrior):
            return head, prior
        hint = "audit_head(...), or Game(TransferHead(...), StratifiedPrior(records), None, targets=...)"
        raise self.refusal(got=knowledge, hint=hint)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train shadows and solve one regression for each class."""
        _, prior = self.check(knowledge)
        ours, aside = split(knowledge)
        farm, others = ShadowFarm(ours, generator), ShadowFarm(aside, generator)
        reading = learn_reading(self.check(ours), farm.blocks(self.shadows), others.block(_HELD_OUT))

        def reconstruct(release: Release) -> Reconstruction:
            drawn = reading.draw(release.tensors)
            labels = prior.classes.expand(len(drawn), -1)
            records = Records(drawn, labels)
            public = public_errors(records, prior.records)
            return Reconstruction(records, diagnostics={"class": labels.clone(), "public_error": public})

        return reconstruct


@final
@dataclass(frozen=True)
class Reading:
    """One linear map for each class that is asked for, from what is read of a head to a picture."""

    rows: Tensor  # of the head, one for each class that is asked for
    centre: Tensor  # (classes, numbers)
    maps: Tensor  # (classes, numbers, pixels)
    pictures: Tensor  # (classes, pixels), the usual one of each
    limits: tuple[float, float]  # of pixels
    shape: tuple[int, ...]

    def __deepcopy__(self, memo: object) -> Reading:
        return self  # nothing in it ever changes

    def draw(self, tensors: Tensors) -> Tensor:
        """A picture of each class, `(trials, classes, *example)`."""
        values = read(tensors, self.rows) - self.centre
        drawn = self.pictures + torch.einsum("kcd,cdp->kcp", values, self.maps)
        return drawn.clamp(*self.limits).unflatten(2, self.shape)


def read(tensors: Tensors, rows: Tensor) -> Tensor:
    """What is regressed on: the asked classes' rows with their biases, less the mean row, `(trials, classes, numbers)`.

    Hidden units are summed up to rows, because their order means nothing.
    """
    if "embedding" in tensors:
        return tensors["embedding"]
    weight, bias = tensors["weight"], tensors.get("bias")
    if (last := tensors.get("out_weight")) is not None:
        weight, bias = last @ weight, tensors.get("out_bias")
    both = weight if bias is None else torch.cat([weight, bias.unsqueeze(2)], 2)
    return (both - both.mean(1, keepdim=True) if both.shape[1] > 1 else both)[:, rows]


def _rows(head: Head | GivenEmbeddings, classes: Tensor) -> Tensor:
    """The row of the head that each class is read from; all have the same where there is one output."""
    rows = classes.long()
    if isinstance(head, GivenEmbeddings):
        return torch.arange(len(rows), device=rows.device)
    if head.task is not None:
        rows = torch.tensor(head.task, device=rows.device)[rows]
    return rows if head.outputs > 1 else torch.zeros_like(rows)


def learn_reading(of: Read, shadows: Iterable[Shadows], held_out: Shadows) -> Reading:
    """Regress on shadows, block by block, and choose the penalty on those that are held out."""
    head, prior = of
    pixels = prior.records.features
    rows, places = _rows(head, prior.classes), prior.places.to(pixels.device)
    sums = _Sums(len(places))
    for block in shadows:
        sums.add(read(block.tensors, rows), _means(block, places))
    asked = read(held_out.tensors, rows)
    own = held_out.targets.features[:, places].flatten(3)  # (trials, classes, of the class, pixels)
    maps = [
        _ridge(*sums.of(c), asked[:, c] - sums.mean_x[c], own[:, c] - sums.mean_y[c])
        for c in range(len(places))
    ]
    limits = float(pixels.min()), float(pixels.max())
    return Reading(rows, sums.mean_x, torch.stack(maps), sums.mean_y, limits, prior.records.example_shape)


def _means(block: Shadows, places: Tensor) -> Tensor:
    """The mean picture of each class, `(trials, classes, pixels)`."""
    return block.targets.features[:, places].float().mean(2).flatten(2)


class _Sums:
    """Products that a regression needs, added up over blocks around the first block's mean."""

    def __init__(self, classes: int) -> None:
        self.classes, self.count = classes, 0

    def add(self, x: Tensor, y: Tensor) -> None:
        if not self.count:
            self.from_x, self.from_y = x.mean(0), y.mean(0)
            numbers, pixels = x.shape[2], y.shape[2]
            self.xx = x.new_zeros(self.classes, numbers, numbers)
            self.xy = x.new_zeros(self.classes, numbers, pixels)
            self.x, self.y = x.new_zeros(self.classes, numbers), x.new_zeros(self.classes, pixels)
        x, y = (x - self.from_x).transpose(0, 1), (y - self.from_y).transpose(0, 1)  # (classes, trials, ...)
        self.count += x.shape[1]
        self.xx += x.mT @ x
        self.xy += x.mT @ y
        self.x += x.sum(1)
        self.y += y.sum(1)

    @property
    def mean_x(self) -> Tensor:
        return self.from_x + self.x / self.count

    @property
    def mean_y(self) -> Tensor:
        return self.from_y + self.y / self.count

    def of(self, label: int) -> tuple[Tensor, Tensor]:
        """Covariances of one class: numbers with numbers, and with pixels."""
        x, y, count = self.x[label] / self.count, self.y[label] / self.count, self.count
        return self.xx[label] / count - x[:, None] * x, self.xy[label] / count - x[:, None] * y


def _ridge(xx: Tensor, xy: Tensor, asked: Tensor, own: Tensor) -> Tensor:
    """(XX + λ)⁻¹ XY, with the λ that comes closest to a held-out picture of the class."""
    values, vectors = torch.linalg.eigh(xx.double())
    unit = values.mean().clamp(min=_AT_LEAST)
    turned, seen = vectors.mT @ xy.double(), asked.double() @ vectors

    def solved(weight: float) -> Tensor:
        return turned / (values.clamp(min=0) + weight * unit)[:, None]

    def error(weight: float) -> Tensor:
        drawn = seen @ solved(weight)
        return (drawn.unsqueeze(1) - own).square().mean(2).amin(1).mean()

    best = torch.stack([error(weight) for weight in _WEIGHTS]).argmin()  # one wait for the device
    return (vectors @ solved(_WEIGHTS[int(best)])).float()
