"""Training one reconstructor: a schedule, averaged weights, the best state on held-out shadows, and resuming."""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from remanence.core.exceptions import InputError
from remanence.scale.files import read_checked, write_checked
from remanence.scale.progress import track
from remanence.scale.reading import MOST_TENSORS, UnusableFileError, parse_state

Model = TypeVar("Model", bound=nn.Module)
_AVERAGING = 0.999
_LOOKS = 20  # number of evaluations on held-out shadows
_PATIENCE = 8  # evaluations without progress before learning stops
_WARM = 3  # steps before a graph is captured, so that one-time initialisation is over

Batch = Sequence[Tensor]


@dataclass(frozen=True)
class Learner:
    """How a network is trained. Without a schedule: Adam at a fixed rate, as in Maciazek and Allison 2025."""

    steps: int
    learning_rate: float
    scheduled: bool = True
    checkpoint: Path | None = None
    fingerprint: str = ""  # a checkpoint with a different one is refused
    from_start: bool = False  # whether to evaluate the untrained network too, as a minimum
    capture: bool = True  # run a step as one CUDA graph on a GPU: the loss must not synchronise

    def fit(
        self,
        network: Model,
        draw: Callable[[], Batch],
        loss: Callable[[nn.Module, Batch], Tensor],
        quality: Callable[[Model, int], tuple[float, str]],
    ) -> Model:
        """The averaged network at the evaluation with the best held-out quality (higher is better).

        `quality` gets the step, and also returns a message for the user.

        `draw` makes all random choices of a step, and `loss` none: learning resumed from a checkpoint repeats
        the earlier draws, and its result is bitwise identical to that of an uninterrupted run.
        """
        for parameter in network.parameters():
            if parameter.ndim == 4:  # convolutions are several times faster this way on a GPU
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        device = next(network.parameters()).device
        captured = self.capture and device.type == "cuda"
        optimizer = torch.optim.AdamW(
            network.parameters(),
            torch.tensor(self.learning_rate, device=device) if captured else self.learning_rate,
            weight_decay=1e-4 if self.scheduled else 0.0,
            capturable=captured,
            fused=True if captured else None,
        )
        warm, cool = 0.1 * self.steps, 0.9 * self.steps

        def descend(batch: Batch) -> None:
            with torch.autocast(
                device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
            ):
                value = loss(network, batch)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()

        advance = _Graph(descend) if captured else descend

        def set_rate(step: int) -> None:
            share = min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0.0, step - warm) / cool)))
            for group in optimizer.param_groups:
                if captured:
                    group["lr"].fill_(self.learning_rate * share)
                else:
                    group["lr"] = self.learning_rate * share

        network.train()
        average, best = copy.deepcopy(network), copy.deepcopy(network)
        averaged, current = (tuple(each.parameters()) for each in (average, network))
        state = {"step": 0, "quality": -float("inf"), "stale": 0}
        parts = {"network": network, "average": average, "best": best, "optimizer": optimizer}
        self._resume(parts, state)
        finished = state["step"] >= self.steps or state["stale"] >= _PATIENCE
        for _ in range(0 if finished else state["step"]):
            draw()
        if self.from_start and not state["step"]:
            state["quality"] = quality(average.eval(), 0)[0]
        look_every = max(1, self.steps // _LOOKS)
        said = ""
        last = state["step"] if finished else self.steps
        bar = track(range(state["step"], last), total=self.steps, what=lambda: f"learning{said}")
        for step in bar:
            if self.scheduled:
                set_rate(step)
            advance(draw())
            keep = min(_AVERAGING, (step + 1) / (step + 10)) if self.scheduled else 0.0
            get_ema_multi_avg_fn(keep)(averaged, current, 0)
            if (step + 1) % look_every == 0 or step + 1 == self.steps:
                _copy_statistics(average, network)
                reached, said = quality(average.eval(), step + 1)
                state["stale"] += 1
                if reached > state["quality"]:
                    state.update(quality=reached, stale=0)
                    best.load_state_dict(average.state_dict())
                state["step"] = step + 1
                self._store(parts, state)
                if state["stale"] >= _PATIENCE:
                    break
        return best.eval().requires_grad_(False)

    def _store(self, parts: dict, state: dict) -> None:
        if self.checkpoint is None:
            return
        states = {name: part.state_dict() for name, part in parts.items()}
        packed = io.BytesIO()
        torch.save({**states, "state": state, "fingerprint": self.fingerprint}, packed)
        write_checked(self.checkpoint, packed.getvalue())

    def _resume(self, parts: dict, state: dict) -> None:
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            stored = parse_state(read_checked(self.checkpoint, MOST_TENSORS))
            if stored["fingerprint"] != self.fingerprint:
                raise ValueError("it belongs to another game, seed or reconstructor")
            for name, part in parts.items():
                part.load_state_dict(stored[name])
            for group in parts["optimizer"].param_groups:
                if isinstance(group["lr"], Tensor):  # a graph reads it on its own device
                    group["lr"] = group["lr"].to(group["params"][0].device)
            state.update(stored["state"])
        except (UnusableFileError, RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(
                "The checkpoint cannot be continued.",
                needs="a checkpoint of the same reconstructor in the same game, with the same seed and kind of device",
                got=f"{self.checkpoint}: {next(iter(str(error).splitlines()), type(error).__name__)}",
                hint="another checkpoint file, or delete this one",
            ) from None


def _copy_statistics(average: nn.Module, network: nn.Module) -> None:
    """Counters and statistics of normalisations have no average: those of the network are taken."""
    for own, new in zip(average.buffers(), network.buffers(), strict=True):
        own.copy_(new)


class _Graph:
    """A step as one CUDA graph: the kernels of a small network run faster than they can be launched one by one."""

    def __init__(self, step: Callable[[Batch], None]) -> None:
        self.step, self.seen, self.graph = step, 0, None
        self.batch: list[Tensor] = []

    def __call__(self, batch: Batch) -> None:
        with torch.cuda.device_of(batch[0]):  # streams and graphs belong to a device
            self._run(batch)

    def _run(self, batch: Batch) -> None:
        if self.seen < _WARM:
            self.seen += 1
            now, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(now)
            with torch.cuda.stream(aside), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*capturable=True.*")  # for the following steps
                self.step(batch)
            now.wait_stream(aside)
            return
        if self.graph is None:
            self.batch = [tensor.clone() for tensor in batch]
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.step(self.batch)
        for mine, new in zip(self.batch, batch, strict=True):
            mine.copy_(new)
        self.graph.replay()
