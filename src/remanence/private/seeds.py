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
    """A generator that nobody can guess; `manual_seed` would use 32 bits of a seed on the CPU."""
    generator = torch.Generator(device=device)
    if device.type != "cpu":
        return generator.manual_seed(int.from_bytes(os.urandom(8)) >> 1)
    state = generator.manual_seed(0).get_state().numpy()
    state[_WORDS].view(np.uint64)[:] = np.frombuffer(os.urandom(4 * 624), np.uint32)
    return generator.set_state(torch.from_numpy(state))


@final
class Stream:
    """One generator, followed from draw to draw.

    Every draw is made on a copy first, from the state that the generator is in. What it makes of the generator must be
    the state that the next draw begins with; otherwise somebody else draws from it too, or has set it back.
    """

    def __init__(self, what: str, *, loaders: bool = False) -> None:
        self.what, self._loaders = what, loaders
        self.first: Tensor | None = None  # the state before the first draw
        self.why = ""  # the last draw could not be made on a copy, if it could not
        self.disturbed = ""
        self._after: Tensor | None = None
        self._pending: Tensor | None = None

    def next(self, generator: Any, draw: Callable[[torch.Generator], Any], device: Any = "cpu") -> Any:
        """What `draw` must give from the generator's present state; None where the state cannot be seen."""
        try:
            live = _default(torch.device(device)) if generator is None else generator
            state = live.get_state()
            copy = torch.Generator(device=live.device).set_state(state)
            seed = live.initial_seed()
        except (RuntimeError, TypeError, AttributeError, NotImplementedError) as error:
            self.why = f"the state of {self.what} cannot be seen ({type(error).__name__})"
            self.disturbed = self.disturbed or self.why
            return None
        if self.first is None:
            self.first = state
            if seed == _EVERYBODYS:
                self.disturbed = f"{self.what} begins with torch's own seed, which everybody knows"
        elif not self._goes_on(state, live.device):
            self.disturbed = self.disturbed or f"{self.what} was set anew, or others draw from it too"
        found = draw(copy)
        self._pending = copy.get_state()
        return found

    def taken(self) -> None:
        """The draw was made."""
        self._after = self._pending

    def _goes_on(self, state: Tensor, device: torch.device) -> bool:
        if self._after is None or torch.equal(state, self._after):
            return True
        if self._loaders:
            copy = torch.Generator(device=device).set_state(self._after)
            for _ in range(_BETWEEN):
                torch.empty((), dtype=torch.int64).random_(generator=copy)
                if torch.equal(state, copy.get_state()):
                    return True
        return False


def _default(device: torch.device) -> torch.Generator:
    return (
        torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator
    )


def unknown(origin: str | None, streams: list[Stream]) -> str:
    """Why somebody may know the noise or the batches; nothing if nobody does who was not told the seed."""
    first, second = (stream.first for stream in streams)
    same = first is not None and second is not None and torch.equal(first, second)
    if origin is None:
        return "nobody said where the seeds come from"
    disturbed = next((stream.disturbed for stream in streams if stream.disturbed), "")
    return disturbed or ("noise and batches come from one seed" if same else "")
