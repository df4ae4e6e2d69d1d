"""Language models that tests can enumerate: a random function of the history, and the tiny transformer, trained."""

import copy
import dataclasses
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


def spelled(pieces, **settings):
    """A random model over these pieces of text, the first of which begins every text; it reads the longest first."""

    def encode(text):
        tokens = [0]
        while text:
            piece = max((p for p in pieces if text.startswith(p)), key=len)
            tokens.append(pieces.index(piece))
            text = text[len(piece) :]
        return tokens

    model = random_model(len(pieces), **settings)
    decode = lambda ids: "".join(pieces[i] for i in ids if i)  # noqa: E731
    return dataclasses.replace(model, encode=encode, decode=decode, opening=(0,))


def texts(records):
    return [record["prefix"] + record["secret"] for record in records]


PUBLIC, MINE, UNSEEN = (made_up_records(n, seed=s) for n, s in ((200, 1), (100, 2), (60, 3)))


@cache
def base_model(seed=0):
    """Trained on made-up texts of the same form."""
    return train(tiny_model(seed), texts(made_up_records(200, seed=70 + seed)), steps=80, seed=seed)


def tuned_on(records, steps=120, seed=0, base=None, draw=5):
    """A model fine-tuned on these records."""
    model = copy.deepcopy(base or base_model(seed)).requires_grad_(True)
    return train(model, texts(records), steps=steps, seed=draw)


@cache
def trained():
    """The base model and the one that was fine-tuned on MINE."""
    base = train(tiny_model(), texts(PUBLIC), steps=100)
    tuned = tuned_on(MINE, 150, base=base, draw=1)
    return as_language_model(base, "base"), as_language_model(tuned, "tuned")
