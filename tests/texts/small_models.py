"""Language models that tests can enumerate: a random function of the history, and the tiny transformer, trained."""

import copy
from functools import cache

import torch

from remanence.texts.mechanism import LanguageModel
from remanence.texts.tiny import as_language_model, made_up_records, tiny_model, train


def random_model(vocabulary=5, *, seed=0, sharpness=2.0, context=16):
    """Any callable will do: logits from a weighted sum of everything before, with letters as tokens."""
    generator = torch.Generator().manual_seed(seed)
    inside, outside = (torch.randn(*s, generator=generator) for s in ((vocabulary, 8), (8, vocabulary)))

    def logits(ids):
        weights = 0.7 ** torch.arange(ids.shape[1]).flip(0)
        summed = (inside[ids] / weights[:, None]).cumsum(1) * weights[:, None]
        return sharpness * torch.tanh(summed) @ outside

    return LanguageModel(
        name="random",
        logits=logits,
        encode=lambda text: [ord(c) - ord("a") for c in text],
        decode=lambda ids: "".join(chr(ord("a") + i) for i in ids),
        vocabulary=vocabulary,
        context=context,
    )


PUBLIC, MINE, UNSEEN = (made_up_records(n, seed=s) for n, s in ((200, 1), (100, 2), (60, 3)))


@cache
def trained(steps=150):
    """The base model and the one that was fine-tuned on MINE."""
    base = train(tiny_model(), [r["prefix"] + r["secret"] for r in PUBLIC], steps=100)
    tuned = copy.deepcopy(base).requires_grad_(True)
    train(tuned, [r["prefix"] + r["secret"] for r in MINE], steps=steps, seed=1)
    return as_language_model(base, "base"), as_language_model(tuned, "tuned")
