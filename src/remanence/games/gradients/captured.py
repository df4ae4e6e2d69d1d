"""Gradients that exist: every sample behind them plays the target, seen or unseen by the auditor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, Uninformed
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.gradients.dense_layers import dense_head
from remanence.bounds.bound import Bound
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.games.gradients.local_training import LocalTraining
from remanence.games.gradients.reading import prove
from remanence.games.gradients.verification import Proof, Proposal, Rounding
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.results.caveats import ONE_RELEASE
from remanence.rounds import Rounds, stream
from remanence.scoring.errors import Comparison, Criterion, Reduction


@final
@dataclass(frozen=True)
class Captured:
    """One or more captured gradients. Every sample of every batch is one trial.

    With the `batches` themselves, a sample counts if the attack's reconstruction meets the criterion. Without
    them, it counts if the game can recompute the update, or the part of it that is the sample's alone, from what
    the attack proposed. Where a batch size is neither proven nor declared (`batch_size`), nothing is divided by it: a
    trial is then an update, and succeeds if one record of it is proven. The control is the same attack on the same
    gradients with the entries of every tensor shuffled.
    """

    mechanism: SharedGradient
    gradients: Gradient
    batches: Sequence[Records] | None = None
    criterion: Criterion = Criterion(reduction=Reduction.MATCHED, label_scale=1.0)
    batch_size: int | None = None
    rounding: Rounding | None = None  # of the gradients' numbers; left out, the mechanism's precision
    training: LocalTraining = LocalTraining()
    bounds: tuple[Bound, ...] = ()

    def __post_init__(self) -> None:
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

    @property
    def default_trials(self) -> int:
        """Every gradient."""
        return len(self.gradients)

    def guess(self) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of what went in."""
        captured = Records(self.gradients.flat(), torch.zeros(len(self.gradients)))
        found = {"gradients": captured.sha256()}
        for index, batch in enumerate(self.batches or ()):
            found[f"batch {index}"] = batch.sha256()
        return found

    def to(self, device: torch.device | str) -> Captured:
        """The same game on another device."""
        batches = None if self.batches is None else [batch.to(device) for batch in self.batches]
        return replace(self, gradients=self.gradients.to(device), batches=batches)

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu") -> Rounds:
        """Attack every gradient, and a shuffled copy of each."""
        attack.check(self.knowledge)
        reconstruct = attack.prepare(self.knowledge, stream(seed, "attack", device))
        gradients = self.gradients.take(slice(0, trials))
        shuffled = _shuffled(gradients, stream(seed, "control", device))
        guess, decoy = reconstruct(gradients), reconstruct(shuffled)
        proofs = self.proofs(guess, gradients)
        sizes = self._sizes(proofs)
        main = self._judge(guess, proofs, sizes)
        control = self._judge(decoy, self.proofs(decoy, shuffled), sizes)
        owner = torch.repeat_interleave(torch.arange(len(proofs)), torch.tensor([size or 1 for size in sizes]))
        numbers = {name: values.cpu() for name, values in guess.diagnostics.items()}
        numbers |= {
            "proven": torch.tensor([proof.count for proof in proofs]),
            "proven_batch_size": torch.tensor([proof.batch_size or 0 for proof in proofs]),
        }
        layers = dense_head(self.mechanism.module).names
        for index, name in enumerate(layers):
            numbers[f"unexplained {name}"] = torch.stack([proof.unexplained[index].cpu() for proof in proofs])
        return Rounds(
            main=main,
            control=control,
            baseline=self.guess(),
            diagnostics={name: values[owner] for name, values in numbers.items()},
            record=torch.arange(len(owner)),
            caveats=(ONE_RELEASE,),
        )

    def proofs(self, guess: Reconstruction, gradients: Gradient) -> list[Proof]:
        """What recomputation says about each update and what was proposed for it."""
        head = dense_head(self.mechanism.module).to(gradients.tensors[next(iter(gradients.tensors))].device)
        layers = head.layers_of(gradients.tensors)
        rounding = self.rounding or Rounding(self.mechanism.precision)
        found = []
        for index in range(len(gradients)):
            one = [(weight[index], None if bias is None else bias[index]) for weight, bias in layers]
            found.append(prove(head, one, _proposal(guess.records[index]), rounding, self.training))
        return found

    def _sizes(self, proofs: Sequence[Proof]) -> list[int | None]:
        """How many samples are behind each gradient; None for all where one is not known."""
        if self.batches is not None:
            return [len(batch) for batch in self.batches][: len(proofs)]
        known = [proof.batch_size or self.batch_size for proof in proofs]
        return [max(size, proof.count) for size, proof in zip(known, proofs, strict=True) if size] if all(
            known
        ) else [None] * len(proofs)

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


def _proposal(records: Records) -> Proposal:
    """What an attack names for one update; without shares, all samples have the same."""
    named = ~records.labels.isnan()
    labels = records.labels[named].long()
    shares = torch.full_like(labels, 1 / max(1, len(labels)), dtype=torch.float64)
    if records.weights is not None:
        shares = records.weights[named]
    return Proposal(records.features[named].flatten(1).double(), labels, shares)


def _samples(parts: Sequence[Tensor]) -> Tensor:
    """One row per sample."""
    return torch.cat([part.reshape(-1, 1).cpu() for part in parts])


def _shuffled(gradients: Gradient, generator: torch.Generator) -> Gradient:
    """The entries of every tensor in another order: the same numbers, and no structure."""
    mixed = {}
    for name, values in gradients.tensors.items():
        flat = values.flatten(1)
        order = (
            torch.rand(flat.shape, generator=generator, device=generator.device).argsort(1).to(flat.device)
        )
        mixed[name] = flat.gather(1, order).view_as(values)
    return Gradient(mixed)
