"""κ where every record plays the target in turn: the best guess from all other records, without the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Error, Reduction
from remanence.core.records import Records

_RECORDS = 500  # that play the target, and that serve as guesses
_NUMBERS = 2**25  # of all pairs of these
_AT_ONCE = 2**21


def guesses_from_others(
    data: Records,
    criteria: Sequence[Criterion],
    given: Error | None = None,
) -> list[Baseline]:
    """How often the best of a few guesses is right by each criterion, measured on the records themselves.

    The guesses are the record that meets most of the others, the record nearest to their mean, and that mean. Where
    some columns of the missing record are `given`, the other record that is nearest in these is a guess as well.

    >>> yes_or_no = Records(torch.tensor([[1.0]] * 9 + [[0.0]]), torch.zeros(10))
    >>> guesses_from_others(yes_or_no, [Criterion(threshold=0.1)])[0].value
    0.9
    """
    count, width = len(data), data.flat.shape[-1]
    most = min(count, _RECORDS, max(2, int((_NUMBERS / width) ** 0.5)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
    asked, flat = data[chosen], data.flat.double()
    means = (flat.sum(0) - asked.flat.double()) / (count - 1)
    own = torch.eye(len(asked), dtype=torch.bool, device=flat.device)
    spread = flat.std(0, correction=0).clamp(min=1e-300)
    distance = torch.cdist(means / spread, asked.flat.double() / spread).masked_fill(own, torch.inf)
    shared = {"the record nearest to the others' mean": asked[distance.argmin(1)]}
    if given is not None:
        apart = torch.stack([part(asked[:, None], asked[None]) for part in given.parts]).sum(0)
        shared["the record nearest in the given columns"] = asked[apart.masked_fill(own, torch.inf).argmin(1)]
    share = "all" if len(asked) == count else f"{len(asked)} of the"
    found = []
    for criterion in criteria:
        each = replace(criterion, reduction=Reduction.EACH)
        alike = _meets(each, asked)  # (asked, guessed)
        common = asked[(alike.sum(0) - alike.int()).masked_fill(own, -1).argmax(1)]
        mean = replace(common, features=means.view_as(asked.features).to(asked.features.dtype))
        guesses = {"the commonest other record": common, "the others' mean": mean, **shared}
        rates = {
            name: float(each.compare(asked[:, None], guess[:, None]).succeeded.double().mean())
            for name, guess in guesses.items()
        }
        best = max(rates, key=rates.__getitem__)
        note = f"measured on {share} {count} records: {best}, from the known records alone"
        found.append(Baseline(rates[best], rates[best], note))
    return found


def _meets(criterion: Criterion, records: Records) -> Tensor:
    """Which record (column) would be a right guess for which (row)."""
    rows = max(1, _AT_ONCE // (len(records) * records.flat.shape[-1]))
    starts = range(0, len(records), rows)
    return torch.cat([criterion.meets(records[start : start + rows], records) for start in starts])
