"""Published sums, means and counts over groups, and the table that they were computed from, as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remanence.core.checks import few
from remanence.core.exceptions import InputError, MisfitError

if TYPE_CHECKING:
    import numpy as np

    from remanence.tables.leave_one_out import LeaveOneOut

_KINDS = {
    "sum": ("sum", "total"),
    "mean": ("mean", "average", "avg"),
    "count": ("count", "n", "number", "size", "people"),
}
_MOST_PEOPLE = 5000  # each of whom is two linear programs


def load_aggregates_game(
    published: Path, people: Any, label: str, noise: float, limits: str | None
) -> LeaveOneOut:
    """The game of published numbers about one column of a table."""
    import numpy as np
    import torch

    from remanence.core.errors import Criterion
    from remanence.core.guess_from_others import guess_from_others
    from remanence.core.records import Records
    from remanence.core.releases import PublishedSums
    from remanence.tables.aggregates import read_aggregates
    from remanence.tables.group_sums import GroupSums
    from remanence.tables.leave_one_out import LeaveOneOut
    from remanence.tables.published_sums import noisy_aggregates_bound
    from remanence.tables.rows import Rows

    values = _numbers(people, label)
    members, sums, rounding = _equations(published, people, label, whole=bool((values % 1 == 0).all()))
    low, high = _range(limits, values)
    bits = bool(np.isin(values, (0, 1)).all())
    criterion = Criterion(replace(Rows.read(values[:, None], [label]).error(), parts=()))
    precision = (
        2 * criterion.threshold * float(values.std())
    )  # the middle is then near enough, whatever the value
    mechanism = GroupSums(members, rounding, noise, (low, high), bits, precision)
    release = PublishedSums({"sums": torch.from_numpy(sums)[None]})
    data = Records(torch.from_numpy(values[:, None]), torch.zeros(len(values)))
    mechanism.check_fit(data, release)
    bounds = ()
    if noise:
        if not np.isfinite([low, high]).all():
            raise InputError(
                "How much one person adds to a sum is not known.",
                needs="--range with the smallest and the largest value that anybody can have",
                got="--noise without it",
                hint="--range 0,100",
            )
        commonest = float(np.unique(values, return_counts=True)[1].max()) / len(values)
        guess = max(guess_from_others(data, criterion).value, commonest)
        bounds = (noisy_aggregates_bound(members, guess, noise=noise, low=low, high=high),)
    else:
        found = read_aggregates(members, sums, low=low, high=high, whole=bits, rounding=rounding)
        mechanism = replace(mechanism, low=found.low, high=found.high)
    return LeaveOneOut(
        mechanism, data, criterion, release, bounds=bounds, others_known=False, columns=(label,)
    )


def _numbers(people: Any, label: str) -> np.ndarray:
    column = people[label]
    if column.dtype.kind not in "fiub" or column.isna().any():
        raise InputError(
            f"The column {label!r} has no sums.",
            needs="a number in every row",
            got=f"{int(column.isna().sum())} gaps, {column.dtype}",
            hint="the column that was summed or averaged",
        )
    few("people", len(column), _MOST_PEOPLE, "a part of the table, and what was published about it")
    return column.to_numpy(dtype=float).copy()


def _range(limits: str | None, values: np.ndarray) -> tuple[float, float]:
    """What anybody's value may be: as told, or 0 and 1 for bits, 0 and no end for amounts, anything otherwise."""
    if limits is not None:
        try:
            low, high = (float(end) for end in limits.split(","))
        except ValueError:
            low, high = 1.0, 0.0
        if not low <= values.min() <= values.max() <= high:
            raise InputError(
                "The range cannot be used.",
                needs=f"two numbers with a comma between, around {values.min():g} and {values.max():g}",
                got=f"--range {limits}",
                hint=f"--range {min(0.0, values.min()):g},{values.max():g}",
            )
        return low, high
    if set(values.tolist()) <= {0.0, 1.0}:
        return 0.0, 1.0
    return (0.0 if values.min() >= 0 else -float("inf")), float("inf")


def _equations(
    published: Path, people: Any, label: str, *, whole: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who is in which group, each group's sum, and how far it may be off as it was printed."""
    import numpy as np

    from remanence.tables.command import read_table

    table = read_table(published, text=True)
    groups = [name for name in table.columns if name in people.columns and name != label]
    kinds = {name: _kind(str(name)) for name in table.columns if name not in groups}
    told = [name for name, kind in kinds.items() if kind in ("sum", "mean")]
    unknown = [str(name) for name, kind in kinds.items() if kind is None]
    if unknown or len(told) != 1:
        raise InputError(
            "It is not clear what was published.",
            needs="columns of the table to group by, one column named sum or mean, and perhaps one named count",
            got=f"grouped by {', '.join(groups) or 'nothing'}; other columns {', '.join(map(str, kinds)) or 'none'}",
            hint=f"rename them: region, sex, count, mean_{label}",
        )
    members, sums, rounding = [], [], []
    for line, row in enumerate(table.to_dict("records")):
        chosen = np.ones(len(people), dtype=bool)
        for name in groups:
            if str(row[name]) not in ("nan", "None", "", "<NA>"):  # an empty cell: whoever they are
                chosen &= _same(people[name], row[name])
        size = int(chosen.sum())
        stated = [
            int(float(row[name]))
            for name, kind in kinds.items()
            if kind == "count" and str(row[name]) != "nan"
        ]
        if not size or any(count != size for count in stated):
            raise MisfitError(
                "These numbers were not published about this table.",
                needs="groups of the table's own people",
                got=f"line {line + 1} counts {stated[0] if stated else 'some'}, and {size} are there",
                hint="the table that they were computed from, with the columns that it was grouped by",
            )
        text = str(row[told[0]])
        times = size if kinds[told[0]] == "mean" else 1
        exact = whole and times == 1 and "." not in text
        members.append(chosen.astype(float))
        sums.append(float(text) * times)
        rounding.append(0.0 if exact else times * 0.5 * 10.0 ** -_digits(text))
    return np.array(members), np.array(sums), np.array(rounding)


def _kind(name: str) -> str | None:
    words = name.lower().replace("-", "_").split("_")
    return next((kind for kind, names in _KINDS.items() if any(word in names for word in words)), None)


def _digits(text: str) -> int:
    mantissa, _, exponent = text.lower().partition("e")
    return len(mantissa.partition(".")[2]) - int(exponent or 0)


def _same(column: Any, value: Any) -> np.ndarray:
    """Whose cell is this, as a number or as a text."""
    if column.dtype.kind in "fiu":
        try:
            return (column == float(value)).to_numpy()
        except ValueError:
            pass
    return (column.astype(str) == str(value)).to_numpy()
