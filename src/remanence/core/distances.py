"""Errors between many pairs of records at once: how close unrelated records are to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.core.errors import COMPARED, Error, mean_squared_error
from remanence.core.records import Records

_PAIR_NUMBERS = 2**27


def nearest_neighbour_errors(
    targets: Records, pool: Records, error: Error = mean_squared_error, rank: int = 1
) -> Tensor:
    """The error of each target's `rank`-th closest record in the pool, `(targets,)`.

    Their mean is the nearest-neighbour oracle of Balle et al. 2022 and the threshold τ of Maciazek and
    Allison 2025: a reconstruction below it is closer than any record that the adversary already had.

    >>> pool = Records(torch.tensor([[0.0], [10.0]]), torch.zeros(2))
    >>> nearest_neighbour_errors(Records(torch.tensor([[1.0], [7.0]]), torch.zeros(2)), pool)
    tensor([1., 9.], dtype=torch.float64)
    """
    rows = max(1, _PAIR_NUMBERS // (len(pool) * (8 if error is mean_squared_error else pool.flat.shape[-1])))
    starts = range(0, len(targets), rows)
    nearest = [all_errors(error, targets[s : s + rows], pool).kthvalue(rank, dim=1).values for s in starts]
    return torch.cat(nearest)


def all_errors(error: Error, targets: Records, guesses: Records) -> Tensor:
    """The error of every guess for every target, `(targets, guesses)`.

    >>> pool = Records(torch.tensor([[0.0], [10.0]]), torch.zeros(2))
    >>> all_errors(mean_squared_error, pool[:1], pool)
    tensor([[  0., 100.]], dtype=torch.float64)
    """
    if error is not mean_squared_error:
        rows = max(1, COMPARED // (len(guesses) * max(1, guesses.flat.shape[-1])))
        starts = range(0, len(targets), rows)
        return torch.cat([error(targets[s : s + rows][:, None], guesses[None]) for s in starts])
    left, right = targets.flat.double(), guesses.flat.double()
    middle = right.mean(0)  # one matrix product instead of all differences; centring reduces rounding
    left, right = left - middle, right - middle
    squares = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.mT
    return squares.clamp(min=0) / left.shape[1]


def public_errors(guesses: Records, pool: Records, share: float = 0.05) -> Tensor:
    """The mean squared error within which this share of the pool's records with the guess's label lie.

    A generic guess is close to unrelated records too. The ratio of its error on the target to this one says how
    much closer the target is than the public records: a better test of membership than the error alone.

    >>> pool = Records(torch.tensor([[0.0], [1.0], [9.0]]), torch.zeros(3))
    >>> public_errors(Records(torch.tensor([[[3.0]]]), torch.zeros(1, 1)), pool, 0.5)
    tensor([[9.]], dtype=torch.float64)
    """
    found = torch.full(guesses.batch_shape, torch.nan, dtype=torch.float64, device=guesses.features.device)
    for label in torch.unique(guesses.labels):
        asked, own = guesses.labels == label, pool.flat[pool.labels == label].double()
        rows = max(1, _PAIR_NUMBERS // (8 * max(len(own), 1)))
        parts = [
            torch.cdist(part, own).quantile(share, dim=1) for part in guesses.flat[asked].double().split(rows)
        ]
        found[asked] = torch.cat(parts).square() / own.shape[1]
    return found
