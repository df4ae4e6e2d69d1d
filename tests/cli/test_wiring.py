"""The wiring between the mathematics and the word: exact values, computed by hand, for what decides a result."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conftest import euclidean_error, gradient_game, shortlist_game, synthetic
from remanence import (
    GLM,
    AuditResult,
    Bound,
    ClosedForm,
    Criterion,
    FinitePrior,
    Game,
    InputError,
    LeaveOneOut,
    Logistic,
    Oblivious,
    Policy,
    Records,
    RetrainAndCompare,
    StratifiedPrior,
    SuccessRate,
    TransferHead,
    Verdict,
    Weights,
    audit,
    bounds,
    looped,
    play,
)
from remanence.bounds import Segment
from remanence.core.baseline import Baseline
from remanence.core.catalogue import catalogue
from remanence.core.errors import relative_error
from remanence.core.guess_coverage import good_guess
from remanence.core.references import REMANENCE
from remanence.private.canaries import MOST_CANDIDATES, crafted
from remanence.private.consistency import _is_poisson
from remanence.results.claims import PrivacyTest
from remanence.results.evidence import Evidence
from remanence.results.verdict import decide
from remanence.updates.leak_map import leak_map
from remanence.updates.rounding import Rounding


def claim(success: float, **options) -> Bound:
    return Bound(f"at most {success:g}", math.log(success), ("none",), REMANENCE, **options)


class TestVerdict:
    def test_a_ceiling_on_average_is_one_after_storage_too(self, tmp_path):
        for on_average in (True, False):
            game = replace(shortlist_game(candidates=5), bounds=(claim(0.9, on_average=on_average),))
            audit(game, [Oblivious()], trials=50, policy=Policy(0.35)).save(tmp_path)
            assert AuditResult.load(tmp_path).bounds[0].on_average is on_average

    @pytest.mark.parametrize(
        ("p_value", "rejects"), [(0.04, True), (0.05, True), (0.06, False), (1.0, False)]
    )
    def test_a_claim_is_rejected_at_the_stated_level_and_not_above(self, p_value, rejects):
        test = PrivacyTest(30, 30, 0.0, 1e-5, 8.0, p_value)
        chance = Baseline(0.5, 0.5, "a coin")
        evidence = Evidence("any", SuccessRate(80, 160), SuccessRate(80, 160), chance, findings=(test,))
        assert evidence.rejects_the_claim is rejects

    def test_at_the_limit_is_not_above_it(self):
        chance = Baseline(0.0, 0.0, "exact")
        some = Evidence("any", SuccessRate(200, 1000), SuccessRate(0, 1000), chance)
        assert decide([some], [], Policy(some.main.lower)) is Verdict.UNPROVEN
        assert decide([some], [], Policy(some.main.lower * (1 - 1e-12))) is Verdict.EXPOSED

    def test_a_measured_end_that_meets_the_ceiling_breaks_nothing_and_one_above_it_does(self):
        chance = Baseline(0.5, 0.5, "a coin")
        entry = Evidence("any", SuccessRate(0, 100), SuccessRate(60, 100), chance)
        for share, verdict in ((1.0, Verdict.PROTECTED), (1 - 1e-12, Verdict.UNPROVEN)):
            ceiling = SimpleNamespace(success=entry.control.lower * share, on_average=False)
            assert decide([entry], [ceiling], Policy(0.9)) is verdict

    def test_a_head_is_judged_by_the_attack_that_certainly_does_best_on_others(self):
        def measured(right, trials, came_back):
            rate = SuccessRate(right, trials)
            head = SimpleNamespace(
                of_the_best_attack=True, exposes=lambda limit: came_back > limit.max_success
            )
            facts = {"tells": False, "rejects_the_claim": False, "found": (head,)}
            return SimpleNamespace(main=rate, control=SuccessRate(0, trials), **facts)

        sure, lucky = measured(500, 1000, 0.0), measured(3, 4, 1.0)  # 0.47 to 0.53, and 0.19 to 0.99
        assert sure.main.lower > lucky.main.lower
        assert sure.main.upper < lucky.main.upper
        assert decide([sure, lucky], [], Policy(0.9)) is Verdict.UNPROVEN
        assert decide([measured(500, 1000, 1.0), measured(3, 4, 0.0)], [], Policy(0.9)) is Verdict.EXPOSED


class TestGame:
    def test_what_the_optimiser_hides_is_exactly_what_is_predicted_to_be_above_the_threshold(self):
        data = synthetic()
        loose = GLM(Logistic(), penalty=1.0).release(data[1:], data[:1][None], torch.Generator())
        moved = Weights({name: values + 1e-5 for name, values in loose.tensors.items()})
        once = play(LeaveOneOut(GLM(Logistic(), penalty=1.0), data, Criterion(), moved), ClosedForm())
        predicted = once.arrays["predicted_error"]
        threshold = float(predicted.median()) / 3  # so that many lie between one and ten times the threshold
        game = LeaveOneOut(GLM(Logistic(), penalty=1.0), data, Criterion(threshold=threshold), moved)
        found = play(game, ClosedForm())
        above = (predicted.flatten() > threshold).nonzero().flatten().tolist()
        assert ((predicted > threshold) & (predicted <= 10 * threshold)).any()
        assert sorted(found.unresolved) == above

    def test_a_training_set_of_two_has_a_record_to_leave_out_and_one_of_one_has_none(self):
        assert LeaveOneOut(GLM(Logistic()), synthetic(2)).default_trials == 2
        with pytest.raises(InputError, match="number of records cannot be used"):
            LeaveOneOut(GLM(Logistic()), synthetic(1))

    def test_slow_attacks_are_run_only_when_they_are_named(self):
        assert {name for name, info in catalogue().items() if info.on_request} >= {"near-verbatim"}
        found = {attack.info.name for attack in gradient_game().attacks()}
        assert found
        assert not any(catalogue()[name].on_request for name in found)


class TestAttacks:
    def test_retraining_weighs_the_prior_once_against_the_likelihood(self):
        # Candidates at 0 and 1 with odds of 1 to 3 under N(0, 1): the better guess changes at 1/2 − log 3 = −0.6.
        # With a likelihood that counts twice it would change at −0.05. A mean of 2,000 is off by 0.02.
        def noisy(records, seed):
            noise = torch.randn(1, generator=torch.Generator().manual_seed(seed))
            return {"sum": records.features.sum(0) + noise}

        candidates = Records(torch.tensor([[0.0], [1.0]]).double(), torch.zeros(2))
        prior = FinitePrior(candidates, torch.tensor([1.0, 3.0]))
        known = Records(torch.zeros(1, 1).double(), torch.zeros(1))
        game = Game(looped(noisy, releases=Weights), prior, known)
        generator = torch.Generator().manual_seed(0)
        reconstruct = RetrainAndCompare(repeats=2000).prepare(game.knowledge, generator)
        released = Weights({"sum": torch.tensor([[-2.0], [-0.9], [-0.3], [-0.1], [1.0]]).double()})
        assert reconstruct(released).records.features.flatten().tolist() == [0, 0, 1, 1, 1]

    def test_a_good_guess_is_the_record_with_the_most_others_around_it(self):
        values = Records(torch.tensor([[9.0], [0.0], [1.0], [2.0]]), torch.zeros(4))
        assert good_guess(values, Criterion(euclidean_error, 1.1)).features.item() == 1.0

    @pytest.mark.parametrize("batch", [1, 2, 3])
    def test_the_rank_of_a_dense_layer_is_the_size_of_the_batch(self, batch):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5)).double()
        inputs = torch.randn(batch, 7).double()
        nn.functional.cross_entropy(model(inputs), torch.arange(batch)).backward()
        gradient = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        layers = leak_map(model, gradient, rounding=Rounding(2.2e-16))
        assert [layer["rank"] for layer in layers] == [batch, batch]


class TestGuesses:
    @pytest.mark.parametrize(("size", "enough"), [(5, False), (6, True)])
    def test_strangers_take_two_sets_worth_of_every_class(self, size, enough):
        labels = torch.tensor([0] * 12 + [1] * size)
        records = Records(torch.randn(12 + size, 2), labels)
        assert StratifiedPrior(records, 3).has_strangers is enough

    @pytest.mark.parametrize(("threshold", "reach"), [(0.1, 2 / 9), (0.5, 2.0), (1.0, math.inf)])
    def test_two_records_that_one_guess_meets_by_relative_error_lie_within_reach(self, threshold, reach):
        assert relative_error().reach(threshold) == pytest.approx(reach)  # pyright: ignore[reportOptionalCall]


class TestHeads:
    EMBEDDED = Records(torch.zeros(2, 1), torch.zeros(2), embedding=torch.tensor([[1.0, 2.0], [-3.0, 1.0]]))

    def test_a_head_answers_with_its_weights_times_the_embedding_plus_its_biases(self):
        weight = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]])
        release = Weights({"weight": weight, "bias": torch.tensor([[0.5, -1.0, 2.0]])})
        answers = TransferHead(3, 1).answer(release, self.EMBEDDED)
        assert answers.tolist() == [[[1.5, 3.0, 5.0], [-2.5, 1.0, 0.0]]]

    def test_a_head_of_two_layers_answers_with_both_of_its_biases(self):
        first = {"weight": torch.tensor([[[1.0, 0.0], [0.0, -1.0]]]), "bias": torch.tensor([[0.5, 3.0]])}
        last = {"out_weight": torch.tensor([[[2.0, 4.0]]]), "out_bias": torch.tensor([[-7.0]])}
        answers = TransferHead(2, 1, hidden=2).answer(Weights(first | last), self.EMBEDDED)
        # Hidden: (1.5, 1) and (−2.5 → 0, 2).
        assert answers.tolist() == [[[0.0, 0.0], [0.0, 1.0]]]


class TestRecordedRuns:
    @pytest.mark.parametrize(
        ("sizes", "counts", "fair"),
        [
            (160.0, 8.0, True),
            (0.0, 8.0, False),  # shuffled batches of one size
            (800.0, 8.0, False),
            (160.0, 0.0, False),  # every record as often as any other
            (160.0, 16.0, False),
        ],
    )
    def test_batch_sizes_and_batches_per_record_must_both_vary_as_fair_draws_do(self, sizes, counts, fair):
        # 1,000 records at a rate of 0.2 in 50 steps: variances of 1000 · 0.16 and 50 · 0.16.
        signs = torch.tensor([1.0, -1.0]).double()
        batches, often = 200 + sizes**0.5 * signs.repeat(25), 10 + counts**0.5 * signs.repeat(500)
        assert _is_poisson(batches, often, 1000) is fair

    def test_the_largest_number_of_canaries_is_allowed_and_one_more_is_not(self):
        assert len(crafted(MOST_CANDIDATES, (2,), 2, seed=0)) == MOST_CANDIDATES
        assert len(crafted(1, (2,), 2, seed=0)) == 1
        for count in (0, MOST_CANDIDATES + 1):
            with pytest.raises(InputError, match="too many canaries, or none"):
                crafted(count, (2,), 2, seed=0)


def test_one_step_that_tells_all_beside_one_that_tells_little_is_bracketed():
    # The first step shows the record whenever it is sampled, which is one time in ten, and no one else; otherwise
    # only the second step speaks, with all of the false alarms to spend: γ = q + (1 − q)·γ₂(κ), up to Φ(−25).
    loud, quiet = Segment(0.02, 0.1, 1), Segment(3.0, 0.5, 1)
    rest = bounds.dpsgd(0.1, schedule=[quiet])
    found = bounds.dpsgd(0.1, schedule=[loud, quiet])
    assert found.lower <= 0.1 + 0.9 * rest.success
    assert found.success >= 0.1 + 0.9 * rest.lower
