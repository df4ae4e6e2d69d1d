"""Gradients that exist: every sample behind them plays the target, seen or unseen by the auditor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, Reconstruction, blindly
from remanence.core.baseline import Baseline
from remanence.core.errors import Comparison, Criterion, Reduction
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.knowledge import Knowledge
from remanence.core.priors import Uninformed
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.findings import Words
from remanence.results.outcome import Outcome
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.updates.belonging import Belonging, belonging, misfit
from remanence.updates.caveats import (
    UPDATE_COARSE,
    UPDATE_ONE_OUTPUT,
    UPDATE_OTHER_LOSS,
    UPDATE_SINGLE_LAYER,
    UPDATE_UNTESTED,
)
from remanence.updates.dense_layers import LARGE, DenseHead, dense_head
from remanence.updates.local_training import LocalTraining
from remanence.updates.one_logit import has_one_logit
from remanence.updates.reading import prove
from remanence.updates.recomputed import Proposal
from remanence.updates.rounding import Layer, Rounding
from remanence.updates.shared_gradient import SharedGradient
from remanence.updates.verification import Proof, verify

_ALIKE = 1e-3  # by how much shares may differ that are the same

Reconstruct = Callable[[Gradient], Reconstruction]


SEND_LESS = "Send less. Aggregate securely over many clients, or clip and add noise before anything is sent."


def proven_sizes(outcome: Outcome) -> int | None:
    """How many records there were, where that is proven for every update."""
    sizes = outcome.numbers["proven_batch_size"]
    return int(sizes.sum()) if bool((sizes > 0).all()) else None


@final
@dataclass(frozen=True)
class Captured(AnyGame[SharedGradient]):
    """One or more captured gradients. Every sample of every batch is one trial.

    With the `batches` themselves, a sample counts if the attack's reconstruction meets the criterion. Without
    them, it counts if the game can recompute the update, or the part of it that is the sample's alone, from what
    the attack proposed. Where a batch size is neither proven nor declared (`batch_size`), nothing is divided by it: a
    trial is then an update, and succeeds if one record of it is proven. The control is the same attack on the same
    gradients with the entries of every tensor shuffled (of layers of more than four million weights, the first alone:
    all that is read is read off it).
    """

    door: ClassVar[str] = "updates"

    mechanism: SharedGradient
    gradients: Gradient
    batches: Sequence[Records] | None = None
    criterion: Criterion = Criterion(reduction=Reduction.MATCHED, label_scale=1.0)
    batch_size: int | None = None
    rounding: Rounding | None = None  # of the gradients' numbers; left out, the mechanism's precision
    training: LocalTraining = field(default_factory=LocalTraining)
    scale_is_known: bool = True  # the updates are mean gradients, and not these times some factor
    disturbed: Caveat | None = None  # why the update cannot be recomputed, where it is known that it cannot
    bounds: tuple[Bound, ...] = ()
    belongings: Sequence[Belonging] | None = None  # where the updates were held against the weights already
    default_trials: int = field(init=False, repr=False)  # every gradient

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.gradients))
        if self.batches is not None and len(self.batches) != len(self.gradients):
            raise InputError(
                "Batches and gradients do not belong together.",
                needs=f"one batch for each of the {len(self.gradients)} gradients",
                got=f"{len(self.batches)} batches",
                hint="leave the batches out where they are unknown",
            )

    @property
    def knowledge(self) -> Knowledge:
        """The adversary knows the network and nothing else."""
        return Knowledge(self.mechanism, Uninformed(), None)

    def fits(self) -> None:
        """The gradients are numbers, and were made from these weights."""
        require_finite(self.gradients)
        if self.training.is_plain and self.disturbed is None and self.batches is None:
            for number, fit in enumerate(self._belongings):
                if not fit.is_one_step:
                    raise misfit(fit, f"update {number}")

    @cached_property
    def _belongings(self) -> Sequence[Belonging]:
        if self.belongings is not None:
            return self.belongings
        head, updates = self._updates(self.gradients)
        return [belonging(head, one, self._rounding) for one in updates]

    @property
    def _rounding(self) -> Rounding:
        return self.rounding or Rounding(self.mechanism.precision)

    @cached_property
    def _head(self) -> DenseHead:
        """The dense layers; to find them is a pass through the network."""
        return dense_head(self.mechanism.module)

    def _updates(self, gradients: Gradient) -> tuple[DenseHead, list[list[Layer]]]:
        """The dense layers, and each update of them."""
        head = self._head.to(next(iter(gradients.tensors.values())).device)
        layers = head.layers_of(gradients.tensors)
        return head, [
            [(weight[index], None if bias is None else bias[index]) for weight, bias in layers]
            for index in range(len(gradients))
        ]

    def baseline(self, chances: int = 1) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of what went in."""
        found = {"gradients": self.gradients.sha256()}
        for index, batch in enumerate(self.batches or ()):
            found[f"batch {index}"] = batch.sha256()
        return found

    def to(self, device: torch.device | str) -> Captured:
        """The same game on another device."""
        if next(iter(self.gradients.tensors.values())).device == torch.device(device):
            return self  # with what it knows about the updates already
        batches = None if self.batches is None else [batch.to(device) for batch in self.batches]
        return replace(self, gradients=self.gradients.to(device), batches=batches)

    def caveats(self) -> tuple[Caveat, ...]:
        """The samples share their gradients; and what stands in the way of a proof."""
        found = (ONE_RELEASE,) if self.disturbed is None else (ONE_RELEASE, self.disturbed)
        if self.batches is not None:
            return found
        other = self.training.is_plain and any(fit.loss_is_other for fit in self._belongings)
        where = (
            (UPDATE_UNTESTED, not self._head.activation.is_kinked),
            (UPDATE_SINGLE_LAYER, len(self._head.weights) == 1),
            (UPDATE_ONE_OUTPUT, has_one_logit(self._head)),
            (UPDATE_COARSE, self._rounding.is_coarse),
            (UPDATE_OTHER_LOSS, other),
        )
        return (*found, *(caveat for caveat, holds in where if holds))

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All gradients together: a control needs them all, and they are few."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> tuple[Attack, Reconstruct]:
        """The attack, ready for any gradient of this network."""
        return attack, attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: tuple[Attack, Reconstruct], draws: Draws, unit: Unit) -> Outcome:
        """Attack every gradient, and a shuffled copy of each."""
        _, reconstruct = prepared
        gradients = self.gradients.take(slice(0, unit.size))
        mixed = shuffled(gradients, draws.stream("control"), spare_large=True)
        guess, decoy = blindly(reconstruct, gradients, mixed, draws.stream("coins"))
        proofs = self.proofs(guess, gradients)
        sizes = self._sizes(proofs)
        owner = torch.repeat_interleave(
            torch.arange(len(proofs)), torch.tensor([size or 1 for size in sizes])
        )
        first = torch.cat([torch.zeros(1, dtype=torch.bool), owner[1:] == owner[:-1]]).logical_not()
        numbers = {name: values.cpu() for name, values in guess.diagnostics.items()}
        counts = torch.tensor([proof.count for proof in proofs])
        numbers |= {"update": torch.arange(len(proofs)), "proven": counts}
        numbers |= {"share_sum": _shares(proofs, torch.sum), "equal_share": _shares(proofs, _common)}
        sizes_proven = torch.tensor([proof.batch_size or 0 for proof in proofs])
        for index, name in enumerate(self._head.names):
            numbers[f"unexplained {name}"] = torch.stack([proof.unexplained[index].cpu() for proof in proofs])
        return Outcome(
            main=self._judge(guess, proofs, sizes),
            control=self._judge(decoy, self.proofs(decoy, mixed), sizes),
            numbers={name: values[owner] for name, values in numbers.items()}
            | {"proven_batch_size": sizes_proven[owner].where(first, 0)},
            proven=counts[owner].where(first, 0),  # once for each update
        )

    @property
    def words(self) -> Words:
        """Samples of a batch."""
        return Words("recovered", "samples", less=SEND_LESS)

    def how_many(self, outcome: Outcome) -> int | None:
        """All batches together, where each size is proven."""
        return proven_sizes(outcome)

    def proofs(self, guess: Reconstruction, gradients: Gradient) -> list[Proof]:
        """What recomputation says about each update and what was proposed for it; nothing where it is disturbed."""
        head, updates = self._updates(gradients)
        if self.disturbed is not None:
            none = slice(0, 0)
            return [
                verify(head, one, _proposal(guess.records[index])[none], rounding=self._rounding)
                for index, one in enumerate(updates)
            ]
        return [
            prove(
                head,
                one,
                _proposal(guess.records[index]),
                self._rounding,
                self.training,
                scale_is_known=self.scale_is_known,
            )
            for index, one in enumerate(updates)
        ]

    def _sizes(self, proofs: Sequence[Proof]) -> Sequence[int | None]:
        """How many samples are behind each gradient; None for all where one is not known."""
        if self.batches is not None:
            return [len(batch) for batch in self.batches][: len(proofs)]
        sizes = [proof.batch_size or self.batch_size for proof in proofs]
        if None in sizes:
            return [None] * len(proofs)
        return [max(size or 0, proof.count) for size, proof in zip(sizes, proofs, strict=True)]

    def _judge(
        self, guess: Reconstruction, proofs: Sequence[Proof], sizes: Sequence[int | None]
    ) -> Comparison:
        if self.batches is None:
            proven = torch.cat(
                [
                    torch.arange(size or 1) < (proof.count if size else min(proof.count, 1))
                    for proof, size in zip(proofs, sizes, strict=True)
                ]
            )[:, None]
            return Comparison(torch.full(proven.shape, torch.nan), proven, proven)
        parts = [
            self.criterion.compare(batch[None], guess.records[index : index + 1])
            for index, batch in enumerate(self.batches[: len(sizes)])
        ]
        return Comparison(
            *(_samples([getattr(part, name) for part in parts]) for name in Comparison.__dataclass_fields__)
        )


def require_finite(gradients: Gradient) -> None:
    """Refuse gradients that no training could have used."""
    if gradients.not_finite().any():
        raise MisfitError(
            "This gradient is not finite.",
            needs="finite numbers",
            got="NaN or infinite ones",
            hint="check how it was captured and stored",
        )


def _proposal(records: Records) -> Proposal:
    """What an attack names for one update; without shares, all samples have the same."""
    named = ~records.labels.isnan()
    labels = records.labels[named].long()
    shares = torch.full_like(labels, 1 / max(1, len(labels)), dtype=torch.float64)
    if records.weights is not None:
        shares = records.weights[named]
    return Proposal(records.features[named].flatten(1).double(), labels, shares)


def _shares(proofs: Sequence[Proof], summary: Callable[[Tensor], Tensor]) -> Tensor:
    """Of the records that explain an update whole; 0 where none do."""
    kept = [proof.proposal.shares[proof.proven] if proof.explains_all else None for proof in proofs]
    return torch.tensor([0.0 if shares is None else float(summary(shares)) for shares in kept])


def _common(shares: Tensor) -> Tensor:
    """The share that all have; 0 where they differ."""
    middle = shares.median()
    return middle.where((shares / middle - 1).abs().max() < _ALIKE, 0.0)


def _samples(parts: Sequence[Tensor]) -> Tensor:
    """One row per sample."""
    return torch.cat([part.reshape(-1, 1).cpu() for part in parts])


def shuffled(gradients: Gradient, generator: torch.Generator, *, spare_large: bool = False) -> Gradient:
    """The entries of every tensor in another order: the same numbers, and no structure.

    `spare_large` leaves large tensors behind the first as they are, which saves a copy of the update.
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
    """The same numbers in a random order; of very many, 64 at a time, which leaves no row or column whole."""
    together = 1 if len(flat) <= LARGE else 64
    whole = len(flat) // together * together
    order = torch.randperm(whole // together, generator=generator, device=generator.device)
    mixed = flat.clone()
    mixed[:whole] = flat[:whole].view(-1, together)[order.to(flat.device)].flatten()
    return mixed
