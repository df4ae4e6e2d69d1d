"""Several processes that learn one network together, started by `torchrun`: each draws shadows of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from remanence.scale.seeds import unit_seed


def rank() -> int:
    """Which of them this is; the first one plays and writes."""
    return distributed.get_rank() if _together() else 0


def ranks() -> int:
    """How many there are."""
    return distributed.get_world_size() if _together() else 1


@contextlib.contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the others, where torchrun started this process; yields the device to use."""
    if not started_by_torchrun() or _together():
        yield device
        return
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield device
    finally:
        distributed.destroy_process_group()


def started_by_torchrun() -> bool:
    """Whether there are others to join."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_stream(generator: torch.Generator) -> torch.Generator:
    """A stream of this rank's own, so that no two train the same shadows; with one rank, the stream itself."""
    if ranks() == 1:
        return generator
    state = int.from_bytes(generator.get_state().cpu().numpy().tobytes()[:64], "little")
    return torch.Generator(generator.device).manual_seed(unit_seed([state], rank() + 1))


def in_step(network: nn.Module) -> nn.Module:
    """The network as it is trained: with several ranks, all start from the first one's and share their gradients."""
    return network if ranks() == 1 else DistributedDataParallel(network)


def agreed(value: float) -> float:
    """The first rank's number, so that all decide alike."""
    if ranks() == 1:
        return value
    where = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([value], dtype=torch.float64, device=where)
    distributed.broadcast(shared, 0)
    return float(shared)


def _together() -> bool:
    return distributed.is_available() and distributed.is_initialized()
