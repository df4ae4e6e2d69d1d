"""How likely a step of DP-SGD's transcript is, given a record."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from remanence.training.dpsgd import DPSGD


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
