"""Weights, gradients and batches from files, checked against the network before any time is spent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from remanence.data.records import Records
from remanence.exceptions import InputError
from remanence.scale.folders import MOST
from remanence.scale.reading import UnusableFileError, parse_state, parse_tensors, read_arrays, read_bytes


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a .safetensors file or from a state dict that holds nothing else (no code is run)."""
    try:
        content = read_bytes(path, MOST)
        if path.suffix == ".safetensors":
            return parse_tensors(content)
        found = parse_state(content)
    except UnusableFileError as error:
        reason = str(error)
    else:
        if isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values()):
            return {str(name): value for name, value in found.items()}
        reason = f"{type(found).__name__} that is not a mapping from names to tensors"
    raise InputError(
        "The tensors cannot be read.",
        needs="a .safetensors file, or a state dict saved by torch.save that holds tensors alone",
        got=f"{path}: {reason}",
        hint="safetensors.torch.save_file({name: p.grad for name, p in model.named_parameters()}, path)",
    )


def load_weights(model: nn.Module, path: Path) -> None:
    """Give a network the weights at which the gradient was taken."""
    weights = read_tensors(path)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise InputError(
            "The weights do not fit the network.",
            needs=f"the tensors of {type(model).__name__}",
            got=" ".join(lines)[:300],
            hint="the same factory that made the network which was trained",
        ) from None


def check_gradient(model: nn.Module, gradient: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Refuse a gradient that is not one of this network, and name the layer."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    missing, surplus = wanted.keys() - gradient.keys(), gradient.keys() - wanted.keys()
    if missing or surplus:
        raise InputError(
            f"The gradient does not belong to this network: {source}.",
            needs=f"one tensor for each of the {len(wanted)} parameters",
            got="; ".join(
                f"{word} {', '.join(sorted(names)[:4])}{' and more' if len(names) > 4 else ''}"
                for word, names in (("missing", missing), ("unknown", surplus))
                if names
            ),
            hint="{name: p.grad for name, p in model.named_parameters()} of the network that the factory makes",
        )
    for name, parameter in wanted.items():
        if gradient[name].shape != parameter.shape:
            raise InputError(
                f"The gradient of {name} has another shape: {source}.",
                needs=f"{tuple(parameter.shape)}",
                got=f"{tuple(gradient[name].shape)}",
                hint="the network and the gradient must come from the same architecture",
            )
        if not gradient[name].isfinite().all():
            raise InputError(
                f"The gradient of {name} is not finite: {source}.",
                needs="finite numbers",
                got=f"{int((~gradient[name].isfinite()).sum())} entries that are NaN or infinite",
                hint="check the loss of that batch; mixed precision may have overflowed",
            )
    if not any(value.any() for value in gradient.values()):
        raise InputError(
            f"The gradient is zero everywhere: {source}.",
            needs="a gradient that a batch has made",
            got="zeros only",
            hint="save it after loss.backward() and before optimizer.zero_grad()",
        )
    return {name: gradient[name] for name in wanted}


def read_batch(path: Path, dtype: torch.dtype) -> Records:
    """Inputs and labels from an .npz file with the arrays `inputs` and `labels` (or `x` and `y`)."""
    try:
        held = read_arrays(path, ("inputs", "labels", "x", "y"))
    except UnusableFileError as error:
        held, reason = {}, str(error)
    else:
        reason = f"arrays {', '.join(held) or 'of other names'}"
    inputs, labels = held.get("inputs", held.get("x")), held.get("labels", held.get("y"))
    if inputs is None or labels is None:
        raise InputError(
            "The batch cannot be read.",
            needs="an .npz file with the arrays inputs and labels",
            got=f"{path}: {reason}",
            hint="numpy.savez(path, inputs=x, labels=y), as the network and the loss receive them",
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise InputError(
            "The labels of the batch are not classes.",
            needs="one whole number per input",
            got=f"{labels.dtype} of shape {labels.shape}",
            hint="class indices, as cross_entropy takes them",
        )
    records = Records(
        torch.from_numpy(np.ascontiguousarray(inputs)).to(dtype), torch.from_numpy(labels).long()
    )
    records.require_finite("batch")
    return records


def gradient_of_update(
    weights: Mapping[str, Tensor], update: Mapping[str, Tensor], learning_rate: float
) -> tuple[dict[str, Tensor], float]:
    """The gradient behind new weights minus old ones after one plain step, and its relative rounding error.

    A difference of weights is rounded at the size of the weights, which are larger than a step.
    """
    if not learning_rate > 0:
        raise InputError(
            "The learning rate cannot be used.",
            needs="a number above 0",
            got=f"{learning_rate:g}",
            hint="the client's",
        )
    gradient = {name: value / -learning_rate for name, value in update.items()}
    largest = max((float(value.abs().max()) for value in gradient.values()), default=0.0)
    size = max((float(weights[name].abs().max()) for name in update if name in weights), default=0.0)
    eps = max((torch.finfo(value.dtype).eps for value in update.values()), default=0.0)
    return gradient, eps * max(1.0, size / (learning_rate * max(largest, 1e-30)))
