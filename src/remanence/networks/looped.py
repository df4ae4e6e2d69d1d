"""A user's own training function, one model at a time."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from joblib import Parallel, delayed
from torch import Tensor

from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release, Weights
from remanence.scale.progress import track

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
        alone = self.processes == 1

        def job(trial: int):
            own = [targets[trial]] if known_data is None else [known_data, targets[trial]]
            records = concatenate(own)  # a copy, whatever the function does to it
            return delayed(_train_one)(self.train, records, seeds[trial], alone)

        # joblib sends a function that lives in a script by value, so a factory file works too.
        running = Parallel(n_jobs=self.processes, return_as="generator")(map(job, range(trials)))
        parts = [part for part in track(running, total=trials, what="training") if part is not None]
        self._require_alike(parts)
        return self.release_type({name: torch.stack([part[name] for part in parts]) for name in parts[0]})

    def answer(self, release: Release, records: Records) -> Tensor:
        """Ask the models one after the other."""
        ask, logits = self.require_ask(), []
        for trial in range(len(release)):
            trained = {name: tensor[trial].clone() for name, tensor in release.tensors.items()}
            found = _call(ask, trained, concatenate([records]))  # copies, whatever the function does to them
            if not _is_logits(found, len(records), logits[0].shape[1] if logits else None):
                raise InputError(
                    "The function that asks a model returned something that is not logits.",
                    needs=f"a tensor of floating-point numbers, ({len(records)} probes, classes)",
                    got=f"{_name(ask)} returned {_shown(found)}",
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
                got=f"{_name(self.train)} alone",
                hint="looped(train, ask=logits), where logits(tensors, probes) is of shape (probes, classes)",
            )
        return self.ask

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"train": _name(self.train)}
        return shown if self.ask is None else {**shown, "ask": _name(self.ask)}

    def _require_alike(self, parts: list[dict[str, Tensor]]) -> None:
        shapes = [{name: tuple(tensor.shape) for name, tensor in part.items()} for part in parts]
        for trial, own in enumerate(shapes):
            for name in sorted(own.keys() | shapes[0].keys()):
                if own.get(name) != shapes[0].get(name):
                    raise InputError(
                        "The training function returned another shape in another trial.",
                        needs="the same names and shapes in every trial: attacks compare number with number",
                        got=f"{_name(self.train)}: {name!r} is {shapes[0].get(name, 'not there')} in the first trial, "
                        f"{own.get(name, 'not there')} in number {trial + 1}",
                        hint="fix the sizes beforehand; no class or category may depend on who is in the records",
                    )


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


def _train_one(train: Train, records: Records, seed: int, alone: bool) -> dict[str, Tensor]:
    if not alone:
        torch.set_num_threads(1)  # processes, not threads: several of each would fight for the cores
    tensors = wrong = _call(train, records, seed)
    if isinstance(tensors, Mapping) and tensors:
        wrong = {
            name: value
            for name, value in tensors.items()
            if not (isinstance(name, str) and torch.is_tensor(value))
        }
        if not wrong:
            # Copies: a function that trains one module again and again returns the same tensors each time.
            return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    raise InputError(
        "The training function returned something that is not a release.",
        needs="a mapping from names to tensors, such as a state dict",
        got=f"{_name(train)} returned {_shown(wrong)}",
        hint="return dict(model.state_dict())",
    )


def _call(function: Callable[..., Any], *given: object) -> Any:
    """What a user's function returns; what it raises is told as a mistake in that function."""
    try:
        return function(*given)
    except RemanenceError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this call
        place = f" (line {frames[0].lineno} of {frames[0].filename})" if frames else ""
        raise InputError(
            f"Your function {_name(function)} raised an error.",
            needs="a function that works for every target and seed",
            got=f"{type(error).__name__}: {error}{place}",
            hint="call it on its own first, in a Python session",
        ) from error


def _is_logits(found: object, records: int, classes: int | None) -> bool:
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim != 2:
        return False
    return found.shape == (records, classes or max(1, found.shape[1]))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _shown(value: object) -> str:
    """A value's type, with the types of what is in it or its shape."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_shown(part)}' for key, part in list(value.items())[:5])}}}"
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return type(value).__name__
