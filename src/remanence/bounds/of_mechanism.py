"""The ceiling of one of our mechanisms, from its training settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from remanence.bounds.bound import Bound, Values
from remanence.bounds.engine.schedule import MOST_RECORDS, Segment
from remanence.bounds.person import Person
from remanence.bounds.recipes import recomputable, recompute
from remanence.bounds.releases import final_weights
from remanence.bounds.settings import dpsgd, gaussian
from remanence.core.checks import whole
from remanence.core.exceptions import InputError

if TYPE_CHECKING:
    from remanence.core.mechanism import Mechanism
    from remanence.core.releases import Release

_ROUNDING = 1 + 1e-12


def of(
    mechanism: Mechanism[Release],
    baseline: Values = None,
    *,
    log_baseline: Values = None,
    person: Person | None = None,
    feature_norm: float | None = None,
) -> Bound:
    """The bound of the mechanism itself, so that no setting has to be given twice.

    With `feature_norm`, an upper bound on the norm of any record's features, two mechanisms get a better bound: heads
    with one logistic output, weight decay and full batches that release only their final weights (`final_weights`),
    and logistic regression with noise on its penalised weights. For others it changes nothing.

    >>> from remanence import NoisySum
    >>> round(of(NoisySum(noise_multiplier=2.0), 1 / 100).success, 4)
    0.0339
    """
    noise = mechanism.gaussian_noise(feature_norm)
    if noise is None:
        raise InputError(
            f"There is no proven ceiling for {mechanism.name}.",
            needs="DPSGD, NoisySum, a TransferHead with a noise_multiplier, or with a feature_norm a logistic GLM with "
            "noise and a penalty on all its weights",
            got=type(mechanism).__name__,
            hint="bounds.approximate_dp or another bound that you can prove for it",
        )
    within = () if feature_norm is None else (f"no record's features are longer than {feature_norm:g}",)
    descent = None if feature_norm is None else mechanism.noisy_descent(feature_norm)
    if descent is not None:
        found = final_weights(baseline, log_baseline=log_baseline, person=person, **descent._asdict())
        return replace(found, assumptions=(*found.assumptions, *within))
    run = Segment(*noise)
    if run == Segment(run.noise_multiplier) and person is None:
        found = gaussian(baseline, noise_multiplier=run.noise_multiplier, log_baseline=log_baseline)
    else:
        found = dpsgd(baseline, schedule=[run], log_baseline=log_baseline, person=person)
    used = within if mechanism.gaussian_noise() is None else ()
    return replace(found, assumptions=(*found.assumptions, *used))


def of_classes(
    mechanism: Mechanism[Release],
    baselines: Sequence[float],
    counts: Sequence[int],
    *,
    feature_norm: float | None = None,
) -> Bound:
    """The bound for one guess per class, compared with the closest of the class's records in the training set.

    The n records of a class, which may depend on each other, are treated as one person with n records: without all of
    them, a guess meets one of them with probability at most n·κ_c, hence with them at most γ_n(n·κ_c), averaged over
    the classes.

    >>> from remanence import NoisySum
    >>> round(of_classes(NoisySum(noise_multiplier=2.0), [1 / 100, 1 / 100], [1, 2]).success, 4)
    0.0899
    """
    base = of(mechanism, 0.5, feature_norm=feature_norm)
    found = any_of_class(base.recipe or {}, baselines, counts)
    return replace(found, assumptions=(*base.assumptions, *found.assumptions[-2:]))


@recomputable
def any_of_class(one: Mapping[str, Any], baselines: Sequence[float], counts: Sequence[int]) -> Bound:
    """`of_classes` for the training described by another bound's recipe, whatever its baseline.

    >>> from remanence.bounds.settings import gaussian
    >>> round(any_of_class(gaussian(0.5, noise_multiplier=2.0).recipe, [1 / 100, 1 / 100], [1, 2]).success, 4)
    0.0899
    """
    base, met = recompute(one), []
    whole("number of classes", len(counts), hint="one baseline and one count for each class")
    whole(
        "number of baselines", len(baselines), least=len(counts), most=len(counts), hint="one for each class"
    )

    def success(baseline: float, person: Person | None = None) -> float:
        name = "dpsgd" if one["function"] == "gaussian" and person is not None else one["function"]
        among = {} if person is None else {"person": asdict(person)}
        arguments = {**one["arguments"], "baseline": baseline, **among}
        arguments.pop("log_baseline", None)
        return float(recompute({"function": name, "arguments": arguments}).success)

    for baseline, count in zip(baselines, counts, strict=True):
        together = baseline if count == 1 else count * baseline * _ROUNDING
        person = Person(count) if 1 < count <= MOST_RECORDS else None
        provable = together < 1 and count <= MOST_RECORDS
        met.append(success(together, person) if provable else 1.0)
    share = min(1.0, math.fsum(met) / len(met) * _ROUNDING)
    dependence = (
        "on average over records: each of a class is a draw of the kind that the baseline was estimated from, and they "
        "may depend on each other, but not on those of other classes"
    )
    return Bound(
        f"{base.name}, any record of a class",
        math.log(share),
        (*base.assumptions, dependence, "as many guesses of every class"),
        base.reference,
        on_average=True,
    )
