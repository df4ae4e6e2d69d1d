"""Updates of networks that read tokens, of texts or patches of pictures: the part of `remanence update` for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.auditing import AuditResult
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.results.verdict import Policy
from remanence.updates.captured_patches import audit_patches
from remanence.updates.captured_texts import audit_texts, reads_texts
from remanence.updates.declared import Declared
from remanence.updates.dense_layers import dense_head
from remanence.updates.files import (
    HOLDS_WEIGHTS,
    check_gradient,
    difference,
    holds_weights,
    read_batch,
    read_tensors,
    rounding_of,
    rounding_of_difference,
    unwrapped,
)
from remanence.updates.local_training import LocalTraining
from remanence.updates.opening import check_labels
from remanence.updates.patch_models import PatchModel, patch_model
from remanence.updates.rounding import Rounding
from remanence.updates.watching import logits_of, loss_of


@final
@dataclass(frozen=True)
class Files:
    """What was handed in: updates, weights after a round, or a batch whose update is about to be sent."""

    updates: Sequence[Path] = ()
    after: Sequence[Path] = ()
    batch: Path | None = None


def audit_token_updates(
    model: nn.Module,
    files: Files,
    declared: Declared,
    *,
    longest: int,
    policy: Policy,
    seed: int,
    target: str,
) -> AuditResult | None:
    """The same for networks that read tokens, of texts or patches of pictures; None for others."""
    dtype, is_text = next((value.dtype for value in model.parameters()), torch.float32), reads_texts(model)
    batch = None if files.batch is None else read_batch(files.batch, dtype)
    shape = declared.input_shape if batch is None else tuple(batch.features.shape[1:])
    patches = None if is_text else _patches(model, shape)
    if patches is None and not is_text:
        return None
    training = declared.training
    _check_steps(training, is_text=is_text)
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    opened = [_open_update(model, weights, path, training, is_after=False) for path in files.updates]
    opened += [_open_update(model, weights, path, training, is_after=True) for path in files.after]
    if batch is not None:
        own = _own_update(model, batch, training, is_text=is_text)
        coarse = Rounding.of([dtype])
        if not training.is_plain:
            coarse = rounding_of_difference(weights).times(1 / (training.learning_rate or 1.0))
        opened.append(_Opened(own, coarse, is_turned=True))
    gradients = [one.gradient for one in opened]
    coarse = reduce(Rounding.or_coarser, (one.rounding for one in opened))
    notes = [note for one in opened for note in one.notes]

    def look(gradients: list[dict[str, Tensor]], rounding: Rounding) -> AuditResult:
        if patches is None:
            return audit_texts(
                model,
                gradients,
                rounding=rounding,
                training=training,
                longest=longest,
                policy=policy,
                seed=seed,
                target=target,
            )
        return audit_patches(
            model,
            gradients,
            patches.shape,
            rounding=rounding,
            training=training,
            policy=policy,
            seed=seed,
            target=target,
        )

    result = look(gradients, coarse)
    proven = _proves(result)
    if not proven and not any(one.is_turned for one in opened):
        against = look([{name: -value for name, value in one.items()} for one in gradients], coarse)
        if _proves(against):
            result, proven = against, True
            notes.append(
                "The update goes against the gradient, as new weights minus old ones do: its sign was turned."
            )
    result = replace(result, subject={**result.subject, "notes": notes})
    if patches is not None and not proven and _has_dense_layers(model, patches.shape):
        return None
    return result


@dataclass(frozen=True)
class _Opened:
    """One file as the gradient of a mean, how coarse it is, and what was found out about it."""

    gradient: dict[str, Tensor]
    rounding: Rounding
    notes: tuple[str, ...] = ()
    is_turned: bool = False  # it is known in which direction it goes


def _open_update(
    model: nn.Module, weights: dict[str, Tensor], path: Path, training: LocalTraining, *, is_after: bool
) -> _Opened:
    held, notes = unwrapped(model, read_tensors(path)), ()
    if not is_after and training.learning_rate is None and holds_weights(model, held):
        is_after, notes = True, (HOLDS_WEIGHTS.format(path.name),)
    held = difference(weights, held) if is_after else held
    gradient = check_gradient(model, held, str(path))
    if not is_after and training.learning_rate is None:
        return _Opened(gradient, rounding_of(gradient), notes)
    rate = (training.learning_rate or 1.0) * (1 if is_after else -1)
    gradient = {name: value.double() / rate for name, value in gradient.items()}
    return _Opened(gradient, rounding_of_difference(weights).times(1 / rate), notes, is_turned=True)


def _check_steps(training: LocalTraining, *, is_text: bool) -> None:
    """Refuse steps that cannot be made again."""
    if training.is_plain:
        return
    if not is_text and training.optimizer != "sgd":
        raise InputError(
            "Adam leaves nothing of the span of pictures in patches.",
            needs="an update of SGD, of one step or several",
            got=f"{training.steps} steps of {training.optimizer}",
            hint="audit the same training with SGD: what it gives away, the batch gives away",
        )
    if training.learning_rate is None:
        raise InputError(
            "Several steps cannot be made again.",
            needs="the client's learning rate",
            got=f"{training.steps} steps of {training.optimizer}",
            hint="--learning-rate 0.01",
        )


def _proves(result: AuditResult) -> bool:
    return any(entry.proven for entry in result.evidence)


def _own_update(
    model: nn.Module, batch: Records, training: LocalTraining, *, is_text: bool
) -> dict[str, Tensor]:
    """The update that the owner's own batch makes; a language model's texts are their own labels."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    inputs = batch.features.long() if is_text else batch.features

    def slopes(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: value.detach().requires_grad_() for name, value in weights.items()}
        parts = torch.autograd.grad(
            _own_loss(model, own, inputs, batch.labels), list(own.values()), allow_unused=True
        )
        made = zip(own.items(), parts, strict=True)
        return {name: torch.zeros_like(value) if part is None else part for (name, value), part in made}

    return training.along(named, slopes)


def _own_loss(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the owner's batch at these weights."""
    said = logits_of(functional_call(model, weights, (inputs,)))
    if not isinstance(said, Tensor):
        raise InputError(
            "The network says nothing that a loss could be computed from.",
            needs="logits, or an output that has them",
            got=type(said).__name__,
            hint="a model with a head: ...ForImageClassification, ...ForSequenceClassification, ...ForCausalLM",
        )
    if said.ndim == 3:
        said, wanted = said[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()
    else:
        wanted = labels
        check_labels(wanted, max(2, said.shape[-1]))
    return loss_of(said, wanted)


def _patches(model: nn.Module, shape: tuple[int, ...] | None) -> PatchModel | None:
    """The network as one that reads patches; None where it is none, or where the layer that does is frozen."""
    try:
        found = patch_model(model, shape)
    except InputError:
        return None
    return found if model.get_parameter(f"{found.name}.weight").requires_grad else None


def _has_dense_layers(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network ends in several dense layers, whose features can be read where pictures cannot."""
    try:
        head = dense_head(model, torch.zeros(2, *shape, dtype=next(model.parameters()).dtype))
    except InputError:
        return False
    return len(head.weights) > 1
