"""The page without a server: the same answers on a grid, in one file for a web site or an e-mail."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from remanence import bounds
from remanence.bounds.settings import DPSGD_ASSUMPTIONS
from remanence.report.frequencies import sentence
from remanence.scale.files import check_writable, write_files
from remanence.scale.progress import track

AXES: dict[str, list[float]] = {
    "noise_multiplier": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 20.0],
    "sample_rate": [0.001, 0.01, 0.1, 1.0],
    "steps": [1, 10, 100, 1000, 10000],
    "candidates": [2, 10, 100, 1000, 1000000],
}  # fmt: skip
_START = {"noise_multiplier": 1.1, "sample_rate": 0.01, "steps": 1000, "candidates": 100}


def write_twin(path: Path, axes: dict[str, list[float]] = AXES) -> None:
    """Compute the grid (about a minute) and write the page."""
    check_writable(path.parent)
    write_files(path.parent, {path.name: twin_page(axes).encode()})


def twin_page(axes: dict[str, list[float]] = AXES) -> str:
    """The page with its style, its script and the grid inside; nothing else may run or load."""
    page, style, script = ((files("remanence.report.explore") / "page" / name).read_text(encoding="utf-8")
                           for name in ("index.html", "page.css", "page.js"))  # fmt: skip
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    grid = json.dumps(_grid(axes), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    page = re.sub(r"<link [^>]*>\n<script [^>]*></script>", lambda _: head, page)
    end = f'<script type="application/json" id="grid">{grid}</script>\n<script type="module">{script}</script>\n'
    return page.replace("</body>", f"{end}</body>").replace(
        "Computed on this machine; nothing leaves it.", "Computed beforehand; this page needs no network."
    )


def _grid(axes: dict[str, list[float]]) -> dict[str, Any]:
    """Every answer, by sampling rate, steps, noise and shortlist."""
    runs = [(rate, steps, noise) for rate in axes["sample_rate"] for steps in axes["steps"]
            for noise in axes["noise_multiplier"]]  # fmt: skip
    found = {
        (rate, steps, noise): _cells(rate, int(steps), noise, [int(count) for count in axes["candidates"]])
        for rate, steps, noise in track(runs, total=len(runs), what="computing the grid")
    }
    cells = [
        [[found[rate, steps, noise] for noise in axes["noise_multiplier"]] for steps in axes["steps"]]
        for rate in axes["sample_rate"]
    ]
    start = {name: value if value in axes[name] else axes[name][0] for name, value in _START.items()}
    return {"axes": axes, "start": start, "cells": cells, "assumptions": DPSGD_ASSUMPTIONS}


def _cells(rate: float, steps: int, noise: float, candidates: list[int]) -> list[dict[str, Any]]:
    cells = []
    for count in candidates:
        bound = bounds.dpsgd(1 / count, noise_multiplier=noise, sample_rate=rate, steps=steps)
        guess = round(1000 / count)
        extra = max(0, math.ceil(1000 * bound.success - 1e-9) - guess)
        text = sentence(bound, count)
        cells.append({"success": bound.success, "sentence": text, "dots": {"guess": guess, "extra": extra}})
    return cells


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
