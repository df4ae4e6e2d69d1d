"""Texts from gradients of models of the families that people train, with random weights and no download.

pip install transformers; python integration/transformers/families.py
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from remanence.attacks.gradients.text_models import text_model
from remanence.games.gradients.texts import read_texts

VOCABULARY = 1000
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def main() -> None:
    torch.manual_seed(0)
    grouped = {**SIZES, "num_key_value_heads": 2}
    small = {"n_embd": 96, "n_layer": 3, "n_head": 4, "n_positions": 64}
    models = {
        "GPT-2": GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **small)),
        "Llama, grouped queries": LlamaForCausalLM(LlamaConfig(**grouped)),
        "Qwen2, tied embeddings": Qwen2ForCausalLM(Qwen2Config(**grouped, tie_word_embeddings=True)),
        "BERT, classifier": BertForSequenceClassification(BertConfig(**SIZES, num_labels=4)),
    }
    for name, model in models.items():
        model.eval()
        text = text_model(model)
        ids = torch.randint(5, VOCABULARY, (4 if text.is_causal else 1, 12))
        answers = model(ids).logits
        if answers.ndim == 2:
            loss = cross_entropy(answers, torch.tensor([2]))
        else:
            loss = cross_entropy(answers[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        named = dict(model.named_parameters())
        parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        zeros = (torch.zeros_like(value) for value in named.values())
        gradient = {n: z if part is None else part for n, part, z in zip(named, parts, zeros, strict=True)}
        found = read_texts(text, gradient, precision=1.2e-7, longest=16)
        exact = sorted(found.sequences) == sorted(map(tuple, ids.tolist()))
        print(f"{name:24} proven {found.proven} of {len(ids)}, exact: {exact}, left {found.unexplained:.1e}")
        assert exact, name


if __name__ == "__main__":
    main()
