"""Linear heads in the span of their records: exact, and independent of how long the embeddings are.

Write x̃ = (x, 1) for an embedding with the bias's 1, and W̃ = (W, b). Every gradient of a linear head is Σ r_i x̃_iᵀ
with a residual r_i = p_i − y_i per record, so that SGD with momentum, weight decay and mini-batches keeps

    W̃_t = a_t W̃_0 + Σ_i A_{t,i} x̃_iᵀ,        logits_t = a_t X̃W̃_0ᵀ + (X̃X̃ᵀ) A_t.

Steps touch the N × N Gram matrix and the N × C coefficients only. Noise of DP-SGD has one part in the span of
the records, which training feels, and one orthogonal to it, which it does not: the first is drawn in every
step as coefficients L^(−ᵀ)ε (X̃X̃ᵀ = LLᵀ), the second once at the end with the variance that has added up.

Tensors have the heads last: a softmax over ten classes in the last dimension is the slowest part otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from remanence.core.releases import Weights
from remanence.training.perceptron import initial_layer

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead


_RANK = 1e-6  # eigenvalues of a float32 Gram matrix below this share of the largest are rounding
_CACHE = 2**23  # bytes of embeddings and weights that a CPU works through without waiting for memory
_REGISTERS = 64  # records or classes: beyond it a GPU's registers overflow, and the steps below are as good
_UNROLLED = 64  # up to this many records, N fused products beat a batched matrix product on a CPU


def train_dual(head: TransferHead, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Weights:
    """Train linear heads on embeddings `(trials, records, numbers)`; on a CPU as many at once as its cache holds."""
    trials, records, numbers = inputs.shape
    few = max(1, _CACHE // (4 * (numbers * (records + 2 * head.outputs) + records**2)))
    if inputs.is_cuda or trials <= few:
        return _train(head, inputs, labels, generator)
    pairs = zip(inputs.split(few), labels.split(few), strict=True)
    return Weights.concatenate([_train(head, *pair, generator) for pair in pairs])


def _train(head: TransferHead, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> Weights:
    trials, _, numbers = inputs.shape
    weight, bias = initial_layer(head.initialisation, trials, numbers, head.outputs, generator)
    weight, bias = weight.to(inputs.device), bias.to(inputs.device)
    if fits(head, inputs):
        weight, bias = train_fused(head, inputs, labels, (weight, bias))
        return Weights({"weight": weight, "bias": bias})
    gram = (inputs @ inputs.mT + 1).permute(1, 2, 0).contiguous()  # (records, records, trials)
    start = (weight @ inputs.mT + bias.unsqueeze(2)).permute(1, 2, 0).contiguous()  # classes first
    if bool((labels == labels[:1]).all()):  # in sets with so many of each class: a table for the cache
        labels = labels[:1]
    targets = _one_hot(labels.mT, head.outputs)  # (classes, records, trials or 1)
    root = _root(gram) if head.noise_multiplier else gram
    if head.noise_multiplier is None:
        share, coefficients = _descend(head, gram, start, targets, generator)
    else:
        share, coefficients = _descend_privately(head, gram, start, targets, root, generator)
    mixing = coefficients.permute(2, 0, 1).contiguous()  # (trials, classes, records)
    weight = torch.baddbmm(weight, mixing, inputs, beta=share)
    bias = share * bias + coefficients.sum(1).mT
    if head.noise_multiplier:
        weight, bias = _add_remainder(head, weight, bias, inputs, root, generator)
    return Weights({"weight": weight, "bias": bias})


def span_coefficients(head: TransferHead, inputs: Tensor) -> Tensor:
    """A of heads without initial weights, trained on one record per class `(trials, classes, numbers)`.

    W = A · inputs, `(trials, outputs, classes)`. Deterministic: the noise of private training is left out.
    """
    labels = torch.arange(inputs.shape[1], device=inputs.device)
    if fits(head, inputs):
        return train_fused(head, inputs, labels.expand(len(inputs), -1))[0]
    gram = (inputs @ inputs.mT + 1).permute(1, 2, 0).contiguous()
    targets = _one_hot(labels[:, None], head.outputs)
    start = torch.zeros(*targets.shape[:2], len(inputs), device=inputs.device)
    nothing = torch.Generator()
    if head.noise_multiplier is None:
        return _descend(head, gram, start, targets, nothing)[1].permute(2, 0, 1)
    silent = replace(head, noise_multiplier=0.0)
    return _descend_privately(silent, gram, start, targets, gram, nothing)[1].permute(2, 0, 1)


def _descend(
    head: TransferHead, gram: Tensor, start: Tensor, targets: Tensor, generator: torch.Generator
) -> tuple[float, Tensor]:
    """The initial weights' share and the records' coefficients after training."""
    count = gram.shape[0]
    size = count if head.batch_size is None else min(head.batch_size, count)
    weights = None
    if head.class_weights is not None:
        factors = torch.tensor(head.class_weights, device=start.device)
        classes = targets[0].long() if head.outputs == 1 else targets.argmax(0)
        weights = factors[classes]  # (records, trials or 1)
    share, coefficients = 1.0, torch.zeros_like(start)
    mix = _mixer(gram, coefficients)
    drift, velocity = 0.0, torch.zeros_like(start)
    for _ in range(head.epochs):
        for present, scale in _batches(head, count, size, start.shape[2], generator, start.device):
            residual = _residual(mix(share * start), targets)
            # In place, because each pass over the coefficients costs as much as the softmax.
            if weights is not None:
                residual.mul_(weights)
                if head.outputs > 1:  # CrossEntropyLoss takes a weighted mean, BCEWithLogitsLoss a plain one
                    present_weights = weights if present is None else weights * present
                    residual.div_(scale * present_weights.sum(0).clamp(min=1e-30))
            if present is not None:
                residual.mul_(present)
            drift = head.momentum * drift + head.weight_decay * share
            share -= head.learning_rate * drift
            if head.momentum:
                velocity.mul_(head.momentum).add_(residual, alpha=scale).add_(
                    coefficients, alpha=head.weight_decay
                )
                coefficients.sub_(velocity, alpha=head.learning_rate)
            else:
                coefficients.mul_(1 - head.learning_rate * head.weight_decay)
                coefficients.sub_(residual, alpha=head.learning_rate * scale)
    return share, coefficients


def _descend_privately(
    head: TransferHead, gram: Tensor, start: Tensor, targets: Tensor, root: Tensor, generator: torch.Generator
) -> tuple[float, Tensor]:
    """The same with clipped gradients, Poisson batches and the part of the noise that lies in the span."""
    count = gram.shape[0]
    norms = gram.diagonal().mT.sqrt()  # of the embeddings with their 1, (records, trials)
    deviation, root = _noise(head, count), root.to(start.dtype)
    share, coefficients = 1.0, torch.zeros_like(start)
    mix = _mixer(gram, coefficients)
    drift, velocity = 0.0, torch.zeros_like(start)
    for _ in range(head.steps):
        residual = _residual(mix(share * start), targets)
        size = residual.square().sum(0).sqrt_().mul_(norms)
        factor = head.max_grad_norm / (head.sample_rate * count) / size.clamp_(min=head.max_grad_norm)
        if head.sample_rate < 1:
            drawn = torch.rand(factor.shape, generator=generator, device=generator.device)
            factor.mul_((drawn < head.sample_rate).to(factor))
        residual.mul_(factor)
        if deviation:
            noise = torch.empty(residual.shape, device=generator.device).normal_(
                0, deviation, generator=generator
            )
            residual = _mixer(root, noise.to(residual))(residual)
        drift = head.momentum * drift + head.weight_decay * share
        share -= head.learning_rate * drift
        velocity.mul_(head.momentum).add_(residual).add_(coefficients, alpha=head.weight_decay)
        coefficients.sub_(velocity, alpha=head.learning_rate)
    return share, coefficients


def _root(gram: Tensor) -> Tensor:
    """A root of the Gram matrix's pseudo-inverse for every head, which maps unit noise to coefficients.

    `(records, records, trials)`, in double precision. From Cholesky's factor L it is L^(−ᵀ); where records depend on
    each other (there are more than numbers in an embedding, or one twice), UΛ^(−1/2), and some directions carry no
    noise. The latter takes a GPU minutes for thousands of heads with more than 32 records.
    """
    matrices = gram.permute(2, 0, 1).double()
    lower, failed = torch.linalg.cholesky_ex(matrices)
    pivots = lower.diagonal(dim1=1, dim2=2).square()
    dependent = (failed != 0) | ~(pivots.amin(1) > 100 * _RANK * pivots.amax(1))
    unit = torch.eye(gram.shape[0], dtype=lower.dtype, device=lower.device)
    lower[dependent] = unit
    roots = torch.linalg.solve_triangular(lower.mT, unit, upper=True)
    if dependent.any():
        values, vectors = torch.linalg.eigh(matrices[dependent])
        scale = values.clamp(min=0).rsqrt().where(values > _RANK * values[:, -1:], 0.0)
        roots[dependent] = vectors * scale[:, None, :]
    return roots.permute(1, 2, 0).contiguous()


def _add_remainder(
    head: TransferHead, weight: Tensor, bias: Tensor, inputs: Tensor, root: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """All the noise orthogonal to the records, in one draw: a sum of independent normal variables."""
    response, velocity, square = 0.0, 0.0, 0.0
    for step in range(head.steps):  # how one unit of noise, s steps before the end, has grown by then
        velocity = head.momentum * velocity + head.weight_decay * response + (step == 0)
        response -= head.learning_rate * velocity
        square += response**2
    deviation = _noise(head, inputs.shape[1]) * square**0.5
    trials, outputs, numbers = weight.shape
    noise = torch.randn(trials, outputs, numbers + 1, generator=generator, device=generator.device).to(weight)
    augmented = torch.cat([inputs, torch.ones_like(inputs[..., :1])], 2)
    inner = (noise @ augmented.mT).double()  # (trials, outputs, records)
    roots = root.permute(2, 0, 1).double()  # (trials, records, records)
    mixing = (inner @ roots @ roots.mT).to(weight)
    noise = deviation * (noise - mixing @ augmented)
    return weight + noise[..., :-1], bias + noise[..., -1]


def _noise(head: TransferHead, count: int) -> float:
    return (head.noise_multiplier or 0.0) * head.max_grad_norm / (head.sample_rate * count)


def _batches(
    head: TransferHead, count: int, size: int, trials: int, generator: torch.Generator, device: torch.device
) -> Iterator[tuple[Tensor | None, float]]:
    """Which records each step of an epoch sees, `(records, trials)` or None for all, and what each of them counts."""
    if size == count:
        yield None, 1 / size
        return
    order = torch.rand(count, trials, generator=generator, device=generator.device).argsort(0).argsort(0)
    for start in range(0, count - count % size if head.drop_last else count, size):
        end = min(start + size, count)
        yield ((order >= start) & (order < end)).to(device), 1 / (end - start)


def _residual(logits: Tensor, targets: Tensor) -> Tensor:
    """p − y, the derivative of the loss in the logits."""
    return (logits.sigmoid() if len(logits) == 1 else logits.softmax(0)).sub_(targets)


def _one_hot(labels: Tensor, outputs: int) -> Tensor:
    if outputs == 1:
        return labels[None].float()
    return (labels == torch.arange(outputs, device=labels.device)[:, None, None]).float()


def _mixer(matrix: Tensor, values: Tensor) -> Callable[[Tensor], Tensor]:
    """Adds Σ_m matrix[n, m] · values[c, m] for every head, `(classes, records, heads)`, in place.

    `values` may change in place between calls.
    """
    if len(matrix) > _UNROLLED or matrix.is_cuda:
        return lambda onto: onto.add_(torch.einsum("nmk,cmk->cnk", matrix, values))
    # Cut once: views take as long to make as a tenth of the products.
    pairs = [(matrix[:, record], values[:, record : record + 1]) for record in range(len(matrix))]

    def mix(onto: Tensor) -> Tensor:
        for column, row in pairs:
            onto.addcmul_(column, row)
        return onto

    return mix


def fits(head: TransferHead, inputs: Tensor) -> bool:
    """Whether the GPU's kernel can train these heads: without noise, all of a few records in every step.

    It does the same steps, and keeps a head's Gram matrix and coefficients in registers instead of sending every
    intermediate through memory. Triton comes with PyTorch's CUDA builds.
    """
    records = inputs.shape[1]
    plain = head.noise_multiplier is None and head.class_weights is None
    plain &= head.batch_size is None or head.batch_size >= records
    return plain and head.outputs > 1 and _has_kernel(inputs, head.outputs, records)


def _has_kernel(values: Tensor, *sizes: int) -> bool:
    return values.is_cuda and max(sizes) <= _REGISTERS and find_spec("triton") is not None


def _padded(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def train_fused(
    head: TransferHead, inputs: Tensor, labels: Tensor, start: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Weights and biases after training from this start, on `(trials, records, numbers)` with `(trials, records)`.

    Without a start, what the records are multiplied with, `(trials, outputs, records)`, stands in both places.
    """
    from remanence.heads.gpu_kernel import descend

    trials, records, numbers = inputs.shape
    if start is None:
        mixing = torch.empty(trials, head.outputs, records, device=inputs.device)
        final = mixing, mixing
    else:
        start = start[0].contiguous(), start[1].contiguous()
        final = torch.empty_like(start[0]), torch.empty_like(start[1])
    padded = [_padded(records), _padded(head.outputs)]
    launch = descend[(trials,)]  # pyright: ignore[reportIndexIssue]
    with torch.cuda.device_of(inputs):
        launch(
            inputs.contiguous(),
            labels.contiguous(),
            *(start or final),  # nothing is read from the latter
            *final,
            records,
            head.outputs,
            numbers,
            head.epochs,
            head.learning_rate,
            head.weight_decay,
            head.momentum,
            *padded,
            32,  # numbers of an embedding at a time: fastest on an H200 of 32, 64, 128 and 256
            start is None,
            num_warps=1 if padded == [16, 16] else 4,
        )
    return final


def project(mixing: Tensor, weight: Tensor, start: Tensor, *, steps: int, nonnegative: bool) -> Tensor:
    """Gradient steps on ‖AX − W‖² from some X `(trials, classes, numbers)`, staying above 0 where embeddings do."""
    if _has_kernel(weight, weight.shape[1]):
        return project_fused(mixing, weight, start, steps=steps, nonnegative=nonnegative)
    normal = mixing.mT @ mixing
    rate = 1 / normal.abs().sum(2).amax(1).clamp(min=1e-30)[:, None, None]
    pull, keep = rate * (mixing.mT @ weight), torch.eye(normal.shape[1], device=normal.device) - rate * normal
    for _ in range(steps):
        start = torch.baddbmm(pull, keep, start)
        if nonnegative:
            start.relu_()
    return start


def project_fused(mixing: Tensor, weight: Tensor, start: Tensor, *, steps: int, nonnegative: bool) -> Tensor:
    """The same by one program for each head and some columns, which keeps X in registers through all steps."""
    from remanence.heads.gpu_kernel import project

    (trials, classes, numbers), columns = weight.shape, 64
    final = torch.empty_like(weight, memory_format=torch.contiguous_format)
    given = (values.contiguous() for values in (mixing, weight, start))
    launch = project[(trials, -(-numbers // columns))]  # pyright: ignore[reportIndexIssue]
    with torch.cuda.device_of(weight):
        warps = 1 if classes <= 16 else 4
        launch(
            *given, final, classes, numbers, steps, _padded(classes), columns, nonnegative, num_warps=warps
        )
    return final
