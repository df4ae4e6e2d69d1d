"""Reasons not to trust a result, each with its meaning and its cure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from remanence.core.baseline import Baseline
from remanence.core.rates import SuccessRate
from remanence.results.verdict import Measured, Policy


@dataclass(frozen=True)
class Caveat:
    """A flag on a result; `docs/caveats.md` has an entry under the same id.

    One that `voids` removes what a proof rests on. One that `contradicts` shows that a claim is false, and becomes the
    headline. `seen` says what was seen in this case, with its number.
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
    "even zero successes in this many trials would leave an interval that reaches above the limit.",
    "There are too few trials to rule out the rate that the limit forbids.",
    "Raise --trials. One attack needs about 4 / max_success trials; several attacks need a few more.",
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
    "A guess does as well. The release gave this attack nothing that it could use.",
    "Try other attacks. A failed attack does not prove protection.",
)
SATURATED_CONTROL = Caveat(
    "saturated-control",
    "the control certainly succeeds in more than half of the trials.",
    "The threshold is so loose that records that were never trained on count as recovered.",
    "Choose a smaller threshold.",
)
OVERLAPPING_CONTROL = Caveat(
    "overlapping-control",
    "there are too few records to draw two separate sets of targets from.",
    "Control sets share records with the targets, so the control counts true finds as false ones.",
    "Give more records, or draw control sets from others with Game(..., strangers=...).",
)
ATTRIBUTES_GIVEN = Caveat(
    "attributes-given",
    "the adversary is given some attributes of the target.",
    "Whatever follows from these alone, without any model, counts as recovered. Baseline and control do not know "
    "them.",
    "Play Attributes instead: its control and its guess know these columns too.",
)
TARGETS_KNOWN = Caveat(
    "targets-known",
    "a record that the adversary holds equals a target, and no two targets are equal.",
    "Nobody recovers what they already have, and a network that learned from a record remembers it.",
    "Draw the targets from records that the adversary does not hold.",
)
LOOSE_BASELINE = Caveat(
    "loose-baseline",
    "the proven upper value of the baseline is more than twice what a guess was seen to achieve.",
    "A guess achieves something between what was seen and a proven upper value, so the attack's gain is uncertain.",
    "Choose a smaller threshold, or an error with a known reach.",
)
OPTIMISER_NOT_CONVERGED = Caveat(
    "optimiser-not-converged",
    "the optimiser stopped so early that some records' predicted error is above the threshold.",
    "The optimality condition holds only roughly. That hides those records by accident: a little more training "
    "would expose them. A very large remaining gradient can also mean that the model was trained on other data.",
    "Do not rely on it. Audit again with a tighter tolerance, and check that these are the training data.",
)
NO_TRACE = Caveat(
    "no-trace",
    "a record's residual is zero up to rounding.",
    "The model explains the record exactly, so the record leaves no trace in the optimality condition. This "
    "attack cannot reach it. That does not protect it.",
    "Other attacks may reach these records. A penalty, or more records than parameters, leaves residuals.",
)
THIS_HEAD_GIVES_LESS = Caveat(
    "this-head-gives-less",
    "at most one in twenty of the heads made like this, this one included, give back as few pictures as it does.",
    "The rates are about heads made like this, and this head gives back fewer pictures. It may have been trained on "
    "other pictures, or otherwise than declared, though the test of whether it belongs did not refuse it.",
    "Check the pictures and the recipe. What came back out of this very head is listed by itself.",
)
SIMILAR_PICTURES = Caveat(
    "similar-pictures",
    "of heads that the recipe makes from other pictures of the same classes, fewer than nine in ten are refused.",
    "The test of whether the head belongs cannot tell whether these pictures or similar ones were used. The rates are "
    "about heads on your pictures, and this head may not be one, so the verdict does not rest on them.",
    "Go by what came back out of this very head. Make sure that these are the pictures that it was trained on.",
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
INACTIVE_FEATURES = Caveat(
    "inactive-features",
    "an L1 penalty has set some coefficients to zero.",
    "At a zero coefficient, the optimality condition only bounds the feature. So records are compared on the "
    "features that the model uses.",
    "Read the result as one about these features, not about the whole record.",
)
DUPLICATE_RECORDS = Caveat(
    "duplicate-records",
    "some records of the table are equal in every column.",
    "Whoever knows the other records already knows this one's twin, so recovering it says less.",
    "Read the rate beside the number of twins. Remove duplicates that are a mistake.",
)
SEVERAL_RECORDS_OF_ONE = Caveat(
    "several-records-of-one",
    "the training data hold equal records, and the proven ceiling is about one record.",
    "If equal records belong to one person, the ceiling is not theirs: every further record raises it.",
    "Prove it for people: Person(records=...), or remanence bound --records-per-person.",
)
PART_NOT_CONFIRMED = Caveat(
    "part-not-confirmed",
    "some part of the model is random in training, so that fitting it again gives another result.",
    "Whether that part was fitted on this table could not be tested. Nothing that it holds was used.",
    "Fit it with a fixed random_state.",
)
COLUMNS_NOT_READ = Caveat(
    "columns-not-read",
    "the model drops some columns of the table before any part of it sees them.",
    "No number in the model depends on these columns. So rows are compared on the columns that it reads.",
    "Read the result as one about these columns. Leave the others out of the table.",
)
TEXTS_AS_WORDS = Caveat(
    "texts-as-words",
    "the model counts the words of a text and does not see their order.",
    "A text counts as recovered when every word of it that the model knows is there, as often as in the text.",
    "Read names, places and diagnoses in these texts as given away, though their sentences are not.",
)
PART_NOT_READ = Caveat(
    "part-not-read",
    "some part of the model was fitted on the table, and nothing that it holds is known to tell about single rows.",
    "That part was looked at, but no attack here reads it. Another attack may, so that this does not protect anybody.",
    "Compare retrained models with `shortlist_game`, or treat what this part learned from as unprotected.",
)
NOISE_BELOW_CLAIM = Caveat(
    "noise-below-claim",
    "the noise of the run, of a step or of a tensor is smaller than the accountant was told, by more than chance "
    "explains.",
    "The privacy budget was computed for noise that was not there. Its bound does not hold.",
    "Compare the measured noise multiplier with the accounted one. Look for code that overrides the optimizer's "
    "noise.",
    contradicts=True,
)
NOISE_REPEATS = Caveat(
    "noise-repeats",
    "the noise of two steps, or of two layers, is equal or correlated.",
    "Noise that repeats can be subtracted. The difference of two such sums is not private at all.",
    "Seed the noise once, never inside the training loop or for each layer.",
    contradicts=True,
)
NOISE_NOT_GAUSSIAN = Caveat(
    "noise-not-gaussian",
    "the fourth moment of the noise is not that of a Gaussian, by more than chance explains.",
    "The budget was computed for Gaussian noise. Noise of the same size and another shape may hide nothing.",
    "Draw the noise with torch.normal, as Opacus does.",
    contradicts=True,
)
SEEDED_IN_THE_LOOP = Caveat(
    "seeded-in-the-loop",
    "the generator that makes the noise was seeded while training ran.",
    "Anyone who knows or guesses the seeds can make the same noise and subtract it. The number of a step is no "
    "secret.",
    "Seed once before training with a number that nobody can guess, or use secure_mode=True.",
    contradicts=True,
)
CLIPPING_NOT_PER_RECORD = Caveat(
    "clipping-not-per-record",
    "the summed gradient is not the sum of the records' clipped gradients.",
    "Nothing limits what one record contributes, so nobody knows how much the noise hides.",
    "Clip each record's gradient before summing, not the gradient of the batch.",
    contradicts=True,
)
CLIPPED_ELSEWHERE = Caveat(
    "clipped-elsewhere",
    "gradients were clipped to another norm than the one that the noise was made for.",
    "One record contributes more than the accountant was told, so the noise hides less of it.",
    "Give the module and the optimizer the same max_grad_norm. Change it for both or for neither.",
    contradicts=True,
)
NORM_FROM_THE_BATCH = Caveat(
    "norm-from-the-batch",
    "the clipping norm equals a mean, a median or an extreme of the batch's own gradient norms, step after step.",
    "The norm is computed from the records without noise. Noise that is scaled by it gives it away.",
    'Fix the norm, lower it by a schedule, or estimate it privately (clipping="adaptive").',
    contradicts=True,
)
UPDATE_NOT_FROM_GRADIENT = Caveat(
    "update-not-from-gradient",
    "a parameter did not move as the noised gradient and the optimizer's rule say.",
    "Something other than the noised gradient reached the weights, and no noise covers it. Changing weights by "
    "hand between two steps looks the same.",
    "Look at what touches gradients after the noise (scale_grad, hooks, a second step) and weights between steps.",
    contradicts=True,
)
TRAINED_OUTSIDE = Caveat(
    "trained-outside",
    "a parameter changed that the private optimizer does not hold.",
    "It was trained without clipping and without noise, and no budget covers it.",
    "Give every trainable parameter to the optimizer that make_private wraps, or freeze it.",
    contradicts=True,
)
BUFFERS_CHANGED = Caveat(
    "buffers-changed",
    "a buffer of the model changed in training.",
    "Layers remember something of the batches, such as running statistics. It is released with the model, "
    "without noise.",
    "Use layers without such memory (GroupNorm instead of BatchNorm), or keep them in eval mode.",
    contradicts=True,
)
DIVIDED_BY_THE_BATCH = Caveat(
    "divided-by-the-real-batch",
    "updates were divided by the actual number of records in the batch, not by the expected number.",
    "The actual number depends on who is in the batch, and the noise shrinks with it.",
    "Divide by the expected batch size, as Opacus does, and leave expected_batch_size alone.",
    contradicts=True,
)
RECORDS_MIXED = Caveat(
    "records-mixed",
    "a layer's output for one record depends on the other records of its batch.",
    "No gradient belongs to one record alone, so clipping limits nobody's influence.",
    "Replace the layer by one that looks at each record on its own (GroupNorm, LayerNorm).",
    contradicts=True,
)
LOSS_OVER_THE_BATCH = Caveat(
    "loss-over-the-batch",
    "a canary's gradient has the right direction, but its size changes with the batch that it is in.",
    "The loss divides by something that the whole batch decides, such as its number of tokens. Who is in a batch then "
    "changes everybody's gradient, and clipping limits only what one record adds itself.",
    "Average the loss of each record first, and then over records. For texts, `text_loss` does so.",
    contradicts=True,
)
BATCH_NOT_FROM_LOADER = Caveat(
    "batch-not-from-loader",
    "gradients came from other records than those that the loader handed out.",
    "Nobody knows who was in a batch, and the accounted sampling did not decide it.",
    "Record the loader that the loop iterates over. Train on its whole batches, each once.",
    contradicts=True,
)
SAMPLING_NOT_POISSON = Caveat(
    "sampling-not-poisson",
    "batch sizes, or the number of batches per record, vary too little or too much for independent draws.",
    "The budget was computed for records that enter each batch by an independent coin. Shuffling gives every "
    "record its turn and has no such amplification.",
    "Use the loader that make_private returns with poisson_sampling=True.",
    contradicts=True,
)
SAMPLING_ABOVE_CLAIM = Caveat(
    "sampling-above-claim",
    "records were in more batches than the accounted rate allows, by more than chance explains.",
    "The budget was computed for smaller batches than the ones that ran.",
    "Account for the rate that ran. Opacus takes one over the length of the loader.",
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
    "a record was in one step more than once.",
    "Its clipped gradient counts several times, but the noise is made for one. Accumulating gradients over "
    "several Poisson batches does this.",
    "Use one larger batch through BatchMemoryManager instead of accumulating.",
    contradicts=True,
)
RECORDS_DUPLICATED = Caveat(
    "records-duplicated",
    "two training records give the model the same input.",
    "The claim is about one record. Someone who is in the data twice has the protection of half the noise.",
    "Remove duplicates before training, or account for as many records as one person has.",
    voids=True,
)
RECORDS_NEARLY_DUPLICATED = Caveat(
    "records-nearly-duplicated",
    "two training records give the model nearly the same input.",
    "The claim is about one record. If both belong to one person, it says less about that person.",
    "Look at the closest pairs of the training data.",
)
UPDATES_UNCHECKED = Caveat(
    "updates-unchecked",
    "the optimizer could not be copied, so its steps could not be repeated beside the training.",
    "Nobody checked that only the noised gradient reached the weights.",
    "Use an optimizer that copy.deepcopy can copy.",
    voids=True,
)
RECORDING_STOPPED = Caveat(
    "recording-stopped",
    "an error ended the recording while training went on, or the accountant counted steps that were not seen.",
    "The findings are about the steps before that. The others were not looked at.",
    "Read the error, remove its cause, and record again.",
    voids=True,
)
RECORDED_IN_PART = Caveat(
    "recorded-in-part",
    "training had begun before the recording did.",
    "The claim is about all steps. The earlier ones were not looked at.",
    "Record from the first step, or audit the recording of the earlier part too.",
    voids=True,
)
CANARY_GRADIENTS_DIFFER = Caveat(
    "canary-gradients-differ",
    "the canaries' gradients in training differ from those of the same records in a copy of the model.",
    "The recording was given another loss or another call than the loop uses. So the exact test says nothing.",
    "Call record(..., reading=Reading(loss=..., call=...)) with the loop's own loss, call and reduction.",
    voids=True,
)
NEVER_UPDATED = Caveat(
    "never-updated",
    "a trainable parameter never moved.",
    "It holds nothing of the data. If it was meant to be trained, the optimizer does not reach it.",
    "Check the learning rates, and that the optimizer was made after layers were added or replaced.",
)
SUSPICIOUS = Caveat(
    "suspicious",
    "the p-value of the claim is below 0.05 but above the level at which a run is accused.",
    "One honest run in twenty looks like this. So does a run with a little less noise than claimed.",
    "Record again with other seeds and more canaries. A second p-value this small is no accident.",
)
UPDATE_COMPRESSED = Caveat(
    "update-compressed",
    "an update holds codes, signs or a few entries, so that it cannot be recomputed.",
    "No record could be proven, and whether the update belongs to these weights could not be tested. Records may still "
    "be there approximately, and other attacks may find them.",
    "Audit the update as it was before it was compressed. Only noise has a proof.",
)
UPDATE_NOISED = Caveat(
    "update-noised",
    "noise was declared, and the update has that much.",
    "Nothing can be recomputed through noise. What an attack can achieve at most follows from the noise alone.",
    "Read the ceiling. It is about the declared clipping and a shortlist of candidates.",
)
UPDATE_UNTESTED = Caveat(
    "update-untested",
    "GELU, SiLU or tanh stand between the layers, or there is one layer alone, and no record was proven.",
    "No identity tells whether the update belongs to these weights. An update of other weights would look the same.",
    "Make sure that --weights are those before the round.",
)
UPDATE_SINGLE_LAYER = Caveat(
    "update-single-layer",
    "the network ends in a single linear layer, and no record was proven.",
    "Such a layer tells fewer records apart than it has classes less one. Where the loss hardly depends on the input "
    "(weights that are zero), or there are two classes, a record cannot be told from a mean of several. The records "
    "may be there all the same.",
    "Audit a smaller batch, or the update in double precision. Only noise has a proof.",
)
UPDATE_ONE_OUTPUT = Caveat(
    "update-one-output",
    "the network has one output, and no record was proven.",
    "It was read as a classifier of two classes: a sigmoid and its cross-entropy. The loss of a regression looks the "
    "same from outside and is not read. Its records may be there all the same.",
    "Audit the same batch with that loss: what the first layer gives away does not depend on the loss.",
)
UPDATE_OTHER_LOSS = Caveat(
    "update-other-loss",
    "neurons balance, so the update belongs to these weights, but its loss is not cross-entropy over classes.",
    "Attacks that compute the loss cannot read it. Only samples with neurons of their own can be proven; others may be "
    "there all the same.",
    "Audit the same batch with cross-entropy: what the first layer gives away does not depend on the loss.",
)
UPDATE_DECLARED = Caveat(
    "update-declared",
    "the proven records of an update do not fit the learning rate or the batch size that was declared.",
    "What is proven is proven: it rests on neither. Rates that are divided by the declared size do.",
    "Check --learning-rate and --batch-size against the client's settings, or leave out what is not known.",
)
PATCHES_OPEN = Caveat(
    "patches-open",
    "a network reads pictures in patches, and no picture was proven.",
    "The gradient of the layer that reads them tells the span of the patches, and which lie where. It tells no more "
    "where a batch has as many patches as one has numbers or the layer has outputs; below that, a solution may not "
    "have been found. Other attacks may see more.",
    "Audit the update of a smaller batch: what it gives away, a larger one gives away in part.",
)
PATCHES_UNORDERED = Caveat(
    "patches-unordered",
    "a network makes the same update of a picture whose patches lie in another order.",
    "The patches are proven, and which of them belong together. Where they lie in the picture is not.",
    "Read a proven picture as a heap of its patches. People can often put it together.",
)
UPDATE_COARSE = Caveat(
    "update-coarse",
    "the numbers were sent in half precision, and no record was proven.",
    "Rounding hides records from proofs, not from people: they may be in the update to two or three digits, and an "
    "attack that needs no proof may find them.",
    "Audit the update as it was before it was rounded. Only noise has a proof.",
)
UPDATE_CROWDED = Caveat(
    "update-crowded",
    "the gradient of a transformer's first layers or adapters has no dimension left over to tell texts by.",
    "No text was tested, and that none was found says nothing. There are more tokens than dimensions, or weight decay, "
    "Adam, several steps or noise fill them; other attacks may see through that.",
    "Audit the plain gradient of fewer tokens. Only noise has a proof.",
)
TEXTS_OPEN = Caveat(
    "texts-open",
    "the gradients of a transformer's first layers have room to tell texts by, and no text was proven.",
    "Texts may be there all the same. Dropout in training, padding before texts where positions are added, steps that "
    "nobody declared, another batch in every step and numbers that were computed in half precision keep an update from "
    "being computed anew, and hide no text from other attacks.",
    "Audit the update of one batch in evaluation mode: what it gives away, training gives away in part.",
)
NO_BASE_MODEL = Caveat(
    "no-base-model",
    "a language model is audited without the base model that its fine-tuning started from.",
    "What the base model says anyway, from its own training, counts as if the fine-tuning gave it away.",
    "Name the base model, or audit the adapter, whose base is known.",
)
SECRETS_SHARE_TEXTS = Caveat(
    "secrets-share-texts",
    "some texts hold more than one secret, or are there more than once.",
    "Secrets of one text tend to come out together. The interval treats each as an observation of its own, and is "
    "narrower than it would be for as many separate texts.",
    "Read the counts as those of this file, or keep one secret of each text.",
)
NO_UNSEEN_TEXTS = Caveat(
    "no-unseen-texts",
    "a language model is audited without similar texts that it was not trained on.",
    "The control is another record's secret after the same prompt. What the model would say of any such text may "
    "count as recovered.",
    "Keep some texts out of the training and hand them in as unseen texts.",
)

CAVEATS = {each.id: each for each in list(globals().values()) if isinstance(each, Caveat)}


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


def check_trials(found: Measured, policy: Policy) -> Iterator[Caveat]:
    """Whether the trials can speak about the policy at all; a proven record does, however few there are."""
    main = found.main
    if found.proven:
        return
    nothing = SuccessRate(0, main.trials, main.confidence, main.clusters)
    if nothing.upper > policy.max_success:
        yield TOO_FEW_TRIALS
