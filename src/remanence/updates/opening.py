"""From a model file and an update, or a batch, to something that can be audited; all is checked on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.results.caveats import Caveat
from remanence.scale.user_code import call_factory
from remanence.updates.belonging import belonging, misfit, require_noise
from remanence.updates.caveats import UPDATE_COMPRESSED, UPDATE_NOISED
from remanence.updates.compression import compression_of
from remanence.updates.declared import Declared
from remanence.updates.dense_layers import DenseHead, dense_head, head_inputs
from remanence.updates.exposure import Exposure, head_exposure
from remanence.updates.files import (
    HOLDS_WEIGHTS,
    check_gradient,
    difference,
    holds_weights,
    load_weights,
    read_batch,
    read_tensors,
    rounding_of,
    rounding_of_difference,
    unwrapped,
    widened,
)
from remanence.updates.local_training import LocalTraining
from remanence.updates.reading import Reading, read_update
from remanence.updates.received import traps
from remanence.updates.rounding import Rounding
from remanence.updates.watching import loss_of

_NO_SEARCH = (
    "The network is large, and records were proven at sight: no search was made for more of them (--attack span-fit "
    "makes one)."
)


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
    disturbed: Caveat | None = None  # why nothing can be recomputed, where that is known
    is_settled: bool = False  # records of every update were proven at sight, and the network is large
    scale_is_known: bool = True  # the gradients are those of a mean, and not these times a learning rate
    reading: Reading | None = None  # of a single update that is as it was read
    again: Callable[[], Subject] | None = None  # the same, read in full: where a glance promised too much

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


def open_batch(model: nn.Module, batch: Path, declared: Declared) -> Subject:
    """A batch of the owner's own, and the gradient that would leave."""
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    records = read_batch(batch, dtype)
    head = dense_head(model, records.features)
    check_labels(records.labels, head.classes)
    entering = Records(head_inputs(model, head, records.features), records.labels)
    is_relu = head.activation.is_relu
    exposure = head_exposure(head, entering.features, entering.labels) if is_relu else None
    rounding = Rounding.of([dtype])
    own = [_own_gradient(model, records)]
    return Subject(model, head, own, entering, exposure, rounding, declared, _warnings(model))


def open_updates(
    model: nn.Module,
    updates: Sequence[Path],
    declared: Declared,
    *,
    after: Sequence[Path] = (),
    glance: bool = False,
) -> Subject:
    """Captured gradients or differences of weights, or whole weights `after` a round; all are checked first.

    With a `glance`, large ones that show something at once are read by the audit alone.
    """
    dtype = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    example = None
    if declared.input_shape is not None:
        generator = torch.Generator().manual_seed(0)
        example = torch.randn(4, *declared.input_shape, generator=generator).to(dtype)
    head = dense_head(model, example)
    files = [(path, False) for path in updates] + [(path, True) for path in after]
    opened = [
        _open_update(model, head, path, declared, is_after=is_after, glance=glance)
        for path, is_after in files
    ]
    rounding = reduce(Rounding.or_coarser, (one.rounding for one in opened))
    notes = (*_warnings(model), *dict.fromkeys(note for one in opened for note in one.notes))
    disturbed = next((one.disturbed for one in opened if one.disturbed is not None), None)
    gradients = [one.gradient for one in opened]
    settled = head.is_large and all(one.is_settled for one in opened)
    notes += (_NO_SEARCH,) * settled
    reading = opened[0].reading if len(opened) == 1 else None
    again = partial(open_updates, model, updates, declared, after=after)
    return Subject(
        model, head, gradients, None, None, rounding, declared, notes, disturbed, settled,
        declared.training.learning_rate is not None or not (after or any(one.is_step for one in opened)),
        reading, again if any(one.is_glance for one in opened) else None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Opened:
    """One file as the gradient of a mean, how coarse it is, and what was found out about it."""

    gradient: dict[str, Tensor]
    rounding: Rounding
    notes: list[str]
    disturbed: Caveat | None = None
    is_settled: bool = False  # records were proven at sight
    reading: Reading | None = None  # where the gradient is as it was read
    is_step: bool = False  # new weights minus old ones, or whole weights
    is_glance: bool = False  # records seem to be there, and were not proven yet


def _open_update(
    model: nn.Module, head: DenseHead, path: Path, declared: Declared, *, is_after: bool, glance: bool
) -> _Opened:
    held, notes = unwrapped(model, read_tensors(path)), []
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    training = declared.training
    if is_after or (declared.training.learning_rate is None and holds_weights(model, held)):
        if not is_after:
            notes.append(HOLDS_WEIGHTS.format(path.name))
        held, is_after = difference(weights, held), True
    gradient = check_gradient(model, held, str(path))
    rounding, scale_is_known = rounding_of(gradient), training.learning_rate is not None or not is_after
    if is_after or training.learning_rate is not None:
        rounding = rounding_of_difference(weights)
    if training.learning_rate is not None:
        rate = training.learning_rate if is_after else -training.learning_rate
        gradient = {name: widened(value) / rate for name, value in gradient.items()}
        rounding = rounding.times(1 / training.learning_rate)
    if declared.noise is not None:
        assert declared.batch_size is not None
        deviation = declared.noise.multiplier * declared.noise.max_grad_norm / declared.batch_size
        require_noise(head, head.layers_of(gradient), deviation, path.name)
        return _Opened(gradient, rounding, notes, UPDATE_NOISED)
    fitting = partial(_fitting, head, gradient, training, scale_is_known=scale_is_known, glance=glance)
    reading = fitting(rounding)
    if reading is None and rounding == rounding_of(
        gradient
    ):  # a difference of weights that nobody called one
        rounding = rounding_of_difference(weights)
        reading = fitting(rounding)
    if reading is None and training.is_plain:
        found = compression_of(gradient, f"{head.names[-1]}.weight".removeprefix("."))
        if found is not None:
            if (
                found.rounding is not None
            ):  # codes are off by half a step at most: whether they belong can be asked
                fit = belonging(head, head.layers_of(gradient), found.rounding)
                if not fit.is_one_step:
                    raise misfit(fit, path.name)
            disturbed = replace(UPDATE_COMPRESSED, seen=f"{path.name}: {found.seen}.")
            return _Opened(gradient, rounding, notes, disturbed)
    if reading is None:
        raise misfit(belonging(head, head.layers_of(gradient), rounding), path.name)
    if reading.belonging.decay and training.is_plain:
        notes.append(
            f"A weight decay was found and taken out: {abs(reading.belonging.decay):.3g} times the weights."
        )
        parameters = dict(model.named_parameters())
        gradient = {
            name: widened(value) - reading.belonging.decay * widened(parameters[name].detach())
            for name, value in gradient.items()
        }
    if reading.sign < 0:
        notes.append(
            f"{path.name} goes against the gradient, as new weights minus old ones do: its sign was turned."
        )
        gradient = {name: -value for name, value in gradient.items()}
    as_read = reading.sign > 0 and not (reading.belonging.decay and training.is_plain)
    return _Opened(
        gradient, rounding, notes, None,
        reading.is_glance or (head.activation.is_relu and reading.proof.count > 0),
        reading if as_read else None, is_after or reading.sign < 0, reading.is_glance,
    )  # fmt: skip


def _fitting(
    head: DenseHead,
    gradient: dict[str, Tensor],
    training: LocalTraining,
    rounding: Rounding,
    *,
    scale_is_known: bool,
    glance: bool,
) -> Reading | None:
    """A reading of an update that belongs to these weights, quick behind ReLU; None where it does not."""
    reading = read_update(
        head,
        head.layers_of({name: value[None] for name, value in gradient.items()}),
        rounding,
        training=training,
        search=not head.activation.is_relu,  # behind others nothing is seen at sight, not even a turned sign
        scale_is_known=scale_is_known,
        glance=glance,
    )
    return reading if reading.belonging.is_one_step or not training.is_plain else None


def _own_gradient(model: nn.Module, records: Records) -> dict[str, Tensor]:
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    loss = loss_of(model(records.features.clone()), records.labels)
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that have no class."""
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


def open_network(target: str, declared: Declared) -> nn.Module:
    """The network with the declared weights, in evaluation mode."""
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
