"""The terms of a report, each in a sentence; docs/glossary.md has the same."""

GLOSSARY = {
    "adversary": "anyone who tries to recover a record, with all that they see and know",
    "attack": "what the adversary does with the release. It is measured, so the true risk may be higher",
    "baseline κ": "how often a guess succeeds without the release",
    "ceiling γ": "the most that any attack can achieve, known or unknown. It is proven, if its assumptions hold",
    "control": "the same attack on records that were not trained on: what luck alone achieves",
    "interval": "the range that holds the true rate, at 95 % for all attacks of an audit together",
    "limit": "the most success that you accept. You decide it",
    "noise multiplier σ": "the noise of a training step, divided by the clipping norm",
    "recovered": "the error ρ between target and reconstruction is at most the threshold η",
    "release": "what the adversary sees: weights, gradients or answers",
    "sample rate q, steps T": "the chance that a record is in a batch, and the number of batches",
    "TPR at 1 % FPR": "the share of targets found when 1 in 100 other records is mistaken for a target",
    "relative": "the error, divided by that of the closest 5 % of public records of the same class",
}
