import math

import pytest
import torch
from scipy.stats import norm

from conftest import noisy_sum, shortlist_game, synthetic
from remanence import (
    GLM,
    Criterion,
    FinitePrior,
    Game,
    InputError,
    LeaveOneOut,
    Logistic,
    Logits,
    Membership,
    Oblivious,
    Prior,
    Records,
    Reduction,
    RetrainAndCompare,
    looped,
    mean_squared_error,
    mismatch,
    play,
)
from remanence.caveats import NO_BETTER_THAN_CONTROL, NO_BETTER_THAN_GUESSING, SATURATED_CONTROL


def total(records: Records, seed: int) -> dict[str, torch.Tensor]:
    return {"sum": records.features.sum(0)}


def deterministic_game(**options) -> Game:
    candidates = synthetic(12)
    return Game(
        looped(total), FinitePrior(candidates), synthetic(20, seed=5), Criterion(threshold=1e-9), **options
    )


def test_retraining_on_every_candidate_is_exact_for_deterministic_training():
    evidence = play(deterministic_game(), RetrainAndCompare(), trials=60)
    assert evidence.main.successes == 60
    assert evidence.baseline.value == pytest.approx(1 / 12)


def test_it_works_on_answers_alone():
    def answers(records: Records, seed: int) -> dict[str, torch.Tensor]:
        return {"answers": torch.linspace(-1, 1, 5, dtype=torch.float64) * records.features.sum()}

    candidates = synthetic(6)
    game = Game(looped(answers, releases=Logits), FinitePrior(candidates), synthetic(9, seed=2), Criterion())
    assert play(game, RetrainAndCompare(), trials=30).main.rate == 1


@pytest.mark.parametrize(("distance", "weights"), [(0.5, [1, 1]), (2.0, [1, 1]), (1.0, [1, 3])])
def test_two_candidates_under_gaussian_noise_are_told_apart_as_often_as_theory_says(distance, weights):
    # One number is released, z + N(0, 1). The likelihood-ratio test between 0 and `distance`, with prior
    # odds, is the best that any attack can do; 200 repeats leave a loss of less than 0.002.
    def noisy(records: Records, seed: int) -> dict[str, torch.Tensor]:
        return {
            "sum": records.features.sum(0) + torch.randn(1, generator=torch.Generator().manual_seed(seed))
        }

    candidates = Records(torch.tensor([[0.0], [distance]]).double(), torch.zeros(2))
    share = torch.tensor(weights).double() / sum(weights)
    known = Records(torch.zeros(1, 1).double(), torch.zeros(1))
    game = Game(looped(noisy), FinitePrior(candidates, share), known, Criterion(mismatch, 0.5))
    found = play(game, RetrainAndCompare(repeats=200), trials=4000, confidence=1 - 1e-6).main
    cut = distance / 2 + math.log(share[0] / share[1]) / distance
    best = float(share[0]) * norm.cdf(cut) + float(share[1]) * norm.sf(cut - distance)
    assert found.lower <= best <= found.upper + 0.002


def test_a_guess_without_the_release_achieves_the_baseline():
    candidates = synthetic(4)
    prior = FinitePrior(candidates, torch.tensor([1.0, 1.0, 5.0, 1.0]))
    game = Game(looped(total), prior, synthetic(9), Criterion(mismatch, 0.5))
    evidence = play(game, Oblivious(), trials=2000, confidence=1 - 1e-6)
    assert evidence.baseline.value == pytest.approx(5 / 8)
    assert evidence.main.lower <= 5 / 8 <= evidence.main.upper
    assert {NO_BETTER_THAN_CONTROL, NO_BETTER_THAN_GUESSING} <= set(evidence.caveats)


def test_a_loose_threshold_saturates_the_control():
    game = deterministic_game()
    loose = Game(game.mechanism, game.prior, game.known_data, Criterion(threshold=1e6))
    assert SATURATED_CONTROL in play(loose, RetrainAndCompare(), trials=20).caveats


def test_the_same_seed_gives_the_same_evidence_and_another_seed_another():
    game = shortlist_game(1.0, candidates=5)
    one, same, other = (play(game, RetrainAndCompare(), trials=300, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.arrays["error"], same.arrays["error"])
    assert not torch.equal(one.arrays["error"], other.arrays["error"])


def test_every_attack_meets_the_same_targets():
    met = []

    class Spy(Prior):
        """Draws like the shortlist, and remembers."""

        def sample(self, n, generator):
            met.append(game.prior.sample(n, generator).features)
            return game.prior.sample(n, generator)

        def baseline(self, criterion):
            return game.prior.baseline(criterion)

        def describe(self):
            return "spy"

        def to(self, device):
            return self

    game = shortlist_game(1.0, candidates=5)
    watched = Game(game.mechanism, game.prior, game.known_data, game.criterion, targets=Spy())
    rounds = []
    for attack in (RetrainAndCompare(), Oblivious()):
        met.clear()
        play(watched, attack, trials=50)
        rounds.append(torch.cat(met))
    assert torch.equal(*rounds)


def test_many_trials_are_played_in_chunks_with_the_same_outcome(monkeypatch):
    game = deterministic_game()
    whole = play(game, RetrainAndCompare(), trials=30)
    monkeypatch.setattr("remanence.mechanisms.looped.Looped.trials_at_once", lambda self, targets: 7)
    chunked = play(game, RetrainAndCompare(), trials=30)
    assert whole.main == chunked.main
    assert chunked.arrays["error"].shape == (30, 1)


@pytest.mark.parametrize(
    ("reduction", "counted", "factor"),
    [(Reduction.EACH, 3, 1), (Reduction.BEST, 1, 9), (Reduction.MATCHED, 3, 3)],
)
def test_sets_of_records_play_the_same_game_with_another_reduction(reduction, counted, factor):
    # A "gradient" that is the set itself in another order; the attack returns it as it is.
    from dataclasses import dataclass, field
    from typing import ClassVar

    from remanence import Attack, EmpiricalPrior, Knowledge, Reconstruction
    from remanence.attacks.catalogue import OBLIVIOUS, AttackInfo

    def shuffled(records: Records, seed: int) -> dict[str, torch.Tensor]:
        return {"records": records.features.flip(0)}

    @dataclass(frozen=True)
    class ReadIt(Attack):
        info: ClassVar[AttackInfo] = OBLIVIOUS
        note: str = field(default="")

        def check(self, knowledge: Knowledge) -> None:
            pass

        def prepare(self, knowledge, generator):
            return lambda release: Reconstruction(
                Records(release["records"], torch.full(release["records"].shape[:2], torch.nan))
            )

    population = synthetic(50)
    game = Game(
        looped(shuffled),
        EmpiricalPrior(population, set_size=3),
        None,
        Criterion(mean_squared_error, 1e-9, reduction),
        targets=EmpiricalPrior(population, set_size=3),
    )
    evidence = play(game, ReadIt(), trials=40)
    assert evidence.arrays["succeeded"].shape == (40, counted)
    # The middle record of three keeps its place when the order is reversed.
    assert evidence.main.rate == (pytest.approx(1 / 3) if reduction is Reduction.EACH else 1)
    assert evidence.main.clusters == (40 if counted > 1 else None)
    single = EmpiricalPrior(population).baseline(game.criterion).value
    assert evidence.baseline.value == pytest.approx(min(1, factor * single))


def test_leave_one_out_plays_any_attack_record_by_record():
    data = synthetic(8)
    game = LeaveOneOut(GLM(Logistic()), data, Criterion(label_scale=1.0))
    from remanence import ClosedForm

    class Slow:
        """The same attack without its shortcut."""

        info = ClosedForm.info
        check = ClosedForm().check
        prepare = ClosedForm().prepare

    fast, slow = play(game, ClosedForm()), play(game, Slow())  # pyright: ignore
    assert torch.allclose(fast.arrays["error"], slow.arrays["error"], atol=1e-6)
    assert slow.main.trials == 8


def test_leave_one_out_with_fewer_trials_plays_that_many_records(glm_game):
    from remanence import ClosedForm

    evidence = play(glm_game, ClosedForm(), trials=7, seed=3)
    assert evidence.main.trials == 7
    assert len(set(evidence.arrays["record"].tolist())) == 7


def test_no_trials_is_a_mistake(glm_game):
    with pytest.raises(InputError, match="at least 1 trial"):
        play(glm_game, Oblivious(), trials=0)


class TestMembership:
    def test_an_exact_reconstruction_always_knows_the_member(self):
        evidence = play(
            Membership(deterministic_game()), RetrainAndCompare(), trials=400, confidence=1 - 1e-6
        )
        assert evidence.main.rate == 1

    def test_a_stranger_pair_is_a_coin(self):
        evidence = play(
            Membership(deterministic_game()), RetrainAndCompare(), trials=2000, confidence=1 - 1e-6
        )
        assert evidence.control.lower <= 0.5 <= evidence.control.upper
        assert evidence.baseline.value == 0.5

    def test_an_attack_that_ignores_the_release_is_a_coin(self):
        evidence = play(
            Membership(shortlist_game(candidates=6)), Oblivious(), trials=2000, confidence=1 - 1e-6
        )
        assert evidence.main.lower <= 0.5 <= evidence.main.upper
        assert NO_BETTER_THAN_GUESSING in evidence.caveats

    def test_a_label_tells_two_records_with_equal_features_apart_where_it_counts(self):
        def labels(records: Records, seed: int) -> dict[str, torch.Tensor]:
            return {"labels": records.labels.double().sum()[None]}

        twins = Records(torch.ones(2, 3), torch.tensor([0, 1]))
        criterion = Criterion(mismatch, 0.5, label_scale=1.0)
        game = Game(looped(labels), FinitePrior(twins), synthetic(5, features=3), criterion)
        assert play(Membership(game), RetrainAndCompare(), trials=50).main.rate == 1

    def test_a_shortlist_of_one_has_no_pair(self):
        alone = Game(looped(total), FinitePrior(synthetic(1)), synthetic(5), Criterion(mismatch, 0.5))
        with pytest.raises(InputError, match="two different candidates"):
            play(Membership(alone), RetrainAndCompare(), trials=5)


class TestLooped:
    def test_a_function_that_returns_the_same_module_each_time_is_not_mixed_up(self):
        module = torch.nn.Linear(4, 1, bias=False)

        def train(records: Records, seed: int) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                module.weight.copy_(records.features.mean(0, keepdim=True))
            return dict(module.state_dict())

        game = Game(looped(train), FinitePrior(synthetic(8)), synthetic(9, seed=3), Criterion(mismatch, 0.5))
        assert play(game, RetrainAndCompare(), trials=40).main.rate == 1

    def test_a_release_may_hold_counters_and_integers(self):
        def train(records: Records, seed: int) -> dict[str, torch.Tensor]:
            norm = torch.nn.BatchNorm1d(4)
            norm(records.features.float())
            return {**norm.state_dict(), "count": torch.tensor(len(records))}

        game = Game(looped(train), FinitePrior(synthetic(8)), synthetic(9, seed=3), Criterion(mismatch, 0.5))
        assert play(game, RetrainAndCompare(), trials=20).main.rate == 1

    def test_parallel_processes_give_the_same_releases_in_the_same_order(self):
        game = shortlist_game(1.0, candidates=3)
        targets = game.prior.sample(12, torch.Generator().manual_seed(0))
        alone, parallel = (
            looped(noisy_sum, processes=n).release(game.known_data, targets, torch.Generator().manual_seed(1))
            for n in (1, 2)
        )
        assert torch.equal(alone["sum"], parallel["sum"])

    def test_a_function_from_a_script_travels_to_the_processes(self, tmp_path):
        from remanence.loading import load_game

        (tmp_path / "mine.py").write_text(
            "import torch\n"
            "from remanence import *\n"
            "def train(records, seed):\n    return {'sum': helper(records)}\n"
            "def helper(records):\n    return records.features.sum(0)\n"
            "def game():\n"
            "    data = Records(torch.eye(6).double(), torch.zeros(6))\n"
            "    return Game(looped(train, processes=2), FinitePrior(data[:3]), data[3:])\n"
        )
        evidence = play(load_game(f"{tmp_path}/mine.py:game"), RetrainAndCompare(), trials=10)
        assert evidence.main.rate == 1

    def test_what_is_not_a_release_is_refused(self):
        game = shortlist_game()
        with pytest.raises(InputError, match="state dict"):
            looped(lambda records, seed: 3).release(  # pyright: ignore
                game.known_data, game.prior.sample(2, torch.Generator()), torch.Generator()
            )


def test_records_refuse_labels_that_do_not_fit():
    with pytest.raises(InputError, match="one label per record"):
        Records(torch.zeros(3, 2), torch.zeros(4))


def test_taking_records_is_indexing_them():
    numbers = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0))
    labels, weights, embedding = torch.arange(7), torch.rand(7), torch.randn(7, 4)
    places = torch.tensor([[6, 0], [3, 3], [1, 2]])
    for records in (Records(numbers, labels, weights, embedding), Records(numbers, labels)):
        taken, indexed = records.take(places), records[places]
        for name in ("features", "labels", "weights", "embedding"):
            mine, theirs = getattr(taken, name), getattr(indexed, name)
            assert (mine is None) == (theirs is None)
            assert mine is None or torch.equal(mine, theirs)
