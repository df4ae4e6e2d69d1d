"""Watching an Opacus optimizer: who was in each step, what was clipped, and what noise was added."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import Tensor
from torch.utils.data import DataLoader

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
        self._yielded: list[
            list[int]
        ] = []  # batches that the loop was given since gradients were last clipped
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
        optimizer = self._optimizer
        clip, add_noise, iterate = optimizer.clip_and_accumulate, optimizer.add_noise, DataLoader.__iter__
        own = {name: value for name, value in vars(optimizer).items() if name in _WATCHED}

        def follow(this: DataLoader[Any]) -> Iterator[Any]:
            if sampler_of(this) is not self._sampler:
                return iterate(this)
            return self._follow(this, iterate)

        def clip_and_accumulate() -> None:
            self._clipped()
            clip()

        def noise_added() -> None:
            add_noise()
            self._finish_step(take)

        # A BatchMemoryManager makes a loader of its own around the same sampler: all of them are looked at.
        DataLoader.__iter__ = follow  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.clip_and_accumulate, optimizer.add_noise = clip_and_accumulate, noise_added
        try:
            yield
        finally:
            DataLoader.__iter__ = iterate
            for name in _WATCHED:
                delattr(optimizer, name)
            vars(optimizer).update(own)

    def _follow(self, loader: DataLoader[Any], iterate: Callable[[DataLoader[Any]], Any]) -> Iterator[Any]:
        """The loader's batches; workers draw ahead, so that who is in one is noted when the loop is given it."""
        plain = loader.batch_sampler
        vars(loader)["batch_sampler"] = _Noted(plain)  # a loader refuses to have it set
        try:
            batches = iterate(loader)
        finally:
            vars(loader)["batch_sampler"] = plain
        drawn = batches._index_sampler.drawn  # persistent workers keep the sampler of their first epoch
        for place, batch in enumerate(batches):
            self._yielded.append(drawn[place])
            yield batch

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
        """Who these gradients belong to: the last batches that the loop was given. Earlier ones were skipped."""
        members: list[int] = []
        while len(members) < rows and self._yielded:
            members = self._yielded.pop() + members
        self._yielded.clear()
        if len(members) != rows:
            raise InputError(
                "A batch did not come from the loader.",
                needs="training on whole batches of the loader that is recorded, each once",
                got=f"the gradients of {rows} records, where the last batches have {len(members)}",
                hint="record the loader that the loop iterates over, and skip no batch between two that are "
                "accumulated into one step",
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


class _Noted:
    """A sampler of batches that remembers what it has drawn."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.drawn: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        for batch in self._sampler:
            self.drawn.append([int(index) for index in batch])
            yield batch

    def __len__(self) -> int:
        return len(self._sampler)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What draws the logical batches, under a BatchMemoryManager too."""
    sampler = loader.batch_sampler
    return sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler


def _largest_correlation(sketches: Tensor) -> float:
    """The largest correlation between the noise of two different steps."""
    if len(sketches) < 2:
        return 0.0
    sketches = sketches[:_COMPARED]
    unit = sketches / sketches.norm(dim=1, keepdim=True).clamp(min=1e-30)
    between = (unit @ unit.mT).abs()
    return float(between.fill_diagonal_(0).max())
