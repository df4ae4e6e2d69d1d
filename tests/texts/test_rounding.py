"""Odds in bfloat16: the stated bracket covers the float64 value."""

import copy
import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from remanence.core.exceptions import InputError
from remanence.texts.probabilities import Decoding, log_probabilities
from remanence.texts.reading import read_texts
from remanence.texts.rounding import in_bfloat16, rounded_log_probabilities
from remanence.texts.tiny import as_language_model, made_up_records, tiny_model, train

RECORDS = made_up_records(1000, seed=40)


@cache
def precisions():
    """One model in bfloat16, float32 and float64; it knows the first hundred records by heart."""
    texts = [record["prefix"] + record["secret"] for record in RECORDS[:100]]
    net = train(tiny_model(), texts, steps=300)
    single = as_language_model(net)
    coarse, double = in_bfloat16(net, net.head), copy.deepcopy(net).double()
    return replace(single, logits=coarse), single, replace(single, logits=double)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_bracket_covers_the_float64_value_of_a_thousand_texts(temperature):
    coarse, single, double = precisions()
    secrets = read_texts(RECORDS, single)
    exact = log_probabilities(double, secrets, [Decoding(temperature)])[0]
    found = rounded_log_probabilities(coarse, single, secrets, temperature)
    off = (found.logs - exact).abs() / (found.upper - found.lower)
    assert 0.02 < float(off.max()) < 0.5  # the error is there
    assert bool(((found.lower <= exact) & (exact <= found.upper)).all())
    assert bool((found.lower < found.logs).all())
    # It says something: what is likely is known to a fraction, what is not likely is not called so.
    known, wide = exact > math.log(0.5), found.upper - found.lower
    assert int(known.sum()) > 90
    assert float(wide[known].median()) < 0.5 < float(wide[~known].median())
    assert bool((found.upper[100:] < math.log(0.5)).double().mean() > 0.99)


def test_errors_shrink_with_the_unit_roundoff():
    coarse, single, double = precisions()
    secrets = read_texts(RECORDS[:100], single)
    rough, fine = (
        rounded_log_probabilities(*pair, secrets).spread for pair in ((coarse, single), (single, double))
    )
    assert fine < 2**-12 * rough  # 2⁻⁸ and 2⁻²⁴


def test_the_ends_hold_for_every_error_within_the_spread():
    """Logits moved by up to d against each other, at random and at their worst."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(50, 7, generator=generator, dtype=torch.float64)
    d = 0.3
    moves = d * torch.rand(200, 50, 7, generator=generator, dtype=torch.float64)
    for token in range(7):
        worst = torch.zeros(2, 1, 7, dtype=torch.float64)
        worst[0, :, token], worst[1] = d, d - worst[0]
        for move in (moves, worst):
            true = (logits + move).log_softmax(-1)[..., token]
            own = logits.log_softmax(-1)[:, token]
            p = own.exp()
            assert bool((true >= own - (p + (1 - p) * math.exp(d)).log() - 1e-12).all())
            assert bool((true <= own + d - torch.log1p(p * math.expm1(d)) + 1e-12).all())


def test_the_copy_keeps_the_original_and_its_last_layer_adds_in_single_precision():
    net = tiny_model()
    before = copy.deepcopy(net.state_dict())
    coarse = in_bfloat16(net, net.head)
    assert coarse(torch.tensor([[1, 2]])).dtype is torch.float32
    assert coarse.get_submodule("attend").weight.dtype is torch.bfloat16
    assert torch.equal(coarse.get_submodule("head").weight, net.head.weight.bfloat16().float())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_greedy_decoding_has_no_bracket():
    coarse, single, _ = precisions()
    with pytest.raises(InputError, match="temperature"):
        rounded_log_probabilities(coarse, single, read_texts(RECORDS[:2], single), 0.0)
