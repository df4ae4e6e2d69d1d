"""The GPU kernels that train and read heads, against PyTorch's products on a CPU.

`make test-triton` runs them in Triton's interpreter; without TRITON_INTERPRET=1 they run on a GPU.
"""

import os

import pytest
import torch

from remanence import TransferHead
from remanence.heads.span import project, project_fused, span_coefficients, train_dual, train_fused
from remanence.training.perceptron import initial_layer

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") else "cuda"


@pytest.mark.parametrize(
    ("recipe", "records", "classes", "numbers"),
    [
        ({"weight_decay": 1e-2}, 10, 10, 256),
        ({"weight_decay": 1e-2, "momentum": 0.9}, 10, 10, 70),  # embeddings that no tile fits
        ({}, 20, 5, 33),
        ({}, 40, 10, 64),
    ],
)
def test_the_kernel_trains_what_the_dual_trains(recipe, records, classes, numbers):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, records, numbers, generator=generator).relu()
    labels = torch.randint(classes, (5, records), generator=generator)
    head = TransferHead(classes, 12, 0.05, **recipe)
    expected = train_dual(head, inputs, labels, torch.Generator().manual_seed(1))
    start = initial_layer(head.initialisation, 5, numbers, classes, torch.Generator().manual_seed(1))
    moved = start[0].to(DEVICE), start[1].to(DEVICE)
    weight, bias = (each.cpu() for each in train_fused(head, inputs.to(DEVICE), labels.to(DEVICE), moved))
    # Twelve steps of float32 sums in another order; leaving out the decay or the momentum moves weights by 1e-4.
    assert torch.allclose(weight, expected["weight"], atol=1e-6)
    assert torch.allclose(bias, expected["bias"], atol=1e-6)


@pytest.mark.parametrize("classes", [5, 10])
def test_the_kernel_finds_the_coefficients_of_heads_without_initial_weights(classes):
    inputs = torch.randn(5, classes, 33, generator=torch.Generator().manual_seed(0)).relu()
    head = TransferHead(classes, 12, 0.05, weight_decay=1e-2, momentum=0.5)
    expected = span_coefficients(head, inputs)
    found, _ = train_fused(head, inputs.to(DEVICE), torch.arange(classes, device=DEVICE).expand(5, -1))
    assert torch.allclose(found.cpu(), expected, atol=1e-6)
    assert expected.abs().amax() > 0.05


@pytest.mark.parametrize(
    ("classes", "numbers", "nonnegative"), [(10, 70, True), (5, 64, False), (20, 33, True)]
)
def test_the_kernel_projects_as_a_chain_of_products_does(classes, numbers, nonnegative):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(3, classes, classes, generator=generator)
    weight, start = (torch.randn(3, classes, numbers, generator=generator) for _ in range(2))
    expected = project(mixing, weight, start, steps=20, nonnegative=nonnegative)
    given = (values.to(DEVICE) for values in (mixing, weight, start))
    found = project_fused(*given, steps=20, nonnegative=nonnegative).cpu()
    assert torch.allclose(found, expected, atol=1e-5)
    assert bool((found >= 0).all()) == nonnegative
    assert (expected - start).abs().amax() > 0.5
