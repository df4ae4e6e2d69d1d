"""One head that exists and is about to be published, read from wherever it is; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from remanence.core.exceptions import InputError
from remanence.core.releases import Weights
from remanence.heads.head import Head
from remanence.heads.layers import layer_names, layer_shapes
from remanence.scale.folders import MOST
from remanence.scale.reading import UnusableFileError, parse_state, parse_tensors, read_bytes

_COMPUTED = "_g", "_v", "_orig"  # what weight_norm, spectral_norm and pruning call them

HeadWeights = Mapping[str, Tensor] | nn.Module | Path | str


def read_head(weights: HeadWeights, recipe: Head, numbers: int) -> Weights:
    """The head's layers, in their own precision, out of a module, a state dict (the last layers of it) or a file."""
    tensors = _tensors(weights)
    if not isinstance(tensors, Mapping) or not all(_is_tensor(each) for each in tensors.values()):
        raise InputError(
            "These are not the weights of a head.",
            needs="a state dict: names and tensors",
            got=f"{type(tensors).__name__} of other things",
            hint="head.state_dict(), not a checkpoint around it",
        )
    if computed := [name for name in tensors if name.endswith(_COMPUTED) or "parametrizations." in name]:
        raise InputError(
            "The head computes its weights from other numbers.",
            needs="the weights that it answers with",
            got=f"{', '.join(computed[:3])}, as weight_norm and other parametrizations have them",
            hint='torch.nn.utils.parametrize.remove_parametrizations(head, "weight"), or remove_weight_norm(head); no '
            "recipe trains like that, so that the head may be told from those that a recipe makes",
        )
    rows, names = layer_shapes(numbers, recipe.hidden, recipe.outputs), layer_names(recipe.hidden)
    left = list(tensors.values())
    if not recipe.has_bias:  # as good as biases of 0
        kind = next((each for each in left if _is_tensor(each)), torch.zeros(0)).dtype
        left += [torch.zeros(shape, dtype=kind) for shape in rows if len(shape) == 1]
    found: list[Tensor] = []
    for shape in reversed(rows):  # from the end, by shape: files may have put the names into another order
        places = [
            i
            for i, tensor in enumerate(left)
            if tuple(tensor.shape) == shape and tensor.is_floating_point() and tensor.float().isfinite().all()
        ]
        if not places:
            whole = [
                each.dtype for each in left if tuple(each.shape) == shape and not each.is_floating_point()
            ]
            if whole:
                raise InputError(
                    "The head holds whole numbers.",
                    needs="the numbers that it computes with",
                    got=f"{whole[-1]} in a layer of shape {shape}, as quantised heads are stored",
                    hint="each layer times its scale, such as (weight.float() - zero_point) * scale",
                )
            raise InputError(
                "These are not the weights of such a head.",
                needs=f"finite numbers in layers of the shapes {', '.join(map(str, rows))}",
                got=", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(tensors.items())[-6:])
                or "no layers",
                hint="the head's own state_dict(), and the backbone that it was trained on; in the recipe, as many "
                "classes as it has rows, two_outputs=True for two classes with two outputs, or loop=Loop(bias=False) "
                "for a head without a bias",
            )
        found.insert(0, left.pop(places[-1]).detach())
    return Weights({name: tensor.unsqueeze(0) for name, tensor in zip(names, found, strict=True)})


def _is_tensor(value: object) -> bool:
    """Whether it has numbers: a lazy layer has none, and no shape, before its first batch."""
    return isinstance(value, Tensor) and not is_lazy(value)


def _tensors(weights: HeadWeights) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        return weights.state_dict()
    if isinstance(weights, Mapping):
        return weights
    if not isinstance(weights, str | PathLike):
        raise InputError(
            "This is not a head.",
            needs="a module, a state dict, or the path of a file",
            got=f"{type(weights).__name__}: {weights!r}"[:200],
            hint="released=head, or released=head.state_dict()",
        )
    return read_state(Path(weights), "head")


def read_state(path: Path, what: str) -> Mapping[str, Tensor]:
    """Names and tensors out of a file; `what` is what it should hold."""
    try:
        content = read_bytes(path, MOST)
        return parse_tensors(content) if path.suffix == ".safetensors" else parse_state(content)
    except UnusableFileError as error:
        raise InputError(
            f"The {what} cannot be read.",
            needs="a .safetensors file, or a state dict that torch.save wrote",
            got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)}",
            hint=f"torch.save({what}.state_dict(), path)",
        ) from None
