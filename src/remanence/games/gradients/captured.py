"""Gradients that exist: every sample behind them plays the target, seen or unseen by the auditor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, Uninformed
from remanence.attacks.attack import Attack, Reconstruction
from remanence.bounds.bound import Bound
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import IncompatibleGameError, InputError, MisfitError
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.outcome import Outcome
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.scoring.errors import Comparison, Criterion, Reduction

Reconstruct = Callable[[Gradient], Reconstruction]


@final
@dataclass(frozen=True)
class Captured(AnyGame):
    """One or more captured gradients. Every sample of every batch is one trial.

    With the `batches` themselves, a sample counts if the attack's reconstruction meets the criterion. Without
    them, it counts if the attack proves it: the sample explains the entries of the gradient that it was read
    from, for the batch size that all of them imply. The control is the same attack on the same gradients
    with the entries of every tensor shuffled. `batch_size` is believed where no attack can read it off.
    """

    said: ClassVar[tuple[str, str]] = ("recovered", "samples")

    mechanism: SharedGradient  # pyright: ignore[reportIncompatibleVariableOverride]
    gradients: Gradient
    batches: Sequence[Records] | None = None
    criterion: Criterion = Criterion(reduction=Reduction.MATCHED, label_scale=1.0)
    batch_size: int | None = None
    bounds: tuple[Bound, ...] = ()
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
        """The gradients are numbers."""
        if self.gradients.not_finite().any():
            raise MisfitError(
                "This is no gradient that could be trained with.",
                needs="finite numbers",
                got="NaN or infinite ones",
                hint="check how it was captured and stored",
            )

    def baseline(self, chances: int = 1) -> Baseline:
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

    def caveats(self) -> tuple[Caveat, ...]:
        """The samples share their gradients."""
        return (ONE_RELEASE,)

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All gradients together: a control needs them all, and they are few."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> tuple[Attack, Reconstruct]:
        """The attack, ready for any gradient of this network."""
        return attack, attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: tuple[Attack, Reconstruct], draws: Draws, unit: Unit) -> Outcome:
        """Attack every gradient, and a shuffled copy of each."""
        attack, reconstruct = prepared
        gradients = self.gradients.take(slice(0, unit.size))
        guess = reconstruct(gradients)
        decoy = reconstruct(_shuffled(gradients, draws.stream("control")))
        sizes = self._sizes(guess, attack)
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        main = self._judge(guess, sizes)
        return Outcome(
            main=main,
            control=self._judge(decoy, sizes),
            numbers={name: values.cpu()[owner] for name, values in guess.diagnostics.items()},
            proven=main.succeeded.flatten(),
        )

    def _sizes(self, guess: Reconstruction, attack: Attack) -> list[int]:
        """How many samples are behind each gradient, as far as anybody knows; at least one."""
        if self.batches is not None:
            return [len(batch) for batch in self.batches][: len(guess.records)]
        if "recovered" not in guess.diagnostics:
            raise IncompatibleGameError(
                f"The attack {attack.info.name} proves nothing without the batch.",
                needs="an attack that proves what it recovers, or the batch to compare with",
                got="gradients alone",
                hint="exclusive-neurons or low-rank",
            )
        inferred = guess.diagnostics["inferred_batch_size"].tolist()
        found = guess.diagnostics["recovered"].tolist()
        return [max(size or self.batch_size or 1, count) for size, count in zip(inferred, found, strict=True)]

    def _judge(self, guess: Reconstruction, sizes: Sequence[int]) -> Comparison:
        if self.batches is None:
            found = guess.diagnostics["recovered"].tolist()
            proven = torch.cat([torch.arange(n) < count for n, count in zip(sizes, found, strict=True)])[
                :, None
            ]
            return Comparison(torch.full(proven.shape, torch.nan), proven, proven)
        parts = [
            self.criterion.compare(batch[None], guess.records[index : index + 1])
            for index, batch in enumerate(self.batches[: len(sizes)])
        ]
        return Comparison(
            *(_samples([getattr(part, name) for part in parts]) for name in Comparison.__dataclass_fields__)
        )


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
