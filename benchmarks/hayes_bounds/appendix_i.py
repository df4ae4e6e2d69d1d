"""Appendix I: what a guess at pixels achieves."""

from __future__ import annotations

import math

from pages import Panel, Pictures, Section, Series, page, power_of_ten, table

from remanence import bounds
from remanence.bounds.calibration import calibrate, noise_for_epsilon
from remanence.bounds.frontier import evenly
from remanence_papers import baselines

PIXELS = {"MNIST": 784, "CIFAR-10": 3072}
DELTA = 1e-5


def appendix_i(pictures: Pictures) -> Section:
    epsilons = (10.0, 100.0, 300.0, 1000.0, 3000.0)
    noises = {epsilon: noise_for_epsilon(epsilon, delta=DELTA, steps=100) for epsilon in epsilons}
    rows, success_rows = [], []
    logs: dict[tuple[str, float, str], float] = {}
    crossings: dict[tuple[str, float, str], float] = {}
    for data, dimension in PIXELS.items():
        for share in (0.6, 0.7, 0.8, 0.9, 1.0):
            both = {
                "printed": dimension * share * math.log(0.25),
                "binomial": baselines.pixels(dimension, share=share, chance=0.25),
            }
            for kind, log_baseline in both.items():
                logs[data, share, kind] = log_baseline
                half = calibrate(0.5, log_baseline=log_baseline, sample_rate=1.0, steps=100)
                crossings[data, share, kind] = bounds.epsilon_upper(half.segment, DELTA)
                success = [
                    float(
                        bounds.gaussian(
                            log_baseline=log_baseline, noise_multiplier=noise, steps=100
                        ).log_success
                    )
                    for noise in noises.values()
                ]
                success_rows.append((data, f"{share:g}", kind, *map(power_of_ten, success)))
            rows.append(
                (data, f"{share:g}", *(f"{value / math.log(10):.1f}" for value in both.values()),
                 f"{(both['binomial'] - both['printed']) / math.log(10):.1f}",
                 *(f"{crossings[data, share, kind]:.0f}" for kind in both))
            )  # fmt: skip
    grid = evenly(200, 6000, 80)
    grid_noises = [noise_for_epsilon(epsilon, delta=DELTA, steps=100) for epsilon in grid]
    panels = []
    for data in PIXELS:
        series = []
        for share, kind, label in (
            (0.6, "binomial", "60 % of the pixels"),
            (0.6, "printed", "60 %, baseline as printed"),
            (0.8, "binomial", "80 %"),
            (0.8, "printed", "80 %, baseline as printed"),
            (1.0, "binomial", "all"),
        ):
            curve = [
                float(
                    bounds.gaussian(
                        log_baseline=logs[data, share, kind], noise_multiplier=noise, steps=100
                    ).success
                )
                for noise in grid_noises
            ]
            series.append(Series(label, grid, curve))
        title = f"{data}, full batch, 100 steps"
        panels.append(
            Panel(
                title,
                "ε at δ = 1e-5",
                "success that no attack can exceed",
                series,
                top=1.03,
                x_ticks=(200, 500, 1000, 2000, 5000),
            )
        )
    exact_one = [logs[data, 1.0, "binomial"] / math.log(10) for data in PIXELS]
    mantissas = [f"{10 ** (value % 1):.2f}e{math.floor(value)}" for value in exact_one]
    low, high = (crossings["MNIST", 0.6, kind] for kind in ("binomial", "printed"))
    header = ("data", "ρ", "log₁₀ κ, printed", "log₁₀ κ, binomial", "printed too small by 10^",
              "ε at γ = ½, printed κ", "ε at γ = ½, binomial κ")  # fmt: skip
    text = page(
        "## Appendix I: baselines of 10^-95 and less",
        f"""A reconstruction counts if a share ρ of the d pixels is within 32/255. One pixel is guessed with
        probability 1/4: an open interval of width 64/255 holds at most 64 of the 256 levels. The paper
        prints κ = (1/4)^(ρ·d). For ρ = 1 that is right, and its 9.66e-473 (MNIST) and 2.96e-1850
        (CIFAR-10) come back as {mantissas[0]} and {mantissas[1]}. For ρ < 1 the guess may miss *any* (1
        − ρ)·d pixels, and κ is a binomial tail, P(Bin(d, 1/4) ≥ ρ·d), `baselines.pixels`. A κ that is
        too small makes the bound too small. The last two columns say at which ε (δ = 1e-5, full batch,
        T = 100) the bound reaches one half.""",
        table(header, rows),
        "The bound at a few ε:",
        table(("data", "ρ", "κ", *(f"γ at ε = {epsilon:g}" for epsilon in epsilons)), success_rows),
        pictures.lines("appendix-i", "Success over epsilon for MNIST and CIFAR-10, both baselines", *panels),
        f"""With ρ = 0.6 on MNIST the printed κ says that no attack succeeds more than half the time up to ε
        = {high:.0f}; the right κ says so only up to ε = {low:.0f}. If Figure 12 was drawn from the
        printed κ, which its text suggests, its curves for ρ < 1 are not upper bounds.""",
    )
    summary = f"""Appendix I: κ agrees to all printed digits for ρ = 1. For ρ < 1 the printed formula is too
        small, by 10^99 to 10^742; with MNIST and ρ = 0.6 the bound reaches one half at ε = {low:.0f},
        not {high:.0f}."""
    return Section(text, summary)
