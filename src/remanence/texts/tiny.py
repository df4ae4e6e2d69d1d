"""A language model that trains in seconds on made-up records: for the demo, the docs and the tests."""

from __future__ import annotations

import copy
import hashlib
import string
from collections.abc import Sequence

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from remanence.scale.seeds import unit_seed
from remanence.texts.mechanism import LanguageModel

ALPHABET = "\n" + string.ascii_lowercase + string.digits + " :."
SYLLABLES = ("ba", "de", "fi", "gu", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")


class TinyTransformer(nn.Module):
    """One causal layer of attention and one of neurons over the characters of `ALPHABET`."""

    def __init__(self) -> None:
        super().__init__()
        width, self.context, self.heads = 48, 32, 4
        self.tokens, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(self.context, width)
        self.before, self.middle, self.after = (nn.LayerNorm(width) for _ in range(3))
        self.attend, self.gather = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `(batch, length, characters)`."""
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        parts = self.attend(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.gather(seen.transpose(1, 2).flatten(2))
        return self.head(self.after(x + self.think(self.middle(x))))


def tiny_model(seed: int = 0) -> TinyTransformer:
    """An untrained model."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(unit_seed([seed, 1], 0))
        return TinyTransformer()


def train(model: TinyTransformer, texts: Sequence[str], *, steps: int, seed: int = 0) -> TinyTransformer:
    """The same model after this many steps of Adam on batches of texts."""
    rows = [[*_encode(text), 0] for text in texts]
    longest = max(map(len, rows))
    data = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])  # −100 has no loss
    generator = torch.Generator().manual_seed(unit_seed([seed, 2], 0))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = data[torch.randint(len(data), (32,), generator=generator)]
        logits = model(batch[:, :-1].clamp(min=0))
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.requires_grad_(False)


def as_language_model(model: TinyTransformer, name: str = "tiny") -> LanguageModel:
    """The model behind the interface that audits use."""
    return LanguageModel(
        name=name,
        logits=model,
        encode=_encode,
        decode=lambda ids: "".join(ALPHABET[token] for token in ids if token),
        vocabulary=len(ALPHABET),
        context=model.context,
        sha256=_sha256(model),
    )


def made_up_records(count: int, *, seed: int) -> list[dict[str, str]]:
    """Made-up names, each with a random code: a prefix and a secret.

    >>> made_up_records(2, seed=0)
    [{'prefix': 'nomiti hu: ', 'secret': '0599'}, {'prefix': 'zudemi ra: ', 'secret': '0156'}]
    """
    generator = torch.Generator().manual_seed(unit_seed([seed, 3], 0))
    found: dict[str, str] = {}
    while len(found) < count:
        picks = torch.randint(len(SYLLABLES), (4,), generator=generator).tolist()
        first, second, third, last = (SYLLABLES[pick] for pick in picks)
        code = "".join(map(str, torch.randint(10, (4,), generator=generator).tolist()))
        found.setdefault(f"{first}{second}{third} {last}: ", code)
    return [{"prefix": name, "secret": code} for name, code in found.items()]


def tiny_pair(
    *, steps: int = 150
) -> tuple[LanguageModel, LanguageModel, list[dict[str, str]], list[dict[str, str]]]:
    """A base model, its fine-tuned version, the made-up training records, and as many unseen ones."""
    sizes = enumerate((200, 60, 60), start=1)
    public, mine, unseen = (made_up_records(size, seed=number) for number, size in sizes)
    base = train(tiny_model(), [r["prefix"] + r["secret"] for r in public], steps=80)
    tuned = copy.deepcopy(base).requires_grad_(True)
    train(tuned, [r["prefix"] + r["secret"] for r in mine], steps=steps, seed=1)
    return as_language_model(base, "tiny base"), as_language_model(tuned, "tiny fine-tuned"), mine, unseen


def _encode(text: str) -> list[int]:
    return [0, *(ALPHABET.index(character) for character in text)]  # 0 begins a text and ends it


def _sha256(model: TinyTransformer) -> str:
    packed = save({name: values.contiguous() for name, values in model.state_dict().items()})
    return hashlib.sha256(packed).hexdigest()
