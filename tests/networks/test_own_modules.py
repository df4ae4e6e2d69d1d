"""Anybody's module in the informed game: trained as PyTorch would train it, or what is in the way is named."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from remanence import (
    DPSGD,
    SGD,
    AnyModule,
    Criterion,
    EmpiricalPrior,
    Game,
    InputError,
    Membership,
    Reconstructor,
    Records,
    Weights,
    looped,
    mean_squared_error,
    play,
)
from remanence.core.mechanism import Mechanism
from remanence.networks import modules


def records(count=8, features=6):
    generator = torch.Generator().manual_seed(0)
    return Records(torch.randn(count, features, generator=generator), torch.arange(count) % 3)


def plain_loop(module, data, epochs, rate, momentum=0.9, loss=nn.functional.cross_entropy):
    optimizer = torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=rate, momentum=momentum
    )
    for _ in range(epochs):
        answer = module(data.features.clone())
        answer = answer["logits"] if isinstance(answer, dict) else answer
        optimizer.zero_grad()
        loss(answer, data.labels).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in module.parameters() if p.requires_grad])


class InADict(nn.Module):
    def __init__(self, name="logits"):
        super().__init__()
        self.body, self.name = nn.Linear(6, 3), name

    def forward(self, values):
        return {self.name: self.body(values), "hidden": values}


def frozen_first():
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    return module


def normalised_in_evaluation():
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
    module[1].running_mean.uniform_(-1, 1)
    module[1].eval()
    module[2].eval()
    return module


class OverTheBatch(nn.Module):
    def __init__(self, mix=lambda values: values, before=lambda values: values):
        super().__init__()
        self.first, self.last, self.mix, self.before = nn.Linear(6, 5), nn.Linear(5, 3), mix, before

    def forward(self, values):
        return self.last(self.mix(self.first(self.before(values))).tanh())


def within_a_group(values):
    """Attention among records of the same sign only: the first record may be alone in its group."""
    group = (values[:, :1] > 0).to(values)
    same = (group == group.T).to(values)
    return same @ values / same.sum(1, keepdim=True)


MIXING = {
    "centred": lambda values: values - values.mean(0),
    "whitened": lambda values: (values - values.mean(0)) / (values.std(0, correction=0) + 1e-3),
    "attending": lambda values: (values @ values.T).softmax(1) @ values,
    "neighbours": lambda values: values - values.roll(1, 0),
    "within a group": within_a_group,
    "in large batches": lambda values: values - values.mean(0) if len(values) > 20 else values,
}
MIXING = {name: partial(OverTheBatch, mix) for name, mix in MIXING.items()}
# Two networks, between which the batch decides: not for `vmap`, but for a plain loop.
MIXING["by the sign"] = partial(OverTheBatch, before=lambda values: values if values.mean() > 0 else -values)
ALONE = {
    "in a dict": InADict,
    "frozen first": frozen_first,
    "normalised in evaluation": normalised_in_evaluation,
    "writes over its input": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)),
}
MAKE = {**ALONE, **MIXING}


@pytest.mark.parametrize("name", MAKE)
def test_a_module_is_trained_as_a_plain_loop_trains_it(name):
    torch.manual_seed(0)
    module, data = MAKE[name](), records(30)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    known, target = data[:29], data[None, 29:]
    assert AnyModule(module).mixes(known, target, len(known) + 1) == (name in MIXING)
    release = SGD(AnyModule(module), 5, 0.3, 0.9).release(known, target, torch.Generator())
    for name, tensor in module.state_dict().items():  # shadows never touch what was handed in
        assert torch.equal(tensor, before[name])
    assert torch.equal(data.features, records(30).features), "the data were written over"
    by_hand = plain_loop(module, records(30), 5, 0.3)
    torch.testing.assert_close(release["parameters"][0], by_hand, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_whole_batches_one_model_after_the_other_give_what_their_records_give(batch_size, monkeypatch):
    torch.manual_seed(0)
    recipe = {"batch_size": batch_size, "order_seed": 1, "class_weights": (1.0, 2.0, 3.0), "initial_seed": 0}
    mechanism = SGD(AnyModule(frozen_first()), 4, 0.3, 0.9, **recipe)
    data = records(12)
    known, targets = data[:9], data[9:][:, None]
    alone = mechanism.release(known, targets, torch.Generator())["parameters"]
    monkeypatch.setattr(AnyModule, "mixes", lambda *_: True)
    whole = mechanism.release(known, targets, torch.Generator())["parameters"]
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MIXING)
def test_dp_sgd_refuses_what_mixes_the_records_of_a_batch(name):
    data = records(30)
    mechanism = DPSGD(
        AnyModule(MIXING[name]()), steps=2, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1
    )
    with pytest.raises(InputError, match="mixes the records of a batch"):
        mechanism.release(data[:29], data[None, 29:], torch.Generator())


class WritesOver(Mechanism):
    """Centres its records in place, and releases what says nothing."""

    name = "a mechanism of a user's own"
    releases = Weights

    def settings(self):
        return {}

    def release(self, known_data, targets, generator):
        for part in (known_data, targets):
            part.features.sub_(part.features.mean(0)).mul_(1e-3)
        return Weights({"nothing": torch.zeros(len(targets), 1)})


@pytest.mark.parametrize("kind", [lambda game: game, Membership])
def test_a_mechanism_that_changes_its_records_is_not_credited_with_them(kind):
    data = records(60)
    public, own = EmpiricalPrior(data[10:40]), EmpiricalPrior(data[40:])
    game = Game(WritesOver(), public, data[:10], Criterion(mean_squared_error, 0.1), targets=own)
    evidence = play(kind(game), Reconstructor(steps=2, shadows=20), trials=30)
    assert evidence.main.lower <= evidence.baseline.value
    assert torch.equal(data.features, records(60).features)


def test_a_function_that_changes_its_records_in_place_changes_a_copy():
    targets = Records(torch.ones(5, 1, 3), torch.ones(5, 1))
    probes = Records(torch.ones(2, 3), torch.zeros(2))

    def train(records, seed):
        records.features.zero_()
        return {"sum": records.features.sum(0)}

    def ask(tensors, probes):
        tensors["sum"] += 1
        return probes.features.sub_(tensors["sum"])

    for known in (None, Records(torch.ones(4, 3), torch.zeros(4))):
        mechanism = looped(train, ask=ask)
        release = mechanism.release(known, targets, torch.Generator())
        mechanism.answer(release, probes)
        for given in (targets, probes, *([] if known is None else [known])):
            assert bool((given.features == 1).all())
        assert not release["sum"].any()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "'1'.*mixes the records"),
        (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)), "'1'.*random numbers"),
        (nn.Sequential(nn.Linear(6, 5), nn.RReLU(), nn.Linear(5, 3)), "'1'.*random numbers"),
        (nn.Sequential(nn.LSTM(6, 5)), "'0'.*recurrent"),
        (
            nn.Sequential(nn.Conv1d(1, 2, 3), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()),
            "'1'.*statistics",
        ),
        (nn.Sequential(weight_norm(nn.Linear(6, 3))), "'0'.*computed from others"),
        (nn.Flatten(), "nothing to train"),
        (nn.Linear(6, 3).requires_grad_(False), "nothing to train"),
        (nn.Linear(6, 3, dtype=torch.complex64), "'weight' does not hold real numbers"),
        (nn.Linear(6, 3, device="meta"), "'weight' does not hold real numbers"),
    ],
)
def test_what_cannot_be_trained_alike_every_time_is_refused_by_its_name(module, said):
    with pytest.raises(InputError, match=said):
        AnyModule(module)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values):
        self.seen += len(values)
        return self.body(values)


def test_answers_and_buffers_that_cannot_be_used_are_refused_in_a_sentence():
    sets = records()[None]
    with pytest.raises(InputError, match="buffer 'seen' changes"):
        AnyModule(Counts()).check(sets)
    noisy = SGD(AnyModule(OverTheBatch(before=nn.functional.dropout)), 1, 0.1)
    with pytest.raises(InputError, match="draws random numbers in a forward pass"):
        noisy.release(None, sets, torch.Generator())
    with pytest.raises(InputError, match="answer cannot be used") as caught:
        AnyModule(InADict("scores")).check(sets)
    assert "scores" in caught.value.got
    with pytest.raises(InputError, match="module cannot read the records") as caught:
        AnyModule(nn.Linear(9, 3)).check(sets)
    assert "Perceptron" not in caught.value.hint
    decides = OverTheBatch(lambda values: values if values.detach().sum() > 0 else values + 1)
    with pytest.raises(InputError, match="many of this module at once"):
        AnyModule(decides).check(sets)


def test_a_single_output_is_a_logistic_unit():
    torch.manual_seed(0)
    module, data = nn.Linear(6, 1), records()
    data = Records(data.features, data.labels % 2)
    release = SGD(AnyModule(module), 5, 0.3).release(data[:7], data[None, 7:], torch.Generator())

    def loss(answer, labels):
        return nn.functional.binary_cross_entropy_with_logits(answer.squeeze(1), labels.float())

    by_hand = plain_loop(module, data, 5, 0.3, 0.0, loss)
    torch.testing.assert_close(release["parameters"][0], by_hand, rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped_a_few_at_a_time(monkeypatch):
    network = AnyModule(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(7, network.numbers, generator=generator)
    for sets in (1, 7):
        features = torch.randn(sets, 11, 5, generator=generator)
        data = Records(features, torch.randint(3, (sets, 11), generator=generator))
        mask = torch.rand(7, 11, generator=generator) < 0.5
        whole = network.clipped_sum(parameters, data, max_norm=0.3, mask=mask)
        for room in (1, 3, 20):
            monkeypatch.setattr(modules, "_CPU_NUMBERS", room * network.numbers)
            found = network.clipped_sum(parameters, data, max_norm=0.3, mask=mask)
            torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6)
        monkeypatch.undo()
