import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from scipy.stats import norm

from conftest import Playing, noisy_sum, shortlist_game, synthetic
from remanence import (
    GLM,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    InputError,
    LeaveOneOut,
    Logistic,
    Logits,
    Mechanism,
    Membership,
    Oblivious,
    Policy,
    Queried,
    Reconstruction,
    Reconstructor,
    Records,
    Reduction,
    RetrainAndCompare,
    Weights,
    audit,
    looped,
    mean_squared_error,
    mismatch,
    play,
)
from remanence.core.errors import Comparison
from remanence.results.caveats import (
    DIVERGED,
    NO_BETTER_THAN_CONTROL,
    NO_BETTER_THAN_GUESSING,
    SATURATED_CONTROL,
)
from remanence.results.outcome import Outcome


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
    assert evidence.label_rate.successes == 60
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
    attacks = RetrainAndCompare(), Oblivious()
    met = [play(shortlist_game(candidates=5), attack, trials=30).gallery["targets"] for attack in attacks]
    assert torch.equal(*met)
    assert len(met[0].unique(dim=0)) == 5


@pytest.mark.parametrize(
    ("reduction", "counted", "factor"),
    [(Reduction.EACH, 3, 1), (Reduction.BEST, 1, 9), (Reduction.MATCHED, 3, 3)],
)
def test_sets_of_records_play_the_same_game_with_another_reduction(reduction, counted, factor):
    # A "gradient" that is the set itself in another order; the attack returns it as it is.
    def shuffled(records: Records, seed: int) -> dict[str, torch.Tensor]:
        return {"records": records.features.flip(0)}

    def read_it(knowledge, generator):
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
    evidence = play(game, Playing(read_it), trials=40)
    assert evidence.arrays["succeeded"].shape == (40, counted)
    # The middle record of three keeps its place when the order is reversed.
    assert evidence.main.rate == (pytest.approx(1 / 3) if reduction is Reduction.EACH else 1)
    assert evidence.main.clusters == (40 if counted > 1 else None)
    assert evidence.label_rate is None  # it names none
    single = EmpiricalPrior(population).baseline(game.criterion).value
    assert evidence.baseline.value == pytest.approx(min(1, factor * single))


def test_leave_one_out_plays_any_attack_record_by_record():
    data = synthetic(8)
    game = LeaveOneOut(GLM(Logistic()), data, Criterion(label_scale=1.0))
    from remanence import ClosedForm

    fast, slow = play(game, ClosedForm()), play(game, Playing(ClosedForm().prepare))  # which has no shortcut
    assert torch.allclose(fast.arrays["error"], slow.arrays["error"], atol=1e-6)
    assert slow.main.trials == 8


def test_leave_one_out_with_fewer_trials_plays_that_many_records(glm_game):
    from remanence import ClosedForm

    evidence = play(glm_game, ClosedForm(), trials=7, seed=3)
    assert evidence.main.trials == 7
    assert len(set(evidence.arrays["record"].tolist())) == 7


def test_a_guess_has_one_chance_unless_it_is_told_of_more():
    game = shortlist_game(candidates=5)
    assert game.baseline() == game.baseline(1)
    assert (game.baseline().value, game.baseline(3).value) == pytest.approx((0.2, 0.6))


@pytest.mark.parametrize(("proven", "of"), [([1, 1, 0], 3), ([1, 1, 1], 3), ([2, 1, 1], None), (None, None)])
def test_records_are_proven_out_of_those_that_were_counted_unless_there_are_more(proven, of):
    column = torch.zeros(3, 1, dtype=torch.bool)
    side = Comparison(column.double(), column, column)
    outcome = Outcome(side, side, proven=None if proven is None else torch.tensor(proven))
    assert shortlist_game().how_many(outcome) == of


def test_no_trials_is_a_mistake(glm_game):
    with pytest.raises(InputError, match="at least 1"):
        play(glm_game, Oblivious(), trials=0)


class TestMembership:
    def test_an_exact_reconstruction_always_knows_the_member_and_a_stranger_pair_is_a_coin(self):
        evidence = play(
            Membership(deterministic_game()), RetrainAndCompare(), trials=2000, confidence=1 - 1e-6
        )
        assert evidence.main.rate == 1
        assert evidence.control.lower <= 0.5 <= evidence.control.upper
        assert evidence.baseline.value == 0.5

    def test_a_label_tells_two_records_with_equal_features_apart_where_it_counts(self):
        def labels(records: Records, seed: int) -> dict[str, torch.Tensor]:
            return {"labels": records.labels.double().sum()[None]}

        twins = Records(torch.ones(2, 3), torch.tensor([0, 1]))
        criterion = Criterion(mismatch, 0.5, label_scale=1.0)
        game = Game(looped(labels), FinitePrior(twins), synthetic(5, features=3), criterion)
        assert play(Membership(game), RetrainAndCompare(), trials=50).main.rate == 1

    def test_candidates_are_the_same_if_all_of_their_features_and_labels_are(self):
        features = torch.tensor([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
        one = Records(torch.zeros(2, 2, 2), torch.zeros(2, 2))
        game = Membership(deterministic_game())
        assert game._same(one, Records(features, one.labels)).tolist() == [False, True]
        assert game._same(one, replace(one, labels=torch.tensor([[0, 1], [0, 0]]))).tolist() == [False, True]

    def test_a_shortlist_of_one_has_no_pair(self):
        alone = Game(looped(total), FinitePrior(synthetic(1)), synthetic(5), Criterion(mismatch, 0.5))
        with pytest.raises(InputError, match="the same candidate"):
            play(Membership(alone), RetrainAndCompare(), trials=5)


def one_after_the_other(mechanism: Mechanism) -> None:
    """Train on three known records and each of two that differ from them, in turn."""
    game = shortlist_game()
    mechanism.release(
        game.known_data, game.prior.candidates.take(torch.tensor([[1], [0]])), torch.Generator()
    )


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
        from remanence.cli.loading import load_game

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

    @pytest.mark.parametrize(
        ("returned", "told"),
        [
            (3, "returned int"),
            ({}, "returned {}"),
            ({"weight": torch.ones(2), "bias": [0.0]}, "returned {'bias': list}"),
            ({0: torch.ones(2)}, r"returned {0: a tensor of float32, \(2,\)}"),
        ],
    )
    def test_what_is_not_a_release_is_refused(self, returned, told):
        def own(records: Records, seed: int):
            return returned

        with pytest.raises(InputError, match=rf"state dict\n.*own {told}"):
            one_after_the_other(looped(own))

    def test_releases_of_other_shapes_or_names_in_other_trials_are_refused(self):
        def wider(records: Records, seed: int) -> dict[str, torch.Tensor]:
            return {"seen": torch.ones(3 if records.features[-1, 0] else 2)}

        def renamed(records: Records, seed: int) -> dict[str, torch.Tensor]:
            return {"all": torch.ones(1), **({"late": torch.ones(1)} if records.features[-1, 0] else {})}

        with pytest.raises(
            InputError, match=r"wider: 'seen' is \(2,\) in the first trial, \(3,\) in number 2"
        ):
            one_after_the_other(looped(wider))
        with pytest.raises(
            InputError, match=r"renamed: 'late' is not there in the first trial, \(1,\) in number 2"
        ):
            one_after_the_other(looped(renamed))

    @pytest.mark.parametrize("processes", [1, 2])
    def test_an_error_in_the_function_is_told_with_its_name_and_place(self, processes):
        def fails(records: Records, seed: int) -> dict[str, torch.Tensor]:
            raise ZeroDivisionError("no such step")

        with pytest.raises(InputError) as caught:
            one_after_the_other(looped(fails, processes=processes))
        line = fails.__code__.co_firstlineno + 1
        assert "Your function" in caught.value.summary
        assert "fails raised an error" in caught.value.summary
        assert caught.value.got == f"ZeroDivisionError: no such step (line {line} of {__file__})"
        if processes == 1:
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_a_function_that_ends_the_program_or_refuses_its_input_is_told_apart(self):
        def leaves(records: Records, seed: int) -> dict[str, torch.Tensor]:
            sys.exit(0)

        def refuses(records: Records, seed: int) -> dict[str, torch.Tensor]:
            raise InputError("Too few records.", needs="ten", got="four", hint="more")

        with pytest.raises(InputError, match="SystemExit: 0"):
            one_after_the_other(looped(leaves))
        with pytest.raises(InputError, match=r"^Too few records"):
            one_after_the_other(looped(refuses))

    def test_counters_and_integers_can_be_learnt_from(self):
        def train(records: Records, seed: int) -> dict[str, torch.Tensor]:
            norm = torch.nn.BatchNorm1d(3)
            norm(records.features)
            last = records.features[-1] > 0
            # The target is in whole numbers and claims alone, one of them a number without a dimension.
            return {
                "num_batches_tracked": norm.num_batches_tracked,
                "first": last[0].long(),
                "rest": last[1:],
            }

        signs = torch.randint(2, (300, 3), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        people = Records(signs, torch.zeros(300))
        game = Game(
            looped(train), EmpiricalPrior(people[:200]), people[200:220], Criterion(mean_squared_error, 0.1),
            targets=EmpiricalPrior(people[220:]),
        )  # fmt: skip
        evidence = play(game, Reconstructor(steps=200, shadows=200), trials=40)
        assert evidence.main.rate == 1  # a guess is right one time in eight

    def test_its_models_can_be_asked_where_somebody_says_how(self):
        def train(records: Records, seed: int) -> dict[str, torch.Tensor]:
            return {"total": records.features.sum(0), "seed": torch.tensor(seed)}

        def ask(tensors: Mapping[str, torch.Tensor], probes: Records) -> torch.Tensor:
            assert tensors["seed"].ndim == 0
            return probes.features @ torch.stack([tensors["total"], -tensors["total"]], 1)

        game = shortlist_game(candidates=3)
        probes = game.known_data[:2]
        targets = game.prior.candidates[:, None]
        api = Queried(looped(train, ask=ask), probes, "label")
        assert (
            api.release(game.known_data, targets, torch.Generator())["answers"].tolist() == [[[1, 0]] * 2] * 3
        )
        assert api.settings()["ask"].endswith("ask")
        seen = Queried(looped(train, ask=ask), probes).release(game.known_data, targets, torch.Generator())
        totals = (game.known_data.features.sum(0) + targets.features).sum(2)
        torch.testing.assert_close(seen["answers"][:, 0, :1], totals)

    def test_its_models_cannot_be_asked_where_nobody_says_how(self):
        with pytest.raises(InputError, match=r"total alone\n.*looped\(train, ask="):
            Queried(looped(total), synthetic(2))

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (lambda tensors, probes: 1 / 0, "ZeroDivisionError: division by zero"),
            (lambda tensors, probes: 3, "returned int"),
            (lambda tensors, probes: torch.zeros(2), r"returned a tensor of float32, \(2,\)"),
            (lambda tensors, probes: torch.zeros(3, 2), r"returned a tensor of float32, \(3, 2\)"),
            (lambda tensors, probes: torch.zeros(2, 0), r"returned a tensor of float32, \(2, 0\)"),
            (lambda tensors, probes: torch.zeros(2, 2).long(), r"returned a tensor of int64, \(2, 2\)"),
            (lambda tensors, probes: torch.zeros(2, 2 + int(tensors["sum"][0] > 3)), r"float32, \(2, [23]\)"),
        ],
    )
    def test_what_is_no_answer_is_refused(self, answer, told):
        with pytest.raises(InputError, match=told):
            one_after_the_other(Queried(looped(total, ask=answer), shortlist_game().known_data[:2]))


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


def test_an_attack_cannot_tell_the_control_from_the_trials():
    # It names the one target that there is, but only when it is asked for the first time.
    asked, population = [], synthetic(50)

    def only_at_first(release):
        asked.append(len(release))
        found = population.features[:1] if len(asked) == 1 else torch.zeros(1, 4)
        return Reconstruction(Records(found.expand(len(release), 1, -1), torch.zeros(len(release), 1)))

    game = Game(
        looped(lambda records, seed: {"records": records.features}),
        EmpiricalPrior(population[10:]),
        None,
        Criterion(mean_squared_error, 1e-9),
        targets=EmpiricalPrior(population[:1]),
        strangers=EmpiricalPrior(population[1:10]),
    )
    evidence = play(game, Playing(lambda knowledge, generator: only_at_first), trials=20)
    assert asked == [40]
    assert evidence.main.rate == evidence.control.rate == 1


def test_an_attack_on_one_record_at_a_time_knows_what_the_game_says_and_no_more():
    seen = []

    def curious(knowledge, generator):
        seen.append(knowledge.known_data)
        return lambda release: Reconstruction(
            Records(torch.zeros(len(release), 1, 4), torch.zeros(len(release), 1))
        )

    data = synthetic(6)
    training = looped(lambda records, seed: {"sum": records.features.sum(0)})
    for others_known in (True, False):
        seen.clear()
        play(LeaveOneOut(training, data, others_known=others_known), Playing(curious))
        assert [each is not None for each in seen] == [others_known] * 6


@dataclass(frozen=True)
class SometimesNothing(Mechanism):
    """A noisy sum, of which some releases are NaN."""

    share: float
    noise: float = 0.01
    name: ClassVar[str] = "a sum that diverges at times"
    releases = Weights

    def release(self, known_data, targets, generator):
        sums = targets.flat.sum(1) + known_data.flat.sum(0)
        sums = sums + self.noise * torch.randn(sums.shape, generator=generator, dtype=sums.dtype)
        lost = torch.rand(len(targets), generator=generator) < self.share
        return Weights({"sum": sums.masked_fill(lost[:, None], torch.nan)})

    def settings(self):
        return {"share": self.share}


def game(share, candidates=8):
    return replace(shortlist_game(candidates=candidates), mechanism=SometimesNothing(share))


def test_a_few_diverged_shadows_do_not_disable_the_attack():
    evidence = play(game(0.005), RetrainAndCompare(), trials=400, seed=3)
    lost = evidence.numbers["diverged_trainings"]
    assert 1 <= lost <= 10  # 2 are expected of 400
    assert evidence.main.successes == 400 - lost  # nothing else goes wrong at this noise
    assert DIVERGED in evidence.caveats
    assert DIVERGED not in play(game(0.0), RetrainAndCompare(), trials=50).caveats


def test_diverged_trainings_count_as_failures_and_are_named_in_the_result():
    result = audit(game(0.3), [RetrainAndCompare()], trials=200, policy=Policy(0.5))
    lost = result.strongest.numbers["diverged_trainings"]
    assert result.strongest.main.successes == 200 - lost
    assert abs(lost - 60) < 4 * (200 * 0.3 * 0.7) ** 0.5
    assert "diverged_trainings" in result.to_json()["evidence"][0]["numbers"]


def test_where_most_trainings_fail_nothing_is_concluded():
    with pytest.raises(InputError, match="Training diverged"):
        play(game(0.9), RetrainAndCompare(), trials=50)


def test_a_membership_game_names_them_too():
    evidence = play(Membership(game(0.2)), RetrainAndCompare(), trials=200)
    assert DIVERGED in evidence.caveats
