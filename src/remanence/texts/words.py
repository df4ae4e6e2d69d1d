"""The words of a language model's audit: a summary, the riskiest places of the file, and a curve over queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from remanence.auditing import AuditResult
from remanence.report.svg import ATTACK, GUESS, INK, logarithmic, picture
from remanence.results.evidence import Evidence
from remanence.results.findings import Section
from remanence.texts.caveats import NO_UNSEEN_TEXTS
from remanence.texts.probabilities import within

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

_SHOWN = 10
QUERIES = 10.0 ** np.arange(10)  # 1 to 10⁹
HEADINGS = "place in the file", "tries", "probability of one query", "from the base model", "recovered"


@dataclass(frozen=True)
class Risk:
    """One secret, by its place in the file."""

    line: int
    part: int
    tries: float
    probability: float
    base_probability: float | None
    recovered: bool

    @property
    def place(self) -> str:
        """Its position in the file."""
        return f"line {self.line}" + (f", secret {self.part}" if self.part > 1 else "")

    def cells(self) -> tuple[str, ...]:
        """As a table shows it, under `HEADINGS`."""
        base = "" if self.base_probability is None else f"{self.base_probability:.2g}"
        recovered = "yes" if self.recovered else "no"
        return self.place, f"{self.tries:.3g}", f"{self.probability:.2g}", base, recovered


def sections(result: AuditResult) -> list[Section]:
    """Which secrets come out, for the annex of a report."""
    rows = tuple(risk.cells() for risk in riskiest(result))
    return [Section("What comes out", (sentence(result),), HEADINGS, rows, curve_picture(result))]


def sentence(result: AuditResult) -> str:
    """A summary in one or two sentences."""
    best, allowed = result.strongest, result.threat_model["criterion"]["threshold"]
    found, count = best.main.successes, best.main.trials
    words = (
        f"Within {allowed:,.0f} tries, {found} of {count} secrets {_come(found)} out of the fine-tuned model"
    )
    if "base_log_probability" in best.arrays:
        words += " that its base model does not give away"
    words += "."
    others = best.control
    if others.trials:
        unseen = not any(caveat.id == NO_UNSEEN_TEXTS.id for caveat in best.caveats)
        kind = "unseen secrets" if unseen else "stand-ins (other records' secrets, or the base model's words)"
        words += f" Of {others.trials} {kind}, {others.successes} {_come(others.successes)} out."
    return words


def _come(count: int) -> str:
    return "comes" if count == 1 else "come"


def riskiest(result: AuditResult) -> list[Risk]:
    """The secrets that the strongest attack recovers, likeliest first, and then the others. Places, never text.

    The probability is that of the strongest sampling attack: greedy decoding only gives yes or no.
    """
    best, drawn = result.strongest.arrays, _sampled(result).arrays
    tries, hits = best["error"].flatten(), best["succeeded"].flatten()
    logs, base = drawn["log_probability"], drawn.get("base_log_probability")
    order = sorted(range(len(tries)), key=lambda i: (not hits[i], -float(logs[i])))[:_SHOWN]
    return [
        Risk(
            int(best["line"][i]),
            int(best["part"][i]),
            float(tries[i]),
            math.exp(logs[i]),
            None if base is None else math.exp(base[i]),
            bool(hits[i]),
        )
        for i in order
    ]


def curves(evidence: Evidence) -> dict[str, NDArray[np.float64]]:
    """The share of secrets to be expected within 1, 10, … 10⁹ queries: this model, its base, and the control."""
    names = {
        "log_probability": "the fine-tuned model",
        "base_log_probability": "its base model",
        "control_log_probability": "the control",
    }
    held: Mapping[str, torch.Tensor] = evidence.arrays
    return {
        words: within(held[name].numpy()[:, None], QUERIES).mean(0)
        for name, words in names.items()
        if name in held and len(held[name])
    }


def curve_picture(result: AuditResult) -> str:
    """The curves of the strongest attack that samples, over the number of queries."""
    found = curves(_sampled(result))
    looks = [(ATTACK, "-"), (GUESS, "--"), (INK, ":")]

    def draw(axes: Axes) -> None:
        for (words, shares), (colour, dashes) in zip(found.items(), looks, strict=False):
            axes.plot(QUERIES, shares, dashes, color=colour, label=words)
        allowed = result.threat_model["criterion"]["threshold"]
        axes.axvline(allowed, color=INK, linestyle="-.", linewidth=0.8, label=f"{allowed:,.0f} tries")
        axes.set(ylim=(-0.02, 1.05), xlabel="queries", ylabel="share of secrets")
        logarithmic(axes, "x")
        axes.legend(loc="best")

    label = "The share of secrets that come out, by the number of queries. " + sentence(result)
    return picture("queries", label, draw, height=2.8)


def risk_table(result: AuditResult) -> Table:
    """The riskiest places."""
    from rich.table import Table

    table = Table(HEADINGS[0], title=f"Riskiest for {result.strongest.attack}", title_justify="left")
    for heading in HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for risk in riskiest(result):
        table.add_row(*risk.cells())
    return table


def _sampled(result: AuditResult) -> Evidence:
    """The strongest attack whose tries are random; greedy decoding has no curve."""
    drawn = [entry for entry in result.evidence if entry.attack != "greedy-decoding"]
    return max(drawn or result.evidence, key=lambda entry: (entry.main.lower, entry.main.rate))
