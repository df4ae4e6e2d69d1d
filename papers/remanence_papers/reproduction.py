"""What a reproduction takes and gives. No torch here, so that the list of them is quick to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from remanence.core.exceptions import InputError
from remanence.core.references import Reference

if TYPE_CHECKING:
    from remanence.core.rates import SuccessRate

Scale = Literal["small", "paper"]
Cell = str | int | float | None | Mapping[str, float]
Row = Mapping[str, Cell]


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of a paper, and the function from `Settings` to `Outcome` that runs it again."""

    name: str
    title: str
    reference: Reference
    home: str  # module:function
    reduced: str = ""  # what is smaller than in the paper at the paper's scale
    seeds: int = 1  # at the paper's scale, where a number is compared with the paper's


@dataclass(frozen=True)
class Settings:
    """How large, on what, and from which seed. `trials` overrides the number that the scale implies."""

    scale: Scale = "small"
    data: Path | None = None
    device: str = "cpu"
    seed: int = 0
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.scale == "paper" and self.data is None:
            raise InputError(
                "The paper's scale needs the paper's data, which remanence does not carry.",
                needs="a folder with mnist.npz, or with what the reproduction asks for",
                got="the paper's scale and no data",
                hint="--data FOLDER, or --scale small, which runs on scikit-learn's digits",
            )

    @property
    def small(self) -> bool:
        """Whether this is the quick version on a stand-in."""
        return self.scale == "small"


@dataclass(frozen=True)
class Curve:
    """Points of one line; `lower` and `upper` are the ends of their intervals, where they have any."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] | None = None
    upper: Sequence[float] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes: curves, or rows of pictures with values from 0 (black) to 1."""

    title: str = ""
    across: str = ""
    up: str = ""
    curves: Sequence[Curve] = ()
    log_across: bool = True
    log_up: bool = False
    dots: bool = False  # points without lines between them
    pictures: Sequence[Any] = ()  # rows of pictures (height, width), or (3, height, width) in colour
    picture_rows: Sequence[str] = ()  # what each row of pictures is
    picture_columns: Sequence[str] = ()


@dataclass(frozen=True)
class Outcome:
    """Rows of one table, named by their keys, panels of one figure, and what explains them. All of it is JSON."""

    dataset: str
    rows: Sequence[Row]
    panels: Sequence[Panel] = ()
    settings: Mapping[str, Cell] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is stored."""
        return asdict(self)


def interval(rate: SuccessRate) -> dict[str, float]:
    """A measured rate as a cell of the table: with its interval and the number of trials."""
    return {"rate": rate.rate, "lower": rate.lower, "upper": rate.upper, "trials": rate.trials}


def curve(label: str, rows: Sequence[Row], x: str, y: str) -> Curve:
    """One column of the table over another.

    >>> curve("γ", [{"epsilon": 1.0, "bound": 0.1}, {"epsilon": 2.0, "bound": 0.2}], "epsilon", "bound").y
    [0.1, 0.2]
    """
    cells = [(row[x], row[y]) for row in rows if row.get(y) is not None]
    across = [float(place) for place, _ in cells if isinstance(place, int | float)]
    if cells and isinstance(cells[0][1], Mapping):
        rates = [cell for _, cell in cells if isinstance(cell, Mapping)]
        ends = ([rate[end] for rate in rates] for end in ("rate", "lower", "upper"))
        return Curve(label, across, *ends)
    return Curve(label, across, [float(cell) for _, cell in cells if isinstance(cell, int | float)])


def as_text(cell: Cell) -> str:
    """A cell as a table shows it.

    >>> as_text({"rate": 0.5, "lower": 0.187, "upper": 0.813, "trials": 10}), as_text(0.00123456), as_text(None)
    ('0.500 (0.187 to 0.813)', '0.001235', '')
    """
    if cell is None:
        return ""
    if isinstance(cell, Mapping):
        rate, lower, upper = (cell[end] for end in ("rate", "lower", "upper"))
        if "trials" in cell:
            return f"{rate:.3f} ({lower:.3f} to {upper:.3f})"
        return f"{as_text(rate)} ({as_text(lower)} to {as_text(upper)})"
    if isinstance(cell, float) and not cell.is_integer():
        return f"{cell:.3f}" if 0.01 <= abs(cell) <= 1 else f"{cell:.4g}"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)
