"""How close a reconstructed batch is: Hungarian matching, PSNR in both conventions, labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


@dataclass(frozen=True)
class Quality:
    """Averages over the pairs of one batch. Samples for which there is no guess count as guessed by zeros."""

    mse: float
    psnr: float  # −10 log₁₀(MSE), as Pan et al. 2022 print it: no peak, whatever the range of the inputs
    peak_psnr: float  # 10 log₁₀(range² / MSE), as imaging defines it
    label_accuracy: float

    def __str__(self) -> str:
        return (
            f"MSE {self.mse:.3g}, PSNR {self.psnr:.2f} dB (peak convention {self.peak_psnr:.2f} dB), "
            f"labels {self.label_accuracy:.3f}"
        )


def quality(
    inputs: Tensor, labels: Tensor, guesses: Tensor, guessed_labels: Tensor, *, value_range: float
) -> Quality:
    """Match a batch `(samples, *example)` with guesses of any number, and measure."""
    missing = max(0, len(inputs) - len(guesses))
    padded = torch.cat([guesses.double(), torch.zeros(missing, *inputs.shape[1:]).to(guesses).double()])
    order = match(inputs.double(), padded)
    errors = (inputs.double() - padded[order]).flatten(1).square().mean(1)
    return Quality(
        mse=float(errors.mean()),
        psnr=float(psnr(errors).mean()),
        peak_psnr=float(psnr(errors, peak=value_range).mean()),
        label_accuracy=label_accuracy(labels, guessed_labels),
    )


def match(inputs: Tensor, guesses: Tensor) -> Tensor:
    """For each input the guess assigned to it at the least total squared error (Hungarian algorithm)."""
    cost = torch.cdist(inputs.flatten(1), guesses.flatten(1)).square()
    _, columns = linear_sum_assignment(cost.nan_to_num(nan=1e300, posinf=1e300).cpu().numpy())
    return torch.from_numpy(columns).to(guesses.device)


def psnr(mse: Tensor, peak: float = 1.0) -> Tensor:
    """10 log₁₀(peak² / MSE), at most 10,000 dB (an error of 0).

    With inputs in [−1, 1] the peak is 2, and the paper's convention (peak 1) reads 6.02 dB lower.

    >>> psnr(torch.tensor([0.01, 0.0001])).tolist()
    [20.0, 40.0]
    """
    return (20 * math.log10(peak) - 10 * mse.clamp(min=1e-300).log10()).where(mse > 0, 1e4)


def label_accuracy(labels: Tensor, guesses: Tensor) -> float:
    """The share of the labels, as a multiset, that the guesses contain.

    >>> label_accuracy(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2]))
    0.6666666666666666
    """
    classes = int(max(labels.max(), guesses.max() if len(guesses) else 0)) + 1
    ours, theirs = (
        torch.bincount(values[values >= 0].long(), minlength=classes) for values in (labels, guesses)
    )
    return int(torch.minimum(ours, theirs).sum()) / len(labels)
