"""The referee: games that must not be EXPOSED, whatever an attack does, and toy mechanisms whose word is known.

.venv/bin/python benchmarks/referee.py                 # 2,000 simulated audits of every line
.venv/bin/python benchmarks/referee.py --audits 200 --only heads

Every line makes new data, a new release and new trials for every audit. A wrong word may be spoken at the level of the
audit, 5 %: beside each count stands what a binomial with that chance exceeds once in 1,000 lines. To refuse is no word.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, ClassVar

import torch
from scipy.stats import binom
from torch import Tensor, nn

from remanence import (
    GLM,
    Attack,
    AttackInfo,
    Bound,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    Exact,
    FinitePrior,
    Game,
    Knowledge,
    LeaveOneOut,
    Mechanism,
    Membership,
    Policy,
    Reconstruction,
    Records,
    Reduction,
    RetrainAndCompare,
    SharedGradient,
    StratifiedPrior,
    TransferHead,
    Verdict,
    Weights,
    audit,
    bounds,
    mean_squared_error,
    mismatch,
)
from remanence.core.exceptions import RemanenceError
from remanence.core.rates import CONFIDENCE
from remanence.core.references import REMANENCE
from remanence.core.releases import Gradient, Release
from remanence.private.noisy_sum import NoisySum
from remanence.protocol import AnyGame
from remanence.tables.glm.families import Gaussian
from remanence.updates.captured import Captured

LEVEL = 1 - CONFIDENCE
REFUSED = "refused"

Strategy = Callable[[Knowledge, torch.Generator], Callable[[Release], Tensor]]
Play = Callable[[int], str]


@dataclass(frozen=True)
class Scripted(Attack[Release]):
    """An attack that does as it is told: from what is known, and a release, to guesses `(trials, guesses, numbers)`."""

    strategy: Strategy
    boasts: bool = False
    info: ClassVar[AttackInfo] = AttackInfo("scripted", "as told", "nothing", "anything", REMANENCE)

    def check(self, knowledge: Knowledge) -> None:
        """It plays anything."""

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Hand over what is known."""
        guess = self.strategy(knowledge, generator)

        def reconstruct(release: Release) -> Reconstruction:
            features = guess(release)
            trials = len(features)
            labels = (
                torch.arange(features.shape[1]).expand(trials, -1).double()
            )  # one of each class, where asked for
            claims = ("succeeded", "recovered", "proven", "inferred_batch_size")
            boast = {name: torch.full((trials,), features.shape[1]) for name in claims}
            return Reconstruction(Records(features, labels), diagnostics=boast if self.boasts else {})

        return reconstruct


# Attacks that know no more than a stranger.


def _held(knowledge: Knowledge) -> Records:
    """Whatever records the adversary holds."""
    for records in (knowledge.prior.samples, knowledge.known_data):
        if records is not None:
            return records
    return Records(torch.zeros(1, 6).double(), torch.zeros(1))


def _classes(knowledge: Knowledge) -> int:
    return len(knowledge.prior.present) if isinstance(knowledge.prior, StratifiedPrior) else 1


def mode(knowledge: Knowledge, _: torch.Generator) -> Callable[[Release], Tensor]:
    """The likeliest candidate, or the mean of all that is held; of each class where there are classes."""
    prior, held = knowledge.prior, _held(knowledge)
    if isinstance(prior, FinitePrior):
        best = prior.candidates.features[prior.weights.argmax()[None]]
    elif isinstance(prior, StratifiedPrior):
        best = torch.stack([held.features[held.labels == label].mean(0) for label, _ in prior.present])
    else:
        best = held.features.double().mean(0, keepdim=True)
    return lambda release: best.expand(len(release), *best.shape)


def stranger(knowledge: Knowledge, generator: torch.Generator) -> Callable[[Release], Tensor]:
    """Somebody else's record, drawn anew for every release: what the control is about."""
    held = _held(knowledge).features
    shape = (_classes(knowledge),)
    return lambda release: held[torch.randint(len(held), (len(release), *shape), generator=generator)]


def known(knowledge: Knowledge, generator: torch.Generator) -> Callable[[Release], Tensor]:
    """A record of the training set that is known anyway, the same for every release."""
    held = _held(knowledge) if knowledge.known_data is None else knowledge.known_data
    chosen = held.features[torch.randint(len(held), (_classes(knowledge),), generator=generator)]
    return lambda release: chosen.expand(len(release), *chosen.shape)


def twin(knowledge: Knowledge, _: torch.Generator) -> Callable[[Release], Tensor]:
    """Where every record should be there twice: the known one that is there once."""
    held = _held(knowledge).features
    rows, counts = held.flatten(1).unique(dim=0, return_counts=True)
    lonely = rows[counts.argmin()].view(1, 1, *held.shape[1:])
    return lambda release: lonely.expand(len(release), *lonely.shape[1:])


def total(knowledge: Knowledge, _: torch.Generator) -> Callable[[Release], Tensor]:
    """Where all records sum to nothing by design: minus the sum of the known ones."""
    rest = -_held(knowledge).features.sum(0)[None, None]
    return lambda release: rest.expand(len(release), *rest.shape[1:])


def nearest(knowledge: Knowledge, _: torch.Generator) -> Callable[[Release], Tensor]:
    """The public picture of each class whose embedding lies closest to that class's weights."""
    held = _held(knowledge)
    assert held.embedding is not None
    by_class = [held[held.labels == label] for label in held.labels.unique()]

    def reconstruct(release: Release) -> Tensor:
        weights = release["weight"].float()  # (trials, classes, numbers)
        scores = [weights[:, label] @ each.embedding.float().T for label, each in enumerate(by_class)]  # pyright: ignore
        return torch.stack(
            [each.features[score.argmax(1)] for each, score in zip(by_class, scores, strict=True)], 1
        )

    return reconstruct


# Mechanisms that tell nothing about the target, and one that tells exactly so much.


@dataclass(frozen=True)
class Deaf(Mechanism[Weights]):
    """Training on the known data alone, or on noise: the target is not looked at."""

    numbers: int = 3
    noise: float = 0.0
    diverges: float = 0.0  # the share of trainings that end in NaN
    name: ClassVar[str] = "deaf"

    @property
    def releases(self) -> type[Release]:
        """Weights."""
        return Weights

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The sum of the known data, with noise."""
        values = torch.zeros(len(targets), self.numbers, dtype=torch.float64)
        if known_data is not None and not self.noise:
            values = values + known_data.flat.sum(0)[: self.numbers]
        values = values + self.noise * torch.randn(values.shape, generator=generator, dtype=values.dtype)
        lost = torch.rand(len(targets), generator=generator) < self.diverges
        return Weights({"sum": values.masked_fill(lost[:, None], torch.nan)})

    def settings(self) -> dict[str, Any]:
        """What it is."""
        return {"noise": self.noise, "diverges": self.diverges}


@dataclass(frozen=True)
class Telling(Mechanism[Weights]):
    """Randomised response: the target with probability `truth`, one of the candidates at random otherwise.

    The best attack believes it: `truth + (1 − truth) / candidates`.
    """

    candidates: int
    truth: float
    diverges: float = 0.0
    name: ClassVar[str] = "randomised response"

    @property
    def releases(self) -> type[Release]:
        """Weights."""
        return Weights

    @property
    def best(self) -> float:
        """What the best attack achieves."""
        return (self.truth + (1 - self.truth) / self.candidates) * (1 - self.diverges)

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """Say somebody."""
        honest = torch.rand(len(targets), 1, generator=generator) < self.truth
        anybody = torch.randint(self.candidates, (len(targets), 1), generator=generator)
        said = targets.flat[:, 0].argmax(1, keepdim=True).where(honest, anybody).double()
        lost = torch.rand(said.shape, generator=generator) < self.diverges
        return Weights({"said": said.masked_fill(lost, torch.nan)})

    def settings(self) -> dict[str, Any]:
        """What it is."""
        return {"truth": self.truth}


def believe(_knowledge: Knowledge, _: torch.Generator) -> Callable[[Release], Tensor]:
    """The best attack on `Telling`."""
    return lambda release: torch.eye(8).double()[release["said"].long()]


# Games, new for every seed.


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 1_000_003)


def _normal(count: int, seed: int, numbers: int = 3, centre: float = 0.0) -> Records:
    values = torch.randn(count, numbers, generator=_generator(seed), dtype=torch.float64) + centre
    return Records(values, torch.zeros(count))


def membership(mechanism: Mechanism[Any], seed: int) -> Membership:
    """Which of two of the shortlist?"""
    return Membership(shortlist(mechanism, seed))


def shortlist(mechanism: Mechanism[Any], seed: int, held: Records | None = None) -> Game:
    """Eight candidates, one of them as likely as the next three together."""
    weights = torch.tensor([3.0, 1, 1, 1, 1, 1, 1, 1])
    prior = FinitePrior(
        Records(torch.eye(8).double()[:, : getattr(mechanism, "numbers", 8)], torch.zeros(8)), weights
    )
    return Game(
        mechanism, prior, held or _normal(5, seed, prior.candidates.flat.shape[1]), Criterion(mismatch, 0.5)
    )


def candidates(mechanism: Mechanism[Any], seed: int, ceilings: tuple[Bound, ...] = ()) -> Game:
    """Eight candidates, all as likely."""
    prior = FinitePrior(Records(torch.eye(8).double(), torch.zeros(8)))
    return Game(mechanism, prior, _normal(5, seed, 8), Criterion(mismatch, 0.5), bounds=ceilings)


def population(mechanism: Mechanism[Any], seed: int, *, overlaps: bool = False) -> Game:
    """Targets of a population; the criterion is so loose that a guess often succeeds."""
    people, belief = _normal(40, seed), EmpiricalPrior(_normal(30, seed + 1))
    known_data = people[:5] if overlaps else _normal(5, seed + 2)
    criterion = Criterion(mean_squared_error, 0.7)
    return Game(mechanism, belief, known_data, criterion, targets=EmpiricalPrior(people))


def alone(seed: int, kind: str = "around 1000", mechanism: Mechanism[Any] | None = None) -> LeaveOneOut:
    """Records around 1000 ± 1 or around 0; all there twice; all summing to nothing."""
    mechanism = mechanism or NoisySum(1e-6, max_norm=1e5)
    records = _normal(20, seed, centre=1000.0 if kind == "around 1000" else 0.0)
    features, noise = records.features, torch.randn(20, generator=_generator(seed + 5)).double()
    if kind == "twice":
        features = features[torch.arange(20) // 2]
    if kind == "standardised":
        features = features - features.mean(0)
    labels = features.sum(1) + noise
    return LeaveOneOut(mechanism, Records(features, labels), Criterion(threshold=0.01))


def _pictures(count: int, seed: int) -> Records:
    labels = torch.arange(count) % 3
    generator = _generator(seed)
    features = torch.eye(3, 6)[labels] + 0.5 * torch.randn(count, 6, generator=generator)
    return Records(features, labels, embedding=(features @ torch.randn(6, 8, generator=_generator(7))).relu())


def heads(seed: int, **recipe: Any) -> Game:
    """Heads on three pictures, of which one is close to its class's mean and easy to guess."""
    head = TransferHead(**{"classes": 3, "epochs": 5, "learning_rate": 0.1, **recipe})
    own, public, aside = _pictures(3, seed), _pictures(60, seed + 1), _pictures(60, seed + 2)
    criterion = Criterion(mean_squared_error, 0.3, Reduction.CLASS)
    priors = (StratifiedPrior(records, 1) for records in (public, own, aside))
    prior, targets, strangers = priors
    return Game(head, prior, None, criterion, targets=targets, strangers=strangers)


def captured(seed: int, *, noise: bool = False) -> Captured:
    """Three captured gradients of a small network, or what only looks like them."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 4)).double()
    mechanism = SharedGradient(network, (6,))
    batches = [Records(_normal(4, seed + i, 6).features, torch.arange(4)) for i in range(3)]
    parts = [mechanism.release(None, batch[None], _generator(seed)) for batch in batches]
    names = parts[0].tensors
    real = {name: torch.cat([part[name] for part in parts]) for name in names}
    if noise:
        real = {
            name: torch.randn(values.shape, generator=_generator(seed)).double()
            for name, values in real.items()
        }
    return Captured(mechanism, Gradient(real), batch_size=4)


# The table.


def word(game: AnyGame, attack: Attack, limit: float, trials: int, seed: int) -> str:
    """The verdict of one audit, or that it was refused."""
    try:
        return str(audit(game, [attack], policy=Policy(limit), trials=trials, seed=seed).verdict)
    except RemanenceError:
        return REFUSED


@dataclass(frozen=True)
class Line:
    """One game of the referee: a word for each seed, and the words that are wrong."""

    kind: str
    case: str
    play: Play
    right: tuple[str, ...] = (Verdict.UNPROVEN, REFUSED)

    def words(self, audits: int, first: int = 0) -> Counter[str]:
        """What is said in so many audits."""
        return Counter(self.play(seed) for seed in range(first, first + audits))

    def wrong_words(self, words: Counter[str]) -> int:
        """How many of them are wrong."""
        return words.total() - sum(words[str(one)] for one in self.right)


def most_by_chance(audits: int) -> int:
    """What the count of a word that is wrong 5 % of the time exceeds once in 1,000 lines.

    >>> most_by_chance(2000)
    132
    """
    return int(binom.isf(1e-3, audits, LEVEL))


@dataclass(frozen=True)
class Table:
    """One kind of audit: games by seed, the limit that they are held against, and how many trials."""

    kind: str
    game: Callable[[int], AnyGame]
    limit: float
    trials: int

    def line(self, case: str, attack: Attack, right: Verdict | None = None) -> Line:
        """What this attack makes of it."""

        def play(seed: int) -> str:
            return word(self.game(seed), attack, self.limit, self.trials, seed)

        return Line(self.kind, case, play) if right is None else Line(self.kind, case, play, (right,))


def lines() -> Iterator[Line]:
    """Every kind of audit against everything that must not fool it."""
    loud = Telling(8, 0.9)  # the release would tell, but some attacks do not look at it
    tables = [
        Table("game", partial(shortlist, loud), 0.31, 60),
        Table("population", partial(population, NoisySum(0.1)), 0.5, 60),
        Table("membership", partial(membership, loud), 0.51, 60),
        Table("leave one out", alone, 0.1, 20),
        Table("heads", heads, 0.6, 30),
        Table("captured", captured, 0.1, 3),
    ]
    blind = {"the prior's mode": mode, "a stranger's record": stranger, "a known record": known}
    for (case, strategy), table in product(blind.items(), tables):
        yield table.line(f"returns {case}", Scripted(strategy))
        yield table.line(f"returns {case}, and claims success", Scripted(strategy, boasts=True))
    quiet = {
        "release of pure noise": Deaf(8, noise=1.0),
        "training that does not see the target": Deaf(8),
        "training that often diverges": Deaf(8, noise=1.0, diverges=0.3),
    }
    retrain = RetrainAndCompare(repeats=4)
    for case, mechanism in quiet.items():
        yield Table("game", partial(shortlist, mechanism), 0.31, 60).line(case, retrain)
        yield Table("membership", partial(membership, mechanism), 0.51, 60).line(case, retrain)
    yield Table("heads", partial(heads, initialisation=1e9), 0.6, 30).line(
        "release of pure noise", Scripted(nearest)
    )
    yield Table("captured", partial(captured, noise=True), 0.1, 3).line("pure noise, exact", Exact())
    twins = _normal(2, 0, 8)[torch.tensor([0, 0, 1, 1])]
    yield Table("game", partial(shortlist, Deaf(8), held=twins), 0.31, 60).line("duplicated records", retrain)
    overlap = Table("population", partial(population, Deaf(3), overlaps=True), 0.5, 60)
    yield overlap.line("a target among the known data", Scripted(known))
    for kind, strategy in {"twice": twin, "standardised": total}.items():
        table = Table("leave one out", partial(alone, kind=kind), 0.1, 20)
        yield table.line(f"{kind}: the others give the record away", Scripted(strategy))


def toys() -> Iterator[Line]:
    """Toy mechanisms with their best attack: the word follows from the mathematics."""
    told, attack = Telling(8, 0.6), Scripted(believe)
    best = told.best  # 0.65
    exact = {
        share: Bound("exact", math.log(share), ("randomised response",), REMANENCE) for share in (0.5, best)
    }

    def toy(limit: float, *ceilings: Bound) -> Table:
        return Table("toy", partial(candidates, told, ceilings=ceilings), limit, 400)

    yield toy(best).line("the limit at the best attack", attack)
    yield toy(0.5).line("the limit far below the best attack", attack, Verdict.EXPOSED)
    yield toy(best + 1e-9, exact[best]).line(
        "ceiling and limit at the best attack", attack, Verdict.PROTECTED
    )
    yield toy(0.5, exact[best]).line("the ceiling there, the limit below", attack, Verdict.EXPOSED)
    yield toy(0.9, exact[0.5]).line("a ceiling far below the best attack", attack, Verdict.CONTRADICTED)
    plain = Table("toy", partial(candidates, NoisySum(1e-9)), 0.5, 40)
    yield plain.line("training without noise", RetrainAndCompare(repeats=2), Verdict.EXPOSED)
    ridge = partial(alone, kind="around 0", mechanism=GLM(Gaussian(), penalty=1.0))
    yield Table("toy", ridge, 0.5, 20).line("a ridge regression", ClosedForm(), Verdict.EXPOSED)
    gaussian = bounds.gaussian(1 / 8, noise_multiplier=4.0)
    noisy = Table("toy", partial(candidates, NoisySum(4.0), ceilings=(gaussian,)), 0.4, 60)
    yield noisy.line("Gaussian noise with its own ceiling", RetrainAndCompare(repeats=4), Verdict.PROTECTED)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--only", default="", help="lines with these words")
    options = parser.parse_args()
    torch.set_num_threads(1)
    allowed, broken = most_by_chance(options.audits), 0
    print(f"| audit | what plays | wrong words in {options.audits} | by chance at most | all words |")
    print("|---|---|--:|--:|---|")
    for line in (*lines(), *toys()):
        if options.only not in f"{line.kind}, {line.case}":
            continue
        words = line.words(options.audits)
        wrong = line.wrong_words(words)
        broken += wrong > allowed
        said = ", ".join(f"{name} {count}" for name, count in sorted(words.items()))
        print(f"| {line.kind} | {line.case} | {wrong} | {allowed} | {said} |", flush=True)
    print(f"\n{broken} lines are wrong more often than chance allows.")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
