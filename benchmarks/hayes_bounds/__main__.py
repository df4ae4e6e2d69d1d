"""Hayes et al. 2023 again: Table 2, the bound curves of Figures 4, 5, 11, 14 and 15, and Appendix I's baselines.

Prints docs/reproductions/hayes-bounds.md and writes its pictures into a folder:

python benchmarks/hayes_bounds docs/reproductions > docs/reproductions/hayes-bounds.md
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from appendix_i import appendix_i
from fixed_epsilon import figures_14_and_15
from pages import (
    Pictures,
    page,
)
from sampling import figure_4, figure_5
from table_2 import SEED, table_2

COMMAND = "python benchmarks/hayes_bounds docs/reproductions > docs/reproductions/hayes-bounds.md"


def main() -> None:
    started = time.perf_counter()
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reproductions")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import matplotlib  # noqa: F401, ICN001  # pyright: ignore[reportMissingImports]

        enabled = True
    except ImportError:
        enabled = False
        print("No pictures: matplotlib is missing (pip install matplotlib).", file=sys.stderr)
    pictures = Pictures(folder, enabled)
    sections = []
    for reproduce in (table_2, figure_4, figure_5, figures_14_and_15, appendix_i):
        begun = time.perf_counter()
        sections.append(reproduce(pictures))
        print(f"{reproduce.__name__}: {time.perf_counter() - begun:.1f} s", file=sys.stderr)
    print(f"in all: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    opening = page(
        "# Hayes et al. 2023: the bounds",
        "This page and its pictures are printed by",
        f"```\npip install -e .\n{COMMAND}\n```",
        f"""in less than a minute on one thread. No model is trained, and only the Monte-Carlo rows are random
        (seed {SEED}). "The paper" is Hayes, Mahloujifar and Balle 2023, *Bounding Training Data
        Reconstruction in DP-SGD*. Its tables, captions and text were at hand and its plots were not:
        every paper value below is printed in the paper as a number, and where none stands, the text has
        none. γ is the success that no attack can exceed, κ that of a guess, σ the noise multiplier, q
        the sampling rate, T the number of steps, n the number of candidates.""",
        "In short:",
        *(f"- {section.summary}" for section in sections),
    )
    print("\n\n".join([opening, *(section.text for section in sections)]))


if __name__ == "__main__":
    main()
