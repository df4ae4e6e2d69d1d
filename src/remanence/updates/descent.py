"""The solver for dense layers and patches: damped Gauss–Newton steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_DAMPING, _EASED, _RAISED, _LEAST, _HOPELESS = 1e-2, 1 / 5, 4.0, 1e-12, 1e8
_SETTLED = 0.999  # a step that leaves more than this share of the residual is the last
_NOTHING = 1e-30  # a residual (a square) below is zero


def descend(
    at: Tensor,
    value: Callable[[Tensor], float],
    normal: Callable[[Tensor], tuple[Tensor, Tensor]],
    *,
    steps: int,
    give_up: Callable[[int, float], bool] = lambda *_: False,
) -> tuple[Tensor, float]:
    """A point that no step improves, and its squared residual.

    `value` is the residual of a point, `normal` JᵀJ and Jᵀ times the residual there; `give_up` looks at each step.
    """
    left, damping = value(at), _DAMPING
    for number in range(steps):
        matrix, slope = normal(at)
        while damping < _HOPELESS:
            damped = matrix + torch.diag(damping * (matrix.diagonal() + 1e-12))
            factor, failed = torch.linalg.cholesky_ex(damped)
            moved = at - torch.cholesky_solve(slope[:, None], factor).squeeze(1)
            after = value(moved)
            if not failed and after < left:
                break
            damping *= _RAISED
        else:
            break
        is_last = after > _SETTLED * left or after < _NOTHING
        at, left, damping = moved, after, max(damping * _EASED, _LEAST)
        if is_last or give_up(number, left):
            break
    return at, left
