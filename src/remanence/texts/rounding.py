"""Exact odds in bfloat16, several times as fast on a GPU: log-probabilities with a bracket for the rounding."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from remanence.core.checks import number, whole
from remanence.texts.mechanism import LanguageModel, Secret
from remanence.texts.probabilities import finite, read_all


@final
@dataclass(frozen=True)
class RoundedOdds:
    """Log-probabilities in low precision, `(secrets,)` each, and brackets that contain the exact ones."""

    logs: Tensor
    lower: Tensor
    upper: Tensor
    spread: float  # the largest difference between the errors of two logits at one place


@torch.no_grad()
def rounded_log_probabilities(
    coarse: LanguageModel,
    exact: LanguageModel,
    secrets: Sequence[Secret],
    temperature: float = 1.0,
    *,
    checked: int = 64,
) -> RoundedOdds:
    """The log-probabilities of a model that computes in bfloat16, in brackets that contain the exact ones.

    If no two logits at a place are off by amounts that differ by more than d, a token of computed probability p has an
    exact log-probability between log p − log(p + (1 − p) eᵈ) and log p + d − log(1 + p (eᵈ − 1)). The ends add up over
    tokens: the bracket is narrow for likely secrets, and wide only for secrets that rarely come out. d is
    twice the largest difference at any place of `checked` random texts, which the exact model reads too.
    docs/method/texts.md says why twice is enough.
    """
    number("temperature", temperature, above=0, hint="1.0; greedy decoding has no bracket")
    chosen = torch.randperm(len(secrets), generator=torch.Generator().manual_seed(0))
    some = [secrets[place] for place in chosen[: whole("checked", checked)].tolist()]
    spread = 2 * _largest_spread(coarse, exact, some) / temperature
    ends = torch.zeros(3, len(secrets), dtype=torch.float64, device=coarse.device)
    for text, token, logits in read_all(coarse, secrets):
        scaled = logits if temperature == 1 else logits / temperature
        own = scaled.log_softmax(-1, dtype=torch.float32).gather(-1, token[:, None])[:, 0].double()
        p = own.exp()
        down = -(p + (1 - p) * math.exp(spread)).log()
        up = spread - torch.log1p(p * math.expm1(spread))
        ends.index_add_(1, text, torch.stack([own, own + down, own + up]))
    logs, lower, upper = finite(ends, coarse)
    return RoundedOdds(logs, lower, upper, spread)


def _largest_spread(coarse: LanguageModel, exact: LanguageModel, secrets: Sequence[Secret]) -> float:
    """The largest difference between two logits' errors at one place of these texts."""
    largest = 0.0
    both = zip(read_all(coarse, secrets), read_all(exact, secrets), strict=True)
    for (*_, rounded), (*_, logits) in both:
        errors = rounded.to(logits) - logits
        largest = max(largest, float((errors.amax(-1) - errors.amin(-1)).max()))
    return largest


def in_bfloat16(model: nn.Module, head: nn.Module) -> nn.Module:
    """A copy that computes in bfloat16, for `rounded_log_probabilities`; its last layer, `head`, adds in float32.

    The last layer's weights are rounded like the others. Products of two bfloat16 numbers are exact in TF32, so
    a GPU may use it there, and logits lose nothing more to rounding.
    """
    name = next(name for name, module in model.named_modules() if module is head)
    coarse = copy.deepcopy(model).requires_grad_(False)
    last, tf32, usual = coarse.get_submodule(name), torch.backends.cuda.matmul, []
    for parameter in coarse.parameters():  # buffers stay: rotary angles need the precision
        parameter.data = parameter.data.bfloat16()
    for key, parameter in list(last.named_parameters(recurse=False)):
        setattr(last, key, nn.Parameter(parameter.data.float(), requires_grad=False))  # no longer tied

    def begin(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        usual.append(tf32.allow_tf32)
        tf32.allow_tf32 = True
        return tuple(each.float() for each in inputs)

    def end(*_: Any) -> None:
        tf32.allow_tf32 = usual.pop()

    last.register_forward_pre_hook(begin)
    last.register_forward_hook(end, always_call=True)
    return coarse
