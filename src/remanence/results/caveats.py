"""Reasons not to trust a result, each with its meaning and its cure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remanence.adversary.baseline import Baseline
from remanence.results.verdict import Policy
from remanence.scoring.rates import SuccessRate


@dataclass(frozen=True)
class Caveat:
    """A flag on a result; `docs/caveats.md` has an entry under the same id.

    One that `voids` takes away what a proof rests on. One that `contradicts` shows that a claim is false, and is the
    headline. `seen` says what was seen in this very case, with its number.
    """

    id: str
    raised_if: str
    means: str
    do: str
    voids: bool = False
    contradicts: bool = False
    seen: str = ""


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
    "the noise that was added, in the run, a step or a tensor, is smaller than the accountant was told, by more than "
    "chance explains.",
    "The privacy budget was computed for noise that was not there; the bound that goes with it does not hold.",
    "Compare the realised noise multiplier with the accounted one, and look at what overrides the optimizer's noise.",
    contradicts=True,
)
NOISE_REPEATS = Caveat(
    "noise-repeats",
    "the noise of two steps, or of two layers, is the same or correlated.",
    "Noise that comes again can be subtracted: the difference of two such sums is not private at all.",
    "Seed the noise once, never inside the training loop or for every layer.",
    contradicts=True,
)
NOISE_NOT_GAUSSIAN = Caveat(
    "noise-not-gaussian",
    "the fourth moment of the noise is not that of a Gaussian, by more than chance explains.",
    "The budget was computed for Gaussian noise. Noise of the same size and another shape may hide nothing: two values "
    "are told apart by a glance.",
    "Draw the noise with torch.normal, as Opacus does.",
    contradicts=True,
)
SEEDED_IN_THE_LOOP = Caveat(
    "seeded-in-the-loop",
    "the seed of the generator that makes the noise was set while training ran.",
    "Whoever knows or guesses the seeds makes the same noise and subtracts it. A step's number is no secret.",
    "Seed once before training, with a number that nobody can guess, or use secure_mode=True.",
    contradicts=True,
)
CLIPPING_NOT_PER_RECORD = Caveat(
    "clipping-not-per-record",
    "the summed gradient differs from the sum of the records' gradients, each clipped.",
    "Nothing limits what one record contributes, so the noise hides no known amount.",
    "Clip every record's gradient before summing, not the batch's.",
    contradicts=True,
)
CLIPPED_ELSEWHERE = Caveat(
    "clipped-elsewhere",
    "gradients were clipped to another norm than the one that the noise was made for.",
    "One record contributes more than the accountant was told, and the noise hides that much less of it.",
    "Give the module and the optimizer the same max_grad_norm, and change it for both or for none.",
    contradicts=True,
)
NORM_FROM_THE_BATCH = Caveat(
    "norm-from-the-batch",
    "the clipping norm equals a mean, a median or an extreme of the batch's own gradient norms, step after step.",
    "The norm is computed from the records without noise, and the noise that is scaled by it gives it away.",
    'Fix the norm, lower it by a schedule, or estimate it privately (clipping="adaptive").',
    contradicts=True,
)
UPDATE_NOT_FROM_GRADIENT = Caveat(
    "update-not-from-gradient",
    "a parameter moved otherwise than the noised gradient and the optimizer's own rule say.",
    "Something else than the noised gradient has reached the weights, and no noise covers it. Changing weights by hand "
    "between two steps looks the same.",
    "Look at what touches gradients after the noise (scale_grad, hooks, a second step) and weights between steps.",
    contradicts=True,
)
TRAINED_OUTSIDE = Caveat(
    "trained-outside",
    "a parameter that the private optimizer does not hold has changed.",
    "It was trained without clipping and without noise, beside the budget.",
    "Give every trainable parameter to the optimizer that make_private wraps, or freeze it.",
    contradicts=True,
)
BUFFERS_CHANGED = Caveat(
    "buffers-changed",
    "a buffer of the model has changed in training.",
    "What layers remember of the batches, such as running statistics, is released with the model, without noise.",
    "Use layers without such memory (GroupNorm for BatchNorm), or keep them in eval mode.",
    contradicts=True,
)
DIVIDED_BY_THE_BATCH = Caveat(
    "divided-by-the-real-batch",
    "updates were divided by the number of records that came instead of the number that was expected.",
    "The number of records in a batch depends on who is in it, and the noise shrinks with it.",
    "Divide by the expected batch size, as Opacus does, and leave expected_batch_size alone.",
    contradicts=True,
)
RECORDS_MIXED = Caveat(
    "records-mixed",
    "what a layer makes of a record depends on the other records of its batch.",
    "No gradient belongs to one record alone, and clipping limits nobody's influence.",
    "Replace the layer by one that looks at each record on its own (GroupNorm, LayerNorm).",
    contradicts=True,
)
LOSS_OVER_THE_BATCH = Caveat(
    "loss-over-the-batch",
    "a canary's gradient has the right direction and, in another batch, another size.",
    "The loss divides by something that the whole batch decides, such as its number of tokens. Who is in a batch then "
    "changes everybody's gradient, and clipping limits only what one record adds itself.",
    "Average every record on its own, and then over records (`text_loss` for texts).",
    contradicts=True,
)
BATCH_NOT_FROM_LOADER = Caveat(
    "batch-not-from-loader",
    "gradients were of other records than the loader had handed out.",
    "Who was in a batch is not known, and the accounted sampling did not decide it.",
    "Record the loader that the loop iterates over, and train on whole batches of it, each once.",
    contradicts=True,
)
SAMPLING_NOT_POISSON = Caveat(
    "sampling-not-poisson",
    "batch sizes or the number of batches per record vary too little or too much for independent draws.",
    "The budget was computed for records that enter each batch by an independent coin. Shuffling, which gives "
    "every record its turn, has no such amplification.",
    "Use the loader that make_private returns with poisson_sampling=True.",
    contradicts=True,
)
SAMPLING_ABOVE_CLAIM = Caveat(
    "sampling-above-claim",
    "records were in more batches than the accounted rate allows, by more than chance explains.",
    "The budget was computed for smaller batches than those that were trained on.",
    "Account for the rate that ran; Opacus takes one over the loader's length.",
    contradicts=True,
)
STEPS_UNACCOUNTED = Caveat(
    "steps-unaccounted",
    "more steps were taken than the accountant counted.",
    "Some steps released gradients that no budget covers.",
    "Take every step through the optimizer that make_private returned.",
    contradicts=True,
)
RECORDS_REPEAT = Caveat(
    "records-repeat-in-a-step",
    "a record was more than once in one step.",
    "Its clipped gradient counts several times, while the noise is made for once. Accumulating gradients over several "
    "Poisson batches does this.",
    "Use one larger batch through BatchMemoryManager instead of accumulating.",
    contradicts=True,
)
RECORDS_DUPLICATED = Caveat(
    "records-duplicated",
    "two records of the training data are equal in what the model is given.",
    "The claim is about one record. Who is in the data twice is protected as if there were half the noise.",
    "Remove duplicates before training, or account for as many as belong to one person.",
    voids=True,
)
RECORDS_NEARLY_DUPLICATED = Caveat(
    "records-nearly-duplicated",
    "two records of the training data are nearly equal in what the model is given.",
    "If they belong to one person, the claim, which is about one record, says less about that person.",
    "Look at the closest pairs of the training data.",
)
UPDATES_UNCHECKED = Caveat(
    "updates-unchecked",
    "the optimizer could not be copied, so that its steps were not repeated beside the training.",
    "That nothing but the noised gradient reached the weights was not checked.",
    "Use an optimizer that copy.deepcopy copies.",
    voids=True,
)
RECORDING_STOPPED = Caveat(
    "recording-stopped",
    "an error ended the recording while training went on, or steps that the accountant counted were not seen.",
    "What is said is about the steps before; the others were not looked at.",
    "Read the error, mend its cause, and record again.",
    voids=True,
)
RECORDED_IN_PART = Caveat(
    "recorded-in-part",
    "training had begun before the recording did.",
    "The earlier steps were not looked at, and the claim is about all of them.",
    "Record from the first step on, or audit the recording of the earlier part too.",
    voids=True,
)
CANARY_GRADIENTS_DIFFER = Caveat(
    "canary-gradients-differ",
    "canaries' gradients in training differ from those of the same records in a copy of the model.",
    "The loss or the call that the recording was given are not those of the loop, so that the exact test says nothing.",
    "record(..., reading=Reading(loss=..., call=...)) as in the loop, with the same reduction.",
    voids=True,
)
NEVER_UPDATED = Caveat(
    "never-updated",
    "a trainable parameter never moved.",
    "It holds nothing of the data. If it should have been trained, the optimizer does not reach it.",
    "Check that the optimizer was made after layers were added or replaced, and its learning rates.",
)
SUSPICIOUS = Caveat(
    "suspicious",
    "the p-value of the claim is below 0.05 and above the level at which a run is accused.",
    "One honest run in twenty looks like this. So does a run with a little less noise than claimed.",
    "Record again with other seeds, and more canaries: a second p-value as small is no accident.",
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
        SEEDED_IN_THE_LOOP,
        NOISE_NOT_GAUSSIAN,
        CLIPPED_ELSEWHERE,
        NORM_FROM_THE_BATCH,
        UPDATE_NOT_FROM_GRADIENT,
        TRAINED_OUTSIDE,
        BUFFERS_CHANGED,
        DIVIDED_BY_THE_BATCH,
        RECORDS_MIXED,
        LOSS_OVER_THE_BATCH,
        BATCH_NOT_FROM_LOADER,
        RECORDS_DUPLICATED,
        RECORDS_NEARLY_DUPLICATED,
        UPDATES_UNCHECKED,
        RECORDING_STOPPED,
        RECORDED_IN_PART,
        CANARY_GRADIENTS_DIFFER,
        NEVER_UPDATED,
        SUSPICIOUS,
    )
}


def check_rates(
    main: SuccessRate, control: SuccessRate, baseline: Baseline, *, tells: bool = False
) -> Iterator[Caveat]:
    """The caveats that follow from the three rates of an evidence; it may tell single columns all the same."""
    if main.lower <= control.rate and not tells:
        yield NO_BETTER_THAN_CONTROL
    if main.lower <= baseline.seen and not tells:
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
