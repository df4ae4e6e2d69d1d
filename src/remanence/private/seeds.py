"""Random generators whose states the recorder sees: what they must give next, and whether others draw from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

_WORDS = slice(24, 24 + 8 * 624)  # of a Mersenne twister, in the state of torch's generator on the CPU
_EVERYBODYS = torch.Generator().initial_seed()  # what torch begins with, unless told otherwise
_BETWEEN = 3  # whole numbers that loaders may draw for their workers between two batches


def from_the_system(device: torch.device) -> torch.Generator:
    """A generator that cannot be guessed; `manual_seed` would use 32 bits of a seed on the CPU."""
    generator = torch.Generator(device=device)
    if device.type != "cpu":
        return generator.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
    state = generator.manual_seed(0).get_state().numpy()
    state[_WORDS].view(np.uint64)[:] = np.frombuffer(os.urandom(4 * 624), np.uint32)
    return generator.set_state(torch.from_numpy(state))


@final
class Stream:
    """One generator, followed from the beginning of the recording, draw by draw.

    Every draw is made on a copy first, from the state that the generator is in. What it makes of the generator must be
    the state that the next draw begins with; otherwise other code draws from it too, or has set it.
    """

    def __init__(self, what: str, generator: Any, device: Any = "cpu", *, loaders: bool = False) -> None:
        self.what, self._loaders, self._device = what, loaders, torch.device(device)
        self.why = ""  # the state cannot be seen, if it cannot
        self.disturbed = ""
        self.first, seed = self._state(generator)
        if seed == _EVERYBODYS:
            self.disturbed = f"{what} starts from torch's default seed, which is public"
        self._after = self._pending = self.first

    def next(self, generator: Any, draw: Callable[[torch.Generator], Any]) -> Any:
        """What `draw` must give from the generator's present state; None where the state cannot be seen."""
        state, _ = self._state(generator)
        if state is None or self._after is None:
            return None
        device = self._device if generator is None else generator.device
        if not goes_on(self._after, state, loaders=self._loaders, device=device):
            self.disturbed = self.disturbed or f"{self.what} was set again, or other code draws from it too"
        copy = torch.Generator(device=device).set_state(state)
        found = draw(copy)
        self._pending = copy.get_state()
        return found

    def taken(self) -> None:
        """The draw was made."""
        self._after = self._pending

    def _state(self, generator: Any) -> tuple[Tensor | None, int | None]:
        try:
            live = _default(self._device) if generator is None else generator
            return live.get_state(), live.initial_seed()
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            self.why = f"the state of {self.what} cannot be read ({type(error).__name__})"
            self.disturbed = self.disturbed or self.why
            return None, None


def goes_on(after: Tensor, state: Tensor, *, loaders: bool, device: Any = "cpu") -> bool:
    """Whether a generator is in the state in which it was left, or where a loader's few draws lead from there."""
    if torch.equal(state, after):
        return True
    copy = torch.Generator(device=device).set_state(after)
    for _ in range(_BETWEEN if loaders else 0):
        torch.empty((), dtype=torch.int64).random_(generator=copy)
        if torch.equal(state, copy.get_state()):
            return True
    return False


def _default(device: torch.device) -> torch.Generator:
    return (
        torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
    )


def unknown(origin: str | None, streams: list[Stream]) -> str:
    """Why an adversary may know the noise or the batches; empty if only those who were told the seed do."""
    first, second = (stream.first for stream in streams)
    same = first is not None and second is not None and torch.equal(first, second)
    if origin is None:
        return "the origin of the seeds was not declared"
    disturbed = next((stream.disturbed for stream in streams if stream.disturbed), "")
    return disturbed or ("noise and batches come from one seed" if same else "")
