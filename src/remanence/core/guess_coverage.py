"""How many records a single guess can meet: the counting behind every baseline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from remanence.core.distances import all_errors
from remanence.core.errors import Criterion, Reduction, mean_squared_error
from remanence.core.rates import clopper_pearson
from remanence.core.records import Records, concatenate

_ENOUGH = 2000  # records that suffice to bound a guess
_PAIRS_AT_ONCE = 2_000_000
_THREES_AT_ONCE = 2**19  # fits into a processor's cache
_FEW = 150  # triples of more records take seconds
_STARTS, _CLIMBS = 16, 10
_ROUNDING = 1 + 1e-9


def most_met(records: Records, criterion: Criterion) -> int:
    """The most records that a single guess can meet, wherever it lies.

    Records that it meets are within `reach` of each other. For a squared error more is known: if n records lie within η
    of a guess, the errors between them, over all n² pairs, sum to at most 2n²η (2n times the sum around their mean).
    Each of the n contributes at least the sum over its n nearest, so the n smallest such sums must not exceed that.
    """
    assert criterion.error.reach is not None
    count, reach = len(records), criterion.error.reach(criterion.threshold)
    errors = torch.cat(list(_rows(records, criterion, reach, 2)))
    if not criterion.error.squared:
        return max(1, int(errors.isfinite().sum(1).max()))
    sizes = torch.arange(1, count + 1, device=errors.device, dtype=torch.float64)
    nearest = errors.sort(1).values.cumsum(1)  # a record itself comes first, at 0
    least = nearest.sort(0).values.cumsum(0).diagonal()
    possible = least <= 2 * sizes.square() * criterion.threshold * _ROUNDING
    most = int(sizes[possible].max()) if possible.any() else 1
    return min(most, _most_in_threes(errors, criterion.threshold)) if count <= _FEW else most


def _most_in_threes(errors: Tensor, radius: float) -> int:
    """The same count from all triples: three records met by one guess fit into a ball of this squared radius.

    Fix one record. The records that a guess can meet along with it form a graph, in which those met by one guess are a
    clique: each of them has n neighbours with n neighbours, and so on. At least n records must then have such an n.
    """
    count = len(errors)
    rows = max(1, _THREES_AT_ONCE // count**2)
    found = torch.cat([_most_with(own, errors, radius) for own in errors.split(rows)])
    return max(1, int(_as_many_as(found)))


def _most_with(own: Tensor, errors: Tensor, radius: float) -> Tensor:
    """How many records a guess can meet along with each of some records, whose errors are `(some, records)`."""
    one, other = own[:, :, None], own[:, None, :]
    longest = torch.maximum(torch.maximum(one, other), errors)
    product = one * other * errors
    # The law of cosines for the largest angle; with two equal records the triangle is degenerate.
    excess = (one + other + errors - 2 * longest).clamp(min=0)
    slender = torch.minimum(torch.minimum(one, other), errors) <= 1e-9 * longest
    cosine = (excess.square() * longest / (4 * product)).masked_fill(slender, 0.0).clamp(max=0.25)
    fits = longest / (4 * (1 - cosine)) <= radius * _ROUNDING  # False where a side is infinite
    degrees, before = fits.sum(2, dtype=torch.int16), None
    while before is None or not torch.equal(degrees, before):
        before, degrees = degrees, _as_many_as(fits * degrees[:, None, :])
    return _as_many_as(degrees)


def _as_many_as(values: Tensor) -> Tensor:
    """The h-index along the last dimension: the largest n such that n values are at least n.

    >>> _as_many_as(torch.tensor([5, 3, 3, 1]))
    tensor(3)
    """
    ranks = torch.arange(1, values.shape[-1] + 1, device=values.device, dtype=values.dtype)
    return (values.sort(-1, descending=True).values >= ranks).sum(-1, dtype=values.dtype)


def good_guess(records: Records, criterion: Criterion) -> Records:
    """A guess that meets many of the records: one of them, or for a squared error a mean of some."""
    count = len(records)
    uniform = torch.full((count,), 1.0 / count, dtype=torch.float64, device=records.features.device)
    near = masses(records, uniform, criterion, criterion.threshold, 1)
    best = records[near.argmax()[None]]
    if not criterion.error.squared or not records.features.is_floating_point():
        return best
    met = int((criterion.error(records, best) <= criterion.threshold).sum())
    middle = Records(records.features.mean(0, keepdim=True), records.labels[:1])
    starts = records[near.topk(min(_STARTS, count)).indices]
    centres = concatenate([middle, Records(starts.features, starts.labels)])
    for _ in range(_CLIMBS):  # take one more record than are met, and move to their mean
        errors = all_errors(criterion.error, records, centres).mT
        found = (errors <= criterion.threshold).sum(1)
        if int(found.max()) > met:
            met, best = int(found.max()), centres[found.argmax()[None]]
        drawn = errors.argsort(1).argsort(1) <= found[:, None]
        means = drawn.to(records.features.dtype) @ records.flat / drawn.sum(1, keepdim=True)
        centres = Records(means.view_as(centres.features).to(centres.features), centres.labels)
    return best


def _rows(records: Records, criterion: Criterion, radius: float, label_radius: int) -> Iterator[Tensor]:
    """The errors between the records, some rows at a time; infinite beyond the radius or for another label.

    Labels count within `label_radius` tolerances: 1 around a guess, 2 between records that share one.
    """
    numbers = 1 if criterion.error is mean_squared_error else max(1, records.flat.shape[-1])
    rows = max(1, _PAIRS_AT_ONCE // (len(records) * numbers))
    for start in range(0, len(records), rows):
        yield _allowed(records, records[start : start + rows], criterion, radius, label_radius)


def _allowed(
    records: Records, centres: Records, criterion: Criterion, radius: float, label_radius: int
) -> Tensor:
    errors = all_errors(criterion.error, records, centres).mT
    if criterion.error is mean_squared_error:  # one product, whose rounding error is relative to the squares
        values = records.flat.double()
        errors = errors - 1e-15 * (values - values.mean(0)).square().sum(1).max()
    errors = errors.nan_to_num(nan=0.0)  # a NaN error rules nothing out
    beyond = errors > radius * _ROUNDING
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
    rows = _rows(records, criterion, radius, label_radius)
    return torch.cat([(part.isfinite() * weights).sum(1) for part in rows])


def sure_of_a_guess(records: Records, criterion: Criterion, tail: float) -> float:
    """A lower confidence limit on a guess's success: chosen on one half of the records, counted on the other."""
    half = len(records) // 2
    if half < 2:
        return 0.0
    guess = good_guess(records[:half], criterion)
    others = records[half:]
    alike = guess[torch.zeros(len(others), dtype=torch.int64, device=others.labels.device)]
    each = replace(criterion, reduction=Reduction.EACH)
    hits = int(each.compare(others[:, None], alike[:, None]).succeeded.sum())
    return clopper_pearson(hits, len(others), tail)[0]


def some_of(records: Records) -> Records:
    """A random sample that is large enough: cost grows with the square of its size, precision with the root."""
    if len(records) <= _ENOUGH:
        return records
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    return records[order[:_ENOUGH].to(records.labels.device)]
