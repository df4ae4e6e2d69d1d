"""The span of a layer's inputs, read off its gradient at the precision of its numbers.

A gradient Σ_t δ_t x_tᵀ spans the layer's inputs, up to rounding. Real models have tokens that count a million times
less than others, so a cut at a fixed share of the largest singular value loses them, and then nothing fits. Here rows
and columns are first scaled until every number carries the same error, and the rank is where the spectrum drops to that
error. A vector x of the span is Gᵀc, so it lies within |c| times the error of the span: no other threshold is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from remanence.updates.parts import largest, rows_times
from remanence.updates.rounding import Rounding

_TELLING = 4  # spare dimensions that a span must leave
ROUNDED = 0.25  # the deviation of a rounded number, in units of its precision
_MOST_NOISE = 16.0  # times the error of single numbers: sums over many tokens were rounded on the way
_LEAST_NOISE = 0.5  # the bound on the largest singular value of such errors is about twice what they have
_OWN = 4.0  # units in the last place of the largest singular value, by which all of them are off as computed here
_CLEAR = 100.0  # a drop that leaves no doubt
_DROP, _FALLS = 2.0, 4.0  # by which the spectrum must fall for a rank to be seen, and to be trusted
_LARGE, _SPARE = 1024, 64  # the least size of a matrix that is sketched, and spare directions of it
_INSIDE = 2.0  # times the rounding tolerance: vectors of the span lie below 1
RECOMPUTED = 32.0  # rounding errors by which what enters a layer may differ from what the client computed


@final
@dataclass(frozen=True)
class Span:
    """The span of a layer's inputs: an optional matrix, such as an adapter, that is applied to vectors first, scales of
    what is then there, and a basis with its sizes."""

    reader: Tensor | None
    scales: Tensor
    basis: Tensor
    sizes: Tensor
    error: float  # the largest singular value of what rounding did
    outputs: int  # rows that the gradient had; 0 where nothing has a gradient
    recomputed: float = 0.0  # the relative error of what enters, computed anew

    @classmethod
    def nothing(cls) -> Span:
        """Of layers that have no gradient."""
        return cls(None, torch.zeros(0), torch.zeros(0, 0), torch.zeros(0), 0.0, 0)

    def holds(self, vectors: Tensor) -> Tensor:
        """Which vectors lie in the span."""
        return self.misfits(vectors) < _INSIDE

    def misfits(self, vectors: Tensor) -> Tensor:
        """The distance of vectors from the span, in units of the rounding tolerance."""
        if not self.outputs:
            return torch.full_like(vectors[..., 0], torch.inf)
        read = (vectors if self.reader is None else vectors @ self.reader.mT) * self.scales
        inside = read @ self.basis
        apart = (read - inside @ self.basis.mT).norm(dim=-1)
        explained = self.error * (inside / self.sizes).norm(dim=-1) + self.recomputed * read.norm(dim=-1)
        # Nothing lies in every span: the embedding of a padding token is often zero.
        return (apart / explained).where(explained > 0, torch.inf)

    @property
    def rank(self) -> int:
        """How many distinguishable vectors entered."""
        return self.basis.shape[1]

    @property
    def most(self) -> int:
        """The largest rank that it could show."""
        return min(self.outputs, len(self.basis))

    @property
    def directions(self) -> Tensor:
        """An orthonormal basis of the inputs, `(rank, inputs)`."""
        return torch.linalg.qr(self.basis / self.scales[:, None]).Q.mT

    @property
    def clarity(self) -> tuple[bool, int, float]:
        """For choosing among spans: whether the spectrum drops steeply, how much it holds, and how steeply."""
        drop = float(self.sizes[-1]) / self.error if self.rank else 0.0
        return drop > _CLEAR, self.rank, drop

    @property
    def fades(self) -> bool:
        """Whether no rank is visible: as in noise, the spectrum nowhere falls to the rounding error."""
        return self.clarity[2] < _DROP

    @property
    def drops(self) -> bool:
        """Whether the spectrum drops to the rounding error rather than fading into it."""
        return self.clarity[2] > _FALLS

    @property
    def tells(self) -> bool:
        """Whether both sides have spare dimensions: with more tokens than either, all or none would fit."""
        return len(self.basis) - self.rank >= _TELLING and self.outputs > self.rank


@final
@dataclass(frozen=True)
class Decomposed:
    """A gradient scaled until every number carries the same error, taken apart once for all precisions."""

    reader: Tensor | None
    scales: Tensor  # of columns, at a precision of 1
    sizes: Tensor  # singular values, at a precision of 1
    basis: Tensor
    rows: int

    @classmethod
    def of(
        cls,
        gradient: Tensor,
        reader: Tensor | None = None,
        *,
        even: bool = False,
        most: int | None = None,
    ) -> Decomposed:
        """Of a gradient `(outputs, inputs)`, that of one layer or of several that read the same.

        Errors are relative to each number or, if they are `even`, to the largest. Where ranks above `most` say nothing,
        a large matrix is sketched.
        """
        rows = gradient[gradient.any(1)].double()
        errors = (ROUNDED * (rows.abs().amax().expand_as(rows) if even else rows)).square()
        left, right = errors.new_ones(len(rows), 1), errors.new_ones(1, rows.shape[1])
        for _ in range(4):  # every number is to carry an error of one
            left = (errors * right.square()).mean(1, keepdim=True).clamp(min=1e-300).rsqrt()
            right = (errors * left.square()).mean(0, keepdim=True).clamp(min=1e-300).rsqrt()
        used = rows.any(0)
        right = right.where(used, right[:, used].median())  # an input that was always zero tells too
        scaled = left * rows * right
        if most is not None and min(scaled.shape) > max(_LARGE, 2 * most):
            generator = torch.Generator().manual_seed(0)
            sketch = torch.randn(scaled.shape[1], most + _SPARE, generator=generator).to(scaled)
            scaled = torch.linalg.qr(scaled @ sketch).Q.mT @ scaled
        driver = "gesvd" if rows.is_cuda else None  # three times as fast as the default at 6,000 × 4,000
        _, sizes, basis = torch.linalg.svd(scaled, full_matrices=False, driver=driver)
        return cls(reader, right.squeeze(0), sizes, basis, len(rows))

    def at(self, precision: float, recomputed: float = 0.0) -> Span:
        """The span at a precision: errors grow with it, and so does what counts as one."""
        sizes = self.sizes / precision
        own = _OWN * torch.finfo(torch.float64).eps * float(sizes[0])
        rank, error = _rank(sizes, max(self.rows**0.5 + self.basis.shape[1] ** 0.5, own))
        basis, sizes = self.basis[:rank].mT, sizes[:rank]
        return Span(self.reader, self.scales, basis, sizes, error, self.rows, recomputed)


def sketched(values: Tensor, width: int) -> Tensor:
    """A layer's rows seen from a few random sides: of the layer's rank, where that is lower.

    In double precision: in single, products of long rows are off by more than the rounding of what was sent.
    """
    sides = torch.randn(values.shape[1], width, generator=torch.Generator().manual_seed(0))
    return rows_times(values, sides.to(values.device, torch.float64))


def span_of_sketch(seen: Tensor, values: Tensor, rounding: Rounding) -> Span:
    """The span of a sketch at the rounding of what was sketched: errors of a row's numbers add up as squares."""
    absolute = rounding.absolute * values.shape[1] ** 0.5
    even = absolute > rounding.relative * float(seen.norm(dim=1).median())
    return Decomposed.of(seen, even=even).at(rounding.relative + absolute / max(largest(seen), 1e-300))


def _rank(sizes: Tensor, expected: float) -> tuple[int, float]:
    """Where the spectrum drops to the rounding error, and its size; `expected` for errors of single numbers."""
    below = torch.cat([sizes[1:], sizes.new_zeros(1)]).clamp(min=_LEAST_NOISE * expected)
    possible = (below <= _MOST_NOISE * expected) & (sizes >= _LEAST_NOISE * expected)
    possible[-1:] &= sizes[-1:] > _MOST_NOISE * expected  # after the last there is nothing, which is no drop
    drops = (sizes / below).where(possible, 0.0)
    last = int(drops.argmax())
    if drops[last] < _DROP:  # it fades into the noise
        last = int((sizes > expected).sum()) - 1
    return last + 1, float(below[last]) if last >= 0 else expected
