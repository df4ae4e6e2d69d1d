"""Texts from updates of transformers: how many tokens, how long, beside DAGER's algorithm as published, and with LoRA.

python benchmarks/update_texts.py tokens --tokens 512 --batches 50
python benchmarks/update_texts.py tokens --tokens 2048 --hidden 4096 --layers 4 --device cuda
python benchmarks/update_texts.py lora
Needs transformers. `--model FOLDER` takes a model that is there; otherwise one of SmolLM2-135M's shape with random
weights stands in. Texts are 32 tokens, random but for the first, which is the same in all. *exact*: texts that came
back to the last token; *false*: texts that were proven and are not in the batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from remanence.attacks.gradients.text_models import Projections, TextModel, text_model
from remanence.games.gradients.texts import read_texts

FLOAT32 = 1.2e-7
LENGTH = 32
BEGIN = 1  # the token that every text begins with


def make_model(options: argparse.Namespace) -> nn.Module:
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True).eval()
    torch.manual_seed(0)
    heads = 9 if options.hidden == 576 else options.hidden // 64
    config = LlamaConfig(
        vocab_size=49152, hidden_size=options.hidden, intermediate_size=options.hidden * 8 // 3,
        num_hidden_layers=options.layers, num_attention_heads=heads,
        num_key_value_heads=heads // (3 if heads % 3 == 0 else 4),
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    config.head_dim = 64
    return LlamaForCausalLM(config).eval()


def update(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    answers = model(ids).logits
    loss = cross_entropy(answers[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    parts = torch.autograd.grad(loss, list(named.values()))
    return {name: part.detach() for name, part in zip(named, parts, strict=True)}


@dataclass(frozen=True)
class Dager:
    """Petrov et al. 2024 for decoders: query gradients alone, fixed thresholds, greedy growth, nothing recomputed.

    The first token of a text has no gradient in the queries; it is told that all begin with the same one.
    """

    first: float = 1e-5
    second: float = 1e-3
    most: int = 4096

    def read(self, text: TextModel, gradient: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
        query, later = (Projections(which.names[:1], which.transposed) for which in (text.first, text.second))
        span = text.span(query, gradient, FLOAT32)
        pieces = torch.arange(text.vocabulary, device=text.device).split(256)
        apart = torch.cat([span.distances(text.entering(query, piece[None])[0]) for piece in pieces])
        tokens = (apart < self.first).nonzero().squeeze(1)
        span = text.span(later, gradient, FLOAT32)
        alive, finished = [torch.tensor([BEGIN], device=text.device)], []
        while alive and len(tokens) and len(alive[0]) < 2 * LENGTH:
            grown = []
            some = torch.stack(alive)
            parts = [span.distances(text.entering_last(later, chunk, tokens)) for chunk in some.split(64)]
            inside = (torch.cat(parts) < self.second).view(len(some), len(tokens))
            for index, prefix in enumerate(alive):
                found = tokens[inside[index]]
                if not len(found):
                    finished.append(tuple(prefix.tolist()))
                grown += [torch.cat([prefix, token[None]]) for token in found]
            alive = grown[: self.most]
        return finished + [tuple(sequence.tolist()) for sequence in alive]


def tokens(options: argparse.Namespace) -> None:
    model = make_model(options).to(options.device)
    text = text_model(model)
    names = "tokens  texts  exact  proven  false  seconds   DAGER: texts but for the last token  seconds"
    print(f"{type(model).__name__}, {options.hidden} dimensions, {options.device}\n{names}", flush=True)
    for seed in range(options.first, options.first + options.batches):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(text.vocabulary, (options.tokens // LENGTH, LENGTH), generator=generator)
        ids[:, 0] = BEGIN
        ids = ids.to(options.device)
        gradient = update(model, ids)
        started = time.perf_counter()
        found = read_texts(text, gradient, precision=FLOAT32, longest=LENGTH + 4)
        seconds = time.perf_counter() - started
        true = {tuple(row) for row in ids.tolist()}
        named = set(found.sequences)
        proven = found.proven
        false = len(named - true) if proven else 0
        line = f"{ids.numel():6} {len(true):6} {len(named & true):6} {proven:7} {false:6} {seconds:8.1f}"
        if options.dager:
            started = time.perf_counter()
            theirs = Dager().read(text, gradient)
            got = sum(
                row[:-1] in theirs for row in true
            )  # the last token is a label, which it does not look for
            line += f"   {got} of {len(true)}, {len(theirs)} named {time.perf_counter() - started:8.1f}"
        print(line, flush=True)


def lora(options: argparse.Namespace) -> None:
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    print("rank  fresh   tokens  named of them  texts  exact  proven", flush=True)
    for rank in (8, 16, 32, 64):
        for fresh in (True, False):
            for count in (1, 2, 4):
                torch.manual_seed(0)
                config = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"], lora_alpha=rank)
                model = get_peft_model(make_model(options), config).eval()
                if not fresh:
                    for name, parameter in model.named_parameters():
                        if "lora_B" in name:
                            nn.init.normal_(parameter, std=0.02)
                generator = torch.Generator().manual_seed(1)
                ids = torch.randint(49152, (count, 16), generator=generator)
                found = read_texts(text_model(model), update(model, ids), precision=FLOAT32, longest=20)
                exact = len(set(found.sequences) & {tuple(row) for row in ids.tolist()})
                distinct = len(ids[:, :-1].unique())
                print(
                    f"{rank:4}  {fresh!s:5} {distinct:7} {found.tokens:14} {count:6} {exact:6} {found.proven:7}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("tokens", "lora"))
    parser.add_argument("--model", help="a folder")
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dager", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"tokens": tokens, "lora": lora}[options.what](options)


if __name__ == "__main__":
    main()
