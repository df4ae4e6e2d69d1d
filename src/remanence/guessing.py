"""How many records one guess can meet: the counting behind every baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from remanence.errors import Criterion
from remanence.records import Records

_PAIRS_AT_ONCE = 2_000_000


def most_met(records: Records, criterion: Criterion) -> int:
    """At most so many of the records can be met by one guess, wherever it lies.

    All that it meets are within `reach` of each other. For a squared error more is known: if n records lie within η
    of a guess, the squared distances between them sum to at most 2n · nη (twice n times the sum around their mean), so
    that for one of them the others sum to at most 2nη. The largest such n over all records is counted, nearest first.
    """
    assert criterion.error.reach is not None
    count, reach = len(records), criterion.error.reach(criterion.threshold)
    rows = max(1, _PAIRS_AT_ONCE // (count * max(1, records.flat.shape[-1])))
    sizes = torch.arange(1, count + 1, device=records.features.device)
    most = 1
    for start in range(0, count, rows):
        errors = _allowed(records, records[start : start + rows], criterion, reach, 2)
        if criterion.error.squared:
            sums = errors.sort(1).values.cumsum(1)  # the record itself comes first, at 0
            within = (sums <= 2 * sizes * criterion.threshold).sum(1)
        else:
            within = errors.isfinite().sum(1)
        most = max(most, int(within.max()))
    return most


def _allowed(
    records: Records, centres: Records, criterion: Criterion, radius: float, label_radius: int
) -> Tensor:
    """The errors between centres and records, `(centres, records)`; infinite beyond the radius or another label.

    Labels count within `label_radius` tolerances: 1 around a guess, 2 between records that share one.
    """
    errors = criterion.error(records[None, :], centres[:, None])
    errors = errors.nan_to_num(nan=0.0)  # an error that is not a number rules nothing out
    beyond = errors > radius
    if criterion.label_scale is not None:
        slack = label_radius * max(criterion.threshold, 1e-9) * criterion.label_scale
        beyond |= (records.labels.double()[None, :] - centres.labels.double()[:, None]).abs() > slack
    return errors.masked_fill(beyond, torch.inf)


def largest_mass(
    records: Records, weights: Tensor, criterion: Criterion, radius: float, label_radius: int
) -> float:
    """The largest weight of records within `radius` of one record, that record included."""
    return min(1.0, float(masses(records, weights, criterion, radius, label_radius).max()))


def masses(
    records: Records, weights: Tensor, criterion: Criterion, radius: float, label_radius: int
) -> Tensor:
    """The weight of the records within `radius` of each record, `(records,)`."""
    rows = max(1, _PAIRS_AT_ONCE // (len(records) * max(1, records.flat.shape[-1])))
    parts = []
    for start in range(0, len(records), rows):
        within = _allowed(records, records[start : start + rows], criterion, radius, label_radius).isfinite()
        parts.append((within * weights).sum(1))
    return torch.cat(parts)
