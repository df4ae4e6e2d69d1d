import math

import pytest
import torch

from remanence.core.exceptions import InputError
from remanence.texts.probabilities import GREEDY, Decoding

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def shares(decoding, logits=LOGITS):
    return decoding.log_law(logits).exp().tolist()


@pytest.mark.parametrize(
    ("decoding", "expected"),
    [
        (Decoding(), [0.5, 0.3, 0.15, 0.05]),
        (Decoding(temperature=0.5), [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        (Decoding(top_k=2), [0.625, 0.375, 0, 0]),
        (Decoding(top_p=0.5), [1, 0, 0, 0]),  # the first alone has the share
        (Decoding(top_p=0.6), [0.625, 0.375, 0, 0]),  # the token that crosses the share stays
        (Decoding(top_p=0.9), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (Decoding(top_k=3, top_p=0.6), [0.625, 0.375, 0, 0]),  # shares are of what top-k left: 0.526 < 0.6
        (Decoding(top_k=3, top_p=0.52), [1, 0, 0, 0]),
        (Decoding(top_k=9), [0.5, 0.3, 0.15, 0.05]),
        (GREEDY, [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_the_law_is_what_arithmetic_by_hand_gives(decoding, expected):
    assert shares(decoding) == pytest.approx(expected, abs=1e-7)


def test_greedy_takes_the_first_of_equals_and_top_k_keeps_all_that_tie_with_its_last():
    equal = torch.tensor([0.0, 1.0, 1.0])
    assert shares(GREEDY, equal) == [0, 1, 0]
    assert shares(Decoding(top_k=1), equal) == pytest.approx([0, 0.5, 0.5])


def test_a_nucleus_of_equals_keeps_the_first_ones_and_no_more_than_it_needs():
    assert shares(Decoding(top_p=0.5), torch.zeros(4)) == pytest.approx([0.5, 0.5, 0, 0])


def test_a_law_adds_up_to_one_whatever_the_logits():
    logits = 30 * torch.randn(200, 50, generator=torch.Generator().manual_seed(0))
    for decoding in (Decoding(), Decoding(1.7, 7, 0.8), Decoding(0.2, top_p=0.99), GREEDY):
        sums = decoding.log_law(logits).exp().sum(-1)
        assert torch.allclose(sums, torch.ones(200, dtype=torch.float64), atol=1e-12)


def test_a_token_of_tiny_probability_keeps_its_logarithm():
    assert Decoding().log_law(torch.tensor([0.0, -2000.0]))[1].item() == -2000
    assert Decoding(top_k=1).log_law(torch.tensor([0.0, -2000.0]))[1].item() == -math.inf


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}]
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Decoding(**settings)


def test_a_decoding_says_what_it_is():
    assert [str(d) for d in (GREEDY, Decoding(), Decoding(0.7, 40, 0.9))] == [
        "greedy",
        "temperature 1",
        "temperature 0.7, top-k 40, top-p 0.9",
    ]
