"""Linear heads on a GPU, each trained by one program that keeps its Gram matrix and coefficients in registers.

The same steps as `dual.py`, which sends every intermediate through memory; Triton comes with PyTorch's CUDA builds.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead

_MOST = 64  # records or classes: beyond it the registers overflow, and `dual.py` is as good


def fits(head: TransferHead, inputs: Tensor) -> bool:
    """Whether the kernel can train these heads: on a GPU, without noise, all of a few records in every step."""
    records = inputs.shape[1]
    plain = head.noise_multiplier is None and head.class_weights is None
    plain &= head.batch_size is None or head.batch_size >= records
    few = 1 < head.outputs <= _MOST and records <= _MOST
    return inputs.is_cuda and plain and few and find_spec("triton") is not None


def train_fused(
    head: TransferHead, inputs: Tensor, labels: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Train from these initial weights; inputs `(trials, records, numbers)`, labels `(trials, records)`."""
    final, final_bias = torch.empty_like(weight), torch.empty_like(bias)
    _descend(head, inputs, labels, (weight.contiguous(), bias.contiguous()), final, final_bias)
    return final, final_bias


def fused_coefficients(head: TransferHead, inputs: Tensor, labels: Tensor) -> Tensor:
    """What training without initial weights multiplies the records with, `(trials, outputs, records)`."""
    final = torch.empty(len(inputs), head.outputs, inputs.shape[1], device=inputs.device)
    _descend(head, inputs, labels, None, final, final)
    return final


def _descend(
    head: TransferHead,
    inputs: Tensor,
    labels: Tensor,
    start: tuple[Tensor, Tensor] | None,
    final: Tensor,
    final_bias: Tensor,
) -> None:
    from remanence.heads.gpu_kernel import descend

    trials, records, numbers = inputs.shape
    padded = [max(16, 1 << (count - 1).bit_length()) for count in (records, head.outputs)]
    launch = descend[(trials,)]  # pyright: ignore[reportIndexIssue]
    with torch.cuda.device_of(inputs):
        launch(
            inputs.contiguous(),
            labels.contiguous(),
            *(start or (final, final_bias)),  # nothing is read from the latter
            final,
            final_bias,
            records,
            head.outputs,
            numbers,
            head.epochs,
            head.learning_rate,
            head.weight_decay,
            head.momentum,
            *padded,
            32,  # numbers of an embedding at a time: fastest on an H200 of 32, 64, 128 and 256
            start is None,
            num_warps=1 if padded == [16, 16] else 4,
        )
