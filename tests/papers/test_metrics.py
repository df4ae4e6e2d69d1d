"""Measures with answers that can be computed by hand."""

import math

import pytest
import torch

from remanence import InputError
from remanence_papers.picture_quality import label_accuracy, match, psnr, quality, ssim


def test_the_two_conventions_of_psnr_differ_by_six_decibels_on_minus_one_to_one():
    mse = torch.tensor([0.04]).double()
    assert psnr(mse, peak=2.0) - psnr(mse) == pytest.approx(6.0206, abs=1e-4)
    assert psnr(mse, peak=2.0).item() == pytest.approx(20.0)


def test_matching_undoes_any_order():
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert match(inputs[order], inputs).tolist() == order.tolist()


def test_missing_guesses_count_as_zeros():
    inputs = torch.ones(2, 4)
    found = quality(inputs, torch.tensor([0, 1]), inputs[:1], torch.tensor([1]), value_range=2.0)
    assert found.mse == pytest.approx(0.5)
    assert found.label_accuracy == 0.5
    assert found.ssim is None


def test_labels_are_compared_as_a_multiset():
    assert label_accuracy(torch.tensor([0, 0, 1, 2]), torch.tensor([2, 0, 0, 0])) == 0.75
    assert label_accuracy(torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64)) == 0.0
    assert label_accuracy(torch.tensor([0, 1]), torch.tensor([-1, 1])) == 0.5


def test_similarity_of_flat_pictures_is_the_luminance_term():
    first, second = torch.full((1, 1, 16, 16), 0.5), torch.full((1, 1, 16, 16), 0.25)
    c1 = 0.01**2
    expected = (2 * 0.5 * 0.25 + c1) / (0.5**2 + 0.25**2 + c1)
    assert ssim(first, second, value_range=1.0).item() == pytest.approx(expected, rel=1e-9)


def test_similarity_of_opposite_chessboards_is_computed_by_hand():
    # Every window has the same mean, but for its sign: h · (Σ ± w)² with the window's weights w; and the variance
    # is h² less the square of that mean, which is also the covariance of the two, but for its sign.
    rows, columns = torch.meshgrid(torch.arange(14), torch.arange(14), indexing="ij")
    height, value_range = 0.3, 2.0
    board = height * (1 - 2 * ((rows + columns) % 2)).double()[None, None]
    weights = [math.exp(-(step**2) / (2 * 1.5**2)) for step in range(-5, 6)]
    signed = sum(w * (-1) ** place for place, w in enumerate(weights)) / sum(weights)
    mean = height * signed**2
    variance = height**2 - mean**2
    c1, c2 = (0.01 * value_range) ** 2, (0.03 * value_range) ** 2
    expected = (c1 - 2 * mean**2) * (c2 - 2 * variance) / ((c1 + 2 * mean**2) * (c2 + 2 * variance))
    assert ssim(board, -board, value_range=value_range).item() == pytest.approx(expected, rel=1e-9)
    grey = torch.full((1, 1, 16, 16), 0.05, dtype=torch.float64)
    luminance = (2 * 0.05 * 0.1 + c1) / (0.05**2 + 0.1**2 + c1)
    assert ssim(grey, 2 * grey, value_range=value_range).item() == pytest.approx(luminance, rel=1e-9)


def test_similarity_of_a_picture_and_its_negative_is_negative():
    picture = 0.5 + 0.2 * torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ssim(picture, picture, value_range=1.0), torch.ones(2).double())
    assert (ssim(picture, 1 - picture, value_range=1.0) < -0.9).all()


def test_pictures_smaller_than_the_window_are_refused():
    with pytest.raises(InputError, match="too small"):
        ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), value_range=1.0)
