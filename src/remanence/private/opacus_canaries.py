"""Watching the canaries of an Opacus run: what each step says about who was in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from remanence.private.canaries import Canaries
from remanence.private.opacus_replica import Clipping, Reading, Replica
from remanence.private.recorder import RunRecorder, SlotGradients

_ALIKE = 1e-2  # clipping norms by which a canary's gradient may be off, through rounding
_LOOKED = 6  # canaries at which layers are looked at for mixing records


@final
@dataclass(frozen=True)
class RunAs:
    """How the model is run in this step."""

    clipping: Clipping
    autocast: torch.dtype | None
    floats: torch.dtype | None  # of what the model is given


@final
@dataclass(frozen=True)
class CanaryStep:
    """One step, and the part of the canaries in it."""

    members: list[int]
    rows: dict[int, Tensor]  # clipped gradients of canaries that are tested, by index
    inside: Tensor  # the sum of all canaries' clipped gradients
    summed: list[Tensor]
    noised: list[Tensor]
    sums: list[Tensor] | None  # clipped gradients as they should add up, where they were seen


@final
@dataclass(frozen=True)
class CanaryWatch:
    """Computes, with a copy of the model, what every candidate would have added to a step."""

    recorder: RunRecorder
    replica: Replica
    canaries: Canaries
    reading: Reading
    ghost: bool  # clipped without gradients of single records
    tolerance: float
    sizes: dict[int, float] = field(
        default_factory=dict
    )  # of canaries' gradients in training, over those alone

    def look(self, seen: CanaryStep, run_as: RunAs) -> Tensor:
        """What this step says about the canaries; the known records' part of its sum."""
        recorder, step = self.recorder, self.recorder.steps - 1
        random = self.replica.is_random(self._looked_at(run_as))
        rows, inside = seen.rows, seen.inside
        present = [index for index in seen.members if index >= recorder.first_canary]
        if self.ghost and present:
            own = self.canaries.rows[torch.tensor(present) - recorder.first_canary]
            found = torch.cat(list(self._gradients(own, run_as)))
            rows, inside = dict(zip(present, found, strict=True)), found.sum(0)
        slots = recorder.slots_among([index for index in present if index in rows])
        if len(slots):
            candidates = recorder.candidates_of(slots)  # (slots, candidates), the one that is there first
            index_of = {
                int(row): place + recorder.first_canary for place, row in enumerate(self.canaries.rows)
            }
            there = torch.stack([rows[index_of[int(row)]] for row in candidates[:, 0]])
            others = torch.cat(list(self._gradients(candidates[:, 1:].flatten(), run_as)))
            if not self.ghost and not random:
                alone = torch.cat(list(self._gradients(candidates[:, 0], run_as)))
                self._check_alike(candidates[:, 0], alone, there, run_as)
            noise = torch.cat(seen.noised) - torch.cat(seen.summed)
            others = others.view(len(slots), -1, others.shape[1])
            recorder.add_slots(SlotGradients(slots, there, others), noise)
        if random and (step + 1) & step == 0:  # at steps 1, 2, 4, 8, ...
            self._look_for_mixing(run_as)
        known = torch.cat(seen.summed if seen.sums is None else seen.sums) - inside
        if step % (self.reading.every or recorder.pause()) == 0:
            everyone = torch.arange(self.canaries.shortlists.labels.numel())
            recorder.read(self._gradients(everyone, run_as), torch.cat(seen.noised) - known)
        return known

    def _gradients(self, rows: Tensor, run_as: RunAs) -> Iterator[Tensor]:
        features, labels = self._records(run_as)
        return self.replica.gradients(features[rows], labels[rows], run_as.clipping, run_as.autocast)

    def _records(self, run_as: RunAs) -> tuple[Tensor, Tensor]:
        """All candidates, shortlist after shortlist, as the model is given them."""
        lists = self.canaries.shortlists
        features = lists.features.flatten(0, 1)
        if features.is_floating_point() and run_as.floats is not None:
            features = features.to(run_as.floats)
        return features, lists.labels.flatten()

    def _looked_at(self, run_as: RunAs) -> Tensor:
        return self._records(run_as)[0][:_LOOKED]

    def _check_alike(self, rows: Tensor, alone: Tensor, there: Tensor, run_as: RunAs) -> None:
        off = float((alone - there).norm(dim=1).max()) / run_as.clipping.total
        if not off <= _ALIKE + 10 * self.tolerance and not self._look_for_mixing(run_as):
            self.recorder.observe("canary-gradients-differ", worst=off)
            if len(run_as.clipping.norms) == 1:
                self._compare_sizes(rows, alone, there, run_as.clipping.total)

    def _compare_sizes(self, rows: Tensor, alone: Tensor, there: Tensor, norm: float) -> None:
        """A gradient of the right direction and of another size each time is divided by something of its batch."""
        own, seen = alone.norm(dim=1), there.norm(dim=1)
        share = (alone * there).sum(1) / own.square()
        straight = (there - share[:, None] * alone).norm(dim=1) <= _ALIKE * seen
        sized = (own < 0.99 * norm) & (seen < 0.99 * norm)  # what was clipped has lost its size
        for row, now in zip(rows[straight & sized].tolist(), share[straight & sized].tolist(), strict=True):
            first = self.sizes.setdefault(row, now)
            if not 1 - 2 * _ALIKE <= now / first <= 1 + 2 * _ALIKE:
                self.recorder.observe("loss-over-the-batch", worst=max(now / first, first / now))

    def _look_for_mixing(self, run_as: RunAs) -> bool:
        layer = self.replica.layer_that_mixes(self._looked_at(run_as))
        if layer is not None:
            self.recorder.observe("records-mixed", where=layer)
        return layer is not None
