"""A recipe read off the objects of somebody's own training loop: optimizer, scheduler, loader and loss."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from remanence.core.checks import one_of, whole
from remanence.core.exceptions import InputError
from remanence.heads.loop import OPTIMIZERS

_PLAIN = {"lr", "params", "initial_lr", "weight_decay", "momentum", "foreach", "fused", "capturable"}
_PLAIN |= {"differentiable", "maximize", "decoupled_weight_decay"}


@final
@dataclass(frozen=True)
class Read:
    """Fields of a TransferHead, and of its Loop."""

    fields: dict[str, Any]
    loop: dict[str, Any] = field(default_factory=dict)


def recipe_of(
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    loader: Any,
    epochs: int,
    loss: nn.Module | None,
    steps_per: str,
) -> Read:
    """What these objects will do; refuses what a recipe has no words for."""
    whole("epochs", epochs)
    one_of("steps_per", steps_per, ("epoch", "batch"))
    names = {kind: name for name, kind in OPTIMIZERS.items()}
    if type(optimizer) not in names:
        raise _unread("optimizer", ", ".join(kind.__name__ for kind in names), type(optimizer).__name__)
    if len(optimizer.param_groups) != 1 or optimizer.state:
        got = f"{len(optimizer.param_groups)} groups, {len(optimizer.state)} tensors with a state"
        raise _unread("optimizer", "one group of the head's layers, before the first step", got)
    group, name = optimizer.param_groups[0], names[type(optimizer)]
    if group.get("maximize"):
        raise _unread("optimizer", "one that descends", "maximize=True")
    fresh = OPTIMIZERS[name]([nn.Parameter(torch.zeros(1))]).param_groups[0]
    options = tuple((key, value) for key, value in group.items() if key not in _PLAIN and value != fresh[key])
    fields: dict[str, Any] = {
        "optimizer": name,
        "learning_rate": float(group.get("initial_lr", group["lr"])),
        "weight_decay": float(group["weight_decay"]),
        "momentum": float(group.get("momentum", 0.0)),
        **_layers([each for each in group["params"] if isinstance(each, Tensor)]),
    }
    loop: dict[str, Any] = {} if not options else {"options": options}
    if not fields.pop("bias"):
        loop["bias"] = False
    batches = 1
    if loader is not None:
        batches = len(loader)
        fields |= _batches(loader)
    if scheduler is not None:
        steps = epochs * (batches if steps_per == "batch" else 1)
        loop["schedule"] = _schedule(optimizer, scheduler, steps, fields["learning_rate"])
    return Read({**fields, **_weights(loss, loop)}, loop)


def _layers(tensors: list[Tensor]) -> dict[str, Any]:
    """The head's shape from its layers."""
    shapes = [tuple(each.shape) for each in tensors]
    weights = [shape for shape in shapes if len(shape) == 2]
    biases = [shape for shape in shapes if len(shape) == 1]
    order = [shape for weight in weights for shape in (weight, weight[:1])]
    chained = 0 < len(weights) <= 3 and all(after[1] == before[0] for before, after in pairwise(weights))
    if not chained or shapes not in (order, weights):
        needs = "weights, and biases of all or none, of one to three linear layers without weight_norm or the like"
        raise _unread("optimizer", needs, f"tensors of the shapes {shapes}")
    outputs, hidden = weights[-1][0], tuple(weight[0] for weight in weights[:-1])
    return {
        "classes": max(2, outputs),
        "two_outputs": outputs == 2,
        "hidden": hidden[0] if len(hidden) == 1 else hidden or None,
        "bias": bool(biases),
    }


def _batches(loader: DataLoader) -> dict[str, Any]:
    count = len(loader.dataset)  # pyright: ignore[reportArgumentType]
    size = loader.batch_size
    if not isinstance(loader, DataLoader) or size is None or type(loader.batch_sampler) is not BatchSampler:
        raise _unread("loader", "a DataLoader with a batch size", type(loader).__name__)
    if size >= count:
        return {"batch_size": None}
    if not isinstance(loader.sampler, RandomSampler) or loader.sampler.replacement:
        raise _unread("loader", "shuffle=True, every picture once in an epoch", type(loader.sampler).__name__)
    return {"batch_size": size, "drop_last": loader.drop_last}


def _schedule(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int, rate: float) -> tuple[float, ...]:
    """What the scheduler multiplies the rate with, by letting a copy of it run."""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise _unread("scheduler", "one that does not depend on the loss", "ReduceLROnPlateau")
    if getattr(scheduler, "cycle_momentum", False):
        raise _unread("scheduler", "a constant momentum", f"{type(scheduler).__name__}, cycle_momentum=True")
    copied, running = copy.deepcopy((optimizer, scheduler))
    factors = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no step was taken between
        for _ in range(steps):
            factors.append(float(copied.param_groups[0]["lr"] / rate))
            running.step()
    return tuple(factors)


def _weights(loss: nn.Module | None, loop: dict[str, Any]) -> dict[str, Any]:
    if loss is None:
        return {}
    if isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean" and loss.ignore_index < 0:
        if loss.label_smoothing:
            loop["label_smoothing"] = loss.label_smoothing
        return {} if loss.weight is None else {"class_weights": tuple(loss.weight.tolist())}
    if isinstance(loss, nn.BCEWithLogitsLoss) and loss.reduction == "mean" and loss.weight is None:
        return {} if loss.pos_weight is None else {"class_weights": (1.0, float(loss.pos_weight))}
    raise _unread("loss", "CrossEntropyLoss or BCEWithLogitsLoss with their mean", repr(loss)[:200])


def _unread(name: str, needs: str, got: str) -> InputError:
    return InputError(
        f"No recipe can be read off this {name}.",
        needs=needs,
        got=got,
        hint="TransferHead(...), field by field",
    )
