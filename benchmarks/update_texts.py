"""Texts from updates of transformers: how many tokens, how long, beside DAGER as published, with LoRA, and as sent.

python benchmarks/update_texts.py tokens --tokens 512 --batches 50
python benchmarks/update_texts.py tokens --tokens 2048 --hidden 4096 --layers 4 --device cuda
python benchmarks/update_texts.py lora --layers 3 --vocabulary 8192
python benchmarks/update_texts.py sent
python benchmarks/update_texts.py tokens --model FOLDER --prose --dager
Needs transformers. `--model FOLDER` takes a model that is there; otherwise one of SmolLM2-135M's shape with random
weights stands in. Texts are 32 tokens, random but for the first, which is the same in all. *exact*: texts that came
back to the last token; *false*: texts that were proven and are not in the batch; *left*: the share of the update that
they leave in the worst tensor; seconds are of processor time, on a graphics card of wall-clock time.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from remanence.updates.opening import rounding_of_difference
from remanence.updates.rounding import Rounding
from remanence.updates.texts.model import TextModel, text_model
from remanence.updates.texts.naming import name_sequences, tokens_in_batch
from remanence.updates.texts.reader import read_texts, verify_texts

FLOAT32 = 1.2e-7
LENGTH = 32
BEGIN = 1  # the token that every text begins with


def make_model(options: argparse.Namespace) -> nn.Module:
    if options.model:
        return AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True).eval()
    torch.manual_seed(0)
    heads = 9 if options.hidden == 576 else options.hidden // 64
    config = LlamaConfig(
        vocab_size=options.vocabulary, hidden_size=options.hidden, intermediate_size=options.hidden * 8 // 3,
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
    """Petrov et al. 2024 for decoders, with the settings of their code: query gradients alone, one rank for all layers
    (NumPy's, the largest of the first ten, at most 20 below the width), fixed thresholds, greedy growth, and nothing
    recomputed.

    The first token of a text has no gradient in the queries; it is told that all begin with the same one.
    """

    first: float = 1e-5
    second: float = 1e-3
    cutoff: int = 20
    most: int = 4096

    def read(self, text: TextModel, gradient: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
        pattern = re.sub(r"\d+", r"\\d+", re.escape(text.first.names[0])) + r"\.weight"
        queries = [value for name, value in gradient.items() if re.fullmatch(pattern, name)]
        rank = max(int(torch.linalg.matrix_rank(value)) for value in queries[:10])
        rank = min(rank, queries[0].shape[1] - self.cutoff)
        bases = [torch.linalg.svd(value.double()).Vh[:rank].mT for value in queries[:2]]
        pieces = torch.arange(text.vocabulary, device=text.device).split(256)
        apart = torch.cat([_apart(bases[0], text.entering(text.first, piece[None])[0]) for piece in pieces])
        tokens = (apart < self.first).nonzero().squeeze(1)
        alive, finished = [torch.tensor([BEGIN], device=text.device)], []
        while alive and len(tokens) and len(alive[0]) < 2 * LENGTH:
            grown = []
            some = torch.stack(alive)
            parts = [_apart(bases[1], text.entering_last(text.second, one, tokens)) for one in some.split(16)]
            inside = (torch.cat(parts) < self.second).view(len(some), len(tokens))
            for index, prefix in enumerate(alive):
                found = tokens[inside[index]]
                if not len(found):
                    finished.append(tuple(prefix.tolist()))
                grown += [torch.cat([prefix, token[None]]) for token in found]
            alive = grown[: self.most]
        return finished + [tuple(sequence.tolist()) for sequence in alive]


def _apart(basis: Tensor, vectors: Tensor) -> Tensor:
    return (vectors - (vectors @ basis) @ basis.mT).norm(dim=-1) / vectors.norm(dim=-1)


def batch(options: argparse.Namespace, vocabulary: int, seed: int) -> Tensor:
    """Random tokens, or pieces of this project's own pages; the first token is the same in all."""
    generator = torch.Generator().manual_seed(seed)
    count = options.tokens // LENGTH
    if options.prose:
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
        pages = sorted(Path(__file__).parent.parent.glob("docs/*.md"))
        ids = torch.tensor(tokenizer("\n".join(page.read_text() for page in pages))["input_ids"])
        pieces = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
        found = pieces[torch.randperm(len(pieces), generator=generator)[:count]].clone()
    else:
        found = torch.randint(vocabulary, (count, LENGTH), generator=generator)
    found[:, 0] = BEGIN
    return found.to(options.device)


def tokens(options: argparse.Namespace) -> None:
    model = make_model(options).to(options.device)
    text, clock = text_model(model), time.perf_counter if options.device == "cuda" else time.process_time
    names = "tokens  texts  exact  proven  false     left  seconds"
    names += "   DAGER: texts but for the last token  seconds  ours over theirs" * options.dager
    print(f"{type(model).__name__}, {options.hidden} dimensions, {options.device}\n{names}", flush=True)
    for seed in range(options.first, options.first + options.batches):
        ids = batch(options, text.vocabulary, seed)
        gradient = update(model, ids)
        started = clock()
        found = read_texts(text, gradient, precision=FLOAT32, longest=LENGTH + 4)
        seconds = clock() - started
        true = {tuple(row) for row in ids.tolist()}
        named = set(found.sequences)
        proven = found.count
        false = len(named - true) if proven else 0
        line = f"{ids.numel():6} {len(true):6} {len(named & true):6} {proven:7} {false:6}"
        line += f" {found.unexplained:8.1e} {seconds:8.1f}"
        if options.dager:
            started = clock()
            theirs = Dager().read(text, gradient)
            got = sum(
                row[:-1] in theirs for row in true
            )  # the last token is a label, which it does not look for
            took = clock() - started
            line += f"   {got} of {len(true)}, {len(theirs)} named {took:8.1f} {seconds / took:8.2f}"
        print(line, flush=True)


def lora(options: argparse.Namespace) -> None:
    """What the gradients of adapters give: which tokens are certainly in, and whole texts, by rank."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    print(
        "targets       rank  B       tokens  certainly in  false  texts  exact  proven  crowded", flush=True
    )
    targets = {"q, v": ["q_proj", "v_proj"], "all linear": "all-linear"}
    for (name, modules), rank, trained in itertools.product(targets.items(), (8, 16, 32, 64), (False, True)):
        torch.manual_seed(0)
        model = get_peft_model(make_model(options), LoraConfig(r=rank, target_modules=modules)).eval()
        for parameter_name, parameter in model.named_parameters():
            if trained and "lora_B" in parameter_name:
                nn.init.normal_(parameter, std=0.02)
        text = text_model(model)
        for count in (1, 2, 4):
            ids = torch.randint(text.vocabulary, (count, 16), generator=torch.Generator().manual_seed(1))
            gradient, true = update(model, ids), {tuple(row) for row in ids.tolist()}
            inside = set(ids[:, :-1].flatten().tolist())
            named = torch.cat(tokens_in_batch(text, gradient, precision=FLOAT32, length=20)).unique()
            found = read_texts(text, gradient, precision=FLOAT32, longest=20)
            crowded = not all(
                text.span(which, gradient, FLOAT32).tells for which in (text.first, text.second)
            )
            print(
                f"{name:12} {rank:5}  {'trained' if trained else 'fresh':7} {len(inside):5} "
                f"{len(inside & set(named.tolist())):13} {len(set(named.tolist()) - inside):6} {count:6} "
                f"{len(set(found.sequences) & true):6} {found.count:7}  {'yes' if crowded else 'no'}",
                flush=True,
            )


def sent(options: argparse.Namespace) -> None:
    """What clients send instead of a plain gradient, of four texts of different length: what comes back."""
    print(
        "what is sent                          tokens  named  false  texts  exact  proven  false  left",
        flush=True,
    )
    for tied in (False, True):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=1000, hidden_size=192, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
        )  # fmt: skip
        model = LlamaForCausalLM(config).eval().to(options.device)
        lengths, generator = (6, 9, 12, 12), torch.Generator().manual_seed(1)
        rows = [torch.randint(5, 1000, (n,), generator=generator).to(options.device) for n in lengths]
        for name, (gradient, precision) in ways_of_sending(model, rows).items():
            rounding = rounding_of_difference(model.state_dict()) if not precision else Rounding(precision)
            text = replace(text_model(model), is_difference=not precision)
            layers = [*text.first.weights(gradient), *text.second.weights(gradient)]
            precision = max(rounding.of_tensor(one).of_largest(gradient[one]) for one in layers)
            sequences, _ = name_sequences(text, gradient, precision=precision, longest=16)
            found = verify_texts(text, gradient, sequences, rounding=rounding)
            inside = {token for row in rows for token in row[:-1].tolist()}
            named = tokens_in_batch(text, gradient, precision=precision, length=16)
            tokens = set(torch.cat(named).tolist())
            true = {tuple(row.tolist()) for row in rows}
            false = len(set(found.sequences) - true) if found.count else 0
            print(
                f"{name + (', tied' if tied else ''):37} {len(inside):6} {len(inside & tokens):6} "
                f"{len(tokens - inside):6} {len(true):6} {len(set(found.sequences) & true):6} {found.count:7} "
                f"{false:6}  {found.unexplained:.0e}",
                flush=True,
            )


Update = dict[str, Tensor]


def ways_of_sending(model: nn.Module, rows: list[Tensor]) -> dict[str, tuple[Update, float]]:
    """Updates as gradients, and the precision of their numbers; 0 for differences of weights."""
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    mask = (labels >= 0).long()

    def gradient(which: list[int], reduction: str = "tokens") -> Update:
        ids, wanted = padded[which], labels[which]
        answers = model(ids, attention_mask=mask[which]).logits[:, :-1]
        each = cross_entropy(answers.transpose(1, 2), wanted[:, 1:], reduction="none")
        counts = (wanted[:, 1:] >= 0).sum(1)
        loss = each.sum() / counts.sum() if reduction == "tokens" else (each.sum(1) / counts).mean()
        named = dict(model.named_parameters())
        return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))

    def trained(optimiser: torch.optim.Optimizer, steps: int) -> Update:
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in range(steps):
            for p, value in zip(model.parameters(), gradient([0, 1, 2, 3]).values(), strict=True):
                p.grad = value
            optimiser.step()
        moved = {name: before[name] - p.detach() for name, p in model.named_parameters()}
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(before[name])
                p.grad = None
        return moved

    plain = gradient([0, 1, 2, 3])
    halves = [gradient([0, 1]), gradient([2, 3])]
    sgd, adam = torch.optim.SGD, torch.optim.AdamW
    noisy = {n: v + 1e-3 * v.norm() * torch.randn_like(v) / v.numel() ** 0.5 for n, v in plain.items()}
    return {
        "mean over tokens, padded": (plain, FLOAT32),
        "mean over texts": (gradient([0, 1, 2, 3], "texts"), FLOAT32),
        "two batches, accumulated": ({n: (v + halves[1][n]) / 2 for n, v in halves[0].items()}, FLOAT32),
        "clipped": ({n: 0.013 * v for n, v in plain.items()}, FLOAT32),
        "float16": ({n: (256 * v).half().float() for n, v in plain.items()}, 2.0**-10),
        "bfloat16": ({n: v.bfloat16().float() for n, v in plain.items()}, 2.0**-7),
        "new minus old weights, rate 1": (trained(sgd(model.parameters(), 1.0), 1), 0.0),
        "weight decay 1e-4": (
            {n: v + 1e-4 * model.get_parameter(n).detach() for n, v in plain.items()},
            FLOAT32,
        ),
        "2 steps, rate 0.01, undeclared": (trained(sgd(model.parameters(), 0.01), 2), 0.0),
        "5 steps, rate 0.1, undeclared": (trained(sgd(model.parameters(), 0.1), 5), 0.0),
        "1 step of AdamW": (trained(adam(model.parameters(), 1e-3), 1), 0.0),
        "1 step of Adam without decay": (trained(adam(model.parameters(), 1e-3, weight_decay=0), 1), 0.0),
        "noise of a thousandth": (noisy, FLOAT32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("tokens", "lora", "sent"))
    parser.add_argument("--model", help="a folder")
    parser.add_argument("--hidden", type=int, default=576)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--vocabulary", type=int, default=49152)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dager", action="store_true")
    parser.add_argument(
        "--prose", action="store_true", help="pieces of docs/ instead of random tokens; needs --model"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    {"tokens": tokens, "lora": lora, "sent": sent}[options.what](options)


if __name__ == "__main__":
    main()
