"""Who is at work in a run folder."""

from __future__ import annotations

import os
import platform
import time
from typing import Any

_SILENCE = 60.0  # seconds after which a process on another machine is taken for dead


def beating(workers: int, played: int, seconds: float) -> dict[str, Any]:
    """That this process is at work, and how fast."""
    who = {"host": platform.node(), "process": os.getpid(), "workers": workers}
    return {**who, "played": played, "seconds": seconds, "time": time.time()}


def is_ours(beat: dict[str, Any]) -> bool:
    """Whether this process sent it."""
    return (beat["host"], beat["process"]) == (platform.node(), os.getpid())


def alive(beat: dict[str, Any]) -> bool:
    """Whether who sent it is still at work, as far as can be told from here."""
    if beat["host"] != platform.node():
        return abs(time.time() - beat["time"]) < _SILENCE + 10 * beat["seconds"] / max(1, beat["played"])
    try:
        os.kill(beat["process"], 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it exists, and belongs to somebody else
    return True
