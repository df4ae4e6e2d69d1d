"""Anybody's network, through `torch.func`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from remanence.data.records import Records
from remanence.exceptions import InputError
from remanence.mechanisms.networks.perceptron import Network

_AT_ONCE = 64  # models that are asked together


@final
@dataclass(frozen=True)
class AnyModule(Network):
    """Any `nn.Module` that maps a batch of inputs to logits, through `torch.func`. General, and slower where gradients
    are clipped: then every record's own is written down.

    Batch normalisation, which mixes the records of a batch, is refused: it leaves no gradient per record.
    """

    module: nn.Module
    own_start: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                raise InputError(
                    f"The layer {name!r} mixes the records of a batch.",
                    needs="layers under which every record has a gradient of its own",
                    got=type(layer).__name__,
                    hint="GroupNorm or LayerNorm instead",
                )

    @property
    def numbers(self) -> int:
        """All parameters that are trained."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def numbers_per_record(self, records: Records) -> int:
        """What comes out of each layer."""
        seen: list[int] = []

        def count(_: nn.Module, __: object, found: object) -> None:
            parts = found if isinstance(found, tuple) else (found,)  # recurrent layers give out several
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

    def initial(self, trials: int, generator: torch.Generator) -> Tensor:
        """The module's own parameters in every trial: a network that starts from a public checkpoint."""
        flat = torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()])
        return flat.to(generator.device).expand(trials, -1).clone()

    def clipped_sum(
        self, parameters: Tensor, records: Records, *, max_norm: float | None, mask: Tensor | None = None
    ) -> Tensor:
        """Every record's gradient, clipped and summed; without clipping, the gradient of the summed loss."""
        if max_norm is not None:
            gradients = self._clipped(parameters, records, max_norm)
            return (gradients if mask is None else gradients * mask.unsqueeze(-1)).sum(1)

        def loss(flat: Tensor, features: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
            return (cross_entropy(self._logits(flat, features), labels, reduction="none") * mask).sum()

        counted = torch.ones_like(records.labels, dtype=parameters.dtype) if mask is None else mask
        given = records.features.to(parameters.dtype), records.labels.long(), counted
        shared = [len(values) == 1 for values in given]  # what all trials have in common is not repeated
        values = [each[0] if one else each for each, one in zip(given, shared, strict=True)]
        over_trials = vmap(grad(loss), in_dims=(0, *(None if one else 0 for one in shared)))
        return over_trials(parameters.detach(), *values)

    def projections(
        self, parameters: Tensor, vectors: Tensor, records: Records, *, max_norm: float
    ) -> tuple[Tensor, Tensor]:
        """Inner products of written-down gradients."""
        gradients = self._clipped(parameters, records, max_norm)
        return torch.einsum("trn,tn->tr", gradients, vectors), gradients.norm(dim=-1)

    def classify(self, parameters: Tensor, records: Records) -> Tensor:
        """A few trials at a time."""
        features = records.features[0].to(parameters.dtype)
        return vmap(self._logits, in_dims=(0, None), chunk_size=_AT_ONCE)(parameters, features)

    def _logits(self, flat: Tensor, features: Tensor) -> Tensor:
        """The module's answers with its parameters taken from a vector."""
        named = dict(self.module.named_parameters())
        parts = flat.split([parameter.numel() for parameter in named.values()])
        values = [part.view(old.shape) for part, old in zip(parts, named.values(), strict=True)]
        return functional_call(self.module, dict(zip(named, values, strict=True)), (features,))

    def _clipped(self, parameters: Tensor, records: Records, max_norm: float | None) -> Tensor:
        def loss(flat: Tensor, features: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(self._logits(flat, features.unsqueeze(0)), label.unsqueeze(0))

        trials = len(parameters)
        features = records.features.to(parameters.dtype).expand(trials, *records.features.shape[1:])
        labels = records.labels.long().expand(trials, -1)
        over_records = vmap(grad(loss), in_dims=(None, 0, 0))
        gradients = vmap(over_records)(parameters.detach(), features, labels)  # (trials, records, numbers)
        if max_norm is None:
            return gradients
        norms = gradients.norm(dim=-1, keepdim=True)
        return gradients * (max_norm / norms.clamp(min=max_norm))
