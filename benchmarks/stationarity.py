"""What the weights alone give away, without a public picture: the stationarity attack (Haim 2022, Oz 2024), on digits.

`python benchmarks/stationarity.py` trains heads with hidden units on ten digits behind a frozen layer, and looks for
pictures that make the head stationary: θ = Σ λ ∇(its margin at a picture), which holds in the limit of long training
without decay from a small start. Pixels and λ ≥ 0 are fitted from noise, with twice as many candidates as there were
pictures. A picture counts as found if a candidate is closer than τ, the distance at which digits have their nearest
neighbours among others; the control asks the same about ten digits that the head has never seen.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy, softplus

CLASSES, HIDDEN, CANDIDATES = 10, 64, 2


def main(seeds: int = 3, steps: int = 1500) -> None:
    """Print a table."""
    torch.set_num_threads(1)
    pixels, answers = load_digits(return_X_y=True)
    pictures, labels = torch.tensor(pixels).float() / 8 - 1, torch.tensor(answers)
    others = pictures[100:]
    apart = torch.cdist(pictures[:100], others).square().amin(1).mean() / 64
    print(f"τ = {float(apart):.3f}\n| training | loss | left of θ | found | control |\n|---|--:|--:|--:|--:|")
    for name, epochs in (("30 epochs", 30), ("1,000 epochs", 1000), ("20,000 epochs", 20000)):
        for seed in range(seeds):
            own = _one_of_each(labels, 100 * seed)
            strangers = _one_of_each(labels, 1000 + 100 * seed)
            backbone, head, loss = _trained(pictures[own], labels[own], epochs, seed)
            found, left = _stationary(backbone, head, steps, seed)
            hits, control = (
                int((torch.cdist(pictures[each], found).square().amin(1) / 64 < apart).sum())
                for each in (own, strangers)
            )
            print(f"| {name} | {loss:.2g} | {left:.2f} | {hits} of 10 | {control} of 10 |", flush=True)


def _one_of_each(labels: Tensor, start: int) -> Tensor:
    return torch.tensor([int((labels[start:] == label).nonzero()[0, 0]) + start for label in range(CLASSES)])


def _trained(own: Tensor, labels: Tensor, epochs: int, seed: int) -> tuple[nn.Module, nn.Module, float]:
    """A frozen layer, and a head by a plain loop: no biases and a small start, as the theory has it."""
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Linear(64, 96), nn.ReLU()).requires_grad_(False)
    head = nn.Sequential(nn.Linear(96, HIDDEN, bias=False), nn.ReLU(), nn.Linear(HIDDEN, CLASSES, bias=False))
    for weight in head.parameters():
        nn.init.normal_(weight, std=0.02)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.3)
    features, loss = backbone(own), torch.zeros(())
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = cross_entropy(head(features), labels)
        loss.backward()
        optimizer.step()
    return backbone, head.requires_grad_(False), float(loss.detach())


def _stationary(backbone: nn.Module, head: nn.Module, steps: int, seed: int) -> tuple[Tensor, float]:
    """Pictures whose margins explain the weights, and how much of these is left unexplained."""
    generator = torch.Generator().manual_seed(seed)
    count = CANDIDATES * CLASSES
    looks = (0.3 * torch.randn(count, 64, generator=generator)).requires_grad_()
    shares = torch.full((count, CLASSES), -2.0).requires_grad_()  # one for each other class
    asked = torch.arange(count) % CLASSES
    weights = {name: values.detach() for name, values in head.named_parameters()}
    size = sum(values.square().sum() for values in weights.values())
    optimizer = torch.optim.Adam([looks, shares], lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def margins(parameters: dict[str, Tensor], inputs: Tensor, lambdas: Tensor) -> Tensor:
        answers = functional_call(head, parameters, (inputs,))
        own = answers.gather(1, asked[:, None])
        return (lambdas * (own - answers)).sum()

    left = torch.zeros(())
    for _ in range(steps):
        inputs = backbone(looks.tanh())
        explained = grad(margins)(weights, inputs, softplus(shares))
        left = (
            torch.stack([(weights[name] - explained[name]).square().sum() for name in weights]).sum() / size
        )
        optimizer.zero_grad()
        left.backward()
        optimizer.step()
        schedule.step()
    return looks.detach().tanh(), float(left.detach())


if __name__ == "__main__":
    main()
