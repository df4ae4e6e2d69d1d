"""Reasons not to trust a result, each with its meaning and its cure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remanence.adversary.priors import Baseline
from remanence.results.verdict import Policy
from remanence.scoring.rates import SuccessRate


@dataclass(frozen=True)
class Caveat:
    """A flag on a result; `docs/caveats.md` has an entry under the same id."""

    id: str
    raised_if: str
    means: str
    do: str


TOO_FEW_TRIALS = Caveat(
    "too-few-trials",
    "the interval of zero successes in this many trials would still reach above the limit.",
    "Even zero successes in this many trials cannot rule out the rate that the policy forbids.",
    "Raise --trials: about 4 / max_success for one attack, a few more for several.",
)
NO_BETTER_THAN_CONTROL = Caveat(
    "no-better-than-control",
    "the attack's lower limit is not above its success where the record was not trained on.",
    "The attack finds nothing that it would not also find without the target; its failure proves nothing.",
    "Try other attacks, or check that the game gives this one what it needs.",
)
NO_BETTER_THAN_GUESSING = Caveat(
    "no-better-than-guessing",
    "the attack's lower limit is not above the baseline (where that is loose: not above what a guess was seen to do).",
    "A guess from the prior does as well; the release added nothing that this attack can use.",
    "Try other attacks; a failed attack is no proof of protection.",
)
SATURATED_CONTROL = Caveat(
    "saturated-control",
    "the control is certain to succeed in more than half of the trials.",
    "The threshold is so loose that records never trained on count as recovered.",
    "Choose a smaller threshold.",
)
OVERLAPPING_CONTROL = Caveat(
    "overlapping-control",
    "the records that targets are drawn from are fewer than two sets of them.",
    "Control sets share records with the targets, so the control counts true finds as false ones.",
    "Give more records, or Game(..., strangers=...) to draw control sets from.",
)
ATTRIBUTES_GIVEN = Caveat(
    "attributes-given",
    "some attributes of the target are given to the adversary.",
    "What follows from these without any model counts as recovered: baseline and control do not know them.",
    "Use infer_attributes, which sets imputation beside, or play Disclosed(None, columns) for comparison.",
)
TARGETS_KNOWN = Caveat(
    "targets-known",
    "a record that the adversary holds, or one of the known data, equals a target, and no two targets are equal.",
    "What the adversary has already is no recovery, and a network that learned from it remembers it.",
    "Draw targets from records of their own.",
)
LOOSE_BASELINE = Caveat(
    "loose-baseline",
    "the certain upper value of the baseline is more than twice what guessing a candidate achieves.",
    "The true value of a guess lies somewhere between the two, so the attack's gain over it is uncertain.",
    "Choose a smaller threshold, or an error with a known reach.",
)
OPTIMISER_NOT_CONVERGED = Caveat(
    "optimiser-not-converged",
    "the optimiser stopped so early that some records' predicted error is above the threshold.",
    "The optimality condition holds only roughly, which hides those records by accident, not by design: "
    "training a little longer would expose them. A very large remaining gradient can also mean that "
    "the model was trained on other data.",
    "Do not rely on it: audit again with a tighter tolerance, and check that these are the training data.",
)
NO_TRACE = Caveat(
    "no-trace",
    "a record's residual is zero up to rounding.",
    "The model explains the record exactly, so it pulls on no parameter and the optimality condition does not "
    "contain it. Those records are out of this attack's reach, not protected.",
    "Other attacks may reach them; a penalty, or more records than parameters, leaves residuals.",
)
DIVERGED = Caveat(
    "diverged-trainings",
    "training came to no finite numbers in some of the trials.",
    "From those trials nothing can be recovered, and each counts as a failure of the attack.",
    "Train with a smaller rate, or read the rate as that of all trainings, those that fail included.",
)
ONE_RELEASE = Caveat(
    "one-release",
    "the trials share one release and differ in which record plays the target.",
    "The rate describes the records of this training set; the interval treats them as draws from a larger "
    "population and does not cover how another training set would fare.",
    "Audit a fresh training set for an independent figure.",
)
RELEASED_HEAD_UNLIKE_RECIPE = Caveat(
    "released-head-unlike-recipe",
    "the released head is more than twice as far from heads retrained by the recipe as the farthest of those is.",
    "The head was not trained by this recipe on these pictures: what is said about it may not hold, and the rates "
    "are those of other heads.",
    "Check epochs, learning rate, initialisation, preprocessing, and the order of the pictures and labels.",
)
INACTIVE_FEATURES = Caveat(
    "inactive-features",
    "an L1 penalty has set coefficients to zero.",
    "At a zero coefficient the optimality condition only bounds the feature, so records are compared on the "
    "features that the model uses.",
    "Read the result as: these features of a record, not the whole record.",
)
DUPLICATE_RECORDS = Caveat(
    "duplicate-records",
    "some records of the table are equal in every column.",
    "Who knows the others knows a record's twin already, so that recovering it says less.",
    "Read the rate beside the number of twins; leave duplicates out of the table where they are a mistake.",
)
PART_NOT_CONFIRMED = Caveat(
    "part-not-confirmed",
    "some part of the model draws at random in training, so that fitting it again does not give it back.",
    "Whether that part was fitted on this table could not be tested, and nothing that it holds was used.",
    "Fit it with a fixed random_state.",
)

NOISE_BELOW_CLAIM = Caveat(
    "noise-below-claim",
    "the noise that was added is smaller than the accountant was told, by more than chance explains.",
    "The privacy budget was computed for noise that was not there; the bound that goes with it does not hold.",
    "Compare the realised noise multiplier with the accounted one, and look at what overrides the optimizer's noise.",
)
NOISE_REPEATS = Caveat(
    "noise-repeats",
    "the noise of two steps is correlated.",
    "Noise that comes again can be subtracted: the difference of two such steps is not private at all.",
    "Seed the noise once, never inside the training loop.",
)
CLIPPING_NOT_PER_RECORD = Caveat(
    "clipping-not-per-record",
    "the summed gradient differs from the sum of the records' gradients, each clipped.",
    "Nothing limits what one record contributes, so the noise hides no known amount.",
    "Clip every record's gradient before summing, not the batch's.",
)
SAMPLING_NOT_POISSON = Caveat(
    "sampling-not-poisson",
    "batch sizes or the number of batches per record vary too little or too much for independent draws.",
    "The budget was computed for records that enter each batch by an independent coin. Shuffling, which gives "
    "every record its turn, has no such amplification.",
    "Use the loader that make_private returns with poisson_sampling=True.",
)
SAMPLING_ABOVE_CLAIM = Caveat(
    "sampling-above-claim",
    "records were in more batches than the accounted rate allows, by more than chance explains.",
    "The budget was computed for smaller batches than those that were trained on.",
    "Account for the rate that ran; Opacus takes one over the loader's length.",
)
STEPS_UNACCOUNTED = Caveat(
    "steps-unaccounted",
    "more steps were taken than the accountant counted.",
    "Some steps released gradients that no budget covers.",
    "Take every step through the optimizer that make_private returned.",
)
RECORDS_REPEAT = Caveat(
    "records-repeat-in-a-step",
    "a record was more than once in one step.",
    "Its clipped gradient counts several times, while the noise is made for once. Accumulating gradients over several "
    "Poisson batches does this.",
    "Use one larger batch through BatchMemoryManager instead of accumulating.",
)

NO_BASE_MODEL = Caveat(
    "no-base-model",
    "a language model is audited without the model that its fine-tuning began with.",
    "What the base model says already, from its own training, counts here as if the fine-tuning gave it away.",
    "Name the base model, or audit the adapter, whose base is known.",
)
NO_UNSEEN_TEXTS = Caveat(
    "no-unseen-texts",
    "a language model is audited without texts of the same kind that it was not trained on.",
    "The control is another record's secret after the same prompt. What the model learned about all such texts, and "
    "would say of others too, may count as recovered.",
    "Keep some texts out of the training and hand them in as unseen ones.",
)

CAVEATS = {
    caveat.id: caveat
    for caveat in (
        TOO_FEW_TRIALS,
        NO_BETTER_THAN_CONTROL,
        NO_BETTER_THAN_GUESSING,
        SATURATED_CONTROL,
        OVERLAPPING_CONTROL,
        ATTRIBUTES_GIVEN,
        TARGETS_KNOWN,
        LOOSE_BASELINE,
        OPTIMISER_NOT_CONVERGED,
        NO_TRACE,
        DIVERGED,
        ONE_RELEASE,
        NO_BASE_MODEL,
        NO_UNSEEN_TEXTS,
        RELEASED_HEAD_UNLIKE_RECIPE,
        INACTIVE_FEATURES,
        DUPLICATE_RECORDS,
        PART_NOT_CONFIRMED,
        NOISE_BELOW_CLAIM,
        NOISE_REPEATS,
        CLIPPING_NOT_PER_RECORD,
        SAMPLING_NOT_POISSON,
        SAMPLING_ABOVE_CLAIM,
        STEPS_UNACCOUNTED,
        RECORDS_REPEAT,
    )
}


def check_rates(main: SuccessRate, control: SuccessRate, baseline: Baseline) -> Iterator[Caveat]:
    """The caveats that follow from the three rates of an evidence."""
    if main.lower <= control.rate:
        yield NO_BETTER_THAN_CONTROL
    if main.lower <= baseline.seen:
        yield NO_BETTER_THAN_GUESSING
    if control.lower > 0.5:
        yield SATURATED_CONTROL
    if baseline.loose:
        yield LOOSE_BASELINE


def check_trials(main: SuccessRate, policy: Policy) -> Iterator[Caveat]:
    """Whether the trials can speak about the policy at all."""
    nothing = SuccessRate(0, main.trials, main.confidence, main.clusters)
    if nothing.upper > policy.max_success:
        yield TOO_FEW_TRIALS
