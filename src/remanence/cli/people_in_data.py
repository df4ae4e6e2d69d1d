"""What a table says about people: how many records they have, and how common a hidden value is."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from remanence.cli.grouped import options
from remanence.cli.training_options import Guess
from remanence.core.checks import few, goes_with
from remanence.core.exceptions import InputError

_NAMES_PEOPLE = re.compile(
    r"(^|_)(patient|person|user|customer|client|subject|member|participant|individual|employee|student)"
    r"(_?(id|key|number|no|nr|uuid))?$"
)
_MOST_GROUPS = 100


@options("The people in your data")
class InData:
    """Options about the people of a table."""

    data: Annotated[Path | None, "A table of the training data, .csv or .parquet."] = None
    person: Annotated[
        str | None, "The column that says whose record it is: records per person are counted."
    ] = None
    attribute: Annotated[str | None, "A column with a hidden value: the ceiling on guessing it."] = None
    by: Annotated[str | None, "Columns, such as sex,region: the ceiling for each group."] = None
    people: Annotated[int | None, "How many of this many people, at most? Needs --candidates."] = None

    def read(self) -> Facts:
        """What the table says; nothing without one."""
        if self.data is None:
            for name in ("person", "attribute", "by"):
                goes_with(f"--{name}", getattr(self, name), "--data", None, "--data visits.csv")
            return Facts()
        goes_with("--by", self.by, "--attribute", self.attribute, f"--attribute smoker --by {self.by}")
        from remanence.tables.command import read_table

        frame = read_table(self.data)
        columns = [self.person, self.attribute, *(self.by.split(",") if self.by else [])]
        unknown = [name for name in columns if name is not None and name not in frame.columns]
        if unknown or not len(frame):
            raise InputError(
                "The table does not have what is asked for.",
                needs="rows, and the named columns",
                got=f"{len(frame)} rows, no column {', '.join(unknown)}" if unknown else "no rows",
                hint=f"one of {', '.join(map(str, frame.columns))}"[:200],
            )
        counts = None if self.person is None else frame[self.person].value_counts()
        rows, suspects = len(frame), () if self.person else tuple(_naming_people(frame))
        if self.person is not None:
            frame = frame.drop_duplicates(self.person)  # a value counts once for each person
        return Facts(
            rows=rows,
            records=() if counts is None else tuple(counts.tolist()),
            suspects=suspects,
            values=None if self.attribute is None else frame[self.attribute].astype(str).tolist(),
            groups=None if not self.by else _groups(frame, self.by.split(",")),
        )


@dataclass(frozen=True)
class Facts:
    """What a table says about people."""

    rows: int | None = None
    records: tuple[int, ...] = field(default=(), repr=False)  # of each person
    suspects: tuple[str, ...] = ()  # columns that seem to name people, with more rows than names
    values: list[str] | None = field(default=None, repr=False)
    groups: list[str] | None = field(default=None, repr=False)

    @property
    def most(self) -> int | None:
        """The most records of one person, where people are known."""
        return max(self.records, default=None)

    def log_baseline(self, guess: Guess) -> float:
        """Log κ: what the options say, or how common the commonest hidden value is."""
        if self.values is None:
            return guess.log_baseline
        if guess != Guess():
            raise InputError(
                "What a guess achieves is given twice.",
                needs="--attribute, or one of --candidates, --baseline and --log10-baseline",
                got="both",
                hint="leave the other out",
            )
        from remanence.bounds.baselines import shortlist

        counts = list(Counter(self.values).values())
        if len(counts) < 2:
            raise InputError(
                "The attribute is no secret.",
                needs="at least two different values",
                got="the same value in every row",
                hint="another column",
            )
        return shortlist(counts)

    def warnings(self, covered: float) -> list[str]:
        """What a ceiling for people with at most `covered` records does not say about these data."""
        if beyond := sum(count > covered for count in self.records):
            more = f"more than {covered} record{'s' if covered > 1 else ''}, up to {self.most}"
            return [
                f"Warning: the data hold people with {more}, {beyond} of them. This is not their ceiling."
            ]
        if self.suspects and covered == 1:
            names = " and ".join(self.suspects)
            return [
                f"Warning: the values of {names} repeat. If they name people, somebody has several records, and this "
                f"is not their ceiling: add --person {self.suspects[0]}."
            ]
        return []


def _naming_people(frame: Any) -> list[str]:
    return [
        str(name)
        for name in frame.columns
        if _NAMES_PEOPLE.search(str(name).lower()) and frame[name].nunique() < len(frame)
    ]


def _groups(frame: Any, columns: list[str]) -> list[str]:
    names = frame[columns].astype(str).agg(", ".join, axis=1).tolist()
    few("groups to tell apart", len(set(names)), _MOST_GROUPS, "--by with fewer, or coarser, columns")
    return names
