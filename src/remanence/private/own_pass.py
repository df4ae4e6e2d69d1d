"""The recorder's own pass over the records of a step: every record's gradient, each record alone.

The model is copied once, and the copy is run at the weights, the precision and the random numbers of the training's own
pass. Each record is a batch of one (`torch.func.vmap`), so that no other record can influence its gradient. A pass is
replayed only when the next one has begun: any hidden state that a loss or a layer reads has changed by then.
Nothing here touches the model, its modes, buffers and hooks, or any random state.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from remanence.core.checks import refusing
from remanence.private.seeds import goes_on

_LABELS = ("labels", "label", "targets", "target", "y")  # of a batch that is a mapping
_MOST_NUMBERS = 2**26  # of gradients that are computed at once, a quarter of a gigabyte


def features_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """What a batch of the loader holds: `(features, labels)`, a mapping with `labels`, or features alone."""
    if isinstance(batch, Mapping):
        tensors = {str(name): part for name, part in batch.items() if isinstance(part, Tensor)}
        labels = [tensors.pop(name) for name in [name for name in _LABELS if name in tensors][:1]]
        features = next(iter(tensors.values()))
    else:
        features, *labels = [batch] if isinstance(batch, Tensor) else list(batch)
    return features, labels[0] if labels else torch.zeros(len(features))


@final
@dataclass(frozen=True)
class Reading:
    """How the training loop looks at a record, so that the recorder can look at it in the same way.

    `loss(call(model, features), labels)` is what the loop calls backward on, and `split` finds features and labels in a
    batch of the loader.
    """

    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    call: Callable[[Any, Tensor], Any] = lambda model, features: model(features)
    split: Callable[[Any], tuple[Tensor, Tensor]] = features_and_labels


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
@dataclass(frozen=True)
class RandomStates:
    """All that layers draw random numbers from, as it was at one moment."""

    python: Any
    numpy: Any
    torch_cpu: Tensor
    torch_cuda: list[Tensor]

    @classmethod
    def now(cls) -> RandomStates:
        """As they are at this moment."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)  # noqa: NPY002

    def restore(self) -> None:
        """Begin there again."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)  # noqa: NPY002  the one that a user's layer would draw from
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)

    def changed(self, later: RandomStates) -> set[str]:
        """The generators that are in another state later, by more than what a loader draws for its workers."""
        (kind, words, *rest), (other, others, *more) = self.numpy, later.numpy
        cuda = zip(self.torch_cuda, later.torch_cuda, strict=False)
        same = {
            "python": self.python == later.python,
            "numpy": (kind, rest) == (other, more) and np.array_equal(words, others),
            "torch": goes_on(self.torch_cpu, later.torch_cpu, loaders=True),
            "cuda": all(torch.equal(a, b) for a, b in cuda),
        }
        return {name for name, equal in same.items() if not equal}


@final
class LayerDraws:
    """Whether layers draw their random numbers one after the other, from generators that nothing sets in between.

    Masks that a batch chose, by a seed that was made from it, would carry one record into the gradients of others.
    """

    def __init__(self) -> None:
        self._began = self._ended = RandomStates.now()
        self._jumped: set[str] = set()
        self._calls = 0

    def before(self) -> RandomStates:
        """The model is called, with these states."""
        self._began = RandomStates.now()
        if self._calls:
            self._jumped |= self._ended.changed(self._began)
        self._calls += 1
        return self._began

    def after(self) -> str:
        """It has returned; why its random numbers may depend on records."""
        self._ended = RandomStates.now()
        both = self._jumped & self._began.changed(self._ended)
        return f"layers draw from a generator ({min(both)}) that was set or used in between" if both else ""


@contextmanager
def quiet_randomness() -> Iterator[None]:
    """Random numbers may be drawn inside, and are not missed outside."""
    states = RandomStates.now()
    try:
        yield
    finally:
        states.restore()


@final
@dataclass(frozen=True)
class Pass:
    """All that records' gradients may depend on besides the records, as it was in the training's own pass."""

    autocast: torch.dtype | None
    floats: torch.dtype | None  # the type of the model's inputs
    began: RandomStates
    modes: tuple[bool, ...]
    weights: list[Tensor]
    buffers: dict[str, Tensor]


@final
class OwnPass:
    """A copy of the model that gives the gradients of single records at the parameters of any step."""

    def __init__(self, model: Any, trained: Sequence[nn.Parameter], reading: Reading) -> None:
        self._original: nn.Module = model._module
        self._reading, self._parameters = reading, list(trained)
        frozen = {id(p): p for p in self._original.parameters() if not p.requires_grad}
        self._inner: nn.Module = copied("model", self._original, {**frozen, id(model): model})
        for module in self._inner.modules():
            vars(module).pop("autograd_grad_sample_hooks", None)
            vars(module).pop("activations", None)
            for hooks in (module._forward_hooks, module._backward_hooks):
                for key in [key for key, hook in hooks.items() if _is_opacus(hook)]:
                    del hooks[key]
        names = names_of(self._original)
        self._names = [names[id(p)] for p in trained]
        self._one_by_one = False  # where a layer cannot be mapped over records
        self._rows = max(1, _MOST_NUMBERS // max(1, sum(p.numel() for p in trained)))  # at once
        self._ways: set[Any] = set()  # in which the model was run: the modes of its layers, and the precision

    def now(self, inputs: Any, began: RandomStates) -> Pass:
        """The forward pass that is about to begin with these inputs."""
        device = self._parameters[0].device.type
        mixed = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        floats = next((t.dtype for t in tensors_in(inputs) if t.is_floating_point()), None)
        modes = tuple(module.training for module in self._original.modules())
        weights = [p.detach().clone() for p in self._parameters]
        buffers = {name: buffer.clone() for name, buffer in self._original.named_buffers()}
        return Pass(mixed, floats, began, modes, weights, buffers)

    def several_ways(self, one: Pass) -> str:
        """Why this pass, or an earlier one, may have been run in a way that the records decided."""
        self._ways.add((one.modes, one.autocast, one.floats))
        many = len(self._ways) > 1
        return "the modes of layers, or the precision, are not the same in all steps" if many else ""

    @torch.no_grad()
    def gradients(self, one: Pass, features: Tensor, labels: Tensor) -> Iterator[list[Tensor]]:
        """The gradients of these records in float32, some records after others: `(records, numbers)` per tensor."""
        for module, training in zip(self._inner.modules(), one.modes, strict=True):
            module.training = training
        device = self._parameters[0].device
        features, labels = features.to(device), labels.to(device)
        if features.is_floating_point() and one.floats is not None:
            features = features.to(one.floats)
        with quiet_randomness():
            one.began.restore()
            for start in range(0, len(labels), self._rows):
                rows = slice(start, start + self._rows)
                yield self._alone(one, features[rows], labels[rows])

    def clipped(self, one: Pass, features: Tensor, labels: Tensor, clipping: Clipping) -> Iterator[Tensor]:
        """The clipped gradients of these records, `(records, numbers)`, some records after others."""
        for samples in self.gradients(one, features, labels):
            factors = clipping.factors(norms_of(samples))
            for sample, factor in zip(samples, factors, strict=True):
                sample *= factor[:, None]
            yield torch.cat(samples, 1)

    def _alone(self, one: Pass, features: Tensor, labels: Tensor) -> list[Tensor]:
        trained, found = dict(zip(self._names, one.weights, strict=True)), {}
        buffers = {name: buffer.clone() for name, buffer in one.buffers.items()}
        reading = self._reading

        def loss(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            model = _Called(self._inner, {**buffers, **weights})
            return reading.loss(reading.call(model, record[None]), label[None])

        device = features.device.type
        mixed = nullcontext() if one.autocast is None else torch.autocast(device, dtype=one.autocast)
        with torch.enable_grad(), warnings.catch_warnings(), mixed:
            warnings.simplefilter("ignore")  # about layers that are slow to map
            if not self._one_by_one:
                before = RandomStates.now()
                try:
                    found = vmap(grad(loss), (None, 0, 0), randomness="different")(trained, features, labels)
                except (RuntimeError, ValueError, TypeError):  # not every layer can be mapped
                    self._one_by_one = True
                    before.restore()
            if self._one_by_one:
                each = [grad(loss)(trained, x, y) for x, y in zip(features, labels, strict=True)]
                found = {name: torch.stack([own[name] for own in each]) for name in trained}
        return [found[name].detach().flatten(1).float() for name in self._names]


def copied(what: str, original: Any, shared: dict[int, Any] | None = None) -> Any:
    """A copy of the user's model or optimizer, but for what is `shared`; refuse if it cannot be copied."""
    summary = f"The {what} cannot be copied, so a step cannot be replayed without touching it."
    name, hint = type(original).__name__, f"keep in the {what} only what copy.deepcopy copies"
    with refusing(Exception, summary, needs=f"{what}s that copy.deepcopy copies", got=name, hint=hint):
        return copy.deepcopy(original, shared)


def names_of(module: nn.Module) -> dict[int, str]:
    """The names of the module's parameters, by their `id`."""
    return {id(p): name for name, p in module.named_parameters()}


def norms_of(samples: Sequence[Tensor]) -> Tensor:
    """The norms of gradients by tensor and record, `(tensors, records)`."""
    return torch.stack([sample.norm(dim=1) for sample in samples])


class _Called:
    """A module at other weights, called as the module would be."""

    def __init__(self, module: nn.Module, tensors: dict[str, Tensor]) -> None:
        self._module, self._tensors = module, tensors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._module, self._tensors, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _is_opacus(hook: Any) -> bool:
    return isinstance(getattr(getattr(hook, "func", hook), "__self__", None), AbstractGradSampleHooks)


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor in a batch, however it is packed."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for value in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(value)
