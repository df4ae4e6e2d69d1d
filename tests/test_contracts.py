"""One contract for every attack and every mechanism that we ship, and proof that it bites."""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import remanence
from conftest import (
    Playing,
    dpsgd_game,
    gradient_game,
    heads_game,
    network_game,
    noisy_sum,
    shortlist_game,
    synthetic,
)
from remanence import (
    GLM,
    Attack,
    Criterion,
    FinitePrior,
    Game,
    Gaussian,
    LeaveOneOut,
    LinearReader,
    Logistic,
    Mechanism,
    Multinomial,
    Reconstruction,
    Reconstructor,
    Records,
    Uninformed,
    Weights,
    looped,
    mean_squared_error,
)
from remanence.core.catalogue import AttackInfo, catalogue, load_attack
from remanence.core.errors import mismatch
from remanence.core.oblivious import Oblivious
from remanence.private.canaries import CanaryEvidence
from remanence.private.optimised import GradientBased
from remanence.tables.glm.closed_form import ClosedForm
from remanence.tables.sklearn import table_game
from remanence.testing import ContractError, check_attack, check_mechanism

SOURCES = Path(remanence.__file__).parent


def table_games(*models) -> list[LeaveOneOut]:
    """Fitted scikit-learn models on a table of numbers that tell whole records."""
    data = synthetic(40, seed=4)
    table, labels = data.features.numpy(), data.labels.numpy()
    return [table_game(model.fit(table, labels), table, labels) for model in models]


def without_a_shortlist(game: Game) -> Game:
    """The same training; the adversary knows nothing about the target."""
    return replace(game, prior=Uninformed(), targets=game.prior, criterion=Criterion(mean_squared_error, 0.1))


@dataclass(frozen=True)
class IdealCanaries(Mechanism[CanaryEvidence]):
    """One canary per trial, whose gradient has norm 1 and which no other hides: one full batch with noise 1."""

    candidates: int
    name = "ideal canaries"
    releases = CanaryEvidence

    def settings(self):
        return {}

    def release(self, known_data, targets, generator):
        inside = (torch.arange(self.candidates) == targets.features.reshape(-1, 1)).double()
        return CanaryEvidence({"log_odds": inside - 0.5 + torch.randn(inside.shape, generator=generator)})


def ideal_canaries(candidates: int = 1) -> Game:
    """One canary per trial, in or out or one of a shortlist, seen by a claim alone."""
    places = torch.arange(-1.0, 1.0) if candidates == 1 else torch.arange(float(candidates))
    prior = FinitePrior(Records(places[:, None], torch.zeros(len(places))))
    return Game(IdealCanaries(candidates), prior, None, Criterion(mismatch, 0.5))


GAMES = {
    "closed-form": [
        LeaveOneOut(GLM(Logistic()), synthetic()),
        LeaveOneOut(GLM(Multinomial(3), class_weights="balanced"), synthetic(classes=3)),
        LeaveOneOut(GLM(Logistic(), fit_intercept=False), synthetic()),
        LeaveOneOut(GLM(Gaussian()), synthetic()),
    ],
    "prior-aware": [dpsgd_game(), dpsgd_game(sample_rate=0.4)],
    "gradient-based": [without_a_shortlist(dpsgd_game(noise_multiplier=0.1))],
    "one-run-canaries": [ideal_canaries(), ideal_canaries(candidates=4)],
    "retrain-and-compare": [shortlist_game(candidates=4)],
    "exact": [gradient_game(), gradient_game(bias=False), gradient_game(hidden=2)],
    "linear-reader": [heads_game(), heads_game(per_class=2, classes=2, task=(0, 1, 1))],
    "reconstructor": [heads_game(), heads_game(per_class=2, classes=2, task=(0, 1, 1)), network_game()],
    "stored-in-object": table_games(KNeighborsClassifier()),
    "published-statistics": table_games(GaussianNB(), make_pipeline(StandardScaler(), SVC())),
    "pipeline-equations": table_games(make_pipeline(PolynomialFeatures(2), RidgeClassifier())),
    "tree-leaves": table_games(
        DecisionTreeClassifier(random_state=0), RandomForestClassifier(4, bootstrap=False, random_state=2)
    ),
    "whole-object": table_games(make_pipeline(MinMaxScaler(), RidgeClassifier())),
    "oblivious": [shortlist_game(candidates=4)],
}


# Attacks that search for minutes keep their promises from the first steps on.
QUICK = {
    "gradient-based": GradientBased(most_iterations=25),  # where it ends depends on the processor's rounding
    "linear-reader": LinearReader(40),
    "reconstructor": Reconstructor(steps=5, batch=16, shadows=40, width=16),
}


def test_every_attack_of_the_catalogue_is_checked():
    prompting = {name for name, info in catalogue().items() if ".texts." in info.home}  # tests/texts
    assert GAMES.keys() | prompting == catalogue().keys()


@pytest.mark.parametrize(
    ("name", "game"),
    [(name, game) for name, games in GAMES.items() for game in games],
    ids=lambda v: v if isinstance(v, str) else type(v.mechanism).__name__,
)
def test_every_attack_keeps_the_contract(name, game):
    check_attack(QUICK.get(name) or load_attack(name), game)


def test_the_catalogue_holds_every_attack_of_the_package_as_it_describes_itself():
    written = [path for path in SOURCES.rglob("*.py") if "info: ClassVar[AttackInfo] = " in path.read_text()]
    names = (path.relative_to(SOURCES.parent).with_suffix("").parts for path in written)
    modules = [import_module(".".join(name)) for name in names]
    classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
    described = {each.info for each in classes if issubclass(each, Attack) and hasattr(each, "info")}
    assert described == {replace(info, home="") for info in catalogue().values()}


@pytest.mark.parametrize("name", catalogue())
def test_the_catalogue_makes_every_attack_by_its_name(name):
    assert load_attack(name).info == replace(catalogue()[name], home="")


def test_a_looped_function_keeps_the_contract_of_a_mechanism():
    game = shortlist_game(candidates=3)
    check_mechanism(looped(noisy_sum), game.known_data, game.prior.sample(4, torch.Generator()))


class Unchecked(Attack):
    """Plays any game, and never gets further than its mistake."""

    info: ClassVar[AttackInfo] = Oblivious.info

    def check(self, knowledge):
        pass

    def prepare(self, knowledge, generator):
        raise AssertionError("never reached")


@dataclass(frozen=True)
class Cheat(Unchecked):
    """Returns the record that it was handed for the sums."""

    info: ClassVar[AttackInfo] = ClosedForm.info

    def prepare(self, knowledge, generator):
        return lambda release: Reconstruction(knowledge.known_data[:1][None])

    def expose(self, mechanism, data, release):
        return Reconstruction(data[:, None])


def peeks(knowledge, generator):
    """Lets the trials of a batch influence each other."""

    def reconstruct(release):
        mean = release["sum"].mean(0).expand(len(release), 1, -1)
        return Reconstruction(Records(mean, torch.zeros(len(release), 1)))

    return reconstruct


def scribbles(knowledge, generator):
    """Writes over the records that the game trains on."""
    knowledge.known_data.features.mul_(2)
    guess = knowledge.prior.candidates
    return lambda release: Reconstruction(guess[torch.zeros(len(release), 1, dtype=torch.long)])


@dataclass
class Thawed(Unchecked):
    """Not frozen."""


@pytest.mark.parametrize(
    ("attack", "game", "promise"),
    [
        (Cheat(), LeaveOneOut(GLM(Logistic()), synthetic(), Criterion()), "exposing all agrees"),
        (Playing(peeks), shortlist_game(candidates=4), "does not depend on the other trials"),
        (Playing(scribbles), shortlist_game(candidates=4), "leaves the known records"),
        (Thawed(), shortlist_game(candidates=4), "frozen"),
    ],
)
def test_the_contract_catches_an_attack_that_breaks_a_promise(attack, game, promise):
    with pytest.raises(ContractError, match=promise):
        check_attack(attack, game)


@dataclass(frozen=True)
class Unseeded(Mechanism):
    """Draws from the global generator."""

    name: ClassVar[str] = "unseeded"

    @property
    def releases(self):
        return Weights

    def release(self, known_data, targets, generator):
        return Weights({"noise": torch.randn(len(targets), 3)})

    def settings(self):
        return {}


def test_the_contract_catches_randomness_that_no_seed_controls():
    with pytest.raises(ContractError, match="same seed"):
        check_mechanism(Unseeded(), None, synthetic(4)[:, None])
