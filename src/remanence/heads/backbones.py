"""A frozen backbone from the command line: a factory in the user's own file, and a file of weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn


def load_backbone(name: str, weights: Path | None = None, device: str | torch.device = "cpu") -> nn.Module:
    """The module of `path/to/file.py:factory`, with the weights of a .safetensors file or a state dict.

    The file is your code and is executed. The weights are tensors, and nothing is unpickled.
    """
    from torch import nn

    from remanence.scale.user_code import call_factory

    path, colon, factory = name.rpartition(":")
    found = call_factory(Path(path), factory, "a module") if colon else None
    if not isinstance(found, nn.Module):
        raise InputError(
            "There is no such backbone.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module",
            got=name if found is None else type(found).__name__,
            hint="--backbone backbone.py:make --backbone-weights backbone.safetensors",
        )
    if weights is not None:
        _give_weights(found, weights)
    return found.to(device)


def _give_weights(module: nn.Module, path: Path) -> None:
    from remanence.heads.released_head import read_state

    state = read_state(path, "backbone")
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()] or [str(error)]
        raise InputError(
            "The weights do not fit the backbone.",
            needs=f"the tensors of {type(module).__name__}",
            got=f"{path}: {' '.join(lines)[:300]}",
            hint="torch.save(backbone.state_dict(), path)",
        ) from None
