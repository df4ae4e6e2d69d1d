"""Reasons not to trust an audit of private training or its recording, each with its meaning and its remedy."""

from remanence.results.caveats import Caveat

SAMPLING_NOT_REPLAYED = Caveat(
    "sampling-not-replayed",
    "replaying the sampler's own generator does not give the records of every step, one drawn batch each.",
    "The budget was computed for records that enter each batch by an independent coin. That was not observed here.",
    "Record make_private's loader, train once on each of its batches, and return the same record on every read.",
    voids=True,
)
CLIPPING_NOT_REPLAYED = Caveat(
    "clipping-not-replayed",
    "the recorder's own clipped gradients of the step's records do not add up to the sum that noise was added to.",
    "It is not confirmed that a record moves the sum by at most the clipping norm. Records may be mixed by a layer "
    "or by the loss, clipped differently, or read differently than the recorder was told.",
    "record(..., reading=Reading(loss=..., call=...)) as in the loop. Look for layers and losses that mix records.",
    voids=True,
)
NORM_FROM_DATA = Caveat(
    "norm-from-data",
    "the clipping norm is neither the declared number nor the value of a schedule that was run before training.",
    "A norm computed from the records gives them away, and so does the noise that is scaled by it. Opacus' adaptive "
    "clipping divides its noisy count by the actual batch size.",
    "Fix the norm, or create a schedule for it before `record` and call it in every step, or after every epoch.",
    voids=True,
)
NOISE_NOT_REPLAYED = Caveat(
    "noise-not-replayed",
    "replaying the noise generator from its state before the step does not give every number of the noise.",
    "It is not confirmed that there is independent noise on every number. Only statistical tests were made.",
    'Leave the noise to the optimizer, and its generator to record(..., seed="os").',
    voids=True,
)
SEED_UNKNOWN = Caveat(
    "seed-unknown",
    "the origin of the seeds of noise and batches was not declared, or other code draws from the same generators.",
    "An adversary who knows or guesses a seed can subtract the noise. torch starts from the same seed everywhere.",
    'record(..., seed="os") seeds both from the operating system. With seed="secret" you assert that yours stay '
    "secret; noise and batches then need separate generators.",
    voids=True,
)
SEED_ASSERTED = Caveat(
    "seed-asserted",
    "the owner seeded the generators and asserts that the seeds stay secret.",
    "The proof holds against adversaries who do not know the seeds. Their secrecy is the owner's claim.",
    'record(..., seed="os") does not need this claim.',
)
UPDATE_NOT_REPLAYED = Caveat(
    "update-not-replayed",
    "a copy of the optimizer does not reproduce the new weights, or something else in the model changed.",
    "It is not confirmed that the weights depend on noised gradients alone. Learning rates from data, a second step, "
    "statistics in buffers and weights changed by hand all look like this.",
    "Create schedules before `record`. Give every trained parameter to the optimizer that make_private wraps, and "
    "change no weights by hand. Declare limits on noised gradients or weights: record(..., limits=[5.0]).",
    voids=True,
)
POST_PROCESSED = Caveat(
    "post-processed",
    "noised gradients or weights were limited in size.",
    "The result was replayed from the noised gradient and the limit that was declared when the recording began.",
    "Choose the limit without looking at the data.",
)
COUNTED_FROM_RECORDS = Caveat(
    "counted-from-the-records",
    "one record fewer or more changes int(records · rate), by which Opacus divides, or the number of steps.",
    "The scale of every update then shows whether a record is in or out, and no noise hides it.",
    "Use canaries from shortlists, or set optimizer.expected_batch_size to a number chosen without counting records.",
    voids=True,
)
NOISE_BELOW_CLAIM = Caveat(
    "noise-below-claim",
    "the noise of the run, a step or a tensor is smaller than was accounted, by more than chance explains.",
    "The privacy budget was computed for noise that was not there. Its bound does not hold.",
    "Compare the measured noise multiplier with the accounted one. Look for code that overrides the noise.",
    contradicts=True,
)
CLIPPING_NOT_PER_RECORD = Caveat(
    "clipping-not-per-record",
    "the summed gradient is not the sum of the records' clipped gradients.",
    "Nothing limits the contribution of one record, so it is unknown how much the noise hides.",
    "Clip each record's gradient before summing, not the gradient of the batch.",
    contradicts=True,
)
SAMPLING_NOT_POISSON = Caveat(
    "sampling-not-poisson",
    "batch sizes, or the number of batches per record, vary too little or too much for independent draws.",
    "The budget was computed for records that enter each batch by an independent coin. Shuffling uses every "
    "record once per pass and has no such amplification.",
    "Use the loader that make_private returns with poisson_sampling=True.",
    contradicts=True,
)
SAMPLING_ABOVE_CLAIM = Caveat(
    "sampling-above-claim",
    "records were in more batches than the accounted rate allows, by more than chance explains.",
    "The budget was computed for smaller batches than the actual ones.",
    "Account for the actual rate. Opacus uses one over the length of the loader.",
    contradicts=True,
)
STEPS_UNACCOUNTED = Caveat(
    "steps-unaccounted",
    "more steps were taken than the accountant counted.",
    "Some steps released gradients that no budget covers.",
    "Take every step through the optimizer that make_private returned.",
    contradicts=True,
)
RECORDS_DUPLICATED = Caveat(
    "records-duplicated",
    "two training records give the model the same input.",
    "The claim is about one record. A person who is in the data twice has the protection of half the noise.",
    "Remove duplicates before training, or account for the number of records per person.",
    voids=True,
)
RECORDING_STOPPED = Caveat(
    "recording-stopped",
    "an error ended the recording or the training, or the accountant counted steps that were not seen.",
    "The findings are about the steps before that. The others were not examined.",
    "Read the error, remove its cause, and record again.",
    voids=True,
)
SUSPICIOUS = Caveat(
    "suspicious",
    "the p-value of the claim is below 0.05 but above the level at which a claim is rejected.",
    "One honest run in twenty looks like this. So does a run with a little less noise than claimed.",
    "Record again with other seeds and more canaries. A second p-value this small is unlikely to be chance.",
)
