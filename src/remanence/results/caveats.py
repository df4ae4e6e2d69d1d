"""Reasons not to trust a result, each with its meaning and its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from remanence.core.baseline import Baseline
from remanence.core.doors import doors
from remanence.core.rates import SuccessRate
from remanence.results.verdict import Policy

if TYPE_CHECKING:
    from remanence.results.evidence import Evidence


@dataclass(frozen=True)
class Caveat:
    """A flag on a result; `docs/caveats.md` has an entry under the same id.

    A caveat that `voids` invalidates a premise of a proof. One that `contradicts` shows that a claim is false, and
    becomes the headline. `seen` is the observation in this case, with its number.
    """

    id: str
    raised_if: str
    means: str
    do: str
    voids: bool = False
    contradicts: bool = False
    seen: str = ""

    def to_json(self) -> dict[str, str | bool]:
        """The entry in audit.json: the text, and its effect on a verdict."""
        effects = {name: True for name in ("voids", "contradicts") if getattr(self, name)}
        seen = {"seen": self.seen} if self.seen else {}
        return {"id": self.id, "means": self.means, "do": self.do, **seen, **effects}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Caveat:
        """Read an entry back. For a caveat known to this version, our own definition overrides the entry's."""
        known = all_caveats().get(entry["id"])
        if known is None:
            flags = entry.get("voids", False), entry.get("contradicts", False)
            known = cls(entry["id"], "", entry["means"], entry["do"], *flags)
        return replace(known, seen=entry.get("seen", ""))


TOO_FEW_TRIALS = Caveat(
    "too-few-trials",
    "even zero successes in this many trials would leave an interval that reaches above the limit.",
    "There are too few trials to rule out the rate that the limit forbids.",
    "Audit with more trials (--trials) where they can be drawn, or with more records. A limit of 100 in 1000 needs "
    "about 40, a limit of 10 in 1000 about 400.",
)
NO_BETTER_THAN_CONTROL = Caveat(
    "no-better-than-control",
    "the lower end of the attack's interval is not above the control.",
    "The attack does as well on records that were not trained on. It found nothing, and its failure proves "
    "nothing.",
    "Try other attacks. Check that the game gives this one what it needs.",
)
NO_BETTER_THAN_GUESSING = Caveat(
    "no-better-than-guessing",
    "the lower end of the attack's interval is not above the baseline. Where the baseline is loose, what a guess "
    "was seen to achieve counts.",
    "A guess does as well. The release gave this attack nothing useful.",
    "Try other attacks. A failed attack does not prove protection.",
)
SATURATED_CONTROL = Caveat(
    "saturated-control",
    "the control certainly succeeds in more than half of the trials.",
    "The threshold is so loose that records that were never trained on count as recovered.",
    "Do not read the rate. Compare the attack with its control, or count only closer matches as recovered.",
)
OVERLAPPING_CONTROL = Caveat(
    "overlapping-control",
    "there are too few records to draw two separate sets of targets from.",
    "Control sets share records with the targets, so the control counts true finds as false ones.",
    "Give more records, or others of the same kind for the control.",
)
TARGETS_KNOWN = Caveat(
    "targets-known",
    "a record that the adversary holds equals a target, and no two targets are equal.",
    "The adversary cannot recover a record that they already have, and a network that learned from a record "
    "remembers it.",
    "Draw the targets from records that the adversary does not hold.",
)
LOOSE_BASELINE = Caveat(
    "loose-baseline",
    "the proven upper value of the baseline is more than twice what a guess was seen to achieve.",
    "What a guess achieves is known only as a range, so the attack's gain is uncertain.",
    "Read the attack beside both values. A stricter criterion makes the range smaller.",
)
OPTIMISER_NOT_CONVERGED = Caveat(
    "optimiser-not-converged",
    "the optimiser stopped so early that some records' predicted error is above the threshold.",
    "Training stopped before its optimum, which hides records by accident. A little more training would expose them. A "
    "very large remaining gradient can also mean that the model was trained on other data.",
    "Do not rely on it. Audit again with a tighter tolerance, and check that these are the training data.",
)
NO_TRACE = Caveat(
    "no-trace",
    "a record's residual is zero up to rounding.",
    "The model explains the record exactly, so the record leaves no trace in the optimality condition. This "
    "attack cannot reach it. That does not protect it.",
    "Other attacks may reach these records. A penalty, or more records than parameters, leaves residuals.",
)
DIVERGED = Caveat(
    "diverged-trainings",
    "training ended in infinite or undefined numbers in some trials.",
    "Nothing can be recovered from those trials, and each counts as a failure of the attack.",
    "Train with a smaller learning rate. Or read the rate as one over all trainings, failed ones included.",
)
ONE_RELEASE = Caveat(
    "one-release",
    "all trials share one release and differ in which record is the target.",
    "The rate describes the records of this training set. The interval treats them as draws from a larger "
    "population. It does not say how another training set would fare.",
    "Audit a fresh training set for an independent figure.",
)
SEVERAL_RECORDS_OF_ONE = Caveat(
    "several-records-of-one",
    "the training data hold equal records, and the proven ceiling is about one record.",
    "If equal records belong to one person, the ceiling is not theirs: every further record raises it.",
    "Prove it for people: `remanence bound --records-per-person`.",
)


@cache
def all_caveats() -> dict[str, Caveat]:
    """Every caveat by its id: the general ones and those of the doors."""
    modules = [__name__, *(door.caveats for door in doors() if door.caveats)]
    found = [each for module in modules for each in vars(import_module(module)).values()]
    return {each.id: each for each in found if isinstance(each, Caveat)}


def check_rates(
    main: SuccessRate, control: SuccessRate, baseline: Baseline, *, tells: bool = False
) -> Iterator[Caveat]:
    """The caveats that follow from the three rates of an evidence, which may still recover single columns."""
    if main.lower <= control.rate and not tells:
        yield NO_BETTER_THAN_CONTROL
    if main.lower <= baseline.seen and not tells:
        yield NO_BETTER_THAN_GUESSING
    if control.lower > 0.5:
        yield SATURATED_CONTROL
    if baseline.loose:
        yield LOOSE_BASELINE


def check_trials(found: Evidence, policy: Policy) -> Iterator[Caveat]:
    """A caveat if there are too few trials to test the policy; a proven record needs no minimum."""
    main = found.main
    if any(each.kind == "proven-records" for each in found.found):
        return
    nothing = SuccessRate(0, main.trials, main.confidence, main.clusters)
    if nothing.upper > policy.max_success:
        yield TOO_FEW_TRIALS
