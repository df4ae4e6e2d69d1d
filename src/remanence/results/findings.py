"""The findings of an audit: each decides whether it breaks the limit, and describes itself.

Whole records and proven records are findings of every audit. A door adds its own: columns of a table, the pictures of
one head. The verdict rests on one of them, and every view begins with that one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, final

from torch import Tensor

from remanence.core.baseline import Baseline
from remanence.core.doors import doors, load
from remanence.core.rates import SuccessRate
from remanence.results.verdict import Policy

if TYPE_CHECKING:
    from remanence.results.caveats import Caveat
    from remanence.results.outcome import Outcome

Json = dict[str, Any]

_SHARED = {"privacy-test": "remanence.results.claims:PrivacyTest"}  # findings of several doors


@final
@dataclass(frozen=True)
class Words:
    """A game's vocabulary, stored with the result so that no view depends on the game."""

    done: str = "recovered the target in"  # …, 130 of 200, …
    many: str = "trials"
    proof: str = "the release was computed again from them"  # why proven records are facts
    counts: str = ""  # when a record counts as recovered; empty where its error alone decides
    less: str = ""  # a further way to lower the risk
    tests: tuple[str, ...] = ()  # kinds of inference that this game tests: "membership inference"
    by_record: bool = False  # whether trials are records of the training set, which have positions
    python: str = ""  # the call that reproduces it; empty for `audit(game, ...)`

    def __post_init__(self) -> None:
        object.__setattr__(self, "tests", tuple(self.tests))  # JSON has lists


@final
@dataclass(frozen=True)
class Row:
    """One line of the chart on page one: a share with its interval."""

    name: str
    share: float
    lower: float
    upper: float
    role: Literal["guess", "control", "attack"]

    @classmethod
    def of(cls, name: str, rate: SuccessRate, role: Literal["control", "attack"]) -> Row:
        """A rate with its interval."""
        return cls(name, rate.rate, rate.lower, rate.upper, role)


@final
@dataclass(frozen=True)
class Section:
    """A part of the annex: sentences, a table, a picture. Each may be empty."""

    title: str
    paragraphs: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: str = ""  # SVG


class Finding(ABC):
    """One finding of an attack."""

    kind: ClassVar[str]  # its name in audit.json
    meaning: ClassVar[str]  # the meaning of EXPOSED when this finding is the reason
    of_the_best_attack: ClassVar[bool] = False  # whether it counts only for the attack with the highest rate

    @abstractmethod
    def exposes(self, policy: Policy) -> bool:
        """Whether it significantly exceeds the limit and cannot be explained without the release."""

    @abstractmethod
    def headline(self, said: Words) -> str:
        """The finding in one sentence, with its numbers."""

    def rows(self) -> list[Row]:
        """Its lines of the chart."""
        return []

    @property
    def tells(self) -> bool:
        """Whether it significantly shows more than can be known without the release."""
        return False

    @property
    def vouches(self) -> bool:
        """Whether this finding supports that the attack's rates are about the audited release."""
        return True

    @property
    def contradicts(self) -> bool:
        """Whether it significantly shows that the training is not what it claims to be."""
        return False

    def claim(self, *, refuted: bool) -> str:
        """Its sentence about the training's claim, which some part of the evidence refutes or none does."""
        return ""

    def answers(self) -> Mapping[str, str]:
        """Its answers to a dossier's questions, by topic: "membership inference", "differential privacy"."""
        return {}

    def section(self) -> Section | None:
        """Its section of the annex."""
        return None

    def caveats(self, outcome: Outcome) -> Iterable[Caveat]:
        """The caveats that come with it."""
        return ()

    def to_json(self) -> Json:
        """Its entry in audit.json."""
        raise NotImplementedError(f"{self.kind} is stored with the rates")

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Read an entry back."""
        raise NotImplementedError(f"{cls.kind} is stored with the rates")

    def contradictions(self, arrays: Mapping[str, Tensor], threshold: float) -> Iterator[str]:
        """Its statements that the arrays of its attack contradict."""
        yield from ()


@final
@dataclass(frozen=True)
class WholeRecords(Finding):
    """How often whole records were recovered, compared with the control and a guess."""

    main: SuccessRate
    control: SuccessRate
    baseline: Baseline
    about_the_release: bool = True
    known_many: bool = True  # whether the number of records is known
    kind: ClassVar[str] = "whole-records"
    meaning: ClassVar[str] = "An attack succeeds more often than the limit allows."

    @property
    def tells(self) -> bool:
        """Whether the attack is significantly better than its own control and a guess, which need no release.

        If the upper bound on a guess is loose, the observed success of a guess counts instead.
        """
        return self.main.lower > max(self.control.upper, self.baseline.seen)

    def exposes(self, policy: Policy) -> bool:
        """Above the limit, the control and a guess."""
        return self.tells and self.about_the_release and self.main.lower > policy.max_success

    def headline(self, said: Words) -> str:
        """For example: 442 of 442 records."""
        return f"The best attack {said.done} {self.main.successes} of {self.main.trials} {said.many}."

    def rows(self) -> list[Row]:
        """Guess, control and attack."""
        guess = self.baseline
        ends = (guess.lower, guess.value) if guess.loose else (guess.seen, guess.seen)
        rows = [Row("guess", guess.seen, *ends, "guess")]
        rows += [Row.of("control", self.control, "control")] if self.control.trials else []
        return [*rows, Row.of("attack", self.main, "attack")] if self.known_many else rows


@final
@dataclass(frozen=True)
class ProvenRecords(Finding):
    """Records from which the game recomputed the release: facts, which need no interval."""

    count: int
    of: int | None  # how many there are; None where that is unknown
    kind: ClassVar[str] = "proven-records"
    meaning: ClassVar[str] = "Training records are proven to be in what is released. A proof needs no rate."

    @property
    def tells(self) -> bool:
        """A proven record is a fact."""
        return self.count > 0

    def exposes(self, policy: Policy) -> bool:
        """A single record is enough."""
        return self.count > 0

    def headline(self, said: Words) -> str:
        """How many, and why."""
        many = said.many.removesuffix("s") if self.count == 1 else said.many
        whole = "" if self.of is None else f" of {self.of}"
        verb = "is" if self.count == 1 else "are"
        return f"{self.count}{whole} {many if self.of is None else said.many} {verb} proven: {said.proof}."

    def rows(self) -> list[Row]:
        """Their share, if their total is known."""
        if self.of is None:
            return []
        share = self.count / self.of
        return [Row("proven", share, share, share, "attack")]


@final
@dataclass(frozen=True)
class UnknownFinding(Finding):
    """A finding of a door that is not installed here: shown as stored, and not recomputed."""

    entry: Mapping[str, Any]
    kind: ClassVar[str] = "unknown"
    meaning: ClassVar[str] = "A finding that cannot be recomputed here breaks the limit."

    def exposes(self, policy: Policy) -> bool:
        """As it was stored."""
        return bool(self.entry.get("exposes", False))

    @property
    def contradicts(self) -> bool:
        """As it was stored."""
        return bool(self.entry.get("contradicts", False))

    def headline(self, said: Words) -> str:
        """Its name, and why no more can be shown."""
        return (
            f"The finding {self.entry['kind']!r} belongs to a part of remanence that is not installed here. "
            "It is shown as stored, and was not recomputed."
        )

    def section(self) -> Section:
        """The same sentence."""
        return Section(f"Finding: {self.entry['kind']}", (self.headline(Words()),))

    def to_json(self) -> Json:
        """As it was stored."""
        return dict(self.entry)


def read_finding(entry: Mapping[str, Any]) -> Finding:
    """A stored finding, read by the door that made it, if that is installed."""
    homes = {**_SHARED, **{kind: home for door in doors() for kind, home in door.findings.items()}}
    if entry["kind"] not in homes:
        return UnknownFinding(entry)
    try:
        return load(homes[entry["kind"]]).from_json(entry)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the finding {entry['kind']!r} is not complete: {error}") from None


def stored_finding(finding: Finding, policy: Policy) -> Json:
    """The entry in audit.json, with its effect on the verdict."""
    if isinstance(finding, UnknownFinding):
        return finding.to_json()
    effect = {"contradicts": True} if finding.contradicts else {}
    return {"kind": finding.kind, "exposes": finding.exposes(policy), **effect, **finding.to_json()}
