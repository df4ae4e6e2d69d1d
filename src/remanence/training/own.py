"""Users' own training functions: called on copies, one model at a time, in parallel processes if asked to."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
from joblib import Parallel, delayed
from torch import Tensor

from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.records import Records
from remanence.scale.progress import track

State = Mapping[str, Tensor]


def train_each(
    train: Callable[..., State],
    given: Callable[[int], tuple[Any, ...]],
    trials: int,
    generator: torch.Generator,
    processes: int,
) -> list[dict[str, Tensor]]:
    """The results of `train(*given(trial), seed)`, in order; each trial's seed is drawn from the generator beforehand.

    Records and tensors are copied, because a function may modify its arguments. joblib pickles a function defined in
    a script by value, so a factory file works too.
    """
    seeds = torch.randint(2**62, (trials,), generator=generator, device=generator.device).tolist()
    calls = ((*given(trial), seed) for trial, seed in enumerate(seeds))
    jobs = (delayed(_train_one)(train, call, alone=processes == 1) for call in calls)
    running = Parallel(n_jobs=processes, return_as="generator")(jobs)
    states = [state for state in track(running, total=trials, what="training") if state is not None]
    shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in states]
    for trial, own in enumerate(shapes):
        for name in sorted(own.keys() | shapes[0].keys()):
            if own.get(name) != shapes[0].get(name):
                raise InputError(
                    "The training function returned another shape in another trial.",
                    needs="the same names and shapes in every trial: attacks compare number with number",
                    got=f"{name_of(train)}: {name!r} is {shapes[0].get(name, 'not there')} in the first trial, "
                    f"{own.get(name, 'not there')} in number {trial + 1}",
                    hint="fix the sizes beforehand; no class or category may depend on which records are included",
                )
    return states


def _train_one(train: Callable[..., State], given: tuple[Any, ...], *, alone: bool) -> dict[str, Tensor]:
    if not alone:
        torch.set_num_threads(1)  # processes instead of threads: both would oversubscribe the cores
    tensors = wrong = call_own(train, *given)
    if isinstance(tensors, Mapping) and tensors:
        wrong = {
            name: value
            for name, value in tensors.items()
            if not (isinstance(name, str) and torch.is_tensor(value))
        }
        if not wrong:
            # Copies: a function that retrains one module returns the same tensors each time.
            return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    raise InputError(
        "The training function returned something that is not a release.",
        needs="a mapping from names to tensors, such as a state dict",
        got=f"{name_of(train)} returned {shown_as(wrong)}",
        hint="return dict(model.state_dict())",
    )


def call_own(function: Callable[..., Any], *given: object) -> Any:
    """Call a user's function on copies; an exception is reported as an error in that function."""
    try:
        return function(*map(_copied, given))
    except RemanenceError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this call
        place = f" (line {frames[0].lineno} of {frames[0].filename})" if frames else ""
        raise InputError(
            f"Your function {name_of(function)} raised an error.",
            needs="a function that works for every target and seed",
            got=f"{type(error).__name__}: {error}{place}",
            hint="call it on its own first, in a Python session",
        ) from error


def _copied(given: object) -> object:
    if isinstance(given, Tensor):
        return given.detach().clone()
    if isinstance(given, Records):
        return given.copied()
    if isinstance(given, Mapping):
        return {name: _copied(value) for name, value in given.items()}
    return given


def name_of(function: Callable[..., Any]) -> str:
    """The function's name, as a report prints it."""
    return getattr(function, "__qualname__", repr(function))


def shown_as(value: object) -> str:
    """A value's type, with its shape or the types of its elements."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {shown_as(part)}' for key, part in list(value.items())[:5])}}}"
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)}"
    return type(value).__name__
