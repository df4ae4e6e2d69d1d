"""Whole batches within the span of the first layer's gradient: which sizes, behind which functions, how long.

python benchmarks/span_fit.py --device cuda
python benchmarks/span_fit.py --sizes half --sent bfloat16
One random network and batch for each seed, computed in float32, 10 classes; inputs are normal numbers, independent or
correlated as those of pictures are. *recovered*: records that came back within 1e-4 of their size (3e-2 where the
gradient was sent in half precision); *proven*: those that recomputation supports; *off*: the worst of the recovered;
*margin*: the residual that the true records leave in the worst layer, over the rounding errors that a proof propagates.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.updates.dense.exposure import gradient_exposure
from remanence.updates.dense.layers import dense_head
from remanence.updates.dense.peeling import Proposal
from remanence.updates.dense.proofs import Recomputed
from remanence.updates.dense.reader import prove
from remanence.updates.dense.span_fit import fit_in_span
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import Sent

SIZES = {
    "half": tuple((count, 64, 256) for count in (1, 2, 4, 8, 16)),
    "small": ((8, 200, 256), (16, 200, 512)),
    "large": ((32, 784, 1024), (64, 784, 1024), (64, 784, 2048), (96, 784, 2048), (128, 784, 2048)),
}
FUNCTIONS = {"ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "tanh": nn.Tanh, "leaky ReLU": nn.LeakyReLU}


def drawn(count: int, numbers: int, seed: int, *, correlated: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, numbers, generator=generator)
    if correlated:
        few = numbers // 4
        mixed = torch.randn(count, few, generator=generator) @ torch.randn(few, numbers, generator=generator)
        inputs = mixed / few**0.5 + torch.randn(numbers, generator=generator)
    return inputs, torch.randint(10, (count,), generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", choices=SIZES, default="large")
    parser.add_argument("--sent", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=FUNCTIONS)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further batch after so many")
    options = parser.parse_args()
    started, sent = time.perf_counter(), getattr(torch, options.sent)
    rounding, close = Rounding.of([sent]), 1e-4 if sent is torch.float32 else 3e-2
    columns = "".join(
        f"{name:>{len(name) + 2}}"
        for name in ("exposed", "recovered", "proven", "      off", "margin", "seconds")
    )
    print(f"{'between':12}{'inputs':>12}{'width':>7}{'batch':>7}{'seed':>6}{columns}")
    for count, numbers, width in SIZES[options.sizes]:
        for name, function in FUNCTIONS.items():
            for seed in range(options.seeds):
                if time.perf_counter() - started > options.seconds or options.only not in (None, name):
                    continue
                torch.manual_seed(seed)
                model = nn.Sequential(nn.Linear(numbers, width), function(), nn.Linear(width, 10)).to(
                    options.device
                )
                correlated = seed % 2 == 1
                inputs, labels = (
                    t.to(options.device) for t in drawn(count, numbers, seed, correlated=correlated)
                )
                exposed = (
                    str(int(gradient_exposure(model, inputs, labels).exposed.sum())) if name == "ReLU" else ""
                )
                named = dict(model.named_parameters())
                parts = torch.autograd.grad(cross_entropy(model(inputs), labels), list(named.values()))
                head = dense_head(model)
                one = head.layers_of({n: part.to(sent) for n, part in zip(named, parts, strict=True)})
                begun = time.perf_counter()
                found = fit_in_span(head, one, precision=rounding.relative, slots=count)
                seconds = time.perf_counter() - begun
                guesses = found.inputs
                apart = torch.cdist(inputs.double(), guesses) / inputs.double().norm(dim=1)[:, None]
                off = apart.amin(1) if len(guesses) else apart.new_ones(count)
                proof = prove(head, one, found, Sent(rounding))
                true = Proposal(inputs.double(), labels, proof.proposal.shares.new_full((count,), 1 / count))
                made = Recomputed.of(head, one, true, rounding)
                margin = max(rest / within for rest, within in map(made.residual, range(len(one))))
                worst = float(off[off < close].max()) if (off < close).any() else 1.0
                kind = "correlated" if correlated else "normal"
                print(
                    f"{name:12}{kind:>12}{width:7}{count:7}{seed:6}{exposed:>9}{int((off < close).sum()):11}"
                    f"{proof.count:8}{worst:11.1e}{margin:8.2f}{seconds:9.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
