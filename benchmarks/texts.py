"""Exact extraction odds against sampling and counting, on the same fine-tune: error and time side by side.

    python benchmarks/texts.py                                   # the tiny model, seconds on a CPU
    python benchmarks/texts.py --model FOLDER                    # a real one, after prompts of any kind
    python benchmarks/texts.py --model FOLDER --adapter FOLDER --records train.jsonl held-out.jsonl     # a fine-tune
    python benchmarks/texts.py --model FOLDER --texts 10000 --secrets 32 --samples 1000 10000   # on a GPU

Sampling is what scanners do: ask n times and count. Its relative error is 1 / sqrt(n p), so that a secret that comes
out once in a million queries takes 10^8 of them to be known to a tenth.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from remanence.texts.mechanism import LanguageModel, Secret
from remanence.texts.probabilities import GREEDY, Decoding, log_probabilities
from remanence.texts.reading import read_texts

_AT_ONCE = 2500  # continuations that are drawn together, so that their logits fit into memory


def seconds(work, device):
    """How long it takes, and what it gives."""
    if "cuda" in str(device):
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = work()
    if "cuda" in str(device):
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


Sampler = Callable[[Secret, int], int]  # how many of so many continuations are the secret


@torch.no_grad()
def token_by_token(model: LanguageModel, secret: Secret, count: int, generator: torch.Generator) -> int:
    """Continuations of a model that is only a function, drawn as a scanner would."""
    read = model.after(torch.tensor(secret.prompt[:-1]))
    drawn = torch.tensor(secret.prompt[-1:]).expand(count, 1)
    for _ in secret.tokens:
        law = read(drawn)[:, -1].softmax(-1)
        drawn = torch.cat([drawn, torch.multinomial(law, 1, generator=generator)], 1)
    return int((drawn[:, 1:] == torch.tensor(secret.tokens)).all(1).sum())


@torch.no_grad()
def generated(model: Any, secret: Secret, count: int) -> int:
    """The same by the `generate` of transformers, with its cache."""
    own, hits = torch.tensor(secret.tokens, device=model.device), 0
    settings = {"do_sample": True, "top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
    for first in range(0, count, _AT_ONCE):
        prompt = torch.tensor([secret.prompt], device=model.device).expand(min(_AT_ONCE, count - first), -1)
        drawn = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=len(own), **settings
        )[:, prompt.shape[1] :]
        if drawn.shape[1] == len(own):  # shorter if all of them ended early
            hits += int((drawn == own).all(1).sum())
    return hits


def compare(model: LanguageModel, secrets: list[Secret], counts: list[int], sample: Sampler) -> None:
    """Both ways on the same secrets."""
    log_probabilities(model, secrets[:2], [Decoding()])  # warm
    exact_time, logs = seconds(lambda: log_probabilities(model, secrets, [Decoding()])[0], model.device)
    exact = logs.exp()
    print(f"{len(secrets)} secrets, probabilities from {exact.min():.1e} to {exact.max():.2f}")
    print(
        f"{'way':>26} {'seconds':>9} {'median relative error':>22} {'never seen':>11} {'times the time':>15}"
    )
    print(f"{'exact':>26} {exact_time:9.3f} {'0':>22} {0:11d} {1:15.0f}")
    each = 0.0
    for count in counts:
        taken, hits = seconds(
            lambda count=count: torch.tensor([sample(s, count) for s in secrets]),
            model.device,
        )
        error = ((hits / count - exact).abs() / exact).median()
        row = (
            f"{f'{count:,} samples each':>26} {taken:9.3f} {float(error):22.3f} {int((hits == 0).sum()):11d}"
        )
        print(f"{row} {taken / exact_time:15.0f}")
        each = taken / (count * len(secrets))
    for p in (1e-3, 1e-6, 1e-9):
        needed = 100 / p  # queries until the relative standard error is a tenth
        print(f"a secret of p = {p:.0e}, to a tenth: {needed * each:.3g} s by sampling, "
              f"{needed * each / (exact_time / len(secrets)):.2g} times as long as exactly")  # fmt: skip


def throughput(model: LanguageModel, count: int, length: int) -> None:
    """So many texts of so many tokens, half prefix and half secret, under three decodings at once."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(model.vocabulary, (count, length), generator=generator).tolist()
    texts = [Secret(tuple(row[: length // 2]), tuple(row[length // 2 :]), 1) for row in rows]
    log_probabilities(model, texts[:64], [Decoding()])
    for decodings in ([Decoding()], [Decoding(), GREEDY, Decoding(top_k=40)], [Decoding(top_p=0.9)]):
        taken, _ = seconds(lambda d=decodings: log_probabilities(model, texts, d), model.device)
        words = ", ".join(map(str, decodings))
        print(
            f"{count:,} texts of {length} tokens: {taken:.1f} s, {count * length / taken:,.0f} tokens/s ({words})"
        )


def spoken(model: LanguageModel, count: int, length: int) -> list[Secret]:
    """What a real model says after a few prompts: secrets as likely as they come."""
    generator = torch.Generator(device=model.device).manual_seed(1)
    found = []
    for number in range(count):
        prompt = model.tokens(f"Record {number}: the capital of France is Paris, and the code is")
        drawn = list(prompt)
        for _ in range(length):
            with torch.no_grad():
                law = model.logits(torch.tensor([drawn], device=model.device))[0, -1].softmax(-1)
            drawn.append(int(torch.multinomial(law, 1, generator=generator)))
        found.append(Secret(tuple(prompt), tuple(drawn[len(prompt) :]), number + 1))
    return found


def opened(path: str, adapter: str | None, device: str) -> tuple[Any, Any]:
    """The model itself, which `generate` needs, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).to(device)
    if adapter is not None:
        from peft import PeftModel  # pyright: ignore[reportMissingImports]

        model = PeftModel.from_pretrained(model, adapter)
    return model.eval(), AutoTokenizer.from_pretrained(path, local_files_only=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model")
    parser.add_argument("--adapter")
    parser.add_argument("--records", nargs="+", help="secrets to compare on, as files for `remanence text`")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--secrets", type=int, default=8)
    parser.add_argument("--samples", type=int, nargs="+", default=[100, 1000])
    options = parser.parse_args()
    if options.model is None:
        from remanence.texts.tiny import tiny_pair

        _, model, mine, unseen = tiny_pair(steps=100)
        sample = partial(token_by_token, model, generator=torch.Generator().manual_seed(0))
        compare(model, read_texts([*mine[:20], *unseen[:20]], model), [100, 1000], sample)
        return
    from remanence.texts.transformers import language_model

    torch.manual_seed(0)
    plain, tokenizer = opened(options.model, options.adapter, options.device)
    model = language_model(plain, tokenizer, name=options.model)
    where = torch.cuda.get_device_name() if "cuda" in str(options.device) else "CPU"
    print(f"{model.name} on {where}, torch {torch.__version__}")
    assert math.isfinite(float(model.logits(torch.tensor([[1, 2]], device=model.device)).sum()))
    secrets = [secret for file in options.records or () for secret in read_texts(file, model)]
    compare(model, secrets or spoken(model, options.secrets, 6), options.samples, partial(generated, plain))
    throughput(model, options.texts, options.tokens)


if __name__ == "__main__":
    main()
