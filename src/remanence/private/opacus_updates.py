"""Where a step must lead: the settings that were declared, a copy of the optimizer, and what came after the noise."""

from __future__ import annotations

import copy
import gc
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers.grad_clip_scheduler import _GradClipScheduler
from opacus.schedulers.noise_scheduler import _NoiseScheduler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from remanence.private.opacus_batches import checksum
from remanence.private.own_pass import Clipping, RandomStates, copied, names_of, quiet_randomness

_AHEAD = 20_000  # calls for which a schedule is run before training
_EQUAL = 1e-5  # relative rounding of a limit
_SPARE = 1e-6  # the most that is added to a size before it divides

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
        stand_in = _stand_in(optimizer)
        own = {id(optimizer): stand_in, id(optimizer.original_optimizer): stand_in}
        start = settings_of(stand_in)
        values = [start]  # after every call
        # One that ends, or that needs a loss or anything else that is there in training alone, goes no further.
        with quiet_randomness(), warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # no step before a call
            ahead = copy.deepcopy(schedule, own)
            for _ in range(_AHEAD):
                ahead.step()
                values.append(settings_of(stand_in))
        changing = [name for name in start if any(each[name] != start[name] for each in values)]
        self._values = [{name: each[name] for name in changing} for each in values]

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


def _stand_in(optimizer: DPOptimizer) -> SimpleNamespace:
    """What a schedule reads and changes of an optimizer, without parameters."""
    names = ("max_grad_norm", "noise_multiplier", "expected_batch_size", "loss_reduction")
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return SimpleNamespace(
        **{name: getattr(optimizer, name) for name in names},
        param_groups=copy.deepcopy(groups),
        state={},
        defaults=dict(optimizer.defaults),
        step=lambda: None,
        _opt_called=True,
    )


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
    where it was larger, in every step. What was not larger keeps every bit. The noised gradient alone decides, so that
    it costs nothing.
    """

    def __init__(self, what: str, levels: Sequence[float], note: Callable[[str], None]) -> None:
        self._what, self._note = what, note
        self._ways = [(kind, level) for kind in _SIZES for level in levels]  # that every step has kept
        self._used = False

    def allow(self, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        """Whether both are equal to the bit, or limited like those of every earlier step, which is noted."""
        equal = all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))
        self._ways = [way for way in self._ways if _limited(*way, actual, expected)]
        if self._ways and not equal:
            self._used, (kind, level) = True, self._ways[0]
            self._note(f"{self._what}: {_SIZES[kind]} limited to {level:.4g}")
        return bool(self._ways) or (equal and not self._used)


_SIZES = {
    "all": "the norm of all",
    "tensor": "the norm of each tensor",
    "row": "the norm of each row",
    "number": "numbers",
}


def _limited(kind: str, level: float, actual: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether the actual tensors are the expected ones, limited in this way and in no other."""
    both = list(zip(actual, expected, strict=True))
    if kind == "number":
        return all(torch.equal(one, other.clamp(-level, level)) for one, other in both)
    counts = [len(other) if kind == "row" and other.ndim > 1 else 1 for other in expected]
    rows = [[x.double().reshape(n, -1) for x in pair] for pair, n in zip(both, counts, strict=True)]
    sizes = [other.norm(dim=1, keepdim=True) for _, other in rows]
    if kind == "all":
        sizes = [torch.cat(sizes).norm().view(1, 1)] * len(rows)
    for (one, other), size, given in zip(rows, sizes, actual, strict=True):
        share = (one * other).sum(1, keepdim=True) / other.square().sum(1, keepdim=True).clamp(min=1e-300)
        # Libraries divide by the size and by what keeps it from being zero.
        right = (share >= level / (size + _SPARE) * (1 - _EQUAL)) & (share <= level / size * (1 + _EQUAL))
        straight = (one - share * other).abs() <= 4 * torch.finfo(given.dtype).eps * one.abs()
        if not torch.where(size < level * (1 - _EQUAL), one == other, right & straight).all():
            return False
    return True


@final
class Updates:
    """Repeats every step alongside the training, with a copy of the optimizer that has its own state.

    A step is replayed when the next batch has come, so that any hidden state that an optimizer reads has changed.
    """

    def __init__(self, optimizer: DPOptimizer, module: nn.Module, limits: Limits) -> None:
        self._optimizer, self._module = optimizer, module
        self._names = names_of(module)
        self._others = self._outside()
        self._changed: set[str] = set()  # of what the optimizer does not hold
        self._counters: set[str] | None = None  # what the first step counted, as every other one must
        self._limits = limits
        self._began: RandomStates | None = None  # the step to be replayed
        self._early = ""  # the weights moved before the step
        self._shadow: torch.optim.Optimizer = copied("optimizer", optimizer.original_optimizer)
        for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            getattr(self._shadow, hooks).clear()

    @torch.no_grad()
    def begin(self) -> None:
        """A step is about to be taken, with the settings and the gradients that are there."""
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
    def check(self) -> str:
        """Why the model is not where the last step led, if it is not."""
        now, before = self._outside(), self._others
        moved = {name for name in {*now, *before} if now.get(name) != before.get(name)}
        counted = {n for n in moved if type(before.get(n)) is int and now.get(n) == before[n] + 1}
        if self._counters is None and self._began:
            self._counters = counted
        self._changed |= (moved - counted) | (counted ^ (self._counters or set()) if self._began else counted)
        self._others = now
        if self._began is not None:
            with quiet_randomness():
                self._began.restore()
                type(self._shadow).step(self._shadow)
            self._began = None
        twins = [p for group in self._shadow.param_groups for p in group["params"] if p.requires_grad]
        actual = [p.detach() for p in self._optimizer.params]
        names = [self._names[id(p)] for p in self._optimizer.params]
        off = [n for n, a, e in zip(names, actual, twins, strict=True) if not torch.equal(a, e)]
        allowed = self._limits.allow(actual, twins)
        for twin, p in zip(twins, actual, strict=True):  # the next step begins here
            twin.copy_(p)
        if self._changed:
            return f"`{min(self._changed)}` changed, and is not the optimizer's"
        if not allowed:
            return f"`{(off or names)[0]}` differs from the result of the gradient and the optimizer"
        return self._early

    def _outside(self) -> dict[str, Any]:
        """Marks of all that the module holds and the optimizer does not train: parameters, buffers, attributes."""
        own = frozenset(id(p) for p in self._optimizer.params)
        found = {name: _mark(p, own) for name, p in self._module.named_parameters()}
        found |= {name: _mark(buffer) for name, buffer in self._module.named_buffers()}
        for name, module in self._module.named_modules():
            for key in vars(module).keys() - _OF_TORCH:
                found[f"{name}.{key}"] = _mark(vars(module)[key], own)
        return found


# What torch and Opacus keep in a module.
_OF_TORCH = {*vars(nn.Module()), "activations", "max_batch_len", "autograd_grad_sample_hooks"}


def _mark(value: Any, own: frozenset[int] = frozenset()) -> Any:
    """Numbers, text and arrays verbatim, checksums of tensors, fingerprints of containers; nothing of other objects."""
    if isinstance(value, Tensor):
        whole = not value.ndim and not value.is_floating_point() and not value.is_complex()
        return None if id(value) in own else int(value) if whole else checksum(value)
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return tuple((str(key), _mark(part, own)) for key, part in value.items())
    if isinstance(value, list | tuple | set | deque):
        return tuple(_mark(part, own) for part in value)
    return value if isinstance(value, int | float | str | bytes) else None
