"""What is proven about each update, as audit.json has it, and whether what was declared fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from remanence.results.caveats import Caveat
from remanence.results.evidence import Evidence
from remanence.updates.caveats import UPDATE_DECLARED
from remanence.updates.declared import Declared

_OFF = (
    0.02  # by which shares may miss a sum of 1: rounding of weights, or a record that left next to no trace
)


@dataclass(frozen=True)
class ProvenUpdate:
    """What recomputation says about one update. Records that are alike count once: each twice would send the same."""

    proven: int  # records
    different_records: int | None  # behind the update, where that number is proven
    share_sum: float | None  # of records that explain the update whole: 1 in a mean
    equal_share: float | None  # where all of them have the same

    def to_json(self) -> dict[str, int | float | None]:
        """The entry in audit.json."""
        return asdict(self)


def updates_of(entry: Evidence) -> list[ProvenUpdate]:
    """One entry per update, from what an attack's records were found to explain."""
    arrays = entry.arrays
    if "update" not in arrays:
        return []
    names = ("proven", "proven_batch_size", "share_sum", "equal_share")
    found: dict[int, ProvenUpdate] = {}
    for update, proven, size, total, share in zip(
        arrays["update"].tolist(), *(arrays[name].tolist() for name in names), strict=True
    ):
        one = ProvenUpdate(int(proven), int(size) or None, total or None, share or None)
        found.setdefault(update, one)
    return list(found.values())


def contradictions(updates: Sequence[ProvenUpdate], declared: Declared) -> Iterator[Caveat]:
    """Declared settings that proven records do not fit; what else would explain that is said too."""
    rate, size, seen = declared.training.learning_rate, declared.batch_size, []
    for number, update in enumerate(updates):
        total = update.share_sum
        fits = total is not None and abs(total - 1) <= _OFF
        if total is not None and rate is not None and not fits:
            without = ", or some records left no trace" if total < 1 else ""
            seen.append(
                f"Update {number}: the shares of its records add up to {total:.3g}, and in a mean to 1. They fit a "
                f"learning rate of {rate * total:.3g} instead of {rate:g}; or the update was multiplied, as "
                f"clipping does{without}."
            )
        if size is not None and update.proven > size:
            seen.append(
                f"Update {number}: {update.proven} records are proven, and a batch of {size} was declared."
            )
        elif size is not None and fits and update.equal_share and size % update.proven:
            seen.append(
                f"Update {number}: {update.proven} records with equal shares explain it whole. In a plain mean each is "
                f"there equally often, and the declared {size} is no multiple of that."
            )
    if seen:
        yield replace(UPDATE_DECLARED, seen=" ".join(seen[:4]))
