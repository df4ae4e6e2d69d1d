"""Texts from several local steps of a transformer: new weights minus old ones, in float32, steps declared.

python benchmarks/update_steps.py
Four texts of 10 tokens behind random models of width 192. Needs transformers. *named*: texts but for the last token;
*like*: the cosine between the update and what the named texts make; *proven* and *false* as in update_texts.py.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (  # pyright: ignore[reportMissingImports]
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from remanence.updates.declared import LocalTraining
from remanence.updates.files import rounding_of_difference
from remanence.updates.texts.model import text_model
from remanence.updates.texts.naming import name_after_steps
from remanence.updates.texts.reader import verify_texts

TRAINED = (
    LocalTraining(2, 1e-4),
    LocalTraining(2, 1e-3),
    LocalTraining(2, 0.01),
    LocalTraining(5, 0.01),
    LocalTraining(5, 0.01, 0.9),
    LocalTraining(5, 0.1),
    LocalTraining(20, 0.1),
    LocalTraining(5, 1.0),
)


def make(family: str, *, tied: bool) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 1000, "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2}
    if family == "GPT-2":
        config = GPT2Config(n_embd=192, n_layer=3, n_head=4, n_positions=64, **sizes)
        return GPT2LMHeadModel(config).eval()
    config = LlamaConfig(
        hidden_size=192, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, **sizes,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def update(model: nn.Module, ids: Tensor, training: LocalTraining) -> dict[str, Tensor]:
    """Old weights minus new ones over the rate, as somebody has them who holds both."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), training.learning_rate or 1.0, training.momentum)
    for _ in range(training.steps):
        optimiser.zero_grad()
        answers = model(ids).logits
        cross_entropy(answers[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimiser.step()
    rate = training.learning_rate or 1.0
    moved = {name: (before[name] - p.detach()).double() / rate for name, p in model.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(before[name])
    return moved


def main() -> None:
    torch.set_num_threads(1)
    ids = torch.randint(5, 1000, (4, 10), generator=torch.Generator().manual_seed(1))
    true = set(map(tuple, ids.tolist()))
    print("model          steps   rate  momentum  named  exact  proven  false  like      seconds", flush=True)
    for family, tied, training in itertools.product(("Llama", "GPT-2"), (False, True), TRAINED):
        model = make(family, tied=tied)
        gradient = update(model, ids, training)
        rate = training.learning_rate or 1.0
        rounding = rounding_of_difference(model.state_dict()).times(1 / rate)
        text = replace(text_model(model), is_difference=True)
        names = [*text.first.weights(gradient), *text.second.weights(gradient)]
        precision = max(rounding.of_tensor(name).of_largest(gradient[name]) for name in names)
        started = time.process_time()
        named, _ = name_after_steps(text, gradient, precision=precision, longest=14)
        found = verify_texts(text, gradient, named, rounding=rounding, training=training)
        right = sum(tuple(one.tolist()) in {row[:-1] for row in true} for one in named)
        sequences = set(found.sequences)
        print(
            f"{family + (', tied' if tied else ''):13} {training.steps:6} {rate:6g} {training.momentum:9g} {right:6} "
            f"{len(sequences & true):6} {found.count:7} {len(sequences - true) if found.count else 0:6}  "
            f"{found.similarity:.5f} {time.process_time() - started:10.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
