"""From a network and a gradient, or a batch, to an audit: the work behind `remanence gradient`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.attacks.catalogue import load_attack
from remanence.attacks.gradients.dense_layers import DenseHead, dense_head, head_inputs
from remanence.attacks.gradients.exact import reconstruct
from remanence.attacks.gradients.exposure import Exposure, head_exposure
from remanence.attacks.gradients.leak_map import LayerLeak, leak_map
from remanence.auditing import AuditResult, audit
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.games.gradients.captured import Captured
from remanence.games.gradients.files import (
    check_gradient,
    gradient_of_update,
    load_weights,
    read_batch,
    read_tensors,
)
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.results.verdict import Policy
from remanence.scale.user_code import call_factory

_EXACT = ("exclusive-neurons", "low-rank")


@final
@dataclass(frozen=True)
class Subject:
    """A network, what it shared, and, where the owner looks at his own batch, what is exposed."""

    model: nn.Module
    head: DenseHead
    gradients: Sequence[dict[str, Tensor]]
    batch: Records | None  # what enters the head, for the owner's own batch
    exposure: Exposure | None
    precision: float  # the relative rounding error of the gradients' numbers; the coarsest counts

    @property
    def scope(self) -> str:
        """Whether inputs or features are at stake."""
        first = self.head.names[0] or "the first layer"
        if self.head.is_whole_network:
            return f"A sample is recovered if what enters {first}, the input itself, is known exactly."
        return (
            f"A sample is recovered if the {self.head.weights[0].shape[1]} features that enter {first} are known "
            "exactly; pictures can be rebuilt from them (see remanence_papers.gradients.hybrid)."
        )


def open_subject(
    target: str,
    gradients: Sequence[Path],
    batch: Path | None,
    *,
    weights: Path | None = None,
    input_shape: tuple[int, ...] | None = None,
    learning_rate: float | None = None,
) -> Subject:
    """Load and check everything; nothing is computed yet but the gradient of an own batch."""
    model = load_network(target)
    if weights is not None:
        load_weights(model, weights)
    model.eval()
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    if batch is not None:
        records = read_batch(batch, dtype)
        head = dense_head(model, records.features)
        _check_labels(records.labels, head.classes)
        entering = Records(head_inputs(model, head, records.features), records.labels)
        exposure = head_exposure(head, entering.features, entering.labels)
        return Subject(
            model, head, [_own_gradient(model, records)], entering, exposure, torch.finfo(dtype).eps
        )
    example = None
    if input_shape is not None:
        example = torch.randn(4, *input_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    head = dense_head(model, example)
    found, precision = [], 0.0
    for path in gradients:
        values = read_tensors(path)
        coarse = max(
            (torch.finfo(value.dtype).eps for value in values.values() if value.is_floating_point()),
            default=0.0,
        )
        if learning_rate is not None:
            values, coarse = gradient_of_update(model.state_dict(), values, learning_rate)
        found.append(check_gradient(model, values, str(path)))
        precision = max(precision, coarse)
    return Subject(model, head, found, None, None, precision)


def audit_gradients(
    subject: Subject,
    attacks: Sequence[str] | None,
    *,
    policy: Policy,
    seed: int,
    device: str,
    target: str,
) -> tuple[AuditResult, list[LayerLeak]]:
    """Let the exact attacks, or those that are named, take the gradients apart; and the leak map of the first."""
    head = subject.head
    stacked = {name: torch.stack([one[name] for one in subject.gradients]) for name in subject.gradients[0]}
    layers = head.layers_of(stacked)
    first = [(weight[:1], None if bias is None else bias[:1]) for weight, bias in layers]
    recovered = reconstruct(head, first, precision=subject.precision)
    leaks = leak_map(
        subject.model,
        head,
        subject.gradients[0],
        precision=subject.precision,
        exposure=subject.exposure,
        recovered=recovered,
    )
    dtype = torch.float32 if subject.precision > 1e-10 else torch.float64
    network = _head_module(head, dtype)
    names = [name for name, _ in network.named_parameters()]
    tensors = [part.to(dtype) for layer in layers for part in layer if part is not None]
    game = Captured(
        SharedGradient(network, (head.weights[0].shape[1],), rounding=subject.precision),
        Gradient(dict(zip(names, tensors, strict=True))),
        None if subject.batch is None else [subject.batch],
        batch_size=_rank_of_first(leaks, head),
    )
    chosen = [load_attack(name) for name in attacks or _EXACT]
    result = audit(game, chosen, policy=policy, seed=seed, device=device, target=target)
    return result, leaks


def _rank_of_first(leaks: Sequence[LayerLeak], head: DenseHead) -> int | None:
    """The batch size as the rank of the head's first gradient tells it, where the layer is large enough to tell."""
    first = next(leak for leak in leaks if leak.name == head.names[0])
    return first.rank if first.rank and first.rank < min(first.shape) else None


def _head_module(head: DenseHead, dtype: torch.dtype) -> nn.Sequential:
    """The dense layers alone, as a network of their own."""
    layers: list[nn.Module] = []
    for weight, bias in zip(head.weights, head.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
        layer.weight.data = weight.to(dtype)
        if bias is not None:
            layer.bias.data = bias.to(dtype)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _own_gradient(model: nn.Module, records: Records) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    loss = cross_entropy(model(records.features), records.labels)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def _check_labels(labels: Tensor, classes: int) -> None:
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            "A label has no class in the network.",
            needs=f"labels from 0 to {classes - 1}",
            got=f"labels from {int(labels.min())} to {int(labels.max())}",
            hint="encode the classes as 0, 1, ...",
        )


def load_network(target: str) -> nn.Module:
    """The network that `path/to/file.py:factory` returns."""
    path, colon, factory = target.rpartition(":")
    network = call_factory(Path(path), factory, "a network") if colon else None
    if not isinstance(network, nn.Module):
        raise InputError(
            "There is no network to look at.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module",
            got=f"{target} ({type(network).__name__})" if colon else target,
            hint="put `def make(): return MyNetwork()` into a file and name it file.py:make",
        )
    return network
