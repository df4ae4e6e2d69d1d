"""Independent random streams from one seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def unit_seed(entropy: Sequence[int], unit: int) -> int:
    """The seed of a unit's stream: units draw from independent children of one seed.

    >>> unit_seed([0], 1) == unit_seed([0], 2)
    False
    """
    sequence = np.random.SeedSequence(entropy, spawn_key=(unit,) if unit else ())
    words = sequence.generate_state(2, np.uint32)
    return (int(words[0]) << 32) | int(words[1])
