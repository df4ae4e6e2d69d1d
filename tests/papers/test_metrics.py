"""Measures with answers that can be computed by hand."""

import pytest
import torch

from remanence_papers.picture_quality import label_accuracy, match, psnr, quality


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


def test_labels_are_compared_as_a_multiset():
    assert label_accuracy(torch.tensor([0, 0, 1, 2]), torch.tensor([2, 0, 0, 0])) == 0.75
    assert label_accuracy(torch.tensor([0, 1]), torch.tensor([], dtype=torch.int64)) == 0.0
    assert label_accuracy(torch.tensor([0, 1]), torch.tensor([-1, 1])) == 0.5
