"""The informed membership game."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Baseline, Prior
from remanence.attacks.attack import Attack
from remanence.bounds.bound import Bound
from remanence.data.records import Records, concatenate
from remanence.data.releases import Release
from remanence.exceptions import InputError
from remanence.game import Game
from remanence.mechanisms.mechanism import Mechanism
from remanence.rounds import Prepared, Rounds, UnitOutcome, join, stream
from remanence.scale.journal import Plan
from remanence.scale.run import Do, Tensors, current
from remanence.scoring.errors import Comparison, Criterion

_REDRAWS = 1000


@final
@dataclass(frozen=True)
class Membership:
    """The informed membership game: which of two candidates was trained on? (Balle et al. 2022, Algorithm 2)

    Any reconstruction attack plays it: of the two candidates, the one closer to the reconstruction
    is guessed. The control asks about two candidates of which neither was trained on.
    """

    game: Game

    @property
    def mechanism(self) -> Mechanism[Release]:
        """The training of the game within."""
        return self.game.mechanism

    @property
    def criterion(self) -> Criterion:
        """The error of the game within; its threshold plays no part."""
        return self.game.criterion

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """None: the game's own bounds speak about reconstruction."""
        return ()

    @property
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release and the two candidates."""
        return self.game.knowledge

    @property
    def default_trials(self) -> int:
        """As many as the game within."""
        return self.game.default_trials

    def guess(self) -> Baseline:
        """A coin."""
        return Baseline(0.5, 0.5, "a coin")

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data that went in."""
        return self.game.fingerprints()

    def to(self, device: torch.device | str) -> Membership:
        """The same game on another device."""
        return Membership(self.game.to(device))

    def work(
        self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu"
    ) -> tuple[Plan, Callable[[], Do]]:
        """The trials as units, of the same size as in the game within."""
        within, _ = self.game.work(attack, trials=trials, seed=seed, device=device)
        plan = replace(within, inputs=f"membership {within.inputs}")

        def prepare() -> Do:
            prepared = Prepared.of(attack, self.knowledge, seed, device)
            return partial(self._play_unit, prepared, seed, device)

        return plan, prepare

    def rounds(self, attack: Attack, *, trials: int, seed: int, device: torch.device | str = "cpu") -> Rounds:
        """Play all units."""
        attack.check(self.knowledge)
        plan, prepare = self.work(attack, trials=trials, seed=seed, device=device)
        found = UnitOutcome.of(current().perform(plan, prepare, join))
        return Rounds(main=found.main, control=found.control, baseline=self.guess())

    def _play_unit(
        self, prepared: Prepared, seed: int, device: torch.device | str, unit: int, count: int
    ) -> Tensors:
        """A coin decides where the reconstruction is equally far from both candidates."""
        game = self.game
        draws, trainings, controls, coins = (
            stream(seed, purpose, device, unit) for purpose in ("targets", "training", "control", "coins")
        )
        source = game.prior if game.targets is None else game.targets
        first, second = self._pairs(source, count, draws)
        bit = (torch.rand(count, generator=coins, device=coins.device) < 0.5).to(first.labels.device)
        trained = _either(bit, first, second)
        release = game.mechanism.release(game.known_data, trained, trainings)
        guess = prepared.for_unit(seed, unit)(release).records
        return UnitOutcome(
            main=_outcomes(self._guess(first, second, guess, coins) == bit),
            control=_outcomes(self._guess(*self._pairs(source, count, controls), guess, coins) == bit),
        ).tensors()

    def _pairs(self, source: Prior, count: int, draws: torch.Generator) -> tuple[Records, Records]:
        """Two candidates per trial; the second is drawn again while it equals the first."""
        first, second = source.sample(count, draws), source.sample(count, draws)
        for _ in range(_REDRAWS):
            same = self._same(first, second)
            if not same.any():
                return first, second
            second = _either(~same, second, source.sample(count, draws))
        raise InputError(
            "The prior hardly ever draws two different candidates.",
            needs="a shortlist with at least two records, none of which is nearly certain",
            got=self.game.prior.describe(),
            hint="more candidates, or more even weights",
        )

    def _same(self, first: Records, second: Records) -> Tensor:
        features = (first.flat == second.flat).flatten(1).all(1)
        return features & (first.labels == second.labels).all(1)

    def _guess(self, first: Records, second: Records, guess: Records, coins: torch.Generator) -> Tensor:
        """True for the first candidate; where labels count, a candidate with another label is ruled out."""
        pair = []
        for one in (first, second):
            error = self.criterion.error(one, guess).nan_to_num(nan=torch.inf)
            if self.criterion.label_scale is not None:
                error = error.where(self.criterion.compare(one, guess).labels_agree, torch.inf)
            pair.append(error.mean(1))
        coin = torch.rand(len(guess), generator=coins, device=coins.device) < 0.5
        return torch.where(pair[0] == pair[1], coin.to(pair[0].device), pair[0] < pair[1])


def _outcomes(succeeded: Tensor) -> Comparison:
    """A comparison of which only the outcome is known."""
    column = succeeded.unsqueeze(1)
    return Comparison(torch.full(column.shape, torch.nan), column, column)


def _either(bit: Tensor, first: Records, second: Records) -> Records:
    """The first where the bit is set, the second elsewhere."""
    both = concatenate([first, second])
    rows = torch.arange(len(first), device=first.labels.device)
    return both[torch.where(bit, rows, rows + len(first))]
