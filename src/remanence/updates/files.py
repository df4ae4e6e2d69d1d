"""Weights, gradients and batches from files, checked against the network first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import is_finite
from remanence.scale.reading import (
    MOST_TENSORS,
    UnusableFileError,
    map_tensors,
    parse_state,
    read_arrays,
    read_bytes,
)
from remanence.updates.dense.layers import LARGE
from remanence.updates.parts import largest, row_slices, working
from remanence.updates.rounding import Rounding

_WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DataParallel, DDP and torch.compile add to names
_COMPUTED_WITH = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FEW = 4096  # numbers that are looked at first
HOLDS_WEIGHTS = "{} holds weights, not an update: the network's own were subtracted."


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a .safetensors file, an .npz file, or a state dict of tensors only (no code is run)."""
    try:
        if path.suffix == ".safetensors":
            return map_tensors(path, MOST_TENSORS)
        if path.suffix == ".npz":
            return {
                name: torch.from_numpy(np.array(value))
                for name, value in read_arrays(path, most=MOST_TENSORS).items()
            }
        found = parse_state(read_bytes(path, MOST_TENSORS))
    except UnusableFileError as error:
        reason = str(error)
    else:
        if isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values()):
            return {str(name): value for name, value in found.items()}
        reason = f"{type(found).__name__} that is not a mapping from names to tensors"
    raise InputError(
        "The tensors cannot be read.",
        needs="a .safetensors file, an .npz file of arrays, or a state dict of tensors only saved by torch.save",
        got=f"{path}: {reason}",
        hint="safetensors.torch.save_file({name: p.grad for name, p in model.named_parameters()}, path)",
    )


def unwrapped(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors by the network's own names, without the prefixes of DataParallel, DDP and torch.compile."""
    own, found = model.state_dict().keys(), _by_name(model, tensors)
    for _ in range(len(_WRAPPERS)):
        for wrapper in _WRAPPERS:
            if found and not own & found.keys() and all(name.startswith(wrapper) for name in found):
                found = {name.removeprefix(wrapper): value for name, value in found.items()}
    return found


def _by_name(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbered arrays, as `numpy.savez(path, *arrays)` and Flower write them, by the network's names in order."""
    numbers = [f"arr_{index}" for index in range(len(tensors))]
    if not tensors or set(numbers) != set(tensors):
        return dict(tensors)
    for names in (list(model.state_dict()), [name for name, _ in model.named_parameters()]):
        if len(names) == len(numbers):
            return {name: tensors[number] for name, number in zip(names, numbers, strict=True)}
    raise InputError(
        "The arrays have no names, and their number does not match the network.",
        needs=f"the network's {len(model.state_dict())} tensors in their order",
        got=f"{len(numbers)} arrays",
        hint="numpy.savez(path, *[value.numpy() for value in model.state_dict().values()]), or with names",
    )


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights at which the gradient was taken."""
    weights = unwrapped(model, read_tensors(path))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise InputError(
            "The weights do not fit the network.",
            needs=f"the tensors of {type(model).__name__}",
            got=" ".join(lines)[:300],
            hint="the factory of the network that was trained",
        ) from None


def check_gradient(model: nn.Module, gradient: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Refuse a gradient of another network, and name the layer; buffers and frozen layers are ignored."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not wanted:
        raise InputError(
            "This network is entirely frozen, so it has no update.",
            needs="a parameter with requires_grad",
            got="none",
            hint="return the network from its factory as the client trains it",
        )
    others = model.state_dict().keys() | dict(model.named_parameters()).keys()
    missing, surplus = wanted.keys() - gradient.keys(), gradient.keys() - others
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
        if gradient[name].dtype not in _COMPUTED_WITH:
            raise InputError(
                f"The gradient of {name} is in a format that is not used for computing: {source}.",
                needs="float16, bfloat16, float32 or float64",
                got=str(gradient[name].dtype),
                hint="multiply the codes by their scale first, as the server does, and save the product in float32",
            )
        if not is_finite(gradient[name]):
            raise InputError(
                f"The gradient of {name} is not finite: {source}.",
                needs="finite numbers",
                got=f"{int((~gradient[name].isfinite()).sum())} entries that are NaN or infinite",
                hint="check the loss of that batch; mixed precision may have overflowed",
            )
    if not any(gradient[name].count_nonzero() for name in wanted):
        raise InputError(
            f"The gradient is zero everywhere: {source}.",
            needs="the gradient of a batch",
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
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1 or not len(labels):
        raise InputError(
            "The labels of the batch are not classes.",
            needs="one whole number per input, and at least one input",
            got=f"{labels.dtype} of shape {labels.shape}",
            hint="class indices, as cross_entropy takes them",
        )
    records = Records(
        torch.from_numpy(np.ascontiguousarray(inputs)).to(dtype), torch.from_numpy(labels).long()
    )
    records.require_finite("batch")
    return records


def holds_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file that should hold an update holds weights instead: it is too close to the network's own."""
    apart = total = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name in tensors and tensors[name].shape == parameter.shape:
            own, given = parameter.detach().flatten(1), tensors[name].flatten(1)
            for rows in row_slices(own):
                part = own[rows].to(working(own))
                apart += float((given[rows].to(part) - part).norm()) ** 2
                total += float(part.norm()) ** 2
    return total > 0 and apart < 0.25 * total


def widened(value: Tensor) -> Tensor:
    """The same in double precision; a large tensor in single precision is not converted."""
    return value if value.numel() > LARGE and value.dtype == torch.float32 else value.double()


def rounding_of(tensors: Mapping[str, Tensor]) -> Rounding:
    """How coarse these numbers are, whatever their storage format; the coarsest tensor counts."""
    kept = [value for value in tensors.values() if value.is_floating_point()]
    for coarse in (torch.bfloat16, torch.float16, torch.float32):
        if all(_holds(value, coarse) for value in kept):
            return Rounding.of([coarse])
    return Rounding.of(value.dtype for value in kept)


def _holds(value: Tensor, coarse: torch.dtype) -> bool:
    """Whether a format keeps every number of a tensor; a few numbers are tried first."""
    rows = value.flatten(1) if value.ndim > 1 else value.reshape(1, -1)
    parts = (rows.flatten()[:_FEW], *(rows[some] for some in row_slices(rows)))
    return all(torch.equal(part.to(coarse).to(part), part) for part in parts)


def rounding_of_difference(weights: Mapping[str, Tensor]) -> Rounding:
    """How coarse a difference of weights is: it was rounded on the scale of the weights, not of the step."""
    relative = rounding_of(weights).relative
    each = {name: relative / 2 * largest(value) for name, value in weights.items() if value.numel()}
    return Rounding(relative, max(each.values()), tuple(each.items()))


def difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Old weights minus new ones, as a gradient points; tensors that do not match are left to `check_gradient`."""

    def match(name: str, value: Tensor) -> bool:
        return name in before and value.is_floating_point() and value.shape == before[name].shape

    return {name: before[name] - value if match(name, value) else value for name, value in after.items()}
