"""Reasons not to trust an audit of training with noise and its recordings, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

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
