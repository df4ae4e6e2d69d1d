"""Texts from gradients of models of the families that people train, with random weights and no download.

pip install transformers; python integration/transformers/families.py
Every family gives its texts, or is refused by name; updates that are not the model's prove none.
"""

from __future__ import annotations

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.core.exceptions import InputError
from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import read_texts

VOCABULARY, FLOAT32 = 1000, 1.2e-7
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"n_embd": 96, "n_layer": 3, "n_head": 4, "n_positions": 64}
DISTIL = {"dim": 96, "hidden_dim": 192, "n_layers": 3, "n_heads": 4}
FAMILIES = {  # the name in transformers, what it does, and its sizes
    "GPT-2": ("GPT2", "LMHeadModel", {**SIZES, **GPT2}),
    "Llama": ("Llama", "ForCausalLM", GROUPED),
    "Llama, tied": ("Llama", "ForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "Mistral": ("Mistral", "ForCausalLM", GROUPED),
    "Qwen2": ("Qwen2", "ForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "Qwen3": ("Qwen3", "ForCausalLM", {**GROUPED, "head_dim": 24}),
    "Gemma": ("Gemma", "ForCausalLM", {**GROUPED, "head_dim": 24}),
    "Gemma 2": ("Gemma2", "ForCausalLM", {**GROUPED, "head_dim": 24}),
    "GPT-NeoX": ("GPTNeoX", "ForCausalLM", SIZES),
    "OPT": ("OPT", "ForCausalLM", {**SIZES, "ffn_dim": 192, "word_embed_proj_dim": 96}),
    "Phi": ("Phi", "ForCausalLM", SIZES),
    "Phi-3": ("Phi3", "ForCausalLM", GROUPED),
    "Falcon": ("Falcon", "ForCausalLM", SIZES),
    "Bloom": ("Bloom", "ForCausalLM", {**SIZES, "n_head": 4, "n_layer": 3}),
    "GPT-J": ("GPTJ", "ForCausalLM", {**SIZES, **GPT2, "rotary_dim": 8}),
    "StableLM": ("StableLm", "ForCausalLM", GROUPED),
    "Cohere": ("Cohere", "ForCausalLM", GROUPED),
    "OLMo": ("Olmo", "ForCausalLM", GROUPED),
    "Starcoder2": ("Starcoder2", "ForCausalLM", GROUPED),
    "Mixtral": ("Mixtral", "ForCausalLM", {**GROUPED, "num_local_experts": 2}),
    "Mamba": ("Mamba", "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 96, "num_hidden_layers": 3}),
    "BERT": ("Bert", "ForSequenceClassification", {**SIZES, "num_labels": 4}),
    "DistilBERT": ("DistilBert", "ForSequenceClassification", {**SIZES, **DISTIL, "num_labels": 4}),
    "RoBERTa": ("Roberta", "ForSequenceClassification", {**SIZES, "num_labels": 4}),
    "Electra": ("Electra", "ForSequenceClassification", {**SIZES, "embedding_size": 96, "num_labels": 4}),
    "MPNet": ("MPNet", "ForSequenceClassification", {**SIZES, "num_labels": 4}),
    "DeBERTa v2": ("DebertaV2", "ForSequenceClassification", {**SIZES, "num_labels": 4}),
    "ALBERT": ("Albert", "ForSequenceClassification", {**SIZES, "embedding_size": 96, "num_labels": 4}),
    "ModernBERT": (
        "ModernBert",
        "ForSequenceClassification",
        {**SIZES, "num_labels": 4, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "T5": (
        "T5",
        "ForSequenceClassification",
        {
            "vocab_size": VOCABULARY,
            "d_model": 96,
            "d_kv": 24,
            "num_layers": 3,
            "num_heads": 4,
            "num_labels": 4,
        },
    ),
}


def make(family: str) -> nn.Module:
    stem, task, sizes = FAMILIES[family]
    torch.manual_seed(0)
    return getattr(transformers, stem + task)(getattr(transformers, f"{stem}Config")(**sizes)).eval()


def update(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    answers = model(ids).logits
    if answers.ndim == 2:
        loss = cross_entropy(answers, torch.full((len(ids),), 2))
    else:
        loss = cross_entropy(answers[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    named = dict(model.named_parameters())
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    zeros = (torch.zeros_like(value) for value in named.values())
    return {n: z if part is None else part for n, part, z in zip(named, parts, zeros, strict=True)}


def foreign(model: nn.Module, ids: Tensor) -> dict[str, dict[str, Tensor]]:
    """Updates that are not this model's on a batch that it could name."""
    true = update(model, ids)
    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1 + 0.01 * torch.randn_like(parameter)
    stale = update(model, ids)
    model.load_state_dict(kept)
    return {
        "noise": {name: torch.randn_like(value) for name, value in true.items()},
        "shuffled": {name: value[torch.randperm(len(value))] for name, value in true.items()},
        "stale": stale,
        "many": update(model, torch.randint(5, VOCABULARY, (64, 12))),
    }


def main() -> None:
    torch.manual_seed(0)
    wrong = []
    for family in FAMILIES:
        try:
            model = make(family)
            text = text_model(model)
        except InputError as error:
            print(f"{family:12} refused: {error.got}")
            continue
        ids = torch.randint(5, VOCABULARY, (4 if text.is_causal else 1, 12))
        found = read_texts(text, update(model, ids), precision=FLOAT32, longest=16)
        exact = sorted(found.sequences) == sorted(map(tuple, ids.tolist()))
        claimed = {
            name: read_texts(text, gradient, precision=FLOAT32, longest=16).count
            for name, gradient in foreign(model, ids).items()
        }
        print(
            f"{family:12} proven {found.count} of {len(ids)}, exact: {exact}, {found.tokens} tokens, left "
            f"{found.unexplained:.1e}; foreign {claimed}",
            flush=True,
        )
        if any(claimed.values()) or (found.count and not exact):
            wrong.append(family)
    assert not wrong, wrong


if __name__ == "__main__":
    main()
