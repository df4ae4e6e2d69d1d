"""Measures with answers that can be computed by hand."""

import pytest
import torch

from remanence import InputError
from remanence.attacks.gradients.metrics import label_accuracy, match, psnr, quality, ssim


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


def test_similarity_of_a_picture_and_its_negative_is_negative():
    picture = 0.5 + 0.2 * torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ssim(picture, picture, value_range=1.0), torch.ones(2).double())
    assert (ssim(picture, 1 - picture, value_range=1.0) < -0.9).all()


def test_pictures_smaller_than_the_window_are_refused():
    with pytest.raises(InputError, match="too small"):
        ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), value_range=1.0)
