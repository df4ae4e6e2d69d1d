"""The kernels of `span.py`, in a module of their own because Triton compiles what it finds when this is imported."""
# pyright: reportMissingImports=false

import triton
import triton.language as tl


@triton.jit
def descend(
    inputs,
    labels,
    weight,
    bias,
    final,
    final_bias,
    records,
    classes,
    numbers,
    epochs,
    learning_rate,
    weight_decay,
    momentum,
    RECORDS: tl.constexpr,  # padded to powers of 2
    CLASSES: tl.constexpr,
    NUMBERS: tl.constexpr,  # of an embedding, at a time
    FROM_ZERO: tl.constexpr,  # no initial weights, and the coefficients `(classes, records)` are all that is stored
):
    """Train head number `program_id` by gradient descent on all of its records."""
    head = tl.program_id(0).to(tl.int64)
    n, c, d = tl.arange(0, RECORDS), tl.arange(0, CLASSES), tl.arange(0, NUMBERS)
    own_inputs = inputs + head * records * numbers + n[:, None] * numbers + d[None, :]
    own_weight = weight + head * classes * numbers + c[:, None] * numbers + d[None, :]
    own_final = final + head * classes * numbers + c[:, None] * numbers + d[None, :]

    gram = tl.zeros((RECORDS, RECORDS), tl.float32)
    start = tl.zeros((RECORDS, CLASSES), tl.float32)
    for first in range(0, numbers, NUMBERS):
        inside = (d < numbers - first)[None, :]
        x = tl.load(own_inputs + first, (n < records)[:, None] & inside, 0.0)
        gram += tl.dot(x, tl.trans(x), input_precision="ieee")
        if not FROM_ZERO:
            w = tl.load(own_weight + first, (c < classes)[:, None] & inside, 0.0)
            start += tl.dot(x, tl.trans(w), input_precision="ieee")
    gram += 1.0
    if not FROM_ZERO:
        start += tl.load(bias + head * classes + c, c < classes, 0.0)[None, :]
    label = tl.load(labels + head * records + n, n < records, 0)
    factor = tl.where(n < records, 1.0 / records, 0.0)  # a padded record weighs nothing
    wanted = tl.where(label[:, None] == c[None, :], 1.0, 0.0)

    share, drift = 1.0, 0.0
    coefficients = tl.zeros((RECORDS, CLASSES), tl.float32)
    velocity = tl.zeros((RECORDS, CLASSES), tl.float32)
    for _ in range(epochs):
        logits = share * start + tl.dot(gram, coefficients, input_precision="ieee")
        logits = tl.where((c < classes)[None, :], logits, -float("inf"))
        raised = tl.exp(logits - tl.max(logits, 1)[:, None])
        residual = (raised / tl.sum(raised, 1)[:, None] - wanted) * factor[:, None]
        drift = momentum * drift + weight_decay * share
        share -= learning_rate * drift
        velocity = momentum * velocity + residual + weight_decay * coefficients
        coefficients -= learning_rate * velocity

    mixing = tl.trans(coefficients)
    if FROM_ZERO:
        own_mixing = final + head * classes * records + c[:, None] * records + n[None, :]
        tl.store(own_mixing, mixing, (c < classes)[:, None] & (n < records)[None, :])
    else:
        for first in range(0, numbers, NUMBERS):
            inside = (d < numbers - first)[None, :]
            x = tl.load(own_inputs + first, (n < records)[:, None] & inside, 0.0)
            kept = (c < classes)[:, None] & inside
            w = tl.load(own_weight + first, kept, 0.0)
            tl.store(own_final + first, share * w + tl.dot(mixing, x, input_precision="ieee"), kept)
        b = tl.load(bias + head * classes + c, c < classes, 0.0)
        tl.store(final_bias + head * classes + c, share * b + tl.sum(coefficients, 0), c < classes)


@triton.jit
def project(
    mixing,
    weight,
    start,
    final,
    classes,
    numbers,
    steps,
    CLASSES: tl.constexpr,  # padded to a power of 2
    NUMBERS: tl.constexpr,  # of an embedding, in one program
    NONNEGATIVE: tl.constexpr,
):
    """Gradient steps on ‖AX − W‖² in some columns of X, for head number `program_id`, above 0 if asked to."""
    head, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * NUMBERS
    c, d = tl.arange(0, CLASSES), tl.arange(0, NUMBERS)
    square = (c < classes)[:, None] & (c < classes)[None, :]
    a = tl.load(mixing + head * classes * classes + c[:, None] * classes + c[None, :], square, 0.0)
    normal = tl.dot(tl.trans(a), a, input_precision="ieee")
    rate = 1.0 / tl.maximum(tl.max(tl.sum(tl.abs(normal), 1), 0), 1e-30)
    keep = tl.where(c[:, None] == c[None, :], 1.0, 0.0) - rate * normal

    places = head * classes * numbers + c[:, None] * numbers + first + d[None, :]
    inside = (c < classes)[:, None] & (d < numbers - first)[None, :]
    pull = rate * tl.dot(tl.trans(a), tl.load(weight + places, inside, 0.0), input_precision="ieee")
    x = tl.load(start + places, inside, 0.0)
    for _ in range(steps):
        x = pull + tl.dot(keep, x, input_precision="ieee")
        if NONNEGATIVE:
            x = tl.maximum(x, 0.0)
    tl.store(final + places, x, inside)
