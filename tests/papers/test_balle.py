"""The pieces of the reproductions of Balle et al. 2022, and what their figures promise."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import DPSGD, AnyModule, Perceptron, Queried, Records
from remanence_papers import balle_cifar, registry
from remanence_papers.balle_cifar import Patches, convolutional_network
from remanence_papers.balle_games import Split, Study, asked, classifier_divergence, first
from remanence_papers.balle_private import noise_for
from remanence_papers.balle_randomness import _neighbours_agree, _repeated
from remanence_papers.balle_training import _never_moved
from remanence_papers.reproduction import Settings


def study(**changes):
    data = pictures(560, seed=2)
    data = Records((data.features - data.features.min()) / 5, data.labels)
    parts = Split(data[:30], data[30:430], data[430:], "smooth pictures")
    return Study(Settings(), parts, **{"steps": 100, "batch": 32, **changes})


def training(**changes):
    recipe = {"epochs": 20, "learning_rate": 0.5, "momentum": 0.0, "network": Perceptron((9, 4, 3))}
    return study().data.training(**{**recipe, **changes})


def test_a_study_reads_pictures_out_of_weights_and_out_of_answers():
    own, mechanism = study(), training()
    shadows = own.shadows(mechanism, 300)
    probes = Queried(mechanism, own.data.public[:20])
    for view, seen in ((mechanism, shadows), (probes, asked(probes, shadows))):
        found = own.attack(view, seen)
        assert float(found.errors.mean()) < 0.5 * float(found.strangers.mean())
        cells = own.cells(found)
        assert cells["mean error"] == pytest.approx(float(found.errors.mean()))
        assert cells["below the oracle"]["rate"] >= cells["control"]["rate"]
    assert len(first(shadows, 7)) == 7


def test_the_answers_of_shadows_are_what_querying_them_releases():
    own, mechanism = study(), training()
    shadows = own.shadows(mechanism, 40)
    probes = Queried(mechanism, own.data.public[:20])
    again = probes.release(own.data.known, shadows.targets, torch.Generator())
    torch.testing.assert_close(asked(probes, shadows).tensors["answers"], again["answers"])


def test_many_shadows_of_a_target_share_it_and_nothing_else():
    own = study()
    shadows = _repeated(own, training(initial_seed=None), 3, 2)
    assert torch.equal(shadows.targets.features[:3], shadows.targets.features[3:])
    weights = shadows.tensors["parameters"]
    assert not torch.isclose(weights[:3], weights[3:]).all(1).any()


def test_cutting_and_a_linear_layer_are_a_convolution():
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 5, 2, stride=2)
    linear = nn.Linear(12, 5)
    linear.weight.data = convolution.weight.data.permute(0, 2, 3, 1).flatten(1)
    linear.bias.data = convolution.bias.data
    values = torch.rand(4, 3, 6, 6)
    ours = linear(Patches(2)(values.movedim(1, -1))).movedim(-1, 1)
    torch.testing.assert_close(ours, convolution(values))


def test_an_adversary_with_other_pictures_learns_all_labels_and_is_held_against_the_same_oracle(monkeypatch):
    monkeypatch.setattr(balle_cifar, "_study", lambda _: (study(steps=60), training()))
    shadows = []
    farm = Study.shadows

    def kept(self, mechanism, count):
        shadows.append(farm(self, mechanism, count))
        return shadows[-1]

    monkeypatch.setattr(Study, "shadows", kept)
    same, another = balle_cifar.prior(Settings()).rows
    assert same["oracle"] == another["oracle"]
    assert same["closest of his own"] < another["closest of his own"]
    assert same["mean error"] < another["mean error"]
    # Targets have label 2; the other kind of picture is what has 0 or 1, and no shadow may lack a label for that.
    assert [len(torch.unique(each.targets.labels)) for each in shadows] == [1, 3]


def test_the_network_for_cifar_has_the_papers_size():
    network = convolutional_network(32, (32, 64), 44, 10)
    assert 54_000 < sum(parameter.numel() for parameter in network.parameters()) < 56_000
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_a_pass_over_a_module_holds_what_its_layers_give_out():
    network = AnyModule(nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ELU(), nn.Linear(5, 3)))
    assert network.numbers_per_record(Records(torch.rand(4, 3, 2, 2), torch.zeros(4))) == 12 + 5 + 5 + 3


def test_only_relu_keeps_a_target_from_weights_of_its_lit_pixels():
    shares = {}
    for activation in ("elu", "relu"):
        own = replace(study(), data=replace(study().data, known=study().data.known[:5]))
        mechanism = training(network=Perceptron((9, 4, 3), activation), epochs=3, learning_rate=0.01)
        shares[activation] = _never_moved(own, mechanism)[1]
    assert shares["elu"] == 0
    network = Perceptron((9, 4, 3), "relu")
    (weight, bias), _ = network.layers(network.initial(1, torch.Generator().manual_seed(0)))
    before = study().data.targets.flat @ weight[0].T + bias[0]
    # At this rate no unit changes sides in three steps except by chance.
    assert shares["relu"] == pytest.approx(float((before <= 0).float().mean()), abs=0.05)
    assert shares["relu"] > 0.1


def test_the_closest_other_model_is_looked_at():
    weights = torch.tensor([[0.0], [0.1], [5.0], [5.2]])
    assert _neighbours_agree(weights, torch.tensor([1, 1, 2, 3])).tolist() == [True, True, False, False]


def test_dp_gradient_descent_may_start_from_known_weights_and_be_asked():
    data = study().data
    mechanism = DPSGD(Perceptron((9, 4, 3)), 1.0, 3, initial_seed=4)
    release = mechanism.release(data.known, data.targets[:3, None], torch.Generator().manual_seed(0))
    start = mechanism.network.initial(1, torch.Generator().manual_seed(4))
    assert torch.equal(release["parameters"][:, 0], start.expand(3, -1))
    final = replace(mechanism, final_only=True)
    weights = final.release(data.known, data.targets[:3, None], torch.Generator().manual_seed(0))
    first, second, _ = weights["parameters"]
    assert not torch.isclose(first, second).any()  # the noise is not known
    assert final.answer(weights, data.known).shape == (3, 30, 3)
    assert final.settings()["initialisation"] == "known"


def test_the_noise_for_an_enormous_epsilon_is_that_of_the_gaussian_mechanism():
    from scipy.special import log_ndtr

    noise = noise_for(1e4, 100)
    distance = 10 / noise  # δ = Φ(μ/2 − ε/μ) − exp(ε) Φ(−μ/2 − ε/μ)
    one, other = log_ndtr(distance / 2 - 1e4 / distance), 1e4 + log_ndtr(-distance / 2 - 1e4 / distance)
    delta = float(torch.tensor(one).exp() - torch.tensor(other).exp())
    assert delta == pytest.approx(1e-5, rel=0.02)


@pytest.mark.slow
def test_small_figures_show_what_the_paper_says():
    def rows(name):
        return registry.run(registry.find(name), Settings())["rows"]

    def error(row):
        return row["mean error"]

    shadows = rows("balle-figure-5")
    assert [error(row) for row in shadows] == sorted([error(row) for row in shadows], reverse=True)
    assert error(shadows[-1]) + shadows[-1]["± (two errors)"] < shadows[-1]["oracle"] < error(shadows[0])
    known, unknown, many = rows("balle-initialisation")
    assert error(known) < known["oracle"] < 2 * known["oracle"] < min(error(unknown), error(many))
    private = {row["training"]: row for row in rows("balle-figure-8")}
    assert error(private["clipping only"]) < private["no DP"]["oracle"] < error(private["ε = 100"])
    for row in private.values():
        assert row["bound"] is None or row["below the oracle"]["lower"] <= row["bound"] <= row["Theorem 2"]


def test_divergence_is_zero_for_the_same_picture_and_large_where_a_classifier_disagrees():
    error = classifier_divergence(lambda features: 10 * features.flatten(1)[:, :2])
    one = Records(torch.tensor([[1.0, 0.0]]), torch.zeros(1))
    other = Records(torch.tensor([[0.0, 1.0]]), torch.zeros(1))
    assert float(error(one, one)) == pytest.approx(0)
    assert float(error(one, other)) == pytest.approx(10, rel=1e-3)
