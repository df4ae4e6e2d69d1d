"""What bound, calibrate, frontier and explore ask about a training: its rate and steps, the guess, and the person."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from remanence.cli.grouped import options
from remanence.core.checks import exactly_one, goes_with, number, whole
from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.bounds import Person
    from remanence.bounds.bound import Bound

NoiseMultiplier = Annotated[float | None, "Noise divided by the clipping norm, as in Opacus."]
Delta = Annotated[float | None, "δ; with noise, prints the ε at this δ."]
AsJson = Annotated[bool, "--json", "Print one JSON object and nothing else."]


@options()
class Batching:
    """The rate and the steps of a training, given as such or by the data, the batches and the epochs."""

    sample_rate: Annotated[float | None, "The chance that a record is in a batch; 1 is a full batch."] = None
    steps: Annotated[int | None, "Training steps."] = None
    dataset_size: Annotated[int | None, "Records in the data, with --batch-size."] = None
    batch_size: Annotated[int | None, "Records in a batch, on average."] = None
    epochs: Annotated[float | None, "Passes over the data, instead of --steps."] = None

    def solved(self, *, passes: bool = False) -> Batching:
        """With the rate and the steps that follow.

        A rate of batch over data, and steps of this many epochs of whole batches, the last one included: never below
        what a loader does. With `passes` each record is in one of the ⌊N/B⌋ batches of a pass, the fewest of any loader
        (drop_last): the rate is 1 over their number, and as many steps are the most passes.
        """
        rate, steps, per_pass = self.sample_rate, self.steps, None
        for one, other in (("sample_rate", "batch_size"), ("steps", "epochs")):
            given = {f"--{name.replace('_', '-')}": getattr(self, name) for name in (one, other)}
            if None not in given.values():
                exactly_one(given, _EXAMPLE)
        for name in ("dataset_size", "batch_size", "epochs"):
            value = getattr(self, name)
            if value is not None:
                number(f"--{name.replace('_', '-')}", value, above=0, hint=_EXAMPLE)
        if self.batch_size is not None:
            if self.dataset_size is None or self.batch_size > self.dataset_size:
                raise InputError(
                    "The batch is a share of the data.",
                    needs="--dataset-size, of at least --batch-size",
                    got=f"--batch-size {self.batch_size} and --dataset-size {self.dataset_size or 'missing'}",
                    hint=_EXAMPLE,
                )
            share = self.batch_size / self.dataset_size
            per_pass = self.dataset_size // self.batch_size if passes else math.ceil(1 / share)
            rate = 1 / per_pass if passes else share
        goes_with(
            "--epochs", self.epochs, "--dataset-size and --batch-size, or --sample-rate", rate, _EXAMPLE
        )
        if self.epochs is not None and rate is not None:
            steps = math.ceil(self.epochs * (per_pass or 1 / rate) * (1 - 1e-12))
        return replace(self, sample_rate=rate, steps=steps)

    @property
    def derives(self) -> bool:
        """Whether anything is computed from sizes or epochs."""
        return self.batch_size is not None or self.epochs is not None

    def echoed(self) -> str:
        """The rate and the steps, for a reader who gave sizes."""
        rate = "" if self.sample_rate is None else f"a sampling rate of {self.sample_rate:.6g}"
        steps = "" if self.steps is None else f"{self.steps} steps"
        return f"That is {' and '.join(filter(None, (rate, steps)))}."


_EXAMPLE = "--dataset-size 60000 --batch-size 600 --epochs 10"


@options()
class Guess:
    """What a guess without the release achieves: as such, or by the length of a shortlist."""

    candidates: Annotated[int | None, "The adversary has narrowed the record down to N candidates."] = None
    baseline: Annotated[float | None, "How often a guess without the model succeeds."] = None

    @property
    def log_baseline(self) -> float:
        """Log κ."""
        given = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items()}
        exactly_one(given, "--candidates 100: the adversary has narrowed the record down to 100")
        if self.candidates is not None:
            whole("--candidates", self.candidates, least=2, hint="--candidates 10")
            return -math.log(self.candidates)
        from remanence.bounds.bound import read_baselines

        return read_baselines(self.baseline, None).logs[0]


@options()
class Whose:
    """Whose ceiling it is, how their records get into batches, and what the training is compared with."""

    records_per_person: Annotated[int, "The most records of one person, whose ceiling it is."] = 1
    batches: Annotated[
        Literal["poisson", "people", "shuffled", "fixed", "balls-in-bins"],
        "How records get into batches: each by its own coin (poisson), whole people by theirs, clipped as "
        "one (people), shuffled passes, draws of a fixed size, balls in bins.",
    ] = "poisson"
    neighbours: Annotated[
        Literal["remove", "replace"], "Compare with the target left out, or replaced by another record."
    ] = "remove"

    @property
    def passes(self) -> bool:
        """Whether each record is in one batch of every pass."""
        return self.batches in ("shuffled", "balls-in-bins")

    def person(self, dataset_size: int | None) -> Person:
        """The person."""
        from remanence.bounds import Person

        person = Person(self.records_per_person, self.batches, self.neighbours == "replace")
        if dataset_size is not None:
            hint = "count the records of the person who has the most"
            whole("records per person", person.records, most=dataset_size, hint=hint)
        return person


def gaussian_mu(one: Bound) -> float | None:
    """The μ of Gaussian differential privacy whose ceiling for this guess is this one; None where it is 1.

    μ = Φ⁻¹(γ) − Φ⁻¹(κ), since μ-GDP allows γ = Φ(Φ⁻¹(κ) + μ) (Dong et al. 2022). Full batches of DP-SGD are μ-GDP with
    μ = √T / σ, whatever the guess; under sampling μ depends on the guess.
    """
    from scipy.special import ndtri_exp

    if one.log_success >= 0:
        return None
    above = one.log_success > math.log(0.5) and one.log_complement is not None
    reached = -ndtri_exp(one.log_complement) if above else ndtri_exp(one.log_success)
    return max(0.0, float(reached - ndtri_exp(one.log_baseline)))


def spoken_budget(
    one: Bound, person: Person, epsilon: float, delta: float, rate: float, over: str = ""
) -> str:
    """(ε, δ) and μ of a training, rounded up: ε is about leaving out one record under Poisson sampling."""
    from remanence.report.frequencies import upwards

    plain = person == type(person)()
    who = "" if plain else " for one record under Poisson sampling"
    budget, mu = f"({upwards(epsilon)}, {delta:g})-DP{over}{who}.", gaussian_mu(one)
    if mu is None or not math.isfinite(mu):
        return budget
    if plain and rate == 1:
        return f"{budget} It is μ-GDP with μ = {upwards(mu)}."
    return f"{budget} For this guess its ceiling is that of μ-GDP with μ = {upwards(mu)}."


def bound_entry(method: str, one: Bound) -> dict[str, Any]:
    """A bound as JSON; shares below 1e-300 are null, because a printed 0.0 would be below the truth."""
    lower = one.log_baseline if one.log_lower is None else one.log_lower

    def share(log: float, value: float) -> float | None:
        return value if log > math.log(1e-300) else None

    baseline = share(one.log_baseline, math.exp(one.log_baseline))
    upper = share(one.log_success, float(one.success))
    return {
        "success": {"lower": share(lower, math.exp(lower)), "upper": upper},
        "log10_success": {"lower": lower / math.log(10), "upper": one.log_success / math.log(10)},
        "log10_complement": None
        if one.log_complement in (None, -math.inf)
        else one.log_complement / math.log(10),
        "baseline": baseline,
        "log10_baseline": one.log_baseline / math.log(10),
        "mu": gaussian_mu(one),
        "advantage": None if baseline in (None, 1.0) or upper is None else float(one.advantage),
        "whose": one.whose,
        "on_average": one.on_average,
        "method": method,
        "converged": bool(one.converged),
        "assumptions": list(one.assumptions),
        "reference": one.reference.short,
    }
