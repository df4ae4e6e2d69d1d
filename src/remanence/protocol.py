"""The interface of every game to `play` and `audit`: the three questions of an audit.

Are the inputs consistent (`fits`)? Which reconstructions are confirmed (`trials`, by the game's own
criterion)? How well would one do without the release (`baseline`, and the control within `trials`)?
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, final

import torch
from torch import Tensor
from typing_extensions import TypeVar

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, Reconstruction, attempt
from remanence.core.baseline import Baseline
from remanence.core.catalogue import load_attack, usual_attacks
from remanence.core.checks import whole
from remanence.core.errors import Criterion
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.priors import Prior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.results.caveats import SEVERAL_RECORDS_OF_ONE, Caveat
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.journal import Plan
from remanence.scale.run import Run
from remanence.scale.seeds import Draws, stream_seed

MechanismT = TypeVar("MechanismT", bound=Mechanism[Release], covariant=True, default=Mechanism[Release])
PriorT = TypeVar("PriorT", bound=Prior, covariant=True, default=Prior)


@final
@dataclass(frozen=True)
class Work:
    """The number of trials, how many are played at once, and what their outcomes depend on."""

    total: int
    at_once: int
    depends_on: tuple[object, ...]


@final
@dataclass(frozen=True)
class Unit:
    """Some of the trials, played together."""

    number: int
    size: int
    records: Tensor | None = None  # (size,), the record that each trial is about, if the game says
    shows: bool = False  # whether reconstructions, which are data, may be kept

    @classmethod
    def of(cls, plan: Plan, records: Tensor | None, shows: bool, number: int) -> Unit:
        """A unit of a plan; reconstructions are kept only from the first one."""
        size, first = plan.size(number), number * plan.at_once
        chosen = None if records is None else records[first : first + size]
        return cls(number, size, chosen, shows and number == 0)


@final
@dataclass(frozen=True)
class Companion:
    """A game that an attack plays for comparison: its success there is shown next to the verdict."""

    name: str
    game: AnyGame
    attack: Attack


class AnyGame(ABC, Generic[MechanismT]):
    """A game: a frozen dataclass that defines the adversary's knowledge, the trials and the success of a guess."""

    mechanism: MechanismT  # the training that is audited
    criterion: Criterion  # when a reconstruction counts
    bounds: tuple[Bound, ...] = ()  # ceilings that are proven for this game
    columns: tuple[str, ...] = ()  # the names of a record's features, if any
    door: ClassVar[str] = ""  # the door whose sections a report shows; empty for a game of your own
    default_trials: int = 200  # enough to distinguish a rate of 10 % from one of 1 %

    @property
    def tests_more(self) -> bool:
        """Whether `findings` has tests of its own, which take half of the confidence."""
        return False

    @property
    def words(self) -> Words:
        """Its vocabulary."""
        return Words()

    @property
    @abstractmethod
    def knowledge(self) -> Knowledge:
        """All that the adversary has before the release."""

    @abstractmethod
    def trials(self, prepared: Any, draws: Draws, unit: Unit) -> Outcome:
        """Play a unit of trials. It draws from its own random streams, and its outcome depends on nothing else.

        This decides which records count as recovered, by comparison with the truth or by recomputing the release.
        """

    @abstractmethod
    def baseline(self, chances: int = 1) -> Baseline:
        """The success of a guess without the release, given this many chances."""

    def fits(self) -> None:
        """Raise `MisfitError` if an input does not match its declaration."""

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> Any:
        """Do the attack's work before the release; the result is passed to `trials` for every unit."""
        return Prepared.of(attack, self.knowledge, draws, run)

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """The trials of this attack, before any is played. No outcome depends on the bounds."""
        return Work(trials, trials, (replace(self, bounds=()),))  # pyright: ignore[reportArgumentType]

    def caveats(self) -> Iterable[Caveat]:
        """Caveats about the game itself, whatever the attack."""
        return ()

    def measures(self) -> dict[str, float]:
        """Further numbers that the game itself proves, whatever the attack."""
        return {}

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """Findings other than whole records."""
        return ()

    def how_many(self, outcome: Outcome) -> int | None:
        """The total number of records, of which proven ones are a share; None if it is unknown."""
        counted = outcome.main.succeeded.numel()
        return None if outcome.proven is None or int(outcome.proven.sum()) > counted else counted

    def attacks(self) -> list[Attack]:
        """Every attack that can play this game, except slow ones, which must be named.

        The oblivious attack is left out because it is the baseline.
        """
        return [attack for attack in map(load_attack, usual_attacks()) if attack.can_play(self.knowledge)]

    def limit(self) -> Policy:
        """The default limit, if the owner sets none."""
        return Policy(set_by="default")

    def companions(self) -> Sequence[Companion]:
        """Games whose rates are shown for comparison and do not affect the verdict."""
        return ()

    def certain(self, rate: SuccessRate) -> SuccessRate:
        """A success rate with its interval adjusted by the game, if trials are not independent."""
        return rate

    def records(self, trials: int, draws: Draws) -> Tensor | None:
        """Which training record each trial is about; None if every trial draws a new target."""
        return None

    def held(self) -> dict[str, Records]:
        """The data in its fields, by field name."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore
        found = {name: part.samples if isinstance(part, Prior) else part for name, part in parts.items()}
        return {name: records for name, records in found.items() if isinstance(records, Records)}

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the inputs: data and, if given, a model."""
        return {name: records.sha256() for name, records in self.held().items()}

    def to(self, device: torch.device | str) -> Self:
        """The same game on another device."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore
        movable = Records | Prior | Release
        moved = {name: part.to(device) for name, part in parts.items() if isinstance(part, movable)}
        return replace(self, **moved)  # pyright: ignore[reportArgumentType]


@final
@dataclass(frozen=True)
class Prepared:
    """A prepared attack, and the random generator that it continues to draw from."""

    reconstruct: Callable[[Release], Reconstruction]
    generator: torch.Generator
    state: Tensor  # of the generator, when the attack was prepared

    @classmethod
    def of(cls, attack: Attack, knowledge: Knowledge, draws: Draws, run: Run) -> Prepared:
        """Prepare an attack."""
        generator = draws.stream("attack")
        return cls(attack.prepare_on(run, knowledge.apart(), generator), generator, generator.get_state())

    def for_unit(self, draws: Draws, unit: Unit) -> Callable[[Release], Reconstruction]:
        """The attack with random draws that depend only on the unit, not on earlier units."""
        if unit.number == 0:
            self.generator.set_state(self.state)
        else:
            self.generator.manual_seed(stream_seed(draws.seed, "attack", unit.number))
        return lambda release: attempt(self.reconstruct, release)


def several_of_one(known: Records | None, bounds: Iterable[Bound]) -> Iterator[Caveat]:
    """A caveat if ceilings are about one record while some known records occur more than once."""
    about_one = any(bound.whose == "one record" for bound in bounds)
    if about_one and known is not None and (repeated := known.repeated()):
        seen = f"{repeated} of the {len(known)} known records equal an earlier one."
        yield replace(SEVERAL_RECORDS_OF_ONE, seen=seen)


def planned(game: AnyGame, attack: Attack, trials: int | None, draws: Draws, run: Run) -> Plan:
    """The trials, split into units whose size bounds memory, whatever the number of trials."""
    trials = whole("trials", game.default_trials if trials is None else trials, hint="--trials 200")
    work = game.work(attack, trials, draws)
    at_once = min(work.at_once, run.unit_trials or work.at_once)
    depends_on = {"game": work.depends_on, "attack": attack, "seed": draws.seed, "shows": run.shows}
    return run.plan(f"playing {attack.info.name}", work.total, at_once, draws.device, depends_on)
