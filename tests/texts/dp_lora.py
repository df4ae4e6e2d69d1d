"""A private fine-tuning with LoRA, by Opacus and recorded, right or wrong in one of the ways that people report."""

from __future__ import annotations

import copy
import tempfile
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from remanence.bounds import Segment
from remanence.private.audit_run import audit_run
from remanence.private.canaries import Canaries, Design
from remanence.private.opacus import Reading, record
from remanence.results.verdict import Policy, Verdict
from remanence.texts.canaries import Claim, TextCanaries, natural
from remanence.texts.game import audit_text
from remanence.texts.mechanism import LanguageModel
from remanence.texts.tiny import ALPHABET, as_language_model, made_up_records, tiny_model, train
from remanence.texts.transformers import text_loss, text_reading

LENGTH, PADDING = 28, 0


class Lora(nn.Module):
    """A frozen layer and a product of two thin ones beside it, of which the second begins with zeros."""

    def __init__(self, plain: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.plain = plain
        self.down = nn.Linear(plain.in_features, rank, bias=False)
        self.up = nn.Linear(rank, plain.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.plain(x) + 2 * self.up(self.down(x))


@cache
def base_model():
    texts = [record["prefix"] + record["secret"] for record in made_up_records(200, seed=1)]
    return train(tiny_model(), texts, steps=80)


def adapted(seed: int):
    model = copy.deepcopy(base_model()).requires_grad_(False)
    torch.manual_seed(seed)
    for name in ("attend", "gather"):
        setattr(model, name, Lora(getattr(model, name)))
    model.think[0], model.think[2] = Lora(model.think[0]), Lora(model.think[2])
    return model.train()


@cache
def llama():
    """A Llama of two layers over the same characters, for adapters by peft itself; trained like the other base."""
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(ALPHABET), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    encode = as_language_model(tiny_model(), "").encode
    rows = rows_of(encode, [record["prefix"] + record["secret"] for record in made_up_records(200, seed=1)])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        batch = rows[torch.randint(len(rows), (32,))]
        optimizer.zero_grad()
        text_loss(model(input_ids=batch).logits, batch, PADDING).backward()
        optimizer.step()
    return model


def adapted_by_peft(seed: int):
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    torch.manual_seed(seed)
    places = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings = LoraConfig(r=8, lora_alpha=16, target_modules=places)
    return get_peft_model(copy.deepcopy(llama()), settings).train()


def by_characters(model, name: str) -> LanguageModel:
    """A Llama over the characters of the tiny model, as audits see it."""
    plain = as_language_model(tiny_model(), name)

    def logits(ids):
        with torch.no_grad():
            return model(input_ids=ids).logits

    return replace(plain, logits=logits, context=LENGTH, sha256="")


@dataclass(frozen=True)
class Setting:
    """What is claimed, and what goes wrong."""

    noise: float = 4.0
    added: float | None = None  # the noise that is really added, if it is not that
    steps: int = 200
    rate: float = 0.25
    norm: float = 1.0
    canaries: int = 120
    peft: bool = False  # a Llama with an adapter by peft, not the tiny transformer with one by hand
    fault: str = ""  # "normaliser", "base moved" or "accumulate", which is none


def rows_of(encode, texts):
    rows = [[*encode(text)] for text in texts]
    return torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows])


def batch_loss(logits, ids):
    """As transformers averages: over all tokens of a batch, so that long texts beside mine count against mine."""
    own = ids[:, 1:].clone()
    own[own == PADDING] = -100
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), own.flatten(), ignore_index=-100)


def fine_tune(
    out: Path, seed: int, setting: Setting
) -> tuple[LanguageModel, LanguageModel, TextCanaries, Claim]:
    """The model and its base, the canaries, and the claim; the run is recorded into `out`."""
    base = by_characters(llama(), "base") if setting.peft else as_language_model(base_model(), "base")
    made = natural(made_up_records(setting.canaries, seed=100 + seed), seed=seed)
    canaries = Canaries(*made.as_tokens(base.encode, length=LENGTH, padding=PADDING), Design.REAL)
    others = made_up_records(60, seed=500 + seed)
    texts = [r["prefix"] + r["secret"] + " and so on"[: 9 * (n % 2)] for n, r in enumerate(others)]
    ids = torch.cat([rows_of(base.encode, texts), canaries.inserted.features])
    model, engine = (adapted_by_peft if setting.peft else adapted)(seed), PrivacyEngine()

    def read(model, ids):
        return model(input_ids=ids).logits if setting.peft else model(ids)

    trained = [p for p in model.parameters() if p.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.Adam(trained, lr=1e-2),
            data_loader=DataLoader(TensorDataset(ids), batch_size=round(setting.rate * len(ids))),
            noise_multiplier=setting.noise,
            max_grad_norm=setting.norm,
        )
    if setting.added is not None:
        real, own = optimizer.noise_multiplier, optimizer.add_noise

        def less() -> None:
            optimizer.noise_multiplier = setting.added
            own()
            optimizer.noise_multiplier = real

        optimizer.add_noise = less

    def step(batch) -> None:
        logits = read(private, batch)
        loss = (
            batch_loss(logits, batch) if setting.fault == "normaliser" else text_loss(logits, batch, PADDING)
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if setting.fault == "base moved":
            with torch.no_grad():
                model.head.weight.mul_(0.999)

    reading = Reading(*text_reading(PADDING, read))
    parts = BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer)
    with (
        warnings.catch_warnings(),
        record(engine, optimizer, private, loader, out=out, canaries=canaries, reading=reading),
    ):
        warnings.simplefilter("ignore")
        for _ in range(-(-setting.steps // len(loader))):
            with parts if setting.fault == "accumulate" else nullcontext(loader) as batches:
                for (batch,) in batches:
                    step(batch)
    claim = Claim(dpsgd=tuple(Segment(n, q, t) for n, q, t in engine.accountant.history))
    model.eval()
    done = by_characters(model, "private") if setting.peft else as_language_model(model, "private")
    return done, base, made, claim


VARIANTS = {"as claimed": None, "half the noise": 2.0, "noise forgotten": 0.0}
SHORT = Setting(peft=True, steps=40, canaries=60)  # seconds a run


def verdicts(variant: str, seed: int, setting: Setting = Setting()) -> tuple[Verdict, Verdict]:  # noqa: B008
    """By the recording, which sees every step, and by what the finished model says of the canaries."""
    setting = replace(setting, added=VARIANTS[variant])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        model, base, made, claim = fine_tune(out, seed, setting)
        recorded = audit_run(out, policy=Policy(0.9)).verdict
    return recorded, audit_text(model, made, base=base, claim=claim).verdict
