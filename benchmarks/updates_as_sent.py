"""What federations send, what sits in the file, what the audit finds and what it says.

python benchmarks/updates_as_sent.py

Batches of 8 pictures behind 64-400-10 (scikit-learn's digits), float32 unless it says otherwise. *proven*: records
from which the update was recomputed; *right*: those that are records of the batch, with their label, within the
stated error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from remanence.bounds import gaussian
from remanence.core.exceptions import MisfitError
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.dense.belonging import realised_noise
from remanence.updates.dense.proofs import Proof
from remanence.updates.dense.reader import DenseReader
from remanence.updates.inspection import Subject, read
from remanence.updates.opening import Update, belongs, recognise, rounding_of
from remanence.updates.rounding import Rounding

Tensors = dict[str, Tensor]
RATE = 0.1


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 10))


def gradient(model: nn.Module, inputs: Tensor, labels: Tensor, **options: object) -> Tensors:
    named = dict(model.named_parameters())
    loss = cross_entropy(model(inputs), labels, **options)  # pyright: ignore[reportArgumentType]
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def difference(
    inputs: Tensor, labels: Tensor, optimiser: Callable[[nn.Module], torch.optim.Optimizer], steps: int
) -> Tensors:
    """New weights minus old ones after some steps on the same batch."""
    model, start = network(), network().state_dict()
    chosen = optimiser(model)
    for _ in range(steps):
        chosen.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        chosen.step()
    return {name: (value - start[name]).detach() for name, value in model.state_dict().items()}


def each(update: Tensors, change: Callable[[Tensor], Tensor]) -> Tensors:
    return {name: change(value) for name, value in update.items()}


def quantised(values: Tensor, bits: int) -> Tensor:
    step = values.abs().max() / (2 ** (bits - 1) - 1)
    return (values / step).round() * step


def largest(values: Tensor, share: float) -> Tensor:
    floor = values.abs().flatten().topk(max(1, round(share * values.numel()))).values[-1]
    return values.where(values.abs() >= floor, 0.0)


def right(proof: Proof, inputs: Tensor, labels: Tensor) -> int:
    claimed, errors = proof.proposal[proof.proven], proof.error[proof.proven]
    off = torch.cdist(claimed.inputs, inputs.double()) / inputs.double().norm(dim=1)
    named = claimed.labels[:, None]  # −1 where the label is left open
    return int(((off <= 4 * errors[:, None] + 1e-6) & ((named == labels) | (named < 0))).any(1).sum())


def cases(
    inputs: Tensor, labels: Tensor, others: tuple[Tensor, Tensor]
) -> dict[str, tuple[Tensors, LocalTraining]]:
    model = network()
    plain, weights = gradient(model, inputs, labels), network().state_dict()
    size = torch.stack([value.square().sum() for value in plain.values()]).sum().sqrt()
    torch.manual_seed(1)
    dropout = nn.Sequential(model[0], model[1], nn.Dropout(0.5), model[2]).train()
    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=RATE)  # noqa: E731
    slow = lambda m: torch.optim.SGD(m.parameters(), lr=0.01)  # noqa: E731
    heavy = lambda m: torch.optim.SGD(m.parameters(), lr=RATE, momentum=0.9)  # noqa: E731
    adam = lambda m: torch.optim.Adam(m.parameters(), lr=1e-3)  # noqa: E731
    one = LocalTraining()

    def over(update: Tensors, rate: float) -> Tensors:
        return each(update, lambda value: value.double() / -rate)

    return {
        "plain gradient": (plain, one),
        "clipped to norm 1": (each(plain, lambda v: v / size), one),
        "clipped to norm 0.1": (each(plain, lambda v: 0.1 * v / size), one),
        "weight decay 1e-4": ({n: v + 1e-4 * weights[n] for n, v in plain.items()}, one),
        "class weights 1 to 3": (gradient(model, inputs, labels, weight=torch.linspace(1, 3, 10)), one),
        "smoothed labels, 0.1": (gradient(model, inputs, labels, label_smoothing=0.1), one),
        "dropout 0.5, training mode": (
            dict(zip(plain, gradient(dropout, inputs, labels).values(), strict=True)),
            one,
        ),
        "new minus old, one step, undeclared": (difference(inputs, labels, sgd, 1), one),
        "2 steps at 0.01, undeclared": (difference(inputs, labels, slow, 2), one),
        "2 steps at 0.01, declared": (
            over(difference(inputs, labels, slow, 2), 0.01),
            LocalTraining(2, 0.01),
        ),
        "5 steps at 0.1, declared": (over(difference(inputs, labels, sgd, 5), RATE), LocalTraining(5, RATE)),
        "20 steps at 0.1, declared": (
            over(difference(inputs, labels, sgd, 20), RATE),
            LocalTraining(20, RATE),
        ),
        "5 steps, momentum 0.9, declared": (
            over(difference(inputs, labels, heavy, 5), RATE),
            LocalTraining(5, RATE, 0.9),
        ),
        "5 steps of Adam, declared": (
            over(difference(inputs, labels, adam, 5), 1e-3),
            LocalTraining(5, 1e-3, optimizer="adam"),
        ),
        "float16": (each(plain, lambda v: v.half()), one),
        "bfloat16": (each(plain, lambda v: v.bfloat16()), one),
        "int8": (each(plain, lambda v: quantised(v, 8)), one),
        "int4": (each(plain, lambda v: quantised(v, 4)), one),
        "largest tenth": (each(plain, lambda v: largest(v, 0.1)), one),
        "signs": (each(plain, torch.sign), one),
        "rank 4": (each(plain, lambda v: low_rank(v, 4)), one),
        "noise, multiplier 1": (each(plain, lambda v: v + torch.randn_like(v) / 8), one),
        "mean over 4 clients": (gradient(model, *others), one),
    }


def low_rank(values: Tensor, rank: int) -> Tensor:
    if values.ndim < 2:
        return values
    left, sizes, right_ = torch.linalg.svd(values, full_matrices=False)
    return (left[:, :rank] * sizes[:rank]) @ right_[:rank]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    pixels, classes = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(pixels / 8 - 1, dtype=torch.float32), torch.tensor(classes)
    batch = inputs[:8], labels[:8]
    together = inputs[:32], labels[:32]
    model = network()
    reader, weights = recognise(model), model.state_dict()
    assert isinstance(reader, DenseReader)
    scale = max(float(value.abs().max()) for value in weights.values())
    print(
        f"{'what is sent':38}{'in it':>6}{'proven':>8}{'right':>7}{'size':>6}{'ceiling':>9}  what the audit says"
    )
    for name, (update, training) in cases(*batch, together).items():
        if only not in name:
            continue
        rounding = rounding_of(update)
        if "minus" in name or "step" in name:
            rate = training.learning_rate or 1.0
            rounding = Rounding(1.2e-7, 6e-8 * scale / rate)
        own, proof = together if "clients" in name else batch, None
        declared, sent = Declared(training), Update(update, rounding)
        try:
            found = belongs(reader, model, sent, declared)
        except MisfitError:
            said = "refused: not one step"
        else:
            (proof,) = read(Subject(model, reader, [found], declared))
            assert isinstance(proof, Proof)
            said = "EXPOSED" if proof.count else "UNPROVEN"
        size = "" if proof is None or proof.batch_size is None else str(proof.batch_size)
        ceiling = ""
        if "noise" in name:  # multiplier 1, clipped to norm 1, ten candidates
            deviation, _ = realised_noise(reader.head, reader.head.layers_of(update))
            said = f"UNPROVEN, update-noised (deviation {deviation:.4f}, declared 0.1250)"
            ceiling = f"{float(gaussian(0.1, noise_multiplier=1.0).success):.3f}"
        count, true = (0, 0) if proof is None else (proof.count, right(proof, *own))
        print(f"{name:38}{len(own[1]):6}{count:8}{true:7}{size:>6}{ceiling:>9}  {said}")


if __name__ == "__main__":
    main()
