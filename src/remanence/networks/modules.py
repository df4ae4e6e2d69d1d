"""A user's own network, through `torch.func`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.utils import parameters_to_vector
from torch.nn.utils.parametrize import is_parametrized

from remanence.core.checks import brief, refusing
from remanence.core.exceptions import InputError
from remanence.core.records import Records, concatenate
from remanence.training.perceptron import Network

_AT_ONCE = 64  # models queried together
_CPU_NUMBERS, _GPU_NUMBERS = 2**25, 2**29  # of per-record gradients in memory at once
_COMPARED = 16  # at least this many records of a batch are compared to see whether a module mixes them
_LOOPED = "looped(train), which trains one model after the other"
_INSTEAD = f"GroupNorm or LayerNorm; module.eval() for layers that you train in that mode; or {_LOOPED}"


def _cannot_train(layer: nn.Module) -> str:
    """Why a layer, in its current mode, cannot be trained record by record; empty if it can."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
        return "it mixes the records of a batch"
    if (
        isinstance(layer, nn.modules.instancenorm._InstanceNorm)
        and layer.training
        and layer.track_running_stats
    ):
        return "it changes its statistics in a forward pass"
    random = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
    if (random or isinstance(layer, nn.RReLU)) and layer.training:
        return "it draws random numbers in every step"
    if isinstance(layer, nn.RNNBase):
        return "PyTorch cannot train many recurrent networks at once"
    if is_parametrized(layer):
        return "its weights are computed from others, as with weight_norm"
    return ""


def _logits_of(answer: object) -> Tensor:
    """The logits in a module's output."""
    if isinstance(answer, Mapping):
        answer = answer.get("logits", answer)
    elif isinstance(answer, tuple) and answer:
        answer = answer[0]
    answer = getattr(answer, "logits", answer)
    if isinstance(answer, Tensor) and answer.ndim == 2:
        return answer
    got = f"{type(answer).__name__} with {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
    shape = (
        f"a tensor of shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
    )
    raise InputError(
        "The module's answer cannot be used.",
        needs="logits of shape (records, classes): a tensor, or under `logits`",
        got=got or shape,
        hint="a module around it that returns the logits",
    )


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each record; with a single output, that of a logistic unit."""
    if logits.shape[-1] == 1:
        return binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(logits), reduction="none")
    return cross_entropy(logits, labels, reduction="none")


@final
@dataclass(frozen=True)
class AnyModule(Network):
    """Any `nn.Module` that maps a batch of inputs to logits, through `torch.func`.

    General, but slower if gradients are clipped, because every record's gradient is materialised. It is trained as
    in PyTorch, by cross-entropy or, with a single output, BCEWithLogitsLoss, with each layer in its current mode.
    Parameters that require no gradient stay fixed, and so do buffers. Logits may be the `logits` entry of a dict or
    an object, or the first element of a tuple. Layers that cannot be trained record by record, or are random, are
    refused by name. Before every training one step is compared with that of a plain PyTorch loop: a
    module that mixes the records of a batch is trained by such a loop, and never by DP-SGD.
    """

    module: nn.Module

    def __post_init__(self) -> None:
        if not self.trained:
            frozen = sum(1 for _ in self.module.parameters())
            raise InputError(
                "There is nothing to train in this module.",
                needs="at least one parameter with requires_grad",
                got=f"{frozen} frozen parameters" if frozen else "no parameters",
                hint="layer.requires_grad_() for what your training changes",
            )
        for name, values in self.trained.items():
            if values.is_complex() or values.is_meta:
                raise InputError(
                    f"The parameter {name!r} does not hold real numbers.",
                    needs="parameters that a loss can be computed with",
                    got="one on the meta device, which has only a shape"
                    if values.is_meta
                    else str(values.dtype),
                    hint="a module with its weights loaded, in float32",
                )
        for name, layer in self.module.named_modules():
            if why := _cannot_train(layer):
                raise InputError(
                    f"The layer {name!r} cannot be part of this training: {why}.",
                    needs="layers under which every record has a gradient of its own, the same every time",
                    got=f"{type(layer).__name__} in training mode"
                    if layer.training
                    else type(layer).__name__,
                    hint=_INSTEAD,
                )

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, by name."""
        return {name: each for name, each in self.module.named_parameters() if each.requires_grad}

    def check(self, records: Records) -> None:
        """Refuse records that the module rejects, with its own error message, and labels outside its classes."""
        one = Records(records.features.flatten(0, 1)[:1], records.labels.flatten()[:1])
        module = copy.deepcopy(self.module).to(one.features.device)
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        summary, needs = (
            "The module cannot read the records.",
            "records of the shape that its first layer takes",
        )
        got, hint = f"shape {records.example_shape}", "records.features in the shape that module(batch) takes"
        kinds = RuntimeError, ValueError, TypeError, IndexError
        with refusing(kinds, summary, needs=needs, got=got, hint=hint):
            module(one.features.to(next(iter(self.trained.values())).dtype, copy=True))
        for name, buffer in module.named_buffers():
            if not torch.equal(before[name], buffer):
                raise InputError(
                    f"The buffer {name!r} changes in a forward pass.",
                    needs="buffers that do not change: only parameters have gradients",
                    got="one that a forward pass updates",
                    hint="module.eval(), if you train it in that mode",
                )
        super().check(records)

    def mixes(self, known_data: Records | None, targets: Records, size: int) -> bool:
        """Whether a step computed record by record differs from the step of a plain PyTorch loop.

        It does if a module normalises over a batch, or attends from one record to another. A module may do so only in
        large batches, so a step of this `size` is compared, as far as memory allows.
        """
        room = max(_COMPARED, _CPU_NUMBERS // max(1, self.numbers_per_record(targets)))
        parts = [targets[0]] if known_data is None else [targets[0], known_data[:size]]
        batch = concatenate([Records(part.features, part.labels) for part in parts])[: min(size, room)]
        if len(batch) < 2:
            return False
        module = copy.deepcopy(self.module).to(batch.features.device)
        try:  # in double precision, so that rounding hides no difference
            plain, summed = AnyModule(copy.deepcopy(module).double())._both_ways(batch)
            allowed = 1e-6
        except RuntimeError:  # a module with a fixed precision
            (plain, summed), allowed = AnyModule(module)._both_ways(batch), 1e-3
        # NaN, such as the standard deviation of a single record, counts as a difference too.
        return not bool((plain - summed).norm() <= allowed * plain.norm())

    def _both_ways(self, batch: Records) -> tuple[Tensor, Tensor]:
        """The gradient of a batch by autograd, and the sum of its records' individual gradients."""
        parameters = list(self.trained.values())
        flat = parameters_to_vector(parameters).detach()[None]
        batch = Records(batch.features.to(flat.dtype), batch.labels)
        loss = _losses(_logits_of(self.module(batch.features.clone())), batch.labels.long()).sum()
        found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        plain = torch.cat([each.flatten() for each in found])
        try:
            return plain, self._sum_of_clipped(flat, batch[None], None, None)[0]
        except (RuntimeError, ValueError, IndexError):  # it needs the rest of the batch
            return plain, torch.full_like(plain, torch.inf)

    def unreadable(self, records: Records, error: Exception) -> InputError:
        """The error for a module that runs on its own but not under `vmap`."""
        if "random operation" in str(error):
            return InputError(
                "The module draws random numbers in a forward pass.",
                needs="a function under which every record has a gradient of its own, the same every time",
                got="torch.randn, nn.functional.dropout or the like in its forward",
                hint=f"module.eval(), if you train it in that mode; or {_LOOPED}",
            )
        return InputError(
            "PyTorch cannot train many of this module at once.",
            needs="layers that torch.func.vmap supports",
            got=brief(error),
            hint=f"another layer in its place; or {_LOOPED}",
        )

    @property
    def numbers(self) -> int:
        """The number of trained parameters."""
        return sum(parameter.numel() for parameter in self.trained.values())

    def numbers_per_record(self, records: Records) -> int:
        """The outputs of all layers."""
        seen: list[int] = []

        def count(_: nn.Module, __: object, found: object) -> None:
            parts = found if isinstance(found, tuple) else (found,)  # recurrent layers return several
            seen.extend(part.numel() for part in parts if isinstance(part, Tensor))

        leaves = [layer for layer in self.module.modules() if not list(layer.children())]
        hooks = [layer.register_forward_hook(count) for layer in leaves]
        one = Records(records.features.flatten(0, records.labels.ndim - 1)[:1], records.labels.flatten()[:1])
        try:
            self.classify(self.initial(1, torch.Generator(one.features.device)), one[None])
        finally:
            for hook in hooks:
                hook.remove()
        return sum(seen)

    @property
    def own_start(self) -> bool:
        """True: the module's parameters are a public checkpoint."""
        return True

    def initial(self, trials: int, generator: torch.Generator) -> Tensor:
        """The module's own parameters in every trial."""
        flat = parameters_to_vector(list(self.trained.values())).detach().to(generator.device)
        return flat.expand(trials, -1).clone()

    def clipped_sum(
        self, parameters: Tensor, records: Records, *, max_norm: float | None, mask: Tensor | None = None
    ) -> Tensor:
        """Every record's gradient, clipped and summed; without clipping, the gradient of the summed loss."""
        if max_norm is not None:
            return self._sum_of_clipped(parameters, records, max_norm, mask)

        def loss(flat: Tensor, features: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
            return (_losses(self._logits(flat, features), labels) * mask).sum()

        counted = torch.ones_like(records.labels, dtype=parameters.dtype) if mask is None else mask
        given = records.features.to(parameters.dtype), records.labels.long(), counted
        shared = [len(values) == 1 for values in given]  # tensors shared by all trials are not repeated
        values = [each[0] if one else each for each, one in zip(given, shared, strict=True)]
        over_trials = vmap(grad(loss), in_dims=(0, *(None if one else 0 for one in shared)))
        return over_trials(parameters.detach(), *values)

    def projections(
        self, parameters: Tensor, vectors: Tensor, records: Records, *, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """Inner products of materialised gradients."""
        gradients = self._clipped(parameters, records, max_norm)
        return torch.einsum("trn,tn->tr", gradients, vectors), gradients.norm(dim=-1)

    def classify(self, parameters: Tensor, records: Records) -> Tensor:
        """A few trials at a time."""
        features = records.features[0].to(parameters.dtype)
        return vmap(self._logits, in_dims=(0, None), chunk_size=_AT_ONCE)(parameters, features)

    def _logits(self, flat: Tensor, features: Tensor) -> Tensor:
        """The module's logits, with its parameters taken from a vector."""
        named = self.trained
        parts = flat.split([parameter.numel() for parameter in named.values()])
        values = [part.view(old.shape) for part, old in zip(parts, named.values(), strict=True)]
        # A copy: an in-place first layer would overwrite the data.
        given = dict(zip(named, values, strict=True)), (features.clone(),)
        return _logits_of(functional_call(self.module, self._still(flat.device) | given[0], given[1]))

    def _still(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors that training does not change, on the records' device."""
        every = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: value.to(device) for name, value in every if name not in self.trained}

    def _sum_of_clipped(
        self, parameters: Tensor, records: Records, max_norm: float | None, mask: Tensor | None
    ) -> Tensor:
        """The sum of clipped gradients, as many at a time as fit into memory."""
        trials, count = len(parameters), records.batch_shape[1]
        room = max(1, (_GPU_NUMBERS if parameters.is_cuda else _CPU_NUMBERS) // self.numbers)
        together, rows = min(trials, room), max(1, room // trials)
        total = torch.zeros_like(parameters)
        for first in range(0, trials, together):
            some = slice(first, first + together)
            own = records if records.batch_shape[0] == 1 else records[some]
            for start in range(0, count, rows):
                part = slice(start, start + rows)
                gradients = self._clipped(parameters[some], own[:, part], max_norm)
                if mask is not None:
                    gradients = gradients * mask[some, part].unsqueeze(-1)
                total[some] += gradients.sum(1)
        return total

    def _clipped(self, parameters: Tensor, records: Records, max_norm: float | None) -> Tensor:
        def loss(flat: Tensor, features: Tensor, label: Tensor) -> Tensor:
            return _losses(self._logits(flat, features.unsqueeze(0)), label.unsqueeze(0)).sum()

        trials = len(parameters)
        features = records.features.to(parameters.dtype).expand(trials, *records.features.shape[1:])
        labels = records.labels.long().expand(trials, -1)
        over_records = vmap(grad(loss), in_dims=(None, 0, 0))
        gradients = vmap(over_records)(parameters.detach(), features, labels)  # (trials, records, numbers)
        if max_norm is None:
            return gradients
        norms = gradients.norm(dim=-1, keepdim=True)
        return gradients * (max_norm / norms.clamp(min=max_norm))
