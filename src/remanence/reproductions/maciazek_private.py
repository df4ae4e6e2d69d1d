"""Maciazek and Allison 2025, Section 4: heads trained by DP-SGD, what they cost and what still comes back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from remanence.attacks.reconstructor import Reconstructor
from remanence.calibration import noise_for_epsilon
from remanence.mechanisms.heads import TransferHead
from remanence.progress import track
from remanence.reproductions.maciazek import evaluate, handwriting_setup, rate_cell, rate_of
from remanence.reproductions.reproduction import Cell, Outcome, Panel, Settings, curve
from remanence.roc import Roc

LIMIT = 0.015  # the paper's largest TPR at an FPR of 1 %
CLIPPING = 4.0
SAMPLE_RATE = 0.5  # what the paper's code ran; its text says (N − 1) / N


def figure_4(settings: Settings) -> Outcome:
    """Attack and accuracy over ε for one picture per class, with δ = N^-1.1."""
    setup = handwriting_setup(settings)
    game = setup.game(1)
    assert isinstance(game.mechanism, TransferHead)
    plain, size = game.mechanism, setup.classes
    delta, steps = size**-1.1, round(plain.epochs / SAMPLE_RATE)
    trials = settings.trials or (200 if settings.small else 500)
    epsilons = (5.0, 20.0, 80.0, math.inf)
    points: list[tuple[float, float]] = []
    rows: list[dict[str, Cell]] = []
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        head, noise = plain, 0.0
        if epsilon < math.inf:
            noise = noise_for_epsilon(epsilon, delta=delta, sample_rate=SAMPLE_RATE, steps=steps)
            head = replace(plain, noise_multiplier=noise, max_grad_norm=CLIPPING, sample_rate=SAMPLE_RATE)
        private = replace(game, mechanism=head)
        attack = Reconstructor() if settings.small else Reconstructor(steps=1400, batch=1024)
        generator = torch.Generator(settings.device).manual_seed(settings.seed)
        reconstruct = attack.prepare(private.to(settings.device).knowledge, generator)
        errors = evaluate(private, reconstruct, settings, trials).errors
        release = head.release(None, game.prior.sample(200, generator), generator)
        accuracy = head.accuracy(release, setup.private)
        found = Roc(errors.own.numpy(), errors.stranger.numpy()).tpr_at_fpr(0.01)
        if epsilon < math.inf:
            points.append((epsilon, found.rate))
        rows.append(
            {
                "epsilon": epsilon if epsilon < math.inf else None,
                "noise multiplier": noise,
                "TPR at 1 %": rate_cell(found, errors.own),
                "TPR": rate_of(errors.own, setup.threshold),
                "FPR": rate_of(errors.stranger, setup.threshold),
                "accuracy": float(accuracy.mean()),
                "± (two errors)": 2 * float(accuracy.std()) / len(accuracy) ** 0.5,
            }
        )
    private_rows = [row for row in rows if row["epsilon"] is not None]
    lines = [curve(name, private_rows, "epsilon", name) for name in ("TPR at 1 %", "accuracy")]
    largest = largest_epsilon(points)
    met = "none of these" if largest is None else f"ε of about {largest:.3g}"
    return Outcome(
        setup.name,
        rows,
        [Panel("Privacy and utility", "ε", "rate", lines)],
        {
            "N": size,
            "delta": delta,
            "sample rate": SAMPLE_RATE,
            "steps": steps,
            "max grad norm": CLIPPING,
            "trials": trials,
        },
        [
            "The row without ε is training without DP-SGD.",
            f"The sampling rate and the steps are those that the paper's code ran ({SAMPLE_RATE}, two per epoch), not "
            "those of its text.",
            f"A TPR of at most {LIMIT} at an FPR of 1 % is met by {met}, interpolated over log ε. The paper: 7.2 for "
            "MNIST with N = 10 and 6.0 with N = 40. Ours counts real false positives.",
        ],
    )


def largest_epsilon(points: Sequence[tuple[float, float]], limit: float = LIMIT) -> float | None:
    """Where the rate of points (ε, rate) crosses the limit, interpolated over log ε; None if all are above.

    >>> points = [(1.0, 0.01), (100.0, 0.02)]
    >>> round(largest_epsilon(points), 6), largest_epsilon(points, 0.001), largest_epsilon(points, 0.5)
    (10.0, None, 100.0)
    """
    best = None
    for index, (epsilon, rate) in enumerate(points):
        if rate > limit:
            break
        best = epsilon
        if index + 1 < len(points) and points[index + 1][1] > limit:
            after, above = points[index + 1]
            best = epsilon * (after / epsilon) ** ((limit - rate) / (above - rate))
    return best
