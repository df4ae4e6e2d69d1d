"""Updates that exist: every record behind them plays the target, seen or unseen by the auditor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, Reconstruction, blindly
from remanence.core.baseline import Baseline
from remanence.core.errors import Comparison, Criterion, Reduction
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.releases import Gradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.findings import Words
from remanence.results.outcome import Outcome
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.updates.dense.layers import LARGE
from remanence.updates.dense.proofs import Proof, unmixed
from remanence.updates.dense.reader import DenseReader
from remanence.updates.shared_gradient import Proven, SharedGradient, each

Reconstruct = Callable[[Gradient], Reconstruction]

SEND_LESS = "Send less. Aggregate securely over many clients, or clip and add noise before anything is sent."


@final
@dataclass(frozen=True)
class Captured(AnyGame[SharedGradient]):
    """One or more updates that exist. Behind dense layers every sample of every batch is one trial.

    A sample counts if the game can recompute the update, or the sample's contribution to it, from the attack's
    proposal. If a batch size is neither proven nor declared (`batch_size`), no rate is divided by it: a trial is then
    an update, and succeeds if one of its records is proven. The same holds for pictures in patches and for texts, which
    are proven together or not at all. The control is the same attack on the same updates with the entries of every
    tensor shuffled (of layers with more than four million weights, only the first, because all records are read off
    it).
    """

    door: ClassVar[str] = "updates"

    mechanism: SharedGradient
    gradients: Gradient
    batch_size: int | None = None
    criterion: Criterion = Criterion(reduction=Reduction.MATCHED, label_scale=1.0)
    disturbed: Caveat | None = None  # why the update cannot be recomputed, if that is known
    bounds: tuple[Bound, ...] = ()
    default_trials: int = field(init=False, repr=False)  # every update

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.gradients))

    @property
    def knowledge(self) -> Knowledge:
        """The adversary knows the network and nothing else."""
        return Knowledge(self.mechanism, Uninformed(), None)

    def fits(self) -> None:
        """The gradients were made from these weights, as far as this can be tested."""
        if self.disturbed is None:
            self.mechanism.reader.fits(self.gradients, self.mechanism)

    def baseline(self, chances: int = 1) -> Baseline:
        """Uninformed: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """The hash of the gradients."""
        return {"gradients": self.gradients.sha256()}

    def to(self, device: torch.device | str) -> Captured:
        """The same game on another device; pictures and texts are read where the network is."""
        here = next(iter(self.gradients.tensors.values())).device == torch.device(device)
        if here or not self.mechanism.reader.counts_records:
            return self
        return replace(self, gradients=self.gradients.to(device))

    def caveats(self) -> tuple[Caveat, ...]:
        """The records share their updates; and reasons why no proof may be possible."""
        found = (ONE_RELEASE,) if self.disturbed is None else (ONE_RELEASE, self.disturbed)
        return (*found, *self.mechanism.reader.caveats(self.gradients, self.mechanism))

    @property
    def words(self) -> Words:
        """What the records are called."""
        reader = self.mechanism.reader
        return Words("recovered", reader.many, counts=reader.counts, less=SEND_LESS)

    def how_many(self, outcome: Outcome) -> int | None:
        """The total over all batches, if each size is proven."""
        sizes = outcome.numbers["proven_batch_size"]  # stored with the first sample of each update only
        total = int(sizes.sum())
        return total if bool((sizes > 0).all()) or total == sizes.numel() else None

    def records(self, trials: int, draws: Draws) -> None:
        """None: the records are unknown."""

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All updates together: a control needs them all, and they are few."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> Reconstruct:
        """The attack, ready for any update of this network."""
        return attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: Reconstruct, draws: Draws, unit: Unit) -> Outcome:
        """Attack every update, and a shuffled copy of each."""
        gradients = self.gradients.take(slice(0, unit.size))
        mixed = shuffled(gradients, draws.stream("control"), spare_large=self.mechanism.reader.counts_records)
        guess, decoy = blindly(prepared, gradients, mixed, draws.stream("coins"))
        proofs = self.proofs(guess, gradients)
        sizes = self._sizes(proofs)
        owner = torch.repeat_interleave(
            torch.arange(len(proofs)), torch.tensor([size or 1 for size in sizes])
        )
        first = torch.cat([torch.zeros(1, dtype=torch.bool), owner[1:] == owner[:-1]]).logical_not()
        numbers = {name: values.cpu() for name, values in guess.diagnostics.items()}
        counts = torch.tensor([proof.count for proof in proofs])
        numbers |= {"update": torch.arange(len(proofs)), "proven": counts}
        for name in proofs[0].numbers():
            numbers[name] = torch.tensor([proof.numbers()[name] for proof in proofs])
        sizes_proven = torch.tensor([proof.batch_size or 0 for proof in proofs])
        return Outcome(
            main=_judged(proofs, sizes),
            control=_judged(self.proofs(decoy, mixed), sizes),
            numbers={name: values[owner] for name, values in numbers.items()}
            | {"proven_batch_size": sizes_proven[owner].where(first, 0)},
            proven=counts[owner].where(first, 0),  # once for each update
        )

    def proofs(self, guess: Reconstruction, gradients: Gradient) -> Sequence[Proven]:
        """The proof for each update from its proposed records; empty if the update is disturbed."""
        reader = self.mechanism.reader
        found = reader.proofs(guess, gradients, self.mechanism, claims=self.disturbed is None)
        if not isinstance(reader, DenseReader):
            return found
        head, rounding = reader.head.to(guess.records.labels.device), self.mechanism.sent.rounding
        return [
            unmixed(head, head.layers_of(one), proof, rounding)
            for proof, one in zip(found, each(gradients), strict=True)
            if isinstance(proof, Proof)
        ]

    def _sizes(self, proofs: Sequence[Proven]) -> Sequence[int | None]:
        """How many samples are behind each update; None for all if one is unknown."""
        sizes = [proof.batch_size or self.batch_size for proof in proofs]
        if None in sizes or not self.mechanism.reader.counts_records:
            return [None] * len(proofs)
        return [max(size or 0, proof.count) for size, proof in zip(sizes, proofs, strict=True)]


def _judged(proofs: Sequence[Proven], sizes: Sequence[int | None]) -> Comparison:
    """One row for each record of an update of known size, or one for the update; nothing is compared with a truth."""
    proven = torch.cat(
        [
            torch.arange(size or 1) < (proof.count if size else min(proof.count, 1))
            for proof, size in zip(proofs, sizes, strict=True)
        ]
    )[:, None]
    return Comparison(torch.full(proven.shape, torch.nan), proven, proven)


def shuffled(gradients: Gradient, generator: torch.Generator, *, spare_large: bool = False) -> Gradient:
    """The entries of every tensor in random order: the same numbers without structure.

    `spare_large` leaves large tensors after the first unchanged, which saves a copy of the update.
    """
    mixed = {}
    for name, values in gradients.tensors.items():
        flat = values.flatten(1)
        if spare_large and mixed and flat.shape[1] > LARGE:
            mixed[name] = values
        else:
            mixed[name] = torch.stack([_mixed(one, generator) for one in flat]).view_as(values)
    return Gradient(mixed)


def _mixed(flat: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers in random order; very many move in blocks of 64, which still breaks every row and column."""
    together = 1 if len(flat) <= LARGE else 64
    whole = len(flat) // together * together
    order = torch.randperm(whole // together, generator=generator, device=generator.device)
    mixed = flat.clone()
    mixed[:whole] = flat[:whole].view(-1, together)[order.to(flat.device)].flatten()
    return mixed
