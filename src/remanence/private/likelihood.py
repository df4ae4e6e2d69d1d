"""What every attack on DP-SGD's transcript starts from: what the target left in it, and how likely that is."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from remanence.core.records import Records
from remanence.core.releases import Transcript
from remanence.training.dpsgd import DPSGD

Subtraction = Literal["known", "expected", "nothing"]


def remainder(
    mechanism: DPSGD,
    release: Transcript,
    steps: slice,
    *,
    known_data: Records | None = None,
    subtract: Subtraction = "known",
) -> Tensor:
    """The privatised gradients of some steps less what the adversary takes off them, `(trials, steps, numbers)`.

    `known`: the known records' part of this very batch, as Hayes et al. assume. `expected`: that part's
    mean over batches, q·Σ clip(g), for the weaker adversary who does not know which records were sampled.
    `nothing`: no gradient is subtracted.
    """
    gradients = release["gradients"][:, steps]
    if subtract == "known":
        return gradients - release["known"][:, steps]
    if subtract == "nothing" or known_data is None:
        return gradients
    parameters = release["parameters"][:, steps].flatten(0, 1)
    expected = mechanism.network.clipped_sum(parameters, known_data[None], max_norm=mechanism.max_grad_norm)
    return gradients - mechanism.sample_rate * expected.view_as(gradients)


def log_likelihood(mechanism: DPSGD, inner: Tensor, norms: Tensor) -> Tensor:
    """The log-likelihood of what is left of each step, relative to the target's absence.

    log(1 − q + q·exp((⟨ḡ, g⟩ − ‖g‖²/2) / (σC)²)) for a record with clipped gradient g, given the inner
    products and norms (Hayes et al. 2023, Appendix G, with the sign corrected).
    """
    scale = max(mechanism.noise_multiplier * mechanism.max_grad_norm, 1e-9) ** 2
    exponent = (inner - norms.square() / 2).double() / scale
    rate = mechanism.sample_rate
    if rate == 1:
        return exponent
    absent = torch.tensor(math.log1p(-rate), device=exponent.device, dtype=exponent.dtype)
    return torch.logaddexp(absent, exponent + math.log(rate))
