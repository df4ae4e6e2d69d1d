"""What is said beforehand about the search for whole batches, and whether it comes true."""

import pytest
import torch
from test_exact import leak
from test_low_rank import batch

from conftest import relu_network
from remanence.updates import reach
from remanence.updates.dense_layers import dense_head
from remanence.updates.reach import forecast, forecast_of
from remanence.updates.reading import read_update
from remanence.updates.rounding import Rounding

SINGLE = 1.2e-7


def shared(count, width, classes=10, numbers=100, seed=3, **options):
    network = relu_network(numbers, width, classes, dtype=torch.float32, seed=seed, **options)
    inputs, labels = batch(count, numbers, classes, seed)
    inputs = inputs.float().double()
    head = dense_head(network)
    return head, head.layers_of(leak(network, inputs, labels)), inputs, labels


def test_a_batch_of_64_within_reach_comes_back_whole_and_is_proven():
    head, layers, inputs, labels = shared(64, 512)
    said = forecast_of(head, layers, SINGLE)
    assert said is not None
    assert (said.records, said.words) == (64, "within reach")
    proof = read_update(head, layers, Rounding.of([torch.float32])).proof
    apart = torch.cdist(inputs, proof.proposal.inputs) / inputs.norm(dim=1, keepdim=True)
    assert apart.amin(1).max() < 1e-4
    assert torch.equal(proof.proposal.labels[apart.argmin(1)], labels)
    assert (proof.count, proof.batch_size, proof.explains_all) == (64, 64, True)


def test_a_batch_beyond_reach_is_called_that_and_nothing_is_claimed():
    head, layers, *_ = shared(48, 120)
    said = forecast_of(head, layers, SINGLE)
    assert said is not None
    assert said.words == "beyond reach"
    assert "not protected" in str(said)
    proof = read_update(head, layers, Rounding.of([torch.float32])).proof
    assert (proof.count, proof.batch_size) == (0, None)


def test_more_records_than_are_searched_for_are_beyond_reach():
    assert forecast(2**20, reach.SLOTS + 1, 1000).words == "beyond reach"
    assert forecast(2**20, reach.SLOTS, 1000).words != "beyond reach"


@pytest.mark.parametrize("classes", [10, 100])
def test_the_forecast_rises_with_the_width(classes):
    narrow, wide = forecast(160, 60, classes), forecast(2000, 60, classes)
    assert narrow.lower == 0
    assert narrow.upper < wide.upper
    assert wide.lower > 0.7


def test_measured_rates_fall_with_the_batch_and_rise_with_width_and_classes():
    """What the forecast rests on: no case that should be easier is measured clearly lower."""
    rates = {case[:4]: reach.SuccessRate(*case[4:]) for case in reach._MEASURED}
    for (layers, classes, width, size), rate in rates.items():
        for (others, many, wide, few), easier in rates.items():
            if others <= layers and many >= classes and wide / few >= width / size and few <= size:
                assert easier.upper >= rate.lower


def test_an_uneven_gradient_has_no_lower_limit():
    head, layers, *_ = shared(8, 128)
    said = forecast_of(head, layers, SINGLE)
    assert said is not None
    assert said.lower > 0.8
    weight, _ = layers[0]
    left, sizes, right = torch.linalg.svd(weight[0], full_matrices=False)
    sizes[1:] *= 1e-4
    uneven = forecast_of(
        head, [((left * sizes @ right)[None], torch.zeros_like(weight[..., 0])), *layers[1:]], SINGLE
    )
    assert uneven is not None
    assert uneven.lower == 0
    assert "weigh so differently" in str(uneven)


def test_inputs_that_span_everything_tell_no_number_of_records():
    head, layers, *_ = shared(64, 400, classes=6, numbers=48)
    said = forecast_of(head, layers, SINGLE)
    assert said is not None
    assert (said.is_least, said.words) == (True, "beyond reach")
    assert "at least 48 records" in str(said)
