"""Could the claimed training have been this leaky? An exact test, however the canaries of one run depend on each other.

Under the claim, a step releases Σ b_r·g_r + N(0, s²) once the known records are subtracted: g_r the clipped gradient
of candidate r at the parameters of that step, b_r whether it was in the batch. Given the whole run, the secret
(who was inserted) and the batches then follow

    P(secret, b | run) ∝ Π_t Π_r q^b (1 − q)^(1 − b) · exp(−‖released_t − Σ b_r·g_r‖² / 2s²),

each step's parameters being a function of the earlier releases. The number of inserted canaries is kept fixed,
because the size of the training set, by which updates are divided, gives it away. So the true secret is one more
draw from a law that can be sampled: a Markov chain that leaves it unchanged is run from the truth, forwards and
backwards, with the truth at a random place among its states. If the claim is true, the truth's rank by the
number of correct guesses is uniform, whatever the length of the chain (Besag and Clifford 1989). With less noise
than claimed, guesses are right more often than in the chain's other states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

_STATES = 100  # the smallest p-value is 1 in so many


@final
@dataclass(frozen=True)
class Projections:
    """A run as its candidates see it. Full batches, whose members never change, are one step.

    In units of the claimed noise's variance, so that a claim with other noise is a division.
    """

    gram: Array  # (steps, rows, rows): inner products of the candidates' clipped gradients
    products: Array  # (steps, rows): with what was released less the known records' part
    presence: Array  # (steps, rows): who was in the batch, the auditor's secret
    rates: Array  # (steps,)
    candidates: int  # rows of each canary; 1 for in or out

    def p_value(
        self, guess: npt.NDArray[np.integer[Any]], chosen: npt.NDArray[np.integer[Any]], **settings: Any
    ) -> float:
        """How probable so many correct guesses are under the claim, or one with `scale` times its noise."""
        return Chain(self, chosen, **settings).p_value(guess)


@final
class Chain:
    """States of the secret and of the batches, by exchanging canaries that are in with canaries that are out."""

    def __init__(
        self,
        run: Projections,
        chosen: npt.NDArray[np.integer[Any]],
        *,
        seed: int,
        scale: float = 1.0,
        states: int = _STATES,
    ) -> None:
        self._gram, self._states = run.gram, states
        with np.errstate(divide="ignore"):  # full batches leave nobody out
            self._log_absent, self._log_rates = np.log1p(-run.rates)[:, None], np.log(run.rates)[:, None]
        self._variance, self._candidates = scale**2, run.candidates
        self._random = np.random.default_rng(seed)
        self._diagonal = np.einsum("trr->tr", run.gram)
        self._true_chosen, self._true_present = chosen, run.presence.astype(np.float64)
        self._true_left = run.products - np.einsum("trk,tk->tr", run.gram, self._true_present)
        self.restart()

    def p_value(self, guess: npt.NDArray[np.integer[Any]]) -> float:
        """The truth's rank among the chain's states."""
        right = int((guess == self._true_chosen).sum())
        before = int(self._random.integers(self._states))
        as_good = 1
        for count in (before, self._states - 1 - before):  # the chain is reversible: backwards is forwards
            self.restart()
            for _ in range(count):
                self.sweep()
                as_good += int((guess == self.chosen).sum()) >= right
        return as_good / self._states

    def restart(self) -> None:
        """Go back to the truth."""
        self.chosen = self._true_chosen.copy()
        self._present, self._left = self._true_present.copy(), self._true_left.copy()

    def sweep(self) -> None:
        """Resample every canary once; those in or out in random pairs, so that as many stay in."""
        order = self._random.permutation(len(self.chosen))
        if self._candidates > 1:
            for canary in order:
                rows = canary * self._candidates + np.arange(self._candidates)
                self.chosen[canary] = self._resample(rows, int(self.chosen[canary]))
            return
        for first, second in zip(order[::2], order[1::2], strict=False):
            inside = self.chosen[first] == 0, self.chosen[second] == 0
            if inside == (True, True):
                self._resample(np.array([first]), 0)
                self._resample(np.array([second]), 0)
            elif any(inside):
                kept = self._resample(np.array([first, second]), inside.index(True))
                self.chosen[first], self.chosen[second] = (0, -1) if kept == 0 else (-1, 0)

    def _resample(self, rows: npt.NDArray[np.integer[Any]], current: int) -> int:
        """Draw which of some rows is in, and in which batches, given all the others; exactly one was."""
        old = rows[current]
        self._move(old, -self._present[:, old])
        field = (self._left[:, rows] - self._diagonal[:, rows] / 2) / self._variance  # (steps, rows)
        present = self._log_rates + field
        evidence = np.logaddexp(self._log_absent, present)
        odds = evidence.sum(0)
        shares = np.exp(odds - odds.max()).cumsum()
        kept = int(np.searchsorted(shares, self._random.random() * shares[-1], side="right"))
        chance = np.exp(present[:, kept] - evidence[:, kept])
        self._move(rows[kept], (self._random.random(len(chance)) < chance).astype(np.float64))
        return kept

    def _move(self, row: int | np.integer[Any], change: Array) -> None:
        steps = np.flatnonzero(change)
        self._present[steps, row] += change[steps]
        self._left[steps] -= change[steps, None] * self._gram[steps, row]
