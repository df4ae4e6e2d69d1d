"""Exact odds in float32 and in bfloat16 with its rounding bracket: texts a second, and whether float64 is inside.

    python benchmarks/text_precision.py --device cuda                                # 20,000 texts of 128 tokens
    python benchmarks/text_precision.py --texts 24 --compared 24 --layers 2 --vocabulary 999   # on a CPU, in seconds

The model has SmolLM2-135M's shape and random weights, from a generator of fixed seed: nothing is downloaded. Its last
layer has weights of its own, ten times as large as at the start of a training, so that logits spread as in trained
models. Half of each text is prefix and half secret; some secrets are what the model itself says, so that likely ones
are among them. Times include the texts that both precisions read to measure the rounding.
"""

import argparse
import copy
import time
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from remanence.texts.mechanism import LanguageModel, Secret
from remanence.texts.probabilities import Decoding, log_probabilities
from remanence.texts.rounding import in_bfloat16, rounded_log_probabilities

WIDTH, HEADS, SHARED, INNER = 576, 9, 3, 1536  # of SmolLM2-135M: 30 layers, 49,152 tokens


class Block(nn.Module):
    """Attention with rotary positions and shared keys, then a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.before, self.middle = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        self.attend = nn.Linear(WIDTH, (HEADS + 2 * SHARED) * size, bias=False)
        self.gather = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The next layer's numbers."""
        parts = self.attend(self.before(x)).unflatten(-1, (HEADS + 2 * SHARED, -1))
        turned, values = parts.split([HEADS + SHARED, SHARED], 2)
        turned = turned * cos + torch.cat(turned.chunk(2, -1)[::-1], -1) * sin
        queries, keys = turned.split([HEADS, SHARED], 2)
        heads = (each.transpose(1, 2) for each in (queries, keys, values))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        x = x + self.gather(seen.transpose(1, 2).flatten(2))
        inner = self.middle(x)
        return x + self.down(functional.silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    """A Llama of SmolLM2's shape."""

    def __init__(self, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.after = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        generator = torch.Generator().manual_seed(0)
        for name, weight in self.named_parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.2 if name.startswith("head") else 0.02, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `(batch, length, vocabulary)`."""
        x = self.tokens(ids)
        size = WIDTH // HEADS
        turns = 1e5 ** (-torch.arange(0, size, 2, device=ids.device) / size)
        angles = torch.arange(ids.shape[1], device=ids.device)[:, None] * turns.repeat(2)
        signs = torch.tensor([-1.0, 1.0], device=ids.device).repeat_interleave(size // 2)
        cos, sin = (each[:, None].to(x.dtype) for each in (angles.cos(), angles.sin() * signs))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.after(x))


def wrapped(net: nn.Module, vocabulary: int, device: str) -> LanguageModel:
    """As audits see it; texts are tokens already."""
    return LanguageModel("SmolLM2's shape", net, list, str, vocabulary, context=8192, device=device)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def texts_of(model: LanguageModel, count: int, length: int, spoken: int) -> list[Secret]:
    """Random texts, and some whose secret is what the model says at temperature ¼ after their prefix."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(model.vocabulary, (count, length), generator=generator)
    own = rows[:: max(1, count // max(1, spoken))][:spoken].to(model.device)
    cut = torch.Generator(device=model.device).manual_seed(2)
    for place in range(length // 2, length):
        law = (4 * model.logits(own[:, :place])[:, -1]).softmax(-1)
        own[:, place] = torch.multinomial(law, 1, generator=cut)[:, 0]
    rows[:: max(1, count // max(1, spoken))][:spoken] = own.cpu()
    return [Secret(tuple(r[: length // 2]), tuple(r[length // 2 :]), 1) for r in rows.tolist()]


def timed(work, device: str):
    """The seconds that work takes, after its GPU has finished, and what it gives."""
    if "cuda" in device:
        torch.cuda.synchronize()
    started = time.perf_counter()
    found = work()
    if "cuda" in device:
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--compared", type=int, default=1000, help="texts that float64 reads as well")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    options = parser.parse_args()
    device, vocabulary = options.device, options.vocabulary
    net = Llama(vocabulary, options.layers).to(device).requires_grad_(False).eval()
    single = wrapped(net, vocabulary, device)
    coarse = replace(single, logits=in_bfloat16(net, net.head))
    double = replace(single, logits=copy.deepcopy(net).double())
    where = torch.cuda.get_device_name() if "cuda" in device else "CPU"
    print(f"{sum(p.numel() for p in net.parameters()):,} weights on {where}, torch {torch.__version__}")
    texts = texts_of(single, options.texts, options.tokens, options.compared // 4)
    some = texts[:: max(1, options.texts // options.compared)][: options.compared]
    for warm in (texts[:64], texts[:600]):
        log_probabilities(single, warm, [Decoding()])
        rounded_log_probabilities(coarse, single, warm)
    few = texts[: max(64, options.texts // 5)]
    taken, _ = timed(lambda: log_probabilities(single, few, [Decoding()]), device)
    print(f"float32:  {len(few) / taken:8,.0f} texts of {options.tokens} tokens a second")
    taken, found = timed(lambda: rounded_log_probabilities(coarse, single, texts), device)
    print(
        f"bfloat16: {len(texts) / taken:8,.0f}, with its bracket (logits off by at most {found.spread:.2g})"
    )
    exact = log_probabilities(double, some, [Decoding()])[0]
    off = (log_probabilities(single, some, [Decoding()])[0] - exact).abs().max()
    found = rounded_log_probabilities(coarse, single, some)
    inside = (found.lower <= exact) & (exact <= found.upper)
    print(f"float64 inside the bracket: {int(inside.sum())} of {len(some)}")
    print(
        f"log-probabilities from {exact.min():.0f} to {exact.max():.1f}; float32 is off by {off:.1e} at most"
    )
    likely = exact >= exact.quantile(0.8)
    for name, which in (("the likeliest fifth", likely), ("the others", ~likely)):
        wide, error = (found.upper - found.lower)[which].median(), (found.logs - exact)[which].abs().max()
        print(f"{name}: bracket {wide:.2g} wide in the median, bfloat16 off by {error:.2g} at most")


if __name__ == "__main__":
    main()
