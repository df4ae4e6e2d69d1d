"""The outcome of trials: the only data sent from the worker that plays a unit to the process that counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from remanence.core.errors import Comparison, Criterion, Reduction
from remanence.core.records import Records

Tensors = dict[str, Tensor]

_SHOWN = 30  # reconstructions in a gallery
_ONCE = "gallery.", "once."  # only in the first unit


@final
@dataclass(frozen=True)
class Gallery:
    """A few reconstructions next to their closest targets and strangers. This is data: kept only on request."""

    targets: Tensor  # (shown, *example)
    reconstructions: Tensor
    controls: Tensor
    succeeded: Tensor  # (shown,)

    def tensors(self) -> Tensors:
        """The tensors by name, for storage."""
        return {name: values.detach().cpu().contiguous() for name, values in vars(self).items()}


@final
@dataclass(frozen=True)
class Outcome:
    """Trials, each compared with its target (main) and with a stranger (control).

    `numbers` explain an outcome, one per trial. Three of them are interpreted: `remaining_gradient`, the gradient
    norm at which the optimiser stopped; `sensitivity`, the error caused by one unit of it; `diverged`, whether
    training diverged. `proven` counts the records of each trial from which
    the game recomputed the release.
    """

    main: Comparison
    control: Comparison
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # each (trials,)
    proven: Tensor | None = None  # (trials,)
    gallery: Gallery | None = None
    once: Mapping[str, Tensor] = field(default_factory=dict)  # tensors of the first unit only, for the game
    claims_labels: bool = True  # whether the attack predicts labels
    chances: int = 1  # how many guesses each record got

    def tensors(self) -> Tensors:
        """The tensors, under the names that `Outcome.of` and `join` read."""
        parts = {"main": vars(self.main), "control": vars(self.control), "numbers": self.numbers}
        parts["gallery"] = {} if self.gallery is None else self.gallery.tensors()
        parts["once"] = self.once
        found = {f"{part}.{name}": values for part, held in parts.items() for name, values in held.items()}
        if self.proven is not None:
            found["proven"] = self.proven
        facts = {"claims_labels": torch.tensor(self.claims_labels), "chances": torch.tensor(self.chances)}
        return {**found, **facts}

    @classmethod
    def of(cls, tensors: Tensors) -> Outcome:
        """The inverse of `tensors`."""

        def within(part: str) -> Tensors:
            start = f"{part}."
            return {n.removeprefix(start): values for n, values in tensors.items() if n.startswith(start)}

        shown = within("gallery")
        return cls(
            main=Comparison(**within("main")),
            control=Comparison(**within("control")),
            numbers=within("numbers"),
            proven=tensors.get("proven"),
            gallery=Gallery(**shown) if shown else None,
            once=within("once"),
            claims_labels=bool(tensors["claims_labels"]),
            chances=int(tensors["chances"]),
        )


def closest_guesses(criterion: Criterion, targets: Records, others: Records, guesses: Records) -> Gallery:
    """The first guesses, each with its closest target and its closest stranger."""
    trials = -(-_SHOWN // guesses.batch_shape[1])
    targets, others, guesses = targets[:trials], others[:trials], guesses[:trials]

    def closest(records: Records) -> tuple[Tensor, Tensor]:
        errors = criterion.error(records[:, None, :], guesses[:, :, None])  # (trials, guesses, set)
        if criterion.reduction is Reduction.CLASS:
            agree = records.labels[:, None, :] == guesses.labels[:, :, None]
            errors = errors.where(agree, torch.inf)
        best = errors.nan_to_num(nan=torch.inf, posinf=torch.inf).min(2)
        rows = torch.arange(len(records), device=best.indices.device)[:, None]
        return records[rows, best.indices].features.flatten(0, 1), best.values.flatten()

    (near, errors), (strangers, _) = closest(targets), closest(others)
    shown = near, guesses.features.flatten(0, 1), strangers, errors <= criterion.threshold
    return Gallery(*(values[:_SHOWN].clone() for values in shown))


def join(parts: Sequence[Tensors]) -> Tensors:
    """Concatenate consecutive units into one; tensors stored once come from the first."""
    return {
        name: torch.cat([part[name] for part in parts]) if _is_per_trial(name, values) else values
        for name, values in parts[0].items()
    }


def gather(parts: Iterable[Tensors], trials: int) -> Tensors:
    """`join`, into preallocated memory.

    Small results that persist between large temporary ones would fragment memory and prevent its reuse.
    """
    found, first = Tensors(), 0
    for part in parts:
        size = len(part["main.errors"])
        for name, values in part.items():
            if not _is_per_trial(name, values):
                found.setdefault(name, values.clone())
                continue
            if name not in found:
                found[name] = values.new_empty(trials, *values.shape[1:])
            found[name][first : first + size] = values
        first += size
    return found


def _is_per_trial(name: str, values: Tensor) -> bool:
    return values.ndim > 0 and not name.startswith(_ONCE)
