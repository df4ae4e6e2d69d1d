"""Could the claimed training have made this run? An exact test, however the canaries of one run depend on each other.

A canary that was trained on fills a slot: it is in the batches of certain steps. Another candidate, one that was left
out, might as well have filled it, and would have been in the same batches: who is in a batch does not depend on what
the record is. Under the claim a step releases the sum of its records' clipped gradients plus N(0, s²), so that, given
the whole run, the batches, all other records and the candidates of every slot, the secret follows

    P(secret | run) ∝ exp(−Σ_t ‖n_t − Σ_c δ_c(t)‖² / 2s_t²),

n_t the noise that was really added, and δ_c(t) the gradient of the candidate that the secret puts into slot c less
that of the one that was there, at the parameters of step t. This is exp(h·x − ½ xᵀQx), with h and Q summed over the
steps: a run of any length is one vector and one matrix. Random layers and augmentation do not matter, as long as each
candidate's gradient is drawn as training would draw it.

The truth is one more draw from this law. A reversible Markov chain goes back from it to a hub, and from the hub come
thousands of other states, so that all are exchangeable with the truth if the claim holds (Besag and Clifford 1989,
with their sequential stop). They are ranked by the log-likelihood itself: with less noise than claimed, the truth is
likelier than the other states are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

STATES = 5000  # the smallest p-value is 1 in so many
_AT_ONCE = 250  # chains side by side
_SWEEPS = 3  # from the truth to the hub, and from the hub to each state
_ENOUGH = 25  # states at least as likely as the truth: more would only polish a p-value that accuses nobody


@final
@dataclass(frozen=True)
class Slots:
    """What a run says about exchanging the canaries that filled its slots, in units of the claimed noise's variance.

    Each of `count` slots has the same number of alternatives, one after the other.
    """

    field: Array  # (slots · alternatives,): Σ_t ⟨n_t, δ(t)⟩ / s_t²
    coupling: Array  # (slots · alternatives, slots · alternatives): Σ_t ⟨δ(t), δ'(t)⟩ / s_t²
    count: int

    def p_value(self, *, seed: int, scale: float = 1.0, states: int = STATES) -> float:
        """How probable a truth as likely as this one is under the claim, or one with `scale` times its noise."""
        chains = _Chains(self, scale, np.random.default_rng(seed))
        hub = chains.sweep(np.zeros((1, self.count), dtype=np.intp))
        above, seen = 0, 1
        while seen < states:
            batch = min(_AT_ONCE, states - seen)
            for better in chains.sweep(np.repeat(hub, batch, axis=0), likelihood=True) >= 0:
                seen, above = seen + 1, above + int(better)
                if above == _ENOUGH:
                    return (above + 1) / seen
        return (above + 1) / seen


class _Chains:
    """Which candidate fills each slot, in many chains side by side; 0 is the one that was there."""

    def __init__(self, slots: Slots, scale: float, random: np.random.Generator) -> None:
        self._random, self._count = random, slots.count
        self._alternatives = len(slots.field) // max(1, slots.count)
        self._field, self._coupling = slots.field / scale**2, slots.coupling / scale**2
        self._diagonal = np.diag(self._coupling)

    def sweep(self, state: npt.NDArray[np.intp], *, likelihood: bool = False) -> Any:
        """Resample every slot of every chain some times; the states, or their log-likelihoods less the truth's."""
        chosen = np.zeros((len(state), len(self._field)))
        for candidate in range(1, self._alternatives + 1):
            chains, slots = np.nonzero(state == candidate)
            chosen[chains, slots * self._alternatives + candidate - 1] = 1
        left = self._field - chosen @ self._coupling  # (chains, alternatives of all slots)
        for _ in range(_SWEEPS):
            for slot in self._random.permutation(self._count):
                own = slice(slot * self._alternatives, (slot + 1) * self._alternatives)
                before = chosen[:, own].copy()
                field = left[:, own] + before @ self._coupling[own, own] - self._diagonal[own] / 2
                gumbel = self._random.gumbel(size=(len(state), self._alternatives + 1))
                drawn = np.concatenate([gumbel[:, :1], field + gumbel[:, 1:]], axis=1).argmax(1)
                state[:, slot] = drawn
                after = (drawn[:, None] == np.arange(1, self._alternatives + 1)).astype(np.float64)
                changed = np.flatnonzero((after != before).any(1))
                if len(changed):
                    chosen[changed, own] = after[changed]
                    left[changed] -= (after - before)[changed] @ self._coupling[own]
        return ((chosen * (self._field + left)).sum(1) / 2) if likelihood else state
