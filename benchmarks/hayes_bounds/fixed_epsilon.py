"""Figures 14 and 15: one ε, many sampling rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pages import Panel, Pictures, Section, Series, digits, figure_of, page, save, set_axes, table
from sampling import DELTA, RATES, TICKS

from remanence import bounds
from remanence.bounds.calibration import noise_for_epsilon
from remanence.bounds.frontier import evenly


@dataclass(frozen=True)
class Sweep:
    rates: list[float]
    noises: list[float]
    success: dict[int, list[float]]
    lower: dict[int, list[float]]

    def at(self, rate: float, candidates: int) -> float:
        return self.success[candidates][self.rates.index(rate)]


def sweep(epsilon: float, sizes: Sequence[int]) -> Sweep:
    rates = sorted({*evenly(0.01, 0.99, 10), *RATES})
    found = Sweep(rates, [], {n: [] for n in sizes}, {n: [] for n in sizes})
    for rate in rates:
        noise = noise_for_epsilon(epsilon, delta=DELTA, sample_rate=rate, steps=100)
        bound = bounds.dpsgd([1 / n for n in sizes], noise_multiplier=noise, sample_rate=rate, steps=100)
        found.noises.append(noise)
        for index, n in enumerate(sizes):
            found.success[n].append(float(bound.success[index]))
            found.lower[n].append(float(bound.lower[index]))
    return found


def figures_14_and_15(pictures: Pictures) -> Section:
    sizes = (2, 10, 100)
    sweeps = {epsilon: sweep(epsilon, sizes) for epsilon in (1.0, 4.0, 10.0, 20.0, 32.0)}
    width = max(
        high / low - 1
        for of in sweeps.values()
        for n in sizes
        for high, low in zip(of.success[n], of.lower[n], strict=True)
    )
    rows = [
        (f"{epsilon:g}", str(n), *digits(of.at(rate, n) for rate in RATES))
        for epsilon, of in sweeps.items()
        for n in sizes
    ]
    noise_rows = [
        (f"{epsilon:g}", *digits((of.noises[of.rates.index(rate)] for rate in RATES), ".5f"))
        for epsilon, of in sweeps.items()
    ]
    panels = [
        Panel(
            f"{n} candidates, 100 steps",
            "sampling rate",
            "success that no attack can exceed",
            [
                *(Series(f"ε = {epsilon:g}", of.rates, of.success[n]) for epsilon, of in sweeps.items()),
                Series("guessing", [0.01, 0.99], [1 / n, 1 / n]),
            ],
            top=1.03,
            x_ticks=TICKS,
        )
        for n in sizes
    ]

    def paint(path: Path) -> None:
        import matplotlib as mpl  # pyright: ignore[reportMissingImports]

        figure = figure_of(3, 2, 11, 6.4)
        colours = mpl.colormaps["cividis"].resampled(20)  # in steps, which keeps the file small
        points = None
        for axes, (epsilon, n) in zip(figure.axes, [(e, n) for e in (4.0, 32.0) for n in sizes], strict=True):
            of = sweeps[epsilon]
            marked = [of.noises[of.rates.index(rate)] for rate in RATES]
            axes.plot(of.rates, of.noises, color="#999999", linewidth=0.8, zorder=1)
            points = axes.scatter(
                RATES, marked, c=[of.at(rate, n) for rate in RATES], cmap=colours, vmin=0, vmax=1, s=45, zorder=2,
                edgecolors="black", linewidths=0.4,
            )  # fmt: skip
            for rate, where in ((0.01, (9, -4)), (0.99, (-9, 0))):
                axes.annotate(
                    f"{of.at(rate, n):.2f}", (rate, of.noises[of.rates.index(rate)]), xytext=where,
                    textcoords="offset points", ha="left" if rate < 0.5 else "right", va="center", fontsize=9,
                )  # fmt: skip
            ticks = (0.5, 1, 2, 5, 10) if epsilon == 4 else (0.3, 0.5, 1, 2)
            across, up = "sampling rate" if epsilon == 32 else "", "noise multiplier" if n == 2 else ""
            title = f"ε = {epsilon:g}, {n} candidates"
            set_axes(axes, Panel(title, across, up, (), log_y=True, x_ticks=TICKS[::2], y_ticks=ticks))
        figure.colorbar(points, ax=figure.axes, label="success that no attack can exceed")
        save(figure, path)

    last = sweeps[32.0]
    first, final = last.at(0.01, 100), last.at(0.99, 100)
    differences = ", ".join(
        f"{of.at(0.99, 10) - of.at(0.01, 10):.3f} (ε = {epsilon:g})" for epsilon, of in sweeps.items()
    )
    text = page(
        "## Figures 14 and 15: other ε, other priors",
        f"""T = 100, δ = 1e-5, priors of 2, 10 and 100 and q from 0.01 to 0.99 (Table 1 of the paper). Its
        text names only one ε, the 32 in Figure 15's caption; the others are ours. Certified upper ends;
        the widest bracket is {width:.0e} of its value.""",
        "γ:",
        table(("ε", "candidates", *(f"q = {rate:g}" for rate in RATES)), rows),
        "σ:",
        table(("ε", *(f"q = {rate:g}" for rate in RATES)), noise_rows),
        pictures.lines(
            "figure-14", "Success over the sampling rate, three priors, five values of epsilon", *panels
        ),
        pictures.add("figure-15", "Noise over the sampling rate, coloured by the success bound", paint),
        f"""Figure 15's caption gives two values, at ε = 32 with 100 candidates: 0.4 at q = 0.01 and 1 at q
        = 0.99. Ours are {first:.4f} and {final:.4f}, which is the same to the one digit printed. The
        colours here run from 0 to 1 in every panel; the paper chose them per panel. As the paper says,
        γ is smaller for smaller q in every setting. It also finds the largest differences at large ε;
        with 10 candidates those between q = 0.99 and q = 0.01 are {differences}: they grow up to ε = 20
        and then shrink, because γ cannot exceed 1.""",
    )
    summary = f"""Figures 14 and 15: same behaviour; at ε = 32 with 100 candidates γ = {first:.3f} at q = 0.01
        (paper 0.4) and {final:.3f} at q = 0.99 (paper 1)."""
    return Section(text, summary)
