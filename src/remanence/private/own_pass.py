"""The recorder's own pass over the records of a step: every record's gradient, each record alone.

The model is copied once, and the copy is run at the weights, the precision and the random numbers of the training's own
pass. Each record is a batch of one (`torch.func.vmap`), so that nothing of another record can reach its gradient.
Nothing here touches the model, its modes, buffers and hooks, or any random state.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from remanence.core.checks import refusing

_MOST_NUMBERS = 2**26  # of gradients that are computed at once, a quarter of a gigabyte
_SAME = 1e-3  # by which a sum of gradients may differ from itself, on a device that adds up in any order


def features_and_labels(batch: Any) -> tuple[Tensor, Tensor]:
    """What a batch of the loader holds: `(features, labels)`, a mapping with `labels`, or features alone."""
    if isinstance(batch, Mapping):
        names = [name for name in batch if isinstance(batch[name], Tensor)]
        told = next(
            (name for name in names if str(name) in ("labels", "label", "targets", "target", "y")), None
        )
        features = batch[next(name for name in names if name != told)]
        return features, torch.zeros(len(features)) if told is None else batch[told]
    features, *labels = [batch] if isinstance(batch, Tensor) else list(batch)
    return features, labels[0] if labels else torch.zeros(len(features))


@final
@dataclass(frozen=True)
class Reading:
    """How the training loop looks at a record, so that the recorder can look at it in the same way.

    `loss(call(model, features), labels)` is what the loop calls backward on, and `split` finds features and labels in a
    batch of the loader. `every` is how many steps pass between two at which the attack looks for the canaries; left
    out, so many that it costs less than the loop itself.
    """

    loss: Callable[[Any, Tensor], Tensor] = cross_entropy
    call: Callable[[Any, Tensor], Any] = lambda model, features: model(features)
    every: int | None = None
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
class RunAs:
    """How the training's forward pass ran."""

    autocast: torch.dtype | None = None
    floats: torch.dtype | None = None  # of what the model is given
    began: RandomStates | None = None


@final
@dataclass(frozen=True)
class _Pass:
    """All that the gradients of some records may depend on."""

    features: Tensor
    labels: Tensor
    run_as: RunAs
    modes: list[bool]
    weights: list[Tensor]


@final
class OwnPass:
    """A copy of the model that gives the gradients of single records at the parameters of any step."""

    def __init__(self, model: Any, trained: Sequence[nn.Parameter], reading: Reading) -> None:
        self._original: nn.Module = model._module if isinstance(model, AbstractGradSampleHooks) else model
        self._reading, self._parameters = reading, list(trained)
        frozen = {id(p): p for p in self._original.parameters() if not p.requires_grad}
        summary = "The model cannot be copied, so that a step cannot be made again without touching it."
        name, needs = type(self._original).__name__, "a module that copy.deepcopy copies"
        hint = "keep in the module only what copy.deepcopy copies"
        with refusing(Exception, summary, needs=needs, got=name, hint=hint):  # it may fail in any way
            self._inner = copy.deepcopy(self._original, {**frozen, id(model): model})
        for module in self._inner.modules():
            vars(module).pop("autograd_grad_sample_hooks", None)
            vars(module).pop("activations", None)
            for hooks in (module._forward_hooks, module._backward_hooks):
                for key in [key for key, hook in hooks.items() if _is_opacus(hook)]:
                    del hooks[key]
        names = {id(p): name for name, p in self._original.named_parameters()}
        self._names = [names[id(p)] for p in trained]
        self._one_by_one = False  # where a layer cannot be mapped over records
        self._rows = max(1, _MOST_NUMBERS // max(1, sum(p.numel() for p in trained)))  # at once
        self._passes = 0
        self._kept: list[tuple[_Pass, list[Tensor]]] = []  # of two passes some records, and their sums
        self._ways: set[Any] = set()  # in which the model was run: the modes of its layers, and the precision

    @torch.no_grad()
    def gradients(self, features: Tensor, labels: Tensor, run_as: RunAs) -> Iterator[list[Tensor]]:
        """The gradients of these records in float32, some records after others: `(records, numbers)` per tensor."""
        modes = [module.training for module in self._original.modules()]
        one = _Pass(features, labels, run_as, modes, [p.detach() for p in self._parameters])
        keep = False
        if run_as.began is not None:  # the training's own
            self._passes += 1
            self._ways.add((*modes, run_as.autocast, run_as.floats))
            keep = kept(self._passes)
        for place, samples in enumerate(self._run(one)):
            if keep and not place:
                weights, rows = [w.clone() for w in one.weights], slice(self._rows)
                first = replace(one, features=features[rows], labels=labels[rows], weights=weights)
                self._kept = [*self._kept[:1], (first, [sample.sum(0) for sample in samples])]
            yield samples

    @torch.no_grad()
    def changed(self) -> str:
        """Why records give other gradients now than they gave in training, all else being equal, if they do."""
        if len(self._ways) > 1:
            return "the modes of layers, or the precision, are not the same in all steps"
        for one, before in self._kept:
            (now,) = ([sample.sum(0) for sample in samples] for samples in self._run(one))
            for a, b in zip(now, before, strict=True):
                if float((a - b).norm()) > _SAME * float(b.norm()):
                    return "records' gradients depend on more than the record and the weights"
        return ""

    def _run(self, one: _Pass) -> Iterator[list[Tensor]]:
        for module, training in zip(self._inner.modules(), one.modes, strict=True):
            module.training = training
        device = self._parameters[0].device
        features, labels = one.features.to(device), one.labels.to(device)
        if features.is_floating_point() and one.run_as.floats is not None:
            features = features.to(one.run_as.floats)
        with quiet_randomness():
            if one.run_as.began is not None:
                one.run_as.began.restore()
            for start in range(0, len(labels), self._rows):
                rows = slice(start, start + self._rows)
                yield self._alone(replace(one, features=features[rows], labels=labels[rows]))

    def clipped(
        self, features: Tensor, labels: Tensor, clipping: Clipping, run_as: RunAs
    ) -> Iterator[Tensor]:
        """The clipped gradients of these records, `(records, numbers)`, some records after others."""
        for samples in self.gradients(features, labels, run_as):
            factors = clipping.factors(norms_of(samples))
            for sample, factor in zip(samples, factors, strict=True):
                sample *= factor[:, None]
            yield torch.cat(samples, 1)

    def _alone(self, one: _Pass) -> list[Tensor]:
        features, labels, run_as = one.features, one.labels, one.run_as
        trained = dict(zip(self._names, one.weights, strict=True))
        buffers = {name: buffer.clone() for name, buffer in self._original.named_buffers()}
        reading = self._reading

        def loss(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
            model = _Called(self._inner, {**buffers, **weights})
            return reading.loss(reading.call(model, record[None]), label[None])

        device = features.device.type
        mixed = nullcontext() if run_as.autocast is None else torch.autocast(device, dtype=run_as.autocast)
        with torch.enable_grad(), warnings.catch_warnings(), mixed:
            warnings.simplefilter("ignore")  # about layers that are slow to map
            found = None if self._one_by_one else self._mapped(loss, trained, features, labels)
            if found is None:
                each = [grad(loss)(trained, x, y) for x, y in zip(features, labels, strict=True)]
                found = {name: torch.stack([one[name] for one in each]) for name in trained}
        return [found[name].detach().flatten(1).float() for name in self._names]

    def _mapped(self, loss: Any, trained: dict[str, Tensor], features: Tensor, labels: Tensor) -> Any:
        before = RandomStates.now()
        try:
            return vmap(grad(loss), (None, 0, 0), randomness="different")(trained, features, labels)
        except (RuntimeError, ValueError, TypeError):  # not every layer can be mapped
            self._one_by_one = True
            before.restore()
            return None


def kept(count: int) -> bool:
    """Whether to keep this one of many: the first, and, by nobody's seed, the last yes is at any later one alike."""
    return count == 1 or random.SystemRandom().randrange(count - 1) == 0


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
