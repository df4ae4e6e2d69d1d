"""DP-SGD and the attack on its transcript, against hand-written training and against the proven ceiling."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm
from torch import nn

from conftest import dpsgd_game, synthetic
from remanence import (
    DPSGD,
    AnyModule,
    Criterion,
    FinitePrior,
    Game,
    IncompatibleGameError,
    InputError,
    Perceptron,
    Policy,
    PriorAware,
    Records,
    RetrainAndCompare,
    Transcript,
    Verdict,
    Weights,
    audit,
    bounds,
    mismatch,
    play,
)
from remanence.scale.seeds import stream
from remanence.testing import check_mechanism
from remanence.training.perceptron import ACTIVATIONS

MODULES = {"elu": nn.ELU, "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def data() -> Records:
    records = synthetic(12, classes=3)
    return Records(records.features, records.labels)


def module_of(network: Perceptron) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(network.sizes, network.sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs, dtype=torch.float64), MODULES[network.activation]()]
    return nn.Sequential(*layers[:-1])


def gradient_by_hand(module: nn.Module, flat: torch.Tensor, record: Records, max_norm: float) -> torch.Tensor:
    nn.utils.vector_to_parameters(flat, module.parameters())
    module.zero_grad()
    nn.functional.cross_entropy(module(record.features), record.labels.long()).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])  # pyright: ignore
    return gradient if max_norm is None else gradient * min(1.0, max_norm / float(gradient.norm()))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("sizes", [(4, 3), (4, 6, 3), (4, 5, 7, 3)], ids=str)
@pytest.mark.parametrize("max_norm", [0.3, 100.0, None])
def test_clipped_gradients_are_those_of_autograd_one_record_at_a_time(activation, sizes, max_norm):
    network = Perceptron(sizes, activation)
    module, records = module_of(network), data()
    parameters = network.initial(3, torch.Generator().manual_seed(0)).double()
    vectors = torch.randn(3, network.numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    apart = [records[i : i + 1] for i in range(len(records))]
    by_hand = [gradient_by_hand(module, flat, one, max_norm) for flat in parameters for one in apart]
    by_hand = torch.stack(by_hand).unflatten(0, (3, -1))  # (trials, records, numbers)
    mask = torch.rand(3, len(records), generator=torch.Generator().manual_seed(2)) < 0.5
    sets = Records(records.features.expand(3, -1, -1), records.labels.expand(3, -1))
    for implementation in (network, AnyModule(module)):
        for given in (records[None], sets):
            total = implementation.clipped_sum(parameters, given, max_norm=max_norm)
            some = implementation.clipped_sum(parameters, given, max_norm=max_norm, mask=mask)
            assert torch.allclose(total, by_hand.sum(1))
            assert torch.allclose(some, (by_hand * mask.unsqueeze(-1)).sum(1))
            if max_norm is None:
                continue
            inner, norms = implementation.projections(parameters, vectors, given, max_norm=max_norm)
            assert torch.allclose(inner, torch.einsum("trn,tn->tr", by_hand, vectors))
            assert torch.allclose(norms, by_hand.norm(dim=2))


def transcript(mechanism: DPSGD, known: Records, targets: Records) -> Transcript:
    release = mechanism.release(known, targets, stream(0, "training", "cpu"))
    assert isinstance(release, Transcript)
    return release


def test_without_the_known_gradients_a_step_leaves_the_targets_own_and_noise():
    mechanism = DPSGD(Perceptron((4, 5, 3)), noise_multiplier=0.0, steps=4, max_grad_norm=0.5)
    records = data()
    targets = records[:3][:, None]
    release = transcript(mechanism, records[3:], targets)
    for step in range(4):
        own = mechanism.network.clipped_sum(release["parameters"][:, step], targets, max_norm=0.5)
        left = release["gradients"][:, step] - release["known"][:, step]
        assert torch.allclose(left, own, atol=1e-6)


def test_a_run_is_the_update_rule_that_it_says():
    mechanism = DPSGD(
        Perceptron((4, 3)), noise_multiplier=0.7, steps=5, sample_rate=0.5, learning_rate=0.3, momentum=0.9
    )
    records = data()
    release = transcript(mechanism, records[2:], records[:2][:, None])
    velocity = torch.zeros(2, mechanism.network.numbers)
    expected_batch = 0.5 * 11
    for step in range(4):
        velocity = 0.9 * velocity + release["gradients"][:, step] / expected_batch
        after = release["parameters"][:, step] - 0.3 * velocity
        assert torch.allclose(after, release["parameters"][:, step + 1], atol=1e-6)
    last = mechanism.release(records[2:], records[:2][:, None], stream(0, "training", "cpu"))
    assert torch.equal(last["gradients"], release["gradients"])


def test_noise_and_sampling_have_the_sizes_that_they_claim():
    mechanism = DPSGD(
        Perceptron((4, 3)),
        noise_multiplier=2.0,
        steps=400,
        sample_rate=0.25,
        max_grad_norm=0.5,
        learning_rate=0.0,
    )
    records = data()
    release = transcript(mechanism, records[4:], records[:4][:, None])
    left = release["gradients"] - release["known"]  # (4, 400, numbers)
    own = mechanism.network.clipped_sum(release["parameters"][:, 0], records[:4][:, None], max_norm=0.5)
    # 24,000 normal numbers of deviation 1 (the rare own gradient adds less than 2 %): five deviations of the sample's.
    assert float(left.std()) == pytest.approx(1.0, abs=0.03)
    # The projection on the target's own gradient has mean q·‖g‖²; 1,600 draws of deviation σC‖g‖.
    share = torch.einsum("tsn,tn->ts", left, own) / own.square().sum(1, keepdim=True)
    margin = 5 * 1.0 / float(own.norm(dim=1).min()) / math.sqrt(1600)
    assert float(share.mean()) == pytest.approx(0.25, abs=margin)


@pytest.mark.parametrize("sample_rate", [1.0, 0.3])
@pytest.mark.parametrize("final_only", [False, True])
def test_dpsgd_keeps_the_contract_of_a_mechanism(sample_rate, final_only):
    records = Records(data().features.float(), data().labels)
    mechanism = DPSGD(Perceptron((4, 3)), 1.0, 3, sample_rate=sample_rate, final_only=final_only)
    check_mechanism(mechanism, records[3:], records[:3][:, None])
    assert mechanism.releases is (Weights if final_only else Transcript)


def opposite_game(noise: float, steps: int, claimed: float | None = None) -> Game:
    """One input with either label: at zero weights and without learning the gradients are exactly opposite."""
    module = nn.Linear(3, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    x = torch.tensor([[1.0, -2.0, 0.5]])
    candidates = Records(x.expand(2, -1), torch.tensor([0, 1]))
    known = Records(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 3))
    mechanism = DPSGD(AnyModule(module), noise, steps, max_grad_norm=0.2, learning_rate=0.0)
    ceiling = bounds.dpsgd(0.5, noise_multiplier=claimed or noise, steps=steps)
    return Game(
        mechanism,
        FinitePrior(candidates),
        known,
        Criterion(mismatch, 0.1, label_scale=1.0),
        bounds=(ceiling,),
    )


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 9), (1.5, 1)])
def test_two_candidates_with_opposite_gradients_meet_the_bound_exactly(noise, steps):
    game = opposite_game(noise, steps)
    evidence = play(game, PriorAware(), trials=4000, confidence=1 - 1e-6)
    ceiling = float(game.bounds[0].success)
    assert ceiling == pytest.approx(norm.cdf(math.sqrt(steps) / noise))
    assert evidence.main.lower <= ceiling <= evidence.main.upper


def test_noise_at_half_strength_is_contradicted():
    honest = audit(opposite_game(4.0, 9), trials=1500, policy=Policy(0.6))
    liar = audit(opposite_game(2.0, 9, claimed=4.0), trials=1500, policy=Policy(0.6))
    assert honest.verdict is not Verdict.CONTRADICTED
    assert liar.verdict is Verdict.CONTRADICTED


@pytest.mark.parametrize("score", ["likelihood", "sum", "top"])
@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(0.7, 0.2, 20), (2.0, 1.0, 10), (1.0, 0.5, 15), (6.0, 1.0, 10)]
)
def test_no_attack_beats_the_bound(score, noise, rate, steps):
    game = dpsgd_game(noise_multiplier=noise, sample_rate=rate, steps=steps, max_grad_norm=0.1)
    ceiling = bounds.dpsgd(1 / 5, noise_multiplier=noise, sample_rate=rate, steps=steps).success
    evidence = play(game, PriorAware(score=score), trials=400, confidence=1 - 1e-6)
    assert evidence.main.lower <= ceiling
    assert evidence.main.rate > 0.2


def test_the_likelihood_is_the_strongest_score_where_batches_are_sampled():
    game = dpsgd_game(noise_multiplier=0.5, sample_rate=0.1, steps=60, max_grad_norm=0.1, learning_rate=0.1)
    rates = {
        score: play(game, PriorAware(score=score), trials=1200).main for score in ("likelihood", "sum", "top")
    }
    assert rates["likelihood"].rate >= max(rates["sum"].rate, rates["top"].rate)
    assert rates["likelihood"].lower > rates["sum"].upper


def test_a_prior_that_is_not_uniform_enters_the_likelihood():
    game = dpsgd_game(noise_multiplier=8.0, steps=5, max_grad_norm=0.1)
    prior = FinitePrior(game.prior.candidates, torch.tensor([6.0, 1.0, 1.0, 1.0, 1.0]))
    uneven = replace(game, prior=prior)
    aware = play(uneven, PriorAware(), trials=1500)
    blind = play(uneven, PriorAware(score="sum"), trials=1500)
    assert aware.main.lower > blind.main.upper
    assert aware.main.upper > aware.baseline.value == pytest.approx(0.6)


def test_known_gradients_left_in_place_drown_the_target():
    game = dpsgd_game(noise_multiplier=0.3, steps=10, max_grad_norm=0.1)
    with_them = play(game, PriorAware(subtract="nothing"), trials=300)
    without = play(game, PriorAware(), trials=300)
    assert without.main.lower > with_them.main.upper


def test_final_weights_alone_are_not_a_transcript():
    game = dpsgd_game(final_only=True)
    with pytest.raises(IncompatibleGameError, match="transcript"):
        play(game, PriorAware())
    assert play(game, RetrainAndCompare(repeats=4), trials=20).main.trials == 20
    with pytest.raises(IncompatibleGameError, match="prior-aware"):
        play(dpsgd_game(), RetrainAndCompare())


WRONG = {"noise_multiplier": -1.0, "sample_rate": 0, "steps": 0, "max_grad_norm": 0, "momentum": 1.0}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_settings_that_mean_nothing_are_refused(name, value):
    with pytest.raises(InputError, match=name):
        dpsgd_game(**{name: value})


def labelled_beyond_the_network():
    game = dpsgd_game()
    other = Records(game.known_data.features, game.known_data.labels + 7)
    return replace(game, known_data=other)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: Perceptron((4, 3), "swish"), "elu, relu"),
        (lambda: Perceptron((4,)), "at least two sizes"),
        (lambda: play(labelled_beyond_the_network(), PriorAware(), trials=2), "labels from 0 to 2"),
    ],
)
def test_networks_and_labels_that_do_not_fit_are_refused_in_a_sentence(attempt, message):
    with pytest.raises(InputError, match=message):
        attempt()


def test_logits_are_those_of_the_module():
    network = Perceptron((4, 6, 3))
    flat = network.initial(2, torch.Generator().manual_seed(0)).double()
    by_module = AnyModule(module_of(network)).classify(flat, data()[None])
    assert torch.allclose(network.classify(flat, data()[None]), by_module)
