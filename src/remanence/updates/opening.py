"""Open a network and a client's update: how it is read, as the gradient of a mean, and how coarse its numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.scale.user_code import call_factory
from remanence.updates.declared import Declared
from remanence.updates.dense.belonging import belonging, misfit, require_noise
from remanence.updates.dense.layers import DenseHead, dense_head
from remanence.updates.dense.reader import DenseReader
from remanence.updates.files import (
    HOLDS_WEIGHTS,
    check_gradient,
    difference,
    holds_weights,
    load_weights,
    rounding_of,
    rounding_of_difference,
    unwrapped,
    widened,
)
from remanence.updates.patches.model import patch_model
from remanence.updates.patches.reader import PatchReader
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import Reader
from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import TokenReader
from remanence.updates.watching import logits_of, loss_of


def recognise(module: nn.Module, shape: tuple[int, ...] | None = None) -> Reader:
    """The reader of a network: of tokens, patches or dense layers; in evaluation mode."""
    was_training = {name for name, part in module.named_modules() if part.training}
    module.eval()
    try:
        return _recognised(module, shape)
    finally:
        for name, part in module.named_modules():
            part.training = name in was_training


def _recognised(module: nn.Module, shape: tuple[int, ...] | None) -> Reader:
    with suppress(InputError):
        return TokenReader(text_model(module))
    with suppress(InputError):
        found = patch_model(module, shape)
        if module.get_parameter(found.own("weight")).requires_grad:
            return PatchReader(found)
    if shape is None:
        return DenseReader(dense_head(module))
    parameter = next(module.parameters(), torch.zeros(()))
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    example = torch.randn(4, *shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
    return DenseReader(dense_head(module, example))


@final
@dataclass(frozen=True)
class Update:
    """One update as the gradient of a mean, and findings about it."""

    gradient: Mapping[str, Tensor]
    rounding: Rounding
    source: str = "the update"
    notes: tuple[str, ...] = ()
    scale_is_known: bool = True  # it is the gradient of a mean, not times a learning rate
    sign_is_known: bool = False  # it points along the gradient
    decay: float = 0.0  # the multiple of the weights that was found in it and subtracted


def opened(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    declared: Declared,
    *,
    is_after: bool = False,
    source: str = "the update",
) -> Update:
    """A client's message: a gradient, a difference of weights, or whole weights `is_after` a round."""
    held, notes, rate = unwrapped(model, tensors), (), declared.training.learning_rate
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    if not is_after and rate is None and holds_weights(model, held):
        is_after, notes = True, (HOLDS_WEIGHTS.format(Path(source).name),)
    held = difference(weights, held) if is_after else held
    gradient = check_gradient(model, held, source)
    if rate is None:
        rounding = rounding_of_difference(weights) if is_after else rounding_of(gradient)
        return Update(gradient, rounding, source, notes, scale_is_known=not is_after, sign_is_known=is_after)
    signed = rate if is_after else -rate
    gradient = {name: widened(value) / signed for name, value in gradient.items()}
    rounding = rounding_of_difference(weights).times(1 / rate)
    return Update(gradient, rounding, source, notes, sign_is_known=True)


def belongs(reader: Reader, model: nn.Module, update: Update, declared: Declared) -> Update:
    """The update without its weight decay, if it can belong to this network at these weights; `MisfitError` if not."""
    _check_declared(reader, declared)
    if isinstance(reader, DenseReader):
        return _belongs(reader.head, model, update, declared)
    training = declared.training
    if not training.is_plain or not training.weight_decay:
        return update
    if not update.scale_is_known:
        raise InputError(
            "The weight decay in this update is unknown.",
            needs="the client's learning rate, by which weights before and after a step differ",
            got="--weight-decay without --learning-rate",
            hint="--learning-rate 0.01",
        )
    return replace(update, gradient=_without(model, update, training.weight_decay))


def _belongs(head: DenseHead, model: nn.Module, update: Update, declared: Declared) -> Update:
    """The same behind dense layers, where every neuron must balance."""
    layers = head.layers_of(update.gradient)
    if declared.noise is not None:
        assert declared.batch_size is not None
        deviation = declared.noise.multiplier * declared.noise.max_grad_norm / declared.batch_size
        require_noise(head, layers, deviation, update.source)
        return update
    if not declared.training.is_plain:
        return update
    fit = belonging(head, layers, update.rounding)
    if not fit.is_one_step and not update.rounding.tensors:  # an undeclared difference of weights
        coarse = rounding_of_difference({name: value.detach() for name, value in model.named_parameters()})
        tried = belonging(head, layers, coarse)
        update, fit = (replace(update, rounding=coarse), tried) if tried.is_one_step else (update, fit)
    if not fit.is_one_step:
        raise misfit(fit, update.source)
    if fit.decay:
        return replace(update, gradient=_without(model, update, fit.decay), decay=fit.decay)
    return update


def _without(model: nn.Module, update: Update, decay: float) -> dict[str, Tensor]:
    """The update's gradient without this multiple of the weights."""
    parameters = dict(model.named_parameters())
    return {
        name: widened(value) - decay * widened(parameters[name].detach())
        for name, value in update.gradient.items()
    }


def own_update(model: nn.Module, reader: Reader, batch: Records, declared: Declared) -> Update:
    """The update of the owner's own batch; a language model's texts are their own labels."""
    _check_declared(reader, declared)
    training = declared.training
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    inputs = batch.features.long() if isinstance(reader, TokenReader) else batch.features

    def slopes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: value.detach().requires_grad_() for name, value in weights.items()}
        loss = _own_loss(model, own, inputs, batch.labels)
        parts = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        made = zip(own.items(), parts, strict=True)
        return {name: torch.zeros_like(value) if part is None else part for (name, value), part in made}

    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    rounding = rounding_of({name: value.detach() for name, value in named.items()})
    if not training.is_plain:
        rounding = rounding_of_difference(weights).times(1 / (training.learning_rate or 1.0))
    return Update(training.along(named, slopes), rounding, sign_is_known=True)


def _own_loss(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the owner's batch at these weights."""
    said = logits_of(functional_call(model, weights, (inputs.clone(),)))
    if not isinstance(said, Tensor):
        raise InputError(
            "No loss can be computed from the network's output.",
            needs="logits, or an output that has them",
            got=type(said).__name__,
            hint="a model with a head: ...ForImageClassification, ...ForSequenceClassification, ...ForCausalLM",
        )
    if said.ndim == 3:
        said, wanted = said[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()
    else:
        wanted, classes = labels, 2 if said.ndim == 1 else max(2, said.shape[-1])
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise InputError(
                "A label has no class in the network.",
                needs=f"labels from 0 to {classes - 1}",
                got=f"labels from {int(labels.min())} to {int(labels.max())}",
                hint="encode the classes as 0, 1, ...",
            )
    return loss_of(said, wanted)


def _check_declared(reader: Reader, declared: Declared) -> None:
    """Refuse steps that cannot be recomputed, and noise that cannot be tested."""
    training = declared.training
    if isinstance(reader, DenseReader):
        return
    if declared.noise is not None:
        raise InputError(
            "Declared noise cannot be tested here, so its ceiling would rest on nothing.",
            needs="a network that ends in dense layers, whose neurons balance but for the noise",
            got=f"a network that reads {reader.many}",
            hint="remanence bound, for noise that you trust to be there",
        )
    reader.check(training, ())
    if not training.is_plain and training.learning_rate is None:
        raise InputError(
            "Several steps cannot be recomputed.",
            needs="the client's learning rate",
            got=f"{training.steps} steps of {training.optimizer}",
            hint="--learning-rate 0.01",
        )


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
            "There is no network to audit.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module",
            got=f"{target} ({type(network).__name__})" if colon else target,
            hint="put `def make(): return MyNetwork()` into a file and name it file.py:make",
        )
    return network
