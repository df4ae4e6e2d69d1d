"""A user's own training function, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from joblib import Parallel, delayed
from torch import Tensor

from remanence.exceptions import InputError
from remanence.mechanisms.mechanism import Mechanism, Setting
from remanence.progress import track
from remanence.records import Records, concatenate
from remanence.releases import Release, Weights

Train = Callable[[Records, int], Mapping[str, Tensor]]


@final
@dataclass(frozen=True)
class Looped(Mechanism[Release]):
    """Calls `train(records, seed)` once per trial, in parallel processes if asked to."""

    train: Train
    release_type: type[Release] = Weights
    processes: int = 1
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
        alone = self.processes == 1

        def job(trial: int):
            records = targets[trial] if known_data is None else concatenate([known_data, targets[trial]])
            return delayed(_train_one)(self.train, records, seeds[trial], alone)

        # joblib sends a function that lives in a script by value, so a factory file works too.
        running = Parallel(n_jobs=self.processes, return_as="generator")(map(job, range(trials)))
        parts = [part for part in track(running, total=trials, what="training") if part is not None]
        return self.release_type({name: torch.stack([part[name] for part in parts]) for name in parts[0]})

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        return {"train": getattr(self.train, "__qualname__", repr(self.train))}


def looped(train: Train, *, releases: type[Release] = Weights, processes: int = 1) -> Looped:
    """Wrap a function that trains one model: `train(records, seed)` returns named tensors.

    >>> def mean(records, seed):
    ...     return {"mean": records.features.mean(0)}
    >>> known = Records(torch.zeros(3, 2), torch.zeros(3))
    >>> targets = Records(torch.full((5, 1, 2), 4.0), torch.zeros(5, 1))
    >>> looped(mean).release(known, targets, torch.Generator())["mean"][0]
    tensor([1., 1.])
    """
    return Looped(train, releases, processes)


def _train_one(train: Train, records: Records, seed: int, alone: bool) -> dict[str, Tensor]:
    if not alone:
        torch.set_num_threads(1)  # processes, not threads: several of each would fight for the cores
    tensors = train(records, seed)
    if not isinstance(tensors, Mapping) or not all(torch.is_tensor(value) for value in tensors.values()):
        raise InputError(
            "The training function returned something that is not a release.",
            needs="a mapping from names to tensors, such as a state dict",
            got=type(tensors).__name__,
            hint="return dict(model.state_dict())",
        )
    # Copies: a function that trains one module again and again returns the same tensors each time.
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
