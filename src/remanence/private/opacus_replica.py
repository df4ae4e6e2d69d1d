"""A copy of the model beside the one that trains: gradients of canaries, without a trace in the training.

Nothing here touches the model, its modes, buffers and hooks, or any random state: bit for bit, training goes on as if
it were not there.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.checks import refusing
from remanence.private.opacus_batches import tensors_in

_MOST_NUMBERS = 2**25  # of gradients that are computed at once, 128 MB
_MOST_ROWS = 256


@final
@dataclass(frozen=True)
class Reading:
    """How the training loop looks at a record, so that canaries that were left out can be looked at in the same way.

    `loss(call(model, features), labels)` is what the loop calls backward on. `augment` is what the data set or the
    loop does to the features of a record at random, each time that it is read. `every` is how many steps pass between
    two at which the attack looks for the canaries; left out, so many that it costs less than the loop itself.
    """

    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    call: Callable[[Any, Tensor], Any] = lambda model, features: model(features)
    augment: Callable[[Tensor], Tensor] | None = None
    every: int | None = None


@final
@dataclass(frozen=True)
class Clipping:
    """To which norm gradients are clipped: all of a record's tensors together, or each on its own."""

    norms: tuple[float, ...]  # one, or one per tensor

    @classmethod
    def of(cls, optimizer: DPOptimizer) -> Clipping:
        """What the optimizer says at this moment."""
        if isinstance(optimizer, DPPerLayerOptimizer):
            return cls(tuple(float(norm) for norm in optimizer.max_grad_norms))
        return cls((float(optimizer.max_grad_norm),))

    @property
    def total(self) -> float:
        """What one record adds at most, for which the noise is made."""
        return float(torch.tensor(self.norms, dtype=torch.float64).norm())

    def factors(self, norms: Tensor) -> Tensor:
        """What gradients are multiplied with, from their norms by tensor and record, `(tensors, records)`."""
        if len(self.norms) == 1:
            return (self.norms[0] / (norms.norm(dim=0) + 1e-6)).clamp(max=1).expand_as(norms)
        own = torch.tensor(self.norms, dtype=norms.dtype, device=norms.device)[:, None]
        return (own / (norms + 1e-6)).clamp(max=1)


@final
class Replica:
    """A copy of the model that gives single records' gradients at the parameters of any step."""

    def __init__(self, model: Any, trained: Sequence[nn.Parameter], reading: Reading) -> None:
        self._original: nn.Module = model._module if isinstance(model, AbstractGradSampleHooks) else model
        self._reading = reading
        frozen = {id(p): p for p in self._original.parameters() if not p.requires_grad}
        summary = "The model cannot be copied, so that canaries cannot be looked at without touching it."
        hint = "record(..., canaries=None) checks noise, clipping, sampling and updates without a copy"
        name, needs = type(self._original).__name__, "a module that copy.deepcopy copies"
        with refusing(Exception, summary, needs=needs, got=name, hint=hint):  # it may fail in any way
            inner = copy.deepcopy(self._original, {**frozen, id(model): model})
        for module in inner.modules():
            vars(module).pop("autograd_grad_sample_hooks", None)
            vars(module).pop("activations", None)
            for hooks in (module._forward_hooks, module._backward_hooks):
                for key in [key for key, hook in hooks.items() if _is_opacus(hook)]:
                    del hooks[key]
        self._model = GradSampleModule(
            inner,
            batch_first=getattr(model, "batch_first", True),
            loss_reduction="mean",
            strict=False,
            force_functorch=getattr(model, "force_functorch", False),
        )
        names = {id(p): name for name, p in self._original.named_parameters()}
        own = dict(inner.named_parameters())
        self._trained = [own[names[id(p)]] for p in trained]
        self._inner = inner
        self.numbers = sum(p.numel() for p in trained)

    @torch.no_grad()
    def follow(self, trained: Sequence[Tensor]) -> None:
        """Take over parameters, buffers and modes of the model as it is now."""
        for mine, theirs in zip(self._trained, trained, strict=True):
            mine.copy_(theirs)
        for mine, theirs in zip(self._inner.buffers(), self._original.buffers(), strict=True):
            mine.copy_(theirs)
        for mine, theirs in zip(self._inner.modules(), self._original.modules(), strict=True):
            mine.training = theirs.training
        self._model.training = True

    def gradients(
        self, features: Tensor, labels: Tensor, clipping: Clipping, autocast: torch.dtype | None = None
    ) -> Iterator[Tensor]:
        """The clipped gradients of these records in float32, some rows after others."""
        rows = max(1, min(_MOST_ROWS, _MOST_NUMBERS // self.numbers))
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            yield self._clipped(features[chunk], labels[chunk], clipping, autocast)

    def _clipped(
        self, features: Tensor, labels: Tensor, clipping: Clipping, autocast: torch.dtype | None
    ) -> Tensor:
        samples = [sample.flatten(1).float() for sample in self._samples(features, labels, autocast)]
        norms = torch.stack([sample.norm(dim=1) for sample in samples])
        factors = clipping.factors(norms)
        clipped = torch.cat(samples, 1)
        parts = clipped.split([sample.shape[1] for sample in samples], 1)
        for part, factor in zip(parts, factors, strict=True):
            part *= factor[:, None]
        return clipped

    def _samples(self, features: Tensor, labels: Tensor, autocast: torch.dtype | None) -> list[Tensor]:
        device = self._trained[0].device
        features, labels = features.to(device), labels.to(device)
        if self._reading.augment is not None:
            features = torch.stack([self._reading.augment(record) for record in features])
        for parameter in self._trained:
            parameter.grad = None
            parameter.grad_sample = None  # pyright: ignore[reportAttributeAccessIssue]
        mixed = nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
        with torch.enable_grad(), warnings.catch_warnings(), mixed:
            warnings.simplefilter("ignore")  # about inputs without gradients, as in every Opacus loop
            self._reading.loss(self._reading.call(self._model, features), labels).backward()
        found = [p.grad_sample for p in self._trained]  # pyright: ignore[reportAttributeAccessIssue]
        for parameter in self._trained:
            parameter.grad = None
        empty = torch.zeros(len(labels), 0, device=device)
        return [
            empty.new_zeros(len(labels), p.numel()) if sample is None else sample
            for p, sample in zip(self._trained, found, strict=True)
        ]

    @torch.no_grad()
    def is_random(self, features: Tensor) -> bool:
        """Whether the model, as it is now, makes two things of the same records."""
        if self._reading.augment is not None:
            return True
        features = features.to(self._trained[0].device)
        with quiet_randomness():
            once, again = (list(tensors_in(self._reading.call(self._inner, features))) for _ in range(2))
        return any(not torch.equal(one, other) for one, other in zip(once, again, strict=True))

    def layer_that_mixes(self, features: Tensor) -> str | None:
        """The first layer in which what becomes of a record depends on the others of its batch; None if there is none.

        The same records are looked at twice, but the last of them is another one. Every layer starts with the same
        random numbers, of which the last record uses the last, so that nothing that is seen of the others may change.
        """
        if len(features) < 3:
            return None
        rows = len(features) - 1
        seen = [self._trace(torch.cat([features[:-2], last])) for last in (features[-2:-1], features[-1:])]
        for (name, before, after), (_, other_before, other_after) in zip(*seen, strict=False):
            given = [_same_but_last(*pair, rows) for pair in zip(before, other_before, strict=False)]
            made = [_same_but_last(*pair, rows) for pair in zip(after, other_after, strict=False)]
            if given and all(given) and False in made:
                return name
        return None

    def _trace(self, features: Tensor) -> list[tuple[str, list[Tensor], list[Tensor]]]:
        """What goes into every layer and comes out of it."""
        trace: list[tuple[str, list[Tensor], list[Tensor]]] = []

        def start(_: nn.Module, __: Any) -> None:
            torch.manual_seed(0)

        def note(name: str) -> Callable[..., None]:
            def note_it(_: nn.Module, inputs: Any, named: Any, output: Any) -> None:
                given, made = tensors_in((inputs, named)), tensors_in(output)
                trace.append((name, [t.clone() for t in given], [t.clone() for t in made]))

            return note_it

        handles = []
        for name, module in self._inner.named_modules():
            if not any(module.children()):
                handles.append(module.register_forward_pre_hook(start))
                handles.append(
                    module.register_forward_hook(note(name or type(module).__name__), with_kwargs=True)
                )
        try:
            with quiet_randomness(), torch.no_grad():
                self._reading.call(self._inner, features.to(self._trained[0].device))
        finally:
            for handle in handles:
                handle.remove()
        return trace


@contextmanager
def quiet_randomness() -> Iterator[None]:
    """Random numbers may be drawn inside, and are not missed outside."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002  the one that a user's layer would draw from
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002


def _same_but_last(one: Tensor, other: Tensor, rows: int) -> bool | None:
    """Whether two tensors differ in the last record at most; None where rows are not of records."""
    if one.shape == other.shape and torch.equal(one, other):
        return True
    if one.shape != other.shape or not one.ndim or len(one) % rows:
        return None
    one, other = (tensor.reshape(rows, -1)[:-1].float() for tensor in (one, other))
    return bool((one - other).abs().max() <= 1e-4 * (1 + one.abs().max())) if one.numel() else None


def _is_opacus(hook: Any) -> bool:
    return isinstance(getattr(getattr(hook, "func", hook), "__self__", None), AbstractGradSampleHooks)
