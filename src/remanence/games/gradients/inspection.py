"""From a network and an update, or a batch, to an audit: the work behind `remanence gradient`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.attacks.catalogue import load_attack
from remanence.attacks.gradients.dense_layers import DenseHead, dense_head, head_inputs
from remanence.attacks.gradients.exposure import Exposure, head_exposure
from remanence.attacks.gradients.leak_map import leak_map
from remanence.auditing import AuditResult, audit
from remanence.checks import whole
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.games.gradients.belonging import belonging, misfit
from remanence.games.gradients.captured import Captured
from remanence.games.gradients.captured_texts import audit_texts, reads_texts
from remanence.games.gradients.files import (
    check_gradient,
    difference,
    holds_weights,
    load_weights,
    read_batch,
    read_tensors,
    rounding_of,
    rounding_of_difference,
)
from remanence.games.gradients.local_training import LocalTraining
from remanence.games.gradients.reading import Reading, read_update
from remanence.games.gradients.received import traps
from remanence.games.gradients.rounding import Rounding
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.results.verdict import Policy
from remanence.scale.user_code import call_factory

_EXACT = ("exclusive-neurons", "span-fit", "low-rank", "parallel-rows")


@final
@dataclass(frozen=True)
class Declared:
    """What the owner says about the updates; what is left out is read off them, or unknown."""

    training: LocalTraining = field(default_factory=LocalTraining)
    batch_size: int | None = None
    weights: Path | None = None
    input_shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            whole("batch_size", self.batch_size, hint="--batch-size 8")


@final
@dataclass(frozen=True)
class Subject:
    """A network, what it shared, and, where the owner looks at a batch of their own, what is exposed."""

    model: nn.Module
    head: DenseHead
    gradients: Sequence[
        dict[str, Tensor]
    ]  # as the gradient of a mean has them: signs and decay are taken out
    batch: Records | None  # what enters the head, for the owner's own batch
    exposure: Exposure | None
    rounding: Rounding  # of the gradients' numbers; the coarsest counts
    declared: Declared = field(default_factory=Declared)
    notes: tuple[str, ...] = ()  # what was found out about the files

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


def open_batch(target: str, batch: Path, declared: Declared) -> Subject:
    """A batch of the owner's own, and the gradient that would leave."""
    model = _open_network(target, declared)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    records = read_batch(batch, dtype)
    head = dense_head(model, records.features)
    _check_labels(records.labels, head.classes)
    entering = Records(head_inputs(model, head, records.features), records.labels)
    is_relu = head.activation.is_relu
    exposure = head_exposure(head, entering.features, entering.labels) if is_relu else None
    rounding = Rounding(torch.finfo(dtype).eps)
    own = [_own_gradient(model, records)]
    return Subject(model, head, own, entering, exposure, rounding, declared, _warnings(model))


def open_updates(
    target: str, updates: Sequence[Path], declared: Declared, *, after: Sequence[Path] = ()
) -> Subject:
    """Captured gradients or differences of weights, or whole weights `after` a round; all are checked first."""
    model = _open_network(target, declared)
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    example = None
    if declared.input_shape is not None:
        generator = torch.Generator().manual_seed(0)
        example = torch.randn(4, *declared.input_shape, generator=generator).to(dtype)
    head = dense_head(model, example)
    opened = [_open_update(model, head, path, declared, is_after=False) for path in updates]
    opened += [_open_update(model, head, path, declared, is_after=True) for path in after]
    rounding = Rounding(*(max(getattr(one[1], name) for one in opened) for name in ("relative", "absolute")))
    notes = tuple(dict.fromkeys(note for _, _, said in opened for note in said))
    gradients = [one[0] for one in opened]
    return Subject(model, head, gradients, None, None, rounding, declared, (*_warnings(model), *notes))


def audit_text_updates(
    target: str,
    updates: Sequence[Path],
    declared: Declared,
    *,
    after: Sequence[Path] = (),
    longest: int,
    policy: Policy,
    seed: int,
) -> AuditResult | None:
    """The same for a transformer that reads token ids; None for other networks. One step only."""
    model = _open_network(target, declared)
    if not reads_texts(model):
        return None
    training = declared.training
    if not training.is_plain:
        raise InputError(
            "Several local steps of a transformer are beyond the exact attack.",
            needs="an update of one step of SGD",
            got=f"{training.steps} steps of {training.optimizer}",
            hint="audit the update of a single step: what it gives away, several give away in part",
        )
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    gradients, precision = [], 0.0
    for path, is_after in [(path, False) for path in updates] + [(path, True) for path in after]:
        held = read_tensors(path)
        held = difference(weights, held) if is_after else held
        gradient = check_gradient(model, held, str(path))
        rounding, turned = rounding_of(gradient), is_after or training.learning_rate is not None
        if turned:
            rate = -(training.learning_rate or 1.0)
            gradient = {name: value.double() / rate for name, value in gradient.items()}
            rounding = rounding_of_difference(weights).times(1 / rate)
        gradients.append(gradient)
        matrices = [value for value in gradient.values() if value.ndim == 2]
        precision = max(precision, *(rounding.of_largest(value) for value in matrices))
    return audit_texts(
        model, gradients, precision=precision, longest=longest, policy=policy, seed=seed, target=target
    )


def _open_update(
    model: nn.Module, head: DenseHead, path: Path, declared: Declared, *, is_after: bool
) -> tuple[dict[str, Tensor], Rounding, list[str]]:
    """One file as the gradient of a mean, how coarse it is, and what was found out about it."""
    held, notes = read_tensors(path), []
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    training = declared.training
    if is_after or (declared.training.learning_rate is None and holds_weights(model, held)):
        if not is_after:
            notes.append(f"{path.name} holds weights, not an update: the network's own were subtracted.")
        held, is_after = difference(weights, held), True
    gradient = check_gradient(model, held, str(path))
    rounding = rounding_of(gradient)
    if is_after or training.learning_rate is not None:
        rounding = rounding_of_difference(weights)
    if training.learning_rate is not None:
        gradient = {name: value.double() / -training.learning_rate for name, value in gradient.items()}
        rounding = rounding.times(1 / training.learning_rate)
    reading = _fitting(head, gradient, rounding, training)
    if reading is None and not rounding.absolute:  # a difference of weights that nobody called one
        rounding = rounding_of_difference(weights)
        reading = _fitting(head, gradient, rounding, training)
    if reading is None:
        raise misfit(belonging(head, head.layers_of(gradient), rounding), path.name)
    if reading.belonging.decay and training.is_plain:
        notes.append(
            f"A weight decay was found and taken out: {abs(reading.belonging.decay):.3g} times the weights."
        )
        parameters = dict(model.named_parameters())
        gradient = {
            name: value.double() - reading.belonging.decay * parameters[name].detach().double()
            for name, value in gradient.items()
        }
    if reading.sign < 0:
        notes.append(
            f"{path.name} goes against the gradient, as new weights minus old ones do: its sign was turned."
        )
        gradient = {name: -value for name, value in gradient.items()}
    return gradient, rounding, notes


def _fitting(
    head: DenseHead, gradient: dict[str, Tensor], rounding: Rounding, training: LocalTraining
) -> Reading | None:
    """A quick reading of an update that belongs to these weights; None where it does not."""
    layers = head.layers_of({name: value[None] for name, value in gradient.items()})
    one = [(weight[0], None if bias is None else bias[0]) for weight, bias in layers]
    fit = belonging(head, one, rounding)
    if training.is_plain and not fit.is_one_step:
        return None
    return read_update(head, layers, rounding, training=training, search=False)


def audit_gradients(
    subject: Subject,
    attacks: Sequence[str] | None,
    *,
    policy: Policy,
    seed: int,
    device: str,
    target: str,
) -> AuditResult:
    """Let the exact attacks, or those that are named, take the updates apart; and the leak map of the first."""
    head, training = subject.head, subject.declared.training
    stacked = {name: torch.stack([one[name] for one in subject.gradients]) for name in subject.gradients[0]}
    layers = head.layers_of(stacked)
    largest = subject.rounding.of_largest(layers[0][0])
    dtype = torch.float32 if largest > 1e-10 else torch.float64
    network = _head_module(head, dtype)
    names = [name for name, _ in network.named_parameters()]
    tensors = [part for layer in layers for part in layer if part is not None]
    game = Captured(
        SharedGradient(
            network,
            (head.weights[0].shape[1],),
            local_steps=training.steps,
            learning_rate=training.learning_rate or 0.1,
            momentum=training.momentum,
            rounding=min(largest, 0.1),
        ),
        Gradient(dict(zip(names, tensors, strict=True))),
        None if subject.batch is None else [subject.batch],
        batch_size=subject.declared.batch_size,
        rounding=subject.rounding,
        training=training,
    )
    result = audit(game, _attacks(attacks, game), policy=policy, seed=seed, device=device, target=target)
    leaks = leak_map(
        subject.model,
        subject.gradients[0],
        precision=largest,
        exposure=subject.exposure,
        unexplained=_unexplained(result, head, _head_names(network)),
    )
    found = {"leak_map": [leak.to_json() for leak in leaks], "notes": list(subject.notes)}
    return replace(result, subject={**result.subject, **found})


def _attacks(names: Sequence[str] | None, game: Captured):
    """Those that are named, or the exact ones that can play."""
    if names:
        return [load_attack(name) for name in names]
    chosen = []
    for name in _EXACT:
        attack = load_attack(name)
        try:
            attack.check(game.knowledge)
        except InputError:
            continue
        chosen.append(attack)
    return chosen


def _head_names(network: nn.Sequential) -> list[str]:
    return [str(index) for index, layer in enumerate(network) if isinstance(layer, nn.Linear)]


def _unexplained(result: AuditResult, head: DenseHead, names: Sequence[str]) -> dict[str, float]:
    """What the strongest attack's proven records leave of each layer of the first update."""
    arrays = result.strongest.arrays
    return {
        layer: float(arrays[f"unexplained {name}"][0])
        for layer, name in zip(head.names, names, strict=True)
        if f"unexplained {name}" in arrays
    }


def _head_module(head: DenseHead, dtype: torch.dtype) -> nn.Sequential:
    """The dense layers alone, as a network of their own."""
    layers: list[nn.Module] = []
    for weight, bias in zip(head.weights, head.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
        layer.weight.data = weight.to(dtype)
        if bias is not None:
            layer.bias.data = bias.to(dtype)
        layers += [layer, nn.ReLU() if head.activation.is_relu else head.activation.module()]
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


def _warnings(model: nn.Module) -> tuple[str, ...]:
    """What a client should mind about a model that a server sent."""
    return tuple(f"Beware, this model may have been made to read clients: {trap}." for trap in traps(model))


def _open_network(target: str, declared: Declared) -> nn.Module:
    model = load_network(target)
    if declared.weights is not None:
        load_weights(model, declared.weights)
    return model.eval()


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
