"""The pictures of a report, drawn from the result alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remanence.auditing import AuditResult
from remanence.core.errors import mean_squared_error
from remanence.core.roc import Roc
from remanence.report import words
from remanence.report.frequencies import thousandths
from remanence.report.svg import ATTACK, CEILING, FAINT, GUESS, INK, logarithmic, picture
from remanence.results.evidence import Evidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_MARKS = {"guess": ("s", GUESS), "control": ("o", FAINT), "attack": ("D", ATTACK)}


def line(result: AuditResult) -> str:
    """The numbers behind the verdict, with the limit and the ceiling, on one axis."""
    ceiling, limit = words.tightest(result), result.policy.max_success
    rows = result.reason.rows() or result.strongest.whole.rows()
    names = [row.name for row in rows]
    texts = [words.shown(row) for row in rows]
    top = max(limit, *(row.upper for row in rows))
    if ceiling is not None:
        names, texts = [*names, "ceiling"], [*texts, thousandths(ceiling.success, up=True)]
        top = max(top, ceiling.success)
    end = 0.1 if top <= 0.1 else 1.0
    away, aligned = (end, "right") if limit < end / 2 else (0, "left")  # where the line of the limit is not

    def draw(axes: Axes) -> None:
        for height, row in enumerate(rows):
            marker, colour = _MARKS[row.role]
            if row.lower < row.upper:
                axes.hlines(height, row.lower, row.upper, color=colour, linewidth=5, alpha=0.35)
            look = {"color": colour, "markersize": 7, "markeredgewidth": 2.5, "clip_on": False}
            axes.plot([row.share], [height], marker, **look)
        if ceiling is not None:
            place = [ceiling.success], [len(rows)]
            axes.plot(*place, "|", color=CEILING, markersize=17, markeredgewidth=2.5)
        for height, (name, text) in enumerate(zip(names, texts, strict=True)):
            axes.annotate(f"{name}: {text}", (away, height - 0.28), va="bottom", ha=aligned)
        axes.axvline(limit, color=INK, linestyle="--", linewidth=1.2)
        side = "left" if limit < end / 2 else "right"
        place = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
        axes.annotate(f"limit {thousandths(limit)}", (limit, 1.02), **place)
        axes.set(xlim=(-0.012 * end, 1.012 * end), ylim=(len(names) - 0.5, -0.9), xlabel="times in 1000")
        ticks = np.linspace(0, end, 6)
        axes.set_xticks(ticks, [f"{1000 * tick:g}" for tick in ticks])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)

    label = f"{words.headline(result)} {words.found(result)}"
    return picture("line", label, draw, width=3.8, height=0.8 + 0.42 * len(names))


def errors(result: AuditResult) -> str | None:
    """How closely the targets came back, compared with the control; None if there is no such curve."""
    found, criterion = curves(result, result.strongest).get(""), result.threat_model["criterion"]
    if found is None:
        return None
    sides = [
        (found.errors.ravel(), ATTACK, "-", "the target"),
        (found.controls.ravel(), GUESS, ":", "without training on it"),
    ]

    def draw(axes: Axes) -> None:
        for values, colour, dashes, text in sides:
            closest = np.sort(np.maximum(values[np.isfinite(values)], 1e-16))
            share = np.arange(1, len(closest) + 1) / len(values)
            kept = _few(len(closest))
            axes.step(closest[kept], share[kept], color=colour, linestyle=dashes, where="post", label=text)
        axes.axvline(criterion["threshold"], color=INK, linestyle="--", linewidth=1.2, label="threshold")
        axes.set(ylim=(-0.02, 1.05), ylabel="share of trials", xlabel=f"{criterion['error']} at most")
        logarithmic(axes, "x")
        axes.legend(loc="best")

    label = "The share of trials in which the error is at most this large."
    return picture("errors", label, draw, height=2.8)


def roc(result: AuditResult) -> str | None:
    """True against false positives of the four strongest attacks, on logarithmic axes; None without errors."""
    ranked = sorted(result.evidence, key=lambda evidence: -evidence.main.lower)
    dashes = ("-", "--", "-.", ":")
    drawn = {
        f"{evidence.attack}{kind}": (
            [rates[_few(len(rates))] for rates in one.curve()],
            dash,
            0.8 if kind else 1.6,
        )
        for evidence, dash in zip(ranked, dashes, strict=False)
        for kind, one in curves(result, evidence).items()
    }
    if not drawn:
        return None
    smallest = min(rates[rates > 0].min() for pair, _, _ in drawn.values() for rates in pair)
    floor = min(0.1, 10 ** np.floor(np.log10(smallest)))

    def draw(axes: Axes) -> None:
        axes.plot([floor, 1], [floor, 1], color=FAINT, linewidth=1, label="luck")
        for name, ((fpr, tpr), dash, width) in drawn.items():
            places = np.maximum(fpr, floor), np.maximum(tpr, floor)
            axes.step(*places, dash, color=ATTACK, linewidth=width, where="post", label=name)
        axes.set(xlim=(floor, 1.05), ylim=(floor, 1.05), xlabel="false positives", ylabel="true positives")
        logarithmic(axes, "xy")
        axes.legend(loc="lower right")

    label = "True positives against false positives on logarithmic axes, for the strongest attacks."
    return picture("roc", label, draw, height=2.8)


def curves(result: AuditResult, evidence: Evidence) -> dict[str, Roc]:
    """The ROC of an attack by its error and, where its reconstructions were compared with the public, by the error over
    the public's; none without errors, or where a guess is right or wrong and nothing between.
    """
    if not {"error", "control_error"} <= evidence.arrays.keys() or evidence.main.trials < 2:
        return {}
    errors, controls = (evidence.arrays[name].double() for name in ("error", "control_error"))
    if len(errors[errors.isfinite()].unique()) < 3 or len(errors) != len(controls):
        return {}
    found = {"": Roc(errors.numpy(), controls.numpy())}
    public = evidence.arrays.get("public_error")
    comparable = result.threat_model["criterion"]["error"] == mean_squared_error.name  # as the public's is
    if comparable and public is not None and public.shape == errors.shape:
        others = evidence.arrays.get("control_public_error", public)
        found[", relative"] = Roc((errors / public).numpy(), (controls / others).numpy())
    return found


def _few(count: int) -> NDArray[np.int_]:
    """Which of this many positions to draw: dense at the beginning and even after it, so that a page stays small.

    >>> len(_few(100_000)) < 1000, _few(3).tolist()
    (True, [0, 1, 2])
    """
    if count == 0:
        return np.arange(0)
    spread = np.concatenate([np.geomspace(1, count, 400), np.linspace(1, count, 400)])
    return np.unique(spread.astype(int)) - 1
