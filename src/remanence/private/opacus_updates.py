"""Where a step must lead: the settings that were declared, a copy of the optimizer, and what came after the noise."""

from __future__ import annotations

import copy
import gc
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers.grad_clip_scheduler import _GradClipScheduler
from opacus.schedulers.noise_scheduler import _NoiseScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from remanence.private.opacus_batches import checksum
from remanence.private.own_pass import Clipping, RandomStates, quiet_randomness

_AHEAD = 20_000  # calls for which a schedule is run before training
_EQUAL = 1e-4  # relative rounding of a limit

Settings = dict[str, Any]


def settings_of(optimizer: Any) -> Settings:
    """The numbers that decide a step: norms, noise, divisor, and everything in the groups of parameters."""
    found: Settings = {
        "max_grad_norm": Clipping.of(optimizer).norms,
        "noise_multiplier": float(optimizer.noise_multiplier),
        "expected_batch_size": optimizer.expected_batch_size,
        "loss_reduction": optimizer.loss_reduction,
    }
    for place, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                found[f"{name} of group {place}"] = value.item() if isinstance(value, Tensor) else value
    return found


@final
class Declared:
    """What every setting must be at every step: what it was when recording began, or what a schedule makes of it.

    Schedules that exist when recording begins are copied, and the copies run ahead before there is any training: no
    value of theirs can have seen a record. They must be called in every step, or after every epoch.
    """

    def __init__(self, optimizer: DPOptimizer, epoch: int) -> None:
        self._fixed = settings_of(optimizer)
        self._schedules = [_Schedule(one, optimizer, epoch) for one in _schedules_of(optimizer)]

    def off(self, optimizer: DPOptimizer, step: int) -> dict[str, str]:
        """The settings that are not what they must be at this step, each with the reason."""
        expected, irregular, found = dict(self._fixed), {}, {}
        for schedule in self._schedules:
            now, why = schedule.now(step)
            expected.update(now)
            irregular.update(dict.fromkeys(now, why))
        for name, value in settings_of(optimizer).items():
            wanted = expected.get(name)
            if value != wanted:
                found[name] = f"{name} is {_shown(value)}; {_shown(wanted)} was declared"
            elif irregular.get(name):
                found[name] = irregular[name]
        return found


class _Schedule:
    """A schedule's values, call after call, from a copy that was run before training."""

    def __init__(self, schedule: Any, optimizer: DPOptimizer, epoch: int) -> None:
        self._live, self._first, self._epoch = schedule, schedule.last_epoch, epoch
        self._called: list[int] = []  # the steps before which it was seen to be called
        self._values: list[Settings] = []
        stand_in = _StandIn(optimizer)
        own = {id(optimizer): stand_in, id(optimizer.original_optimizer): stand_in}
        start = settings_of(stand_in)
        self._values.append(start)
        # One that ends, or that needs a loss or anything else that is there in training alone, goes no further.
        with quiet_randomness(), warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # no step before a call
            ahead = copy.deepcopy(schedule, own)
            for _ in range(_AHEAD):
                ahead.step()
                self._values.append(settings_of(stand_in))
        self._changing = [n for n in start if any(values[n] != start[n] for values in self._values)]
        self._values = [{name: values[name] for name in self._changing} for values in self._values]

    def now(self, step: int) -> tuple[Settings, str]:
        """The values at this step, and why they may come from data."""
        calls = self._live.last_epoch - self._first
        self._called += [step] * (calls - len(self._called))
        values = self._values[min(max(calls, 0), len(self._values) - 1)]
        period = self._called[0] if self._called else self._epoch
        regular = all(at == period * (place + 1) for place, at in enumerate(self._called))
        missed = bool(self._called) and calls < step // period if period else True
        if regular and not missed and period in (1, self._epoch):
            return values, ""
        return values, "a schedule was not called in every step, or after every epoch"


class _StandIn:
    """What a schedule changes of an optimizer, without parameters."""

    def __init__(self, optimizer: DPOptimizer) -> None:
        names = ("max_grad_norm", "noise_multiplier", "expected_batch_size", "loss_reduction")
        vars(self).update({name: getattr(optimizer, name) for name in names})
        plain = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self.param_groups = copy.deepcopy(plain)
        self.state: dict[Any, Any] = {}
        self.defaults = dict(optimizer.defaults)
        self._opt_called = True

    def step(self) -> None:
        """Schedules look whether it is there."""


def _schedules_of(optimizer: DPOptimizer) -> list[Any]:
    kinds = (LRScheduler, _NoiseScheduler, _GradClipScheduler)
    ours = (optimizer, optimizer.original_optimizer)
    every = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    every = [one for one in every if any(getattr(one, "optimizer", None) is own for own in ours)]
    inner = {id(part) for one in every for part in getattr(one, "_schedulers", [])}
    return [one for one in every if id(one) not in inner]


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@final
class Limits:
    """Post-processing: noised gradients, or weights, whose sizes are limited to a number that was declared.

    All numbers together, every tensor, every row or every number keeps its direction, and is as large as the limit
    where it was larger, in every step. The noised gradient alone decides, so that it costs nothing.
    """

    def __init__(self, levels: Sequence[float]) -> None:
        self._ways = [(kind, level) for kind in _SIZES for level in levels]  # that every step has kept
        self._used = False

    def explain(self, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> str | None:
        """Empty if both are equal to the bit, how they were limited, or None."""
        equal = all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
        self._ways = [way for way in self._ways if self._fits(actual, _limited(*way, expected))]
        if equal:
            return "" if self._ways or not self._used else None
        self._used = self._used or bool(self._ways)
        return f"{_SIZES[self._ways[0][0]]} limited to {self._ways[0][1]:.4g}" if self._ways else None

    @staticmethod
    def _fits(actual: Sequence[Tensor], limited: Sequence[Tensor]) -> bool:
        pairs = zip(actual, limited, strict=True)
        return all(torch.allclose(one.float(), other, rtol=_EQUAL, atol=1e-7) for one, other in pairs)


_SIZES = {
    "all": "the norm of all",
    "tensor": "the norm of each tensor",
    "row": "the norm of each row",
    "number": "numbers",
}


def _limited(kind: str, level: float, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, limited in this way."""
    if kind == "number":
        return [tensor.float().clamp(-level, level) for tensor in tensors]
    counts = [len(tensor) if kind == "row" and tensor.ndim > 1 else 1 for tensor in tensors]
    rows = [tensor.float().reshape(count, -1) for tensor, count in zip(tensors, counts, strict=True)]
    sizes = [each.norm(dim=1, keepdim=True) for each in rows]
    if kind == "all":
        sizes = [torch.cat(sizes).norm()] * len(rows)
    factors = [(level / size.clamp(min=1e-30)).clamp(max=1) for size in sizes]
    return [(f * each).view_as(whole) for f, each, whole in zip(factors, rows, tensors, strict=True)]


@final
class Updates:
    """Repeats every step alongside the training, with a copy of the optimizer that has its own state.

    A step is replayed when the next batch has come, so that any hidden state that an optimizer reads has changed.
    """

    def __init__(self, optimizer: DPOptimizer, module: nn.Module, limits: Sequence[float]) -> None:
        self._optimizer, self._module = optimizer, module
        self._names = {id(p): name for name, p in module.named_parameters()}
        self._others = self._outside()
        self._changed: set[str] = set()  # of what the optimizer does not hold
        self._of_weights = Limits(limits)
        self._shadow: torch.optim.Optimizer | None = None
        self._began: RandomStates | None = None  # the step to be replayed
        self._early = ""  # the weights moved before the step
        self.why_not = ""
        try:
            shadow = copy.deepcopy(optimizer.original_optimizer)
            for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                getattr(shadow, hooks).clear()
            self._shadow = shadow
        except Exception as error:  # noqa: BLE001  a user's own optimizer may hold anything
            self.why_not = f"the optimizer cannot be copied ({type(error).__name__}: {str(error)[:120]})"

    def names(self) -> list[str]:
        """What the optimizer's parameters are called."""
        return [
            self._names.get(id(p), f"parameter {place}") for place, p in enumerate(self._optimizer.params)
        ]

    @torch.no_grad()
    def begin(self) -> None:
        """A step is about to be taken, with the settings and the gradients that are there."""
        if self._shadow is None:
            return
        own = self._optimizer.original_optimizer
        for group, real in zip(self._shadow.param_groups, own.param_groups, strict=True):
            group.update({name: value for name, value in real.items() if name != "params"})
            for twin, p in zip(group["params"], real["params"], strict=True):
                if not torch.equal(twin, p):
                    self._early = f"`{self._names.get(id(p), 'a parameter')}` changed before the step"
                    twin.copy_(p)
                twin.grad = None if p.grad is None else p.grad.detach().clone()
        self._began = RandomStates.now()

    @torch.no_grad()
    def check(self) -> tuple[str, str]:
        """Why the model is not where the last step led, if it is not; and how it was limited afterwards."""
        now = self._outside()
        self._changed |= {
            name
            for name, value in now.items()
            if value not in (self._others.get(name), _next(self._others.get(name)))
        }
        self._others = now
        if self._shadow is None:
            return self.why_not, ""
        if self._began is not None:
            with quiet_randomness():
                self._began.restore()
                type(self._shadow).step(self._shadow)
            self._began = None
        twins = [p for group in self._shadow.param_groups for p in group["params"] if p.requires_grad]
        actual = [p.detach() for p in self._optimizer.params]
        off = [n for n, a, e in zip(self.names(), actual, twins, strict=True) if not torch.equal(a, e)]
        limited = self._of_weights.explain(actual, twins)
        for twin, p in zip(twins, actual, strict=True):  # the next step begins here
            twin.copy_(p)
        if self._changed:
            return f"`{min(self._changed)}` changed, and is not the optimizer's", ""
        if limited is None:
            return (
                f"`{(off or self.names())[0]}` differs from the result of the gradient and the optimizer",
                "",
            )
        return self._early, limited and f"weights: {limited}"

    def _outside(self) -> dict[str, Any]:
        """Marks of all that the module holds and the optimizer does not train: parameters, buffers, attributes."""
        own = {id(p) for p in self._optimizer.params}
        found = {name: _mark(p) for name, p in self._module.named_parameters() if id(p) not in own}
        found |= {name: _mark(buffer) for name, buffer in self._module.named_buffers()}
        for name, module in self._module.named_modules():
            for key, value in vars(module).items():
                if not key.startswith("_") and key not in _OF_OPACUS:
                    found[f"{name}.{key}"] = _mark(value)
        return found


_OF_OPACUS = ("training", "activations", "max_batch_len", "autograd_grad_sample_hooks")  # and torch's own


def _mark(value: Any) -> Any:
    """Numbers and text verbatim, checksums of tensors, fingerprints of containers; nothing of other objects."""
    if isinstance(value, Tensor):
        whole = not value.ndim and not value.is_floating_point() and not value.is_complex()
        return int(value) if whole else checksum(value)
    if isinstance(value, Mapping):
        return tuple((str(key), _mark(part)) for key, part in value.items())
    if isinstance(value, list | tuple | set | deque):
        return tuple(_mark(part) for part in value)
    return value if isinstance(value, int | float | str | bytes) else None


def _next(mark: Any) -> Any:
    """A counter may go on by one in every step."""
    return mark + 1 if type(mark) is int else mark
