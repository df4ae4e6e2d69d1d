"""Watching an Opacus optimizer: who was in each step, what was clipped, and what noise was added."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from remanence.exceptions import InputError

_SKETCH = 256  # numbers of each step's noise that are kept, to see it repeat
_WATCHED = ("clip_and_accumulate", "add_noise")
_COMPARED = 2000  # steps, each with each

Take = Callable[[Tensor, Tensor, Tensor], None]  # parameters, noisy sum, the known records' part of it


class Steps:
    """What really ran, measured step by step."""

    def __init__(self, optimizer: DPOptimizer, sampler: Any, canaries: range) -> None:
        self.sizes: list[int] = []
        self.noises: list[float] = []  # multipliers, as the optimizer was told
        self.norms: list[float] = []  # clipping norms
        self.canary_sum = torch.empty(0)  # clipped gradients of the canaries in the current step
        self._optimizer, self._sampler, self._canaries = optimizer, sampler, canaries
        self._drawn: deque[list[int]] = deque()  # batches that the sampler has drawn and no step has used
        self._members: list[int] = []  # of the current step
        self._indices: list[Tensor] = []
        self._sums: Tensor | None = (
            None  # clipped gradients of the known records and of the canaries, (2, numbers)
        )
        self._noise_squares: list[float] = []  # per number, in units of the clipping norm
        self._sketches: list[Tensor] = []
        self._worst_clipping = 0.0
        self._repeated = 0

    @contextmanager
    def watching(self, take: Take) -> Iterator[None]:
        """Follow the sampler and the optimizer, and let go of both at the end."""
        optimizer, sampler = self._optimizer, self._sampler
        clip, add_noise, kind = optimizer.clip_and_accumulate, optimizer.add_noise, type(sampler)
        own = {name: value for name, value in vars(optimizer).items() if name in _WATCHED}
        drawn = self._drawn

        def draw(this: Any) -> Iterator[list[int]]:
            drawn.clear()  # what an epoch that was broken off had drawn ahead is never used
            for batch in kind.__iter__(this):
                drawn.append([int(index) for index in batch])
                yield batch

        def clip_and_accumulate() -> None:
            self._clipped()
            clip()

        def noise_added() -> None:
            add_noise()
            self._finish_step(take)

        # A for loop looks __iter__ up in the class, so the one sampler gets a class of its own.
        sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": draw})
        optimizer.clip_and_accumulate, optimizer.add_noise = clip_and_accumulate, noise_added
        try:
            yield
        finally:
            sampler.__class__ = kind
            for name in _WATCHED:
                delattr(optimizer, name)
            vars(optimizer).update(own)

    @torch.no_grad()
    def _clipped(self) -> None:
        """One physical batch: whose gradients they are, and what their clipped sum should be."""
        samples = [sample.flatten(1) for sample in self._optimizer.grad_samples]
        members = self._take(len(samples[0]))
        self._members += members
        norms = torch.stack([sample.norm(dim=1) for sample in samples]).norm(dim=0)
        factors = (self._optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1)
        canary = torch.tensor([index in self._canaries for index in members], device=factors.device)
        weights = torch.stack([factors * ~canary.bool(), factors * canary.bool()])
        sums = torch.cat([weights.to(sample) @ sample for sample in samples], 1)
        self._sums = sums if self._sums is None else self._sums + sums

    def _take(self, rows: int) -> list[int]:
        """The next records that the sampler has drawn."""
        members: list[int] = []
        while len(members) < rows and self._drawn:
            batch = self._drawn[0]
            wanted = rows - len(members)
            members += batch[:wanted]
            if wanted >= len(batch):
                self._drawn.popleft()
            else:
                self._drawn[0] = batch[wanted:]
        if rows == 0 and self._drawn and not self._drawn[0]:
            self._drawn.popleft()
        if len(members) < rows:
            raise InputError(
                "A batch did not come from the loader.",
                needs="training on the batches of the loader that is recorded, each once",
                got=f"a batch of {rows} records, of which the loader drew {len(members)}",
                hint="record the loader that the loop iterates over, and take a step before an epoch ends",
            )
        return members

    @torch.no_grad()
    def _finish_step(self, take: Take) -> None:
        """One logical step, between its noise and its update."""
        optimizer = self._optimizer
        parameters, noisy, summed = (
            torch.cat([getattr(p, name).detach().flatten() for p in optimizer.params])
            for name in ("data", "grad", "summed_grad")
        )
        assert self._sums is not None
        norm = float(optimizer.max_grad_norm)
        noise = (noisy - summed) / norm
        self._noise_squares.append(float(noise.square().mean()))
        self._sketches.append(noise[:_SKETCH].cpu())
        off = float((summed - self._sums.sum(0)).norm()) / norm
        self._worst_clipping = max(self._worst_clipping, off / (1 + len(self._members)))
        self._repeated += len(self._members) - len(set(self._members))
        self.sizes.append(len(self._members))
        self.noises.append(float(optimizer.noise_multiplier))
        self.norms.append(norm)
        self.canary_sum = self._sums[1]
        self._indices.append(torch.tensor(self._members, dtype=torch.int32))
        take(parameters, noisy, self._sums[0])
        self._members, self._sums = [], None

    def canaries_in_step(self) -> list[int]:
        """Which of the inserted canaries are in the current step."""
        return [index - self._canaries.start for index in self._members if index in self._canaries]

    def batches(self) -> dict[str, Tensor]:
        """Who was in each step (all indices one after the other, and where each step begins), and its noise."""
        starts = torch.tensor([0, *self.sizes]).cumsum(0)
        squares = torch.tensor(self._noise_squares, dtype=torch.float64)
        return {"indices": torch.cat(self._indices), "starts": starts, "noise_squares": squares}

    def presence(self, rows: Tensor, total: int) -> Tensor:
        """How often each candidate was in each step, `(steps, total)`; `rows` are those of the inserted canaries."""
        found = torch.zeros(len(self.sizes), total)
        for step, members in enumerate(self._indices):
            own = members[members >= self._canaries.start].long() - self._canaries.start
            found[step].index_add_(0, rows[own], torch.ones(len(own)))
        return found

    def summary(self, *, records: int) -> dict[str, Any]:
        """The measurements that an audit holds against the claim."""
        counts = torch.bincount(torch.cat(self._indices).long(), minlength=records).double()
        sizes = torch.tensor(self.sizes, dtype=torch.float64)
        sketches = torch.stack(self._sketches).double()
        return {
            "records": records,
            "steps": len(self.sizes),
            "max_grad_norm": float(self._optimizer.max_grad_norm),
            "batch_sizes": {"mean": float(sizes.mean()), "variance": float(sizes.var(correction=0))},
            "batches_per_record": {
                "mean": float(counts.mean()),
                "variance": float(counts.var(correction=0)),
            },
            "repeated_in_a_step": self._repeated,
            "clipping_error": self._worst_clipping,
            "noise_correlation": _largest_correlation(sketches),
            "noise_numbers": sketches.shape[1],
        }


def _largest_correlation(sketches: Tensor) -> float:
    """The largest correlation between the noise of two different steps."""
    if len(sketches) < 2:
        return 0.0
    sketches = sketches[:_COMPARED]
    unit = sketches / sketches.norm(dim=1, keepdim=True).clamp(min=1e-30)
    between = (unit @ unit.mT).abs()
    return float(between.fill_diagonal_(0).max())
