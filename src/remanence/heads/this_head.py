"""This very head: which of its pictures came back, each with its own test against strangers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from remanence.core.rates import CONFIDENCE, SuccessRate
from remanence.heads.caveats import SIMILAR_PICTURES, THIS_HEAD_GIVES_LESS
from remanence.results.caveats import Caveat
from remanence.results.findings import Finding, Row, Section, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy

# Of each class: its label, the closest of your pictures by its position, its error, how many public pictures come as
# close, out of how many that nothing was learned from, and how many pictures of the class are yours.
_COLUMNS = {"label": int, "picture": int, "error": float, "as_close": int, "public": int, "own": int}
_OTHERS = "refused", "tried"
_ROUNDING = 1 + 1e-9
_POWER = 0.9  # of heads on other pictures that must be refused, if one that passes is to be one on these


@final
@dataclass(frozen=True)
class PictureExposure:
    """What came back of one class, and which of your pictures it resembles most.

    A drawing that resembles every picture of its class is within the threshold too. So a picture came back only if it
    is also closer than the public ones by more than chance. Over all classes, at most one in twenty of the pictures
    that are said to have come back is expected to be there by chance (Benjamini and Hochberg).
    """

    label: int
    picture: int  # its position among your pictures
    error: float
    succeeded: bool  # the error is within the threshold
    as_close: SuccessRate  # how many public pictures of the class that nothing was learned from come as close
    own: int  # how many pictures of the class are yours: the closest of many is closer
    level: float = 0.05  # the largest chance that counts as none
    public_needed: int = 20  # how many public pictures of the class can tell

    @property
    def by_chance(self) -> float:
        """How often your closest picture would be as far in front of the public ones, had you trained on neither.

        Assumes that your pictures and the public ones are draws of one kind: public pictures from another camera are
        further away for that reason alone.
        """
        closer, public = self.as_close.successes, self.as_close.trials
        if closer >= public:
            return 1.0
        return 1 - math.prod((public - i) / (public + self.own - i) for i in range(closer + 1))

    @property
    def came_back(self) -> bool:
        """Within the threshold, and closer than the public pictures by more than chance."""
        return self.succeeded and self.by_chance <= self.level * _ROUNDING

    @property
    def undecided(self) -> bool:
        """Within the threshold and closer than all public pictures, which are too few to tell that from chance."""
        return self.succeeded and self.as_close.successes == 0 and not self.came_back

    def __str__(self) -> str:
        close = f"{self.as_close.successes} of {self.as_close.trials} public pictures come as close"
        picture, chance = f"class {self.label}: picture {self.picture}", f"{self.by_chance:.2g} by chance"
        if self.came_back or not self.succeeded:
            found = "came back" if self.came_back else "did not come back"
            return f"{picture} {found}, error {self.error:.3g}; {close} ({chance})"
        within = f"{picture} is within the threshold, error {self.error:.3g}"
        if not self.undecided:
            return f"{within}, but {close} ({chance})"
        times = math.ceil(self.public_needed / self.as_close.trials)
        return (
            f"{within}, and {close}, too few to tell ({chance}): "
            f"{self.public_needed} are needed, {times} times as many"
        )


def _came_back(picture: PictureExposure) -> str:
    if picture.undecided:
        return f"undecided: {picture.public_needed} public pictures needed"
    return "yes" if picture.came_back else "no"


@final
@dataclass(frozen=True)
class ThisHead(Finding):
    """What an attack drew from the head that was handed in: for each class, the closest of your pictures."""

    classes: Tensor  # (classes, 6), the columns above
    threshold: Tensor  # of the error, for all classes
    fit: Tensor  # how likely a head of the recipe is to be as far from the others: it belongs
    # Heads on other pictures that the same test refused, and how many were put to it.
    others: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.int64))
    kind: ClassVar[str] = "this-head"
    meaning: ClassVar[str] = "More pictures come back out of this very head than the limit allows."
    of_the_best_attack: ClassVar[bool] = True

    @property
    def back(self) -> int:
        """Of how many classes a picture came back."""
        return sum(picture.came_back for picture in self.pictures())

    @property
    def tells(self) -> bool:
        """Whether any did."""
        return self.back > 0

    @property
    def vouches(self) -> bool:
        """Whether heads on similar pictures are distinguished from it, so that rates of heads on yours apply."""
        return self.power is None or self.power.rate >= _POWER

    def exposes(self, policy: Policy) -> bool:
        """More classes than the limit allows."""
        return self.back / len(self.classes) > policy.max_success

    def headline(self, said: Words) -> str:
        """Of how many classes."""
        return f"From this very head, a picture of {self.back} of its {len(self.classes)} classes came back."

    def rows(self) -> list[Row]:
        """The share of the classes."""
        share = self.back / len(self.classes)
        return [Row("this head", share, share, share, "attack")]

    def section(self) -> Section:
        """Class by class, the closest first."""
        headings = "class", "picture", "error", "public pictures as close", "by chance", "came back"
        rows = [
            (
                str(each.label),
                str(each.picture),
                f"{each.error:.3g}",
                f"{each.as_close.successes} of {each.as_close.trials}",
                f"{each.by_chance:.2g}",
                _came_back(each),
            )
            for each in self.pictures()
        ]
        told = (
            f"{self.headline(Words())} The rates are about other heads that the recipe makes; this one is like them "
            f"(p = {float(self.fit):.2g}).{self._told_apart()} The attack drew one picture of each class. The table "
            "names the closest of your pictures, by its position. A picture came back if it is within the threshold, "
            "and closer than public pictures are by more than chance. Of those that came back, expect at most one in "
            "twenty to be chance. This assumes that your pictures and the public ones are comparable."
        )
        return Section("This very head", (told,), headings, tuple(rows))

    def _told_apart(self) -> str:
        """Whether the test of belonging distinguishes a head on these pictures from one on similar pictures."""
        if self.power is None:
            return ""
        some = f"{self.power.successes} of {self.power.trials}"
        measured = f"{some} heads on other pictures of the same classes"
        if self.vouches:
            return f" The same test refused {measured}."
        return (
            f" This test cannot tell whether these pictures or similar ones were used: it refused only {measured}. "
            "So the verdict does not rest on those rates."
        )

    @property
    def power(self) -> SuccessRate | None:
        """How often a head on other pictures of the same classes is refused; None where none was tried."""
        refused, tried = self.others.tolist()
        return SuccessRate(int(refused), int(tried)) if tried else None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, for the journal."""
        return {name: values.detach().cpu().contiguous() for name, values in vars(self).items()}

    def caveats(self, outcome: Outcome) -> list[Caveat]:
        """Caveats about it, compared with heads that were made like it."""
        found = []
        own, theirs = sum(each.succeeded for each in self.pictures()), outcome.main.succeeded.sum(1)
        # A head that belongs is as likely as any of the others to give back fewest.
        if (int((theirs <= own).sum()) + 1) / (len(theirs) + 1) <= 1 - CONFIDENCE:
            usual = float(theirs.float().median())
            seen = f"{own} within the threshold, and usually {usual:g}."
            found.append(replace(THIS_HEAD_GIVES_LESS, seen=seen))
        if not self.vouches:
            seen = f"Of {self.others[1]} heads on others, {self.others[0]} are refused."
            found.append(replace(SIMILAR_PICTURES, seen=seen))
        return found

    def pictures(self) -> list[PictureExposure]:
        """Every class, the closest first."""
        found = [
            PictureExposure(label, place, off, off <= float(self.threshold), SuccessRate(close, public), own)
            for label, place, off, close, public, own in (row.values() for row in self._rows())
        ]
        share = (1 - CONFIDENCE) / len(found)  # of the finds that may be there by chance
        chances = sorted(picture.by_chance for picture in found if picture.succeeded)
        passed = max((n for n, chance in enumerate(chances, 1) if chance <= n * share * _ROUNDING), default=0)
        first = sum(picture.succeeded and picture.as_close.successes == 0 for picture in found)
        judged = [
            replace(
                picture,
                level=passed * share,
                # own / (public + own) ≤ first · share
                public_needed=math.ceil(picture.own * (1 / (max(1, first) * share) - 1) - 1e-6),
            )
            for picture in found
        ]
        return sorted(judged, key=lambda picture: picture.error)

    def to_json(self) -> dict[str, Any]:
        """The entry in audit.json: counts, from which the words follow."""
        return {
            "fit": float(self.fit),
            **({"others": dict(zip(_OTHERS, self.others.tolist(), strict=True))} if self.power else {}),
            "threshold": float(self.threshold),
            "classes": self._rows(),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The columns by name, class by class."""
        kinds = _COLUMNS.items()
        return [
            {name: kind(value) for (name, kind), value in zip(kinds, row, strict=True)}
            for row in self.classes.tolist()
        ]

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ThisHead:
        """Read an entry back."""
        rows = [[row[name] for name in _COLUMNS] for row in entry["classes"]]
        return cls(
            classes=torch.tensor(rows, dtype=torch.float64),
            threshold=torch.tensor(entry["threshold"], dtype=torch.float64),
            fit=torch.tensor(entry["fit"], dtype=torch.float64),
            others=torch.tensor([entry.get("others", {}).get(name, 0) for name in _OTHERS]),
        )
