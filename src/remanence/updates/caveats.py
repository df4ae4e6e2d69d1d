"""Reasons not to trust an audit of updates, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

UPDATE_NOISED = Caveat(
    "update-noised",
    "noise was declared, and the update contains that much.",
    "Nothing can be recomputed through noise. The noise alone limits what an attack can achieve.",
    "Read the ceiling. It holds for the declared clipping and a shortlist of candidates.",
)
UPDATE_UNTESTED = Caveat(
    "update-untested",
    "the layers are joined by GELU, SiLU or tanh, or there is only one, and no record was proven.",
    "No identity tests whether the update belongs to these weights. An update of other weights would look the same.",
    "Make sure that --weights are the weights before the round.",
)
UPDATE_SINGLE_LAYER = Caveat(
    "update-single-layer",
    "the network ends in a single linear layer, and no record was proven.",
    "With K classes, such a layer distinguishes at most K − 2 records. If the loss barely depends on the input (zero "
    "weights), or there are two classes, a record cannot be distinguished from a mean of several. The records "
    "may still be recoverable.",
    "Audit a smaller batch, or the update in double precision. Only noise has a proof.",
)
UPDATE_ONE_OUTPUT = Caveat(
    "update-one-output",
    "the network has one output, and no record was proven.",
    "It was read as a classifier of two classes: a sigmoid and its cross-entropy. The loss of a regression looks the "
    "same and is not read. Its records may still be recoverable.",
    "Audit the same batch with that loss: the leak of the first layer does not depend on the loss.",
)
UPDATE_OTHER_LOSS = Caveat(
    "update-other-loss",
    "neurons balance, so the update belongs to these weights, but its loss is not cross-entropy over classes.",
    "Attacks that compute the loss cannot read it. Only samples with exclusive neurons can be proven; others may "
    "still be recoverable.",
    "Audit the same batch with cross-entropy: the leak of the first layer does not depend on the loss.",
)
DENSE_OPEN = Caveat(
    "dense-open",
    "a network ends in dense layers, and no record was proven.",
    "Records may still be recoverable. Batches that are large for the first layer keep an update from being "
    "recomputed, as do several steps, and behind GELU, SiLU, tanh and leaky ReLU also class weights, smoothed labels "
    "and equal records. They hide no record from other attacks. If several steps or Adam were declared, nothing tests "
    "whether the update belongs to these weights.",
    "Audit the update of one plain step on a smaller batch: a larger one gives away part of the same.",
)
PATCHES_OPEN = Caveat(
    "patches-open",
    "a network reads pictures in patches, and no picture was proven.",
    "The gradient of the layer that reads them gives the span of the patches, and their positions. It gives no more "
    "if a batch has as many patches as a patch has numbers or the layer has outputs; with fewer, the search may have "
    "failed. Dropout in training and undeclared steps prevent recomputing the update, but do not hide pictures from "
    "other attacks.",
    "Audit the update of a smaller batch, in evaluation mode: a larger one gives away part of the same.",
)
PATCHES_UNORDERED = Caveat(
    "patches-unordered",
    "a network gives the same update for a picture with its patches in another order.",
    "The patches are proven, and which of them belong together. Their positions in the picture are not.",
    "Read a proven picture as an unordered set of patches. People can often reassemble it.",
)
UPDATE_COARSE = Caveat(
    "update-coarse",
    "the numbers were sent in half precision, and no record was proven.",
    "Rounding prevents proofs, not leaks: records may be in the update to two or three digits, and an "
    "attack that needs no proof may find them.",
    "Audit the update as it was before it was rounded. Only noise has a proof.",
)
UPDATE_CROWDED = Caveat(
    "update-crowded",
    "the gradient of a transformer's first layers or adapters has no spare dimension to identify texts by.",
    "No text was tested, so finding none means nothing. There are more tokens than dimensions, or weight decay, "
    "Adam, several steps or noise fill them; other attacks may see through that.",
    "Audit the plain gradient of fewer tokens. Only noise has a proof.",
)
TEXTS_OPEN = Caveat(
    "texts-open",
    "the gradients of a transformer's first layers have spare dimensions to identify texts by, but no text was proven.",
    "Texts may still be recoverable. Dropout in training, smoothed labels, padding before texts where positions are "
    "added, several steps and numbers that were computed in half precision "
    "keep an update from being recomputed. They hide no text from other attacks.",
    "Audit the update of one batch in evaluation mode: training gives away part of the same.",
)
NEAR_TWINS = Caveat(
    "near-twins",
    "records of an update are proven.",
    "Nearly equal records with the same label may come back as one record, their mean, and count once. That happens "
    "where rounding hides the difference. In double precision such records are nearly "
    "equal. In half precision, or behind a last layer with small weights, they may be some percent apart.",
    "Read the number of different records as the number that differ by more than that.",
)
