"""A user's own training function, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release, Weights
from remanence.training.own import call_own, name_of, shown_as, train_each

Train = Callable[[Records, int], Mapping[str, Tensor]]
Ask = Callable[[Mapping[str, Tensor], Records], Tensor]


@final
@dataclass(frozen=True)
class Looped(Mechanism[Release]):
    """Calls `train(records, seed)` once per trial, in parallel processes if asked to."""

    train: Train
    release_type: type[Release] = Weights
    processes: int = 1
    ask: Ask | None = None
    name: ClassVar[str] = "own training function"

    @property
    def releases(self) -> type[Release]:
        """The type of what the adversary sees."""
        return self.release_type

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train once per trial; each trial's seed is drawn from the generator beforehand."""
        trials = len(targets)
        device = generator.device
        seeds = torch.randint(2**62, (trials,), generator=generator, device=device).tolist()

        def given(trial: int) -> tuple[Records, int]:
            own = targets[trial] if known_data is None else concatenate([known_data, targets[trial]])
            return own, seeds[trial]

        parts = train_each(self.train, map(given, range(trials)), count=trials, processes=self.processes)
        return self.release_type({name: torch.stack([part[name] for part in parts]) for name in parts[0]})

    def answer(self, release: Release, records: Records) -> Tensor:
        """Ask the models one after the other."""
        ask, logits = self.require_ask(), []
        for trial in range(len(release)):
            found = call_own(ask, {name: tensor[trial] for name, tensor in release.tensors.items()}, records)
            if not _is_logits(found, len(records), logits[0].shape[1] if logits else None):
                raise InputError(
                    "The function that asks a model returned something that is not logits.",
                    needs=f"a tensor of floating-point numbers, ({len(records)} probes, classes)",
                    got=f"{name_of(ask)} returned {shown_as(found)}",
                    hint="return model(probes.features)",
                )
            logits.append(found.detach())
        return torch.stack(logits)

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse to be asked without a function that asks."""
        self.require_ask()

    def require_ask(self) -> Ask:
        """The function that asks a model, where there is one."""
        if self.ask is None:
            raise InputError(
                "This training function's models cannot be asked questions.",
                needs="a function from what training returned, and probes, to logits",
                got=f"{name_of(self.train)} alone",
                hint="looped(train, ask=logits), where logits(tensors, probes) is of shape (probes, classes)",
            )
        return self.ask

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"train": name_of(self.train)}
        return shown if self.ask is None else {**shown, "ask": name_of(self.ask)}


def looped(
    train: Train, *, ask: Ask | None = None, releases: type[Release] = Weights, processes: int = 1
) -> Looped:
    """Wrap a function that trains one model: `train(records, seed)` returns named tensors.

    >>> def mean(records, seed):
    ...     return {"mean": records.features.mean(0)}
    >>> known = Records(torch.zeros(3, 2), torch.zeros(3))
    >>> targets = Records(torch.full((5, 1, 2), 4.0), torch.zeros(5, 1))
    >>> looped(mean).release(known, targets, torch.Generator())["mean"][0]
    tensor([1., 1.])

    Where only answers are published, `ask(tensors, probes)` gives the logits of one trained model, `(probes, classes)`,
    and `Queried` releases them as the API does.

    >>> from remanence import Queried
    >>> def logits(tensors, probes):
    ...     return probes.features - tensors["mean"]
    >>> probes = Records(torch.tensor([[2.0, 1.0]]), torch.zeros(1))
    >>> api = Queried(looped(mean, ask=logits), probes, answers="probabilities", decimals=2)
    >>> api.release(known, targets, torch.Generator())["answers"][0]
    tensor([[0.7300, 0.2700]])

    A function that returns a model's answers in place of its weights needs no `ask`, but `releases=Logits`.
    """
    return Looped(train, releases, processes, ask)


def _is_logits(found: object, records: int, classes: int | None) -> bool:
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim != 2:
        return False
    return found.shape == (records, classes or max(1, found.shape[1]))
