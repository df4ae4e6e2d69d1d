"""The informed membership game."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Comparison, Criterion
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.game import Game
from remanence.protocol import AnyGame, Prepared, Unit, Work
from remanence.results.findings import Words
from remanence.results.outcome import Outcome
from remanence.scale.seeds import Draws

_REDRAWS = 1000


@final
@dataclass(frozen=True)
class Membership(AnyGame):
    """The informed membership game: which of two candidates was trained on? (Balle et al. 2022, Algorithm 2)

    Any reconstruction attack can play it: the guess is the candidate closer to the reconstruction.
    The control uses two candidates, neither of which was trained on. The threshold of the inner game
    is not used, and its bounds are about reconstruction.
    """

    door: ClassVar[str] = "networks"

    @property
    def words(self) -> Words:
        """The vocabulary of a membership game."""
        return Words("told the target from another record in", tests=("membership inference",))

    game: Game
    mechanism: Mechanism[Release] = field(init=False, repr=False)
    criterion: Criterion = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanism", self.game.mechanism)
        object.__setattr__(self, "criterion", self.game.criterion)

    @property
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release and the two candidates."""
        return self.game.knowledge

    def baseline(self, chances: int = 1) -> Baseline:
        """One half: a coin flip."""
        return Baseline(0.5, 0.5, "a coin")

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the input data."""
        return self.game.fingerprints()

    def to(self, device: torch.device | str) -> Membership:
        """The same game on another device."""
        return Membership(self.game.to(device))

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """As many at once as in the inner game."""
        within = self.game.work(attack, trials, draws)
        return replace(within, depends_on=("membership", *within.depends_on))

    def trials(self, prepared: Prepared, draws: Draws, unit: Unit) -> Outcome:
        """A coin flip selects the candidate to train on, and breaks ties between equally distant candidates."""
        targets, trainings, controls, coins = (
            draws.stream(purpose, unit.number) for purpose in ("targets", "training", "control", "coins")
        )
        first, second = self._pairs(unit.size, targets)
        bit = _toss(unit.size, coins, first)
        release = self.game.knowledge.release(_either(bit, first, second), trainings)
        reconstruction = prepared.for_unit(draws, unit)(release)
        guess = reconstruction.records
        main = self._guess(first, second, guess, coins) == bit
        # A separate coin orders the two strangers: under an uneven prior, the first one drawn tends to be the likelier
        # one, as the trained one does.
        asked, other = self._pairs(unit.size, controls)
        swap = _toss(unit.size, controls, first)
        asked, other = _either(swap, other, asked), _either(swap, asked, other)
        control = self._guess(asked, other, guess, coins) == bit
        return Outcome(_outcomes(main), _outcomes(control), numbers=reconstruction.diverged)

    def _pairs(self, count: int, draws: torch.Generator) -> tuple[Records, Records]:
        """Two candidates per trial; the second is drawn again while it equals the first."""
        source = self.game.source
        first, second = source.sample(count, draws), source.sample(count, draws)
        for _ in range(_REDRAWS):
            same = self._same(first, second)
            if not same.any():
                return first, second
            second = _either(~same, second, source.sample(count, draws))
        raise InputError(
            "The prior almost always draws the same candidate.",
            needs="a shortlist with at least two records, none of which is nearly certain",
            got=self.game.prior.describe(),
            hint="more candidates, or more even weights",
        )

    def _same(self, first: Records, second: Records) -> Tensor:
        features = (first.flat == second.flat).flatten(1).all(1)
        return features & (first.labels == second.labels).all(1)

    def _guess(self, first: Records, second: Records, guess: Records, coins: torch.Generator) -> Tensor:
        """True for the first candidate; if labels count, a candidate with another label is ruled out."""
        pair = []
        for one in (first, second):
            error = self.criterion.error(one, guess).nan_to_num(nan=torch.inf)
            if self.criterion.label_scale is not None:
                error = error.where(self.criterion.compare(one, guess).labels_agree, torch.inf)
            pair.append(error.mean(1))
        return torch.where(pair[0] == pair[1], _toss(len(guess), coins, guess), pair[0] < pair[1])


def _toss(count: int, coins: torch.Generator, like: Records) -> Tensor:
    return (torch.rand(count, generator=coins, device=coins.device) < 0.5).to(like.labels.device)


def _outcomes(succeeded: Tensor) -> Comparison:
    """A comparison with outcomes only, without errors."""
    column = succeeded.unsqueeze(1)
    return Comparison(torch.full(column.shape, torch.nan), column, column)


def _either(bit: Tensor, first: Records, second: Records) -> Records:
    """The first where the bit is set, the second elsewhere."""
    both = concatenate([first, second])
    rows = torch.arange(len(first), device=first.labels.device)
    return both[torch.where(bit, rows, rows + len(first))]
