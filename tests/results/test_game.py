import math
import sys
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from conftest import Playing, shortlist_game, synthetic
from remanence import (
    GLM,
    ClosedForm,
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
)
from remanence.results.outcome import Outcome

EQUAL = Criterion(mismatch, 0.5)


def total(records: Records, seed: int) -> dict[str, torch.Tensor]:
    return {"sum": records.features.sum(0)}


def shortlist(train, candidates: Records | None = None, *, criterion=EQUAL, **options) -> Game:
    """A shortlist of a few records, and a function that trains on one of them with nine others."""
    known = synthetic(9, seed=3)
    return Game(looped(train, **options), FinitePrior(candidates or synthetic(8)), known, criterion)


def answers(records: Records, seed: int) -> dict[str, torch.Tensor]:
    return {"answers": torch.linspace(-1, 1, 5, dtype=torch.float64) * records.features.sum()}


def counters_and_integers(records: Records, seed: int) -> dict[str, torch.Tensor]:
    norm = torch.nn.BatchNorm1d(4)
    norm(records.features.float())
    return {**norm.state_dict(), "count": torch.tensor(len(records))}


MODULE = torch.nn.Linear(4, 1, bias=False)


def the_same_module_each_time(records: Records, seed: int) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        MODULE.weight.copy_(records.features.mean(0, keepdim=True))
    return dict(MODULE.state_dict())


@pytest.mark.parametrize("train", [total, answers, counters_and_integers, the_same_module_each_time])
def test_retraining_on_every_candidate_is_exact_for_deterministic_training(train):
    game = shortlist(train, releases=Logits if train is answers else Weights)
    evidence = play(game, RetrainAndCompare(), trials=40)
    assert evidence.main.successes == evidence.label_rate.successes == 40
    assert evidence.baseline.value == pytest.approx(1 / 8)


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
    game = Game(looped(noisy), FinitePrior(candidates, share), known, EQUAL)
    found = play(game, RetrainAndCompare(repeats=200), trials=4000, confidence=1 - 1e-6).main
    cut = distance / 2 + math.log(share[0] / share[1]) / distance
    best = float(share[0]) * norm.cdf(cut) + float(share[1]) * norm.sf(cut - distance)
    assert found.lower <= best <= found.upper + 0.002


def test_a_guess_without_the_release_achieves_the_baseline():
    prior = FinitePrior(synthetic(4), torch.tensor([1.0, 1.0, 5.0, 1.0]))
    evidence = play(replace(shortlist(total), prior=prior), Oblivious(), trials=2000, confidence=1 - 1e-6)
    assert evidence.baseline.value == pytest.approx(5 / 8)
    assert evidence.main.lower <= 5 / 8 <= evidence.main.upper
    assert {NO_BETTER_THAN_CONTROL, NO_BETTER_THAN_GUESSING} <= set(evidence.caveats)


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
    sets = EmpiricalPrior(population, set_size=3)
    criterion = Criterion(mean_squared_error, 1e-9, reduction)
    game = Game(looped(shuffled), sets, None, criterion, targets=sets)
    evidence = play(game, Playing(read_it), trials=40)
    assert evidence.arrays["succeeded"].shape == (40, counted)
    # The middle record of three keeps its place when the order is reversed.
    assert evidence.main.rate == (pytest.approx(1 / 3) if reduction is Reduction.EACH else 1)
    assert evidence.main.clusters == (40 if counted > 1 else None)
    assert evidence.label_rate is None  # it names none
    single = EmpiricalPrior(population).baseline(game.criterion).value
    assert evidence.baseline.value == pytest.approx(min(1, factor * single))


def test_leave_one_out_plays_any_attack_record_by_record():
    game = LeaveOneOut(GLM(Logistic()), synthetic(8), Criterion(label_scale=1.0))
    fast, slow = play(game, ClosedForm()), play(game, Playing(ClosedForm().prepare))  # which has no shortcut
    assert torch.allclose(fast.arrays["error"], slow.arrays["error"], atol=1e-6)
    assert slow.main.trials == 8


def test_leave_one_out_with_fewer_trials_plays_that_many_records(glm_game):
    evidence = play(glm_game, ClosedForm(), trials=7, seed=3)
    assert evidence.main.trials == 7
    assert len(set(evidence.arrays["record"].tolist())) == 7


@pytest.mark.parametrize(("proven", "of"), [([1, 1, 0], 3), ([1, 1, 1], 3), ([2, 1, 1], None), (None, None)])
def test_records_are_proven_out_of_those_that_were_counted_unless_there_are_more(proven, of):
    column = torch.zeros(3, 1, dtype=torch.bool)
    side = Comparison(column.double(), column, column)
    outcome = Outcome(side, side, proven=None if proven is None else torch.tensor(proven))
    assert shortlist_game().how_many(outcome) == of


def test_a_label_tells_two_records_with_equal_features_apart_where_it_counts():
    def labels(records: Records, seed: int) -> dict[str, torch.Tensor]:
        return {"labels": records.labels.double().sum()[None]}

    twins = Records(torch.ones(2, 4).double(), torch.tensor([0, 1]))
    game = shortlist(labels, twins, criterion=Criterion(mismatch, 0.5, label_scale=1.0))
    assert play(Membership(game), RetrainAndCompare(), trials=50).main.rate == 1


def test_candidates_are_the_same_if_all_of_their_features_and_labels_are():
    features = torch.tensor([[[0.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    one = Records(torch.zeros(2, 2, 2), torch.zeros(2, 2))
    game = Membership(shortlist(total))
    assert game._same(one, Records(features, one.labels)).tolist() == [False, True]
    assert game._same(one, replace(one, labels=torch.tensor([[0, 1], [0, 0]]))).tolist() == [False, True]


def test_a_shortlist_of_one_has_no_pair():
    with pytest.raises(InputError, match="the same candidate"):
        play(Membership(shortlist(total, synthetic(1))), RetrainAndCompare(), trials=5)


def one_after_the_other(mechanism: Mechanism) -> None:
    """Train on three known records and each of two that differ from them, in turn."""
    game = shortlist_game()
    mechanism.release(
        game.known_data, game.prior.candidates.take(torch.tensor([[1], [0]])), torch.Generator()
    )


ONE = torch.ones(1)


def refuses(records: Records):
    raise InputError("Too few records.", needs="ten", got="four", hint="more")


def one_more(records: Records) -> int:
    """0 in the first trial, 1 in the second."""
    return int(records.features[-1, 0] > 0)


class TestLooped:
    def test_a_function_from_a_script_gives_in_processes_what_it_gives_alone(self, tmp_path):
        from remanence.cli.loading import load_game

        (tmp_path / "mine.py").write_text(
            "import torch\n"
            "from remanence import Criterion, FinitePrior, Game, Records, looped, mismatch\n"
            "def train(records, seed):\n    return {'sum': helper(records, torch.Generator().manual_seed(seed))}\n"
            "def helper(records, generator):\n"
            "    return records.features.sum(0) + 0.01 * torch.randn(6, generator=generator)\n"
            "def game():\n"
            "    data = Records(torch.eye(6).double(), torch.zeros(6))\n"
            "    return Game(looped(train, processes=2), FinitePrior(data[:3]), data[3:], Criterion(mismatch, 0.5))\n"
        )
        game = load_game(f"{tmp_path}/mine.py:game")
        alone = replace(game, mechanism=replace(game.mechanism, processes=1))
        found, same = (play(each, RetrainAndCompare(), trials=10) for each in (game, alone))
        assert found.main.rate == 1
        assert torch.equal(found.arrays["error"], same.arrays["error"])
        targets = game.prior.sample(6, torch.Generator())
        sums = [
            each.mechanism.release(game.known_data, targets, torch.Generator())["sum"]
            for each in (game, alone)
        ]
        assert torch.equal(*sums)

    @pytest.mark.parametrize(
        ("returned", "told"),
        [
            (lambda records: 3, r"state dict\n.*own returned int"),
            (lambda records: {}, r"state dict\n.*own returned {}"),
            (lambda records: {"weight": torch.ones(2), "bias": [0.0]}, r"returned {'bias': list}"),
            (lambda records: {0: torch.ones(2)}, r"returned {0: a tensor of float32, \(2,\)}"),
            (
                lambda records: {"seen": torch.ones(2 + one_more(records))},
                r"own: 'seen' is \(2,\) in the first trial, \(3,\) in number 2",
            ),
            (
                lambda records: {"all": ONE} | ({"late": ONE} if one_more(records) else {}),
                r"own: 'late' is not there in the first trial, \(1,\) in number 2",
            ),
            (lambda records: sys.exit(0), "SystemExit: 0"),
            (refuses, r"^Too few records"),
        ],
    )
    def test_what_is_not_a_release_is_refused(self, returned, told):
        def own(records: Records, seed: int):
            return returned(records)

        with pytest.raises(InputError, match=told):
            one_after_the_other(looped(own))

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

    def test_counters_and_integers_can_be_learnt_from(self):
        def train(records: Records, seed: int) -> dict[str, torch.Tensor]:
            last = records.features[-1] > 0
            # The target is in whole numbers and claims alone, one of them a number without a dimension.
            return {"num_batches_tracked": torch.tensor(1), "first": last[0].long(), "rest": last[1:]}

        signs = torch.randint(2, (300, 3), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        people = Records(signs, torch.zeros(300))
        game = Game(
            looped(train), EmpiricalPrior(people[:200]), people[200:220], Criterion(mean_squared_error, 0.1),
            targets=EmpiricalPrior(people[220:]),
        )  # fmt: skip
        evidence = play(game, Reconstructor(steps=200, shadows=200), trials=40)
        assert evidence.main.rate == 1  # a guess is right one time in eight

    def test_its_models_can_be_asked_only_where_a_function_says_how(self):
        with pytest.raises(InputError, match=r"total alone\n.*looped\(train, ask="):
            Queried(looped(total), synthetic(2))
        assert Queried(looped(total, ask=refuses), synthetic(2)).settings()["ask"].endswith("refuses")

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


def game(share):
    """Of a sum with hardly any noise, this share of the releases is NaN."""

    def diverges_at_times(records: Records, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        found = records.features.sum(0) + 0.01 * torch.randn(8, generator=generator)
        return {"sum": found * torch.nan if torch.rand(1, generator=generator) < share else found}

    return replace(shortlist_game(candidates=8), mechanism=looped(diverges_at_times))


def test_a_few_diverged_shadows_do_not_disable_the_attack():
    evidence = play(game(0.005), RetrainAndCompare(), trials=400, seed=3)
    lost = evidence.numbers["diverged_trainings"]
    assert 1 <= lost <= 10  # 2 are expected of 400
    assert evidence.main.successes == 400 - lost  # nothing else goes wrong at this noise
    assert DIVERGED in evidence.caveats
    assert DIVERGED not in play(game(0.0), RetrainAndCompare(), trials=50).caveats
    assert DIVERGED in play(Membership(game(0.2)), RetrainAndCompare(), trials=200).caveats


def test_diverged_trainings_count_as_failures_and_are_named_in_the_result():
    result = audit(game(0.3), [RetrainAndCompare()], trials=200, policy=Policy(0.5))
    lost = result.strongest.numbers["diverged_trainings"]
    assert result.strongest.main.successes == 200 - lost
    assert abs(lost - 60) < 4 * (200 * 0.3 * 0.7) ** 0.5
    assert "diverged_trainings" in result.to_json()["evidence"][0]["numbers"]


def test_where_most_trainings_fail_nothing_is_concluded():
    with pytest.raises(InputError, match="Training diverged"):
        play(game(0.9), RetrainAndCompare(), trials=50)
