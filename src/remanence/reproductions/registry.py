"""Every reproduction by name, without loading any."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from remanence.exceptions import InputError
from remanence.references import HAYES_2023
from remanence.reproductions.reproduction import Reproduction, Settings

_HOME = "remanence.reproductions"

REPRODUCTIONS = {
    entry.name: entry
    for entry in (
        Reproduction(
            "hayes-figure-3",
            "Prior-aware attack and bound over the size of the shortlist",
            HAYES_2023.at("Figure 3"),
            f"{_HOME}.hayes_full_batch:figure_3",
            minutes=1,
        ),
    )
}


def find(name: str) -> Reproduction:
    """The reproduction of this name."""
    if name not in REPRODUCTIONS:
        raise InputError(
            f"There is no reproduction named {name!r}.",
            needs=", ".join(REPRODUCTIONS),
            got=name,
            hint="`remanence reproduce` describes each",
        )
    return REPRODUCTIONS[name]


def run(entry: Reproduction, settings: Settings) -> dict[str, Any]:
    """Run one again and return the document that is stored: what was found, how, on what and how long it took."""
    module, _, function = entry.home.partition(":")
    compute = getattr(import_module(module), function)
    started = time.perf_counter()
    outcome = compute(settings)
    seconds = time.perf_counter() - started
    import torch

    on_gpu = settings.device.startswith("cuda")
    return {
        "name": entry.name,
        "title": entry.title,
        "reference": entry.reference.short,
        "scale": settings.scale,
        "seed": settings.seed,
        **outcome.to_json(),
        "environment": {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "seconds": round(seconds, 1),
        },
    }
