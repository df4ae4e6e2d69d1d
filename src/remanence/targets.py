"""The built-in games of every door, on data that scikit-learn carries: for the demo and for first steps.

>>> from remanence.targets import diabetes_ridge
>>> len(diabetes_ridge().data)
442
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remanence.core.doors import doors, load

# By the names that the command line takes.
TARGETS: dict[str, Callable[[], Any]] = {
    home.partition(":")[2].replace("_", "-"): load(home) for door in doors() for home in door.targets
}


def __getattr__(name: str) -> Callable[[], Any]:
    if (found := TARGETS.get(name.replace("_", "-"))) is not None:
        return found
    raise AttributeError(name)
