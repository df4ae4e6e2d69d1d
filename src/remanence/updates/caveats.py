"""Reasons not to trust an audit of updates, each with its meaning and its cure."""

from remanence.results.caveats import Caveat

UPDATE_COMPRESSED = Caveat(
    "update-compressed",
    "an update holds codes, signs or a few entries, so that it cannot be recomputed.",
    "No record is claimed. Whether the update belongs to these weights was tested only where its codes have one known "
    "step. Records may still be there approximately, and other attacks may find them.",
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
    "Such a layer distinguishes fewer records than it has classes less one. Where the loss barely depends on the input "
    "(weights that are zero), or there are two classes, a record cannot be distinguished from a mean of several. The "
    "records "
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
    "have been found. Dropout in training and steps that nobody declared keep an update from being computed anew, and "
    "hide no picture from other attacks.",
    "Audit the update of a smaller batch, in evaluation mode: what it gives away, a larger one gives away in part.",
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
    "were not declared, another batch in every step and numbers that were computed in half precision keep an update "
    "from "
    "being computed anew, and hide no text from other attacks.",
    "Audit the update of one batch in evaluation mode: what it gives away, training gives away in part.",
)
NEAR_TWINS = Caveat(
    "near-twins",
    "records of an update are proven.",
    "Nearly equal records with the same label may come back as one record, their mean, and count once. That happens "
    "where rounding hides the difference. In double precision such records are all "
    "but equal. In half precision, or behind a last layer with small weights, they may be some percent apart.",
    "Read the number of different records as one of records that differ by more than that.",
)
