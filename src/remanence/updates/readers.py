"""Networks as they are read: dense layers, patches of pictures, tokens of texts. Each is recognised once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.reader import DenseReader
from remanence.updates.patches.model import PatchModel, patch_model
from remanence.updates.patches.reader import PatchReader
from remanence.updates.shared_gradient import Reader
from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import TokenReader

if TYPE_CHECKING:
    pass


def recognise(module: nn.Module, shape: tuple[int, ...] | None = None) -> Reader:
    """How a network is read: as one of tokens, of patches, or of dense layers; in evaluation mode."""
    was_training = {name for name, part in module.named_modules() if part.training}
    module.eval()
    try:
        return _recognised(module, shape)
    finally:
        for name, part in module.named_modules():
            part.training = name in was_training


def _recognised(module: nn.Module, shape: tuple[int, ...] | None) -> Reader:
    try:
        return TokenReader(text_model(module))
    except InputError:
        pass
    found = _patches(module, shape)
    return (
        PatchReader(found) if found is not None else DenseReader(dense_head(module, _example(module, shape)))
    )


def _patches(module: nn.Module, shape: tuple[int, ...] | None) -> PatchModel | None:
    """The network as one that reads patches; None where it is none, or where the layer that does is frozen."""
    try:
        found = patch_model(module, shape)
    except InputError:
        return None
    return found if module.get_parameter(found.own("weight")).requires_grad else None


def _example(module: nn.Module, shape: tuple[int, ...] | None) -> Tensor | None:
    if shape is None:
        return None
    parameter = next(module.parameters(), torch.zeros(()))
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    return torch.randn(4, *shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
