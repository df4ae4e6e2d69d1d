"""Settings that no head can have are refused before anything is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.core.checks import is_number, is_whole
from remanence.core.exceptions import InputError
from remanence.heads.layers import hidden_sizes
from remanence.heads.loop import OPTIMIZERS
from remanence.training.perceptron import INITIALISATIONS
from remanence.training.sgd import require_recipe

if TYPE_CHECKING:
    from remanence.heads.transfer_head import TransferHead

_MOST_HIDDEN = 2  # layers of hidden units


def check_recipe(head: TransferHead) -> None:
    """Refuse what no head can have, and what DP-SGD cannot train."""
    require_recipe(head, tuple(OPTIMIZERS))
    weights, start, noise, rate = (
        head.class_weights,
        head.initialisation,
        head.noise_multiplier,
        head.sample_rate,
    )
    hidden = hidden_sizes(head.hidden) if isinstance(head.hidden, int | tuple | None) else ()
    units = head.hidden is None or (
        0 < len(hidden) <= _MOST_HIDDEN and all(is_whole(units, 1) for units in hidden)
    )
    checks = {
        "classes": (head.classes, is_whole(head.classes, 2), "a whole number of at least 2"),
        "hidden": (head.hidden, units, "at least 1, a pair of such numbers for three layers, or None"),
        "initialisation": (
            start,
            start in INITIALISATIONS if isinstance(start, str) else is_number(start) and start >= 0,
            f"a deviation, or {', '.join(INITIALISATIONS)}",
        ),
        "class_weights": (
            weights,
            weights is None
            or (isinstance(weights, tuple) and len(weights) == head.classes and min(weights) >= 0),
            f"{head.classes} numbers of at least 0",
        ),
        "task": (
            head.task,
            head.task is None or (isinstance(head.task, tuple) and len(head.task) > 0),
            "a tuple with a class for every label",
        ),
        "noise_multiplier": (
            noise,
            noise is None or (is_number(noise) and noise >= 0),
            "at least 0, or None for training without DP-SGD",
        ),
        "max_grad_norm": (head.max_grad_norm, is_number(head.max_grad_norm, above=0), "above 0"),
        "sample_rate": (rate, is_number(rate, above=0) and rate <= 1, "above 0 and at most 1"),
    }
    for name, (value, allowed, needs) in checks.items():
        if not allowed:
            raise InputError(
                f"The {name} cannot be used.", needs=needs, got=f"{value!r}", hint="TransferHead(10, 30)"
            )
    if noise is not None and (
        head.optimizer != "sgd"
        or head.loop is not None
        or head.batch_size is not None
        or weights is not None
        or (head.hidden is not None and head.weight_decay > 0)
    ):
        raise InputError(
            "This head cannot be trained by DP-SGD.",
            needs="optimizer 'sgd', no class weights, no weight decay on two layers, no loop of its own, "
            "and batches drawn at `sample_rate`",
            got=f"optimizer {head.optimizer!r}, batch_size {head.batch_size}, hidden {head.hidden}, "
            f"weight_decay {head.weight_decay}, class_weights {weights}",
            hint="TransferHead(..., noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5)",
        )
