"""A process that was started by another ends with it, whatever ends that one."""

from __future__ import annotations

import os
import signal
import threading
import time

_BETWEEN_LOOKS = 0.5  # seconds


def end_with(parent: int) -> None:
    """End this process when its parent is gone, and leave Ctrl+C to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_BETWEEN_LOOKS)
        os._exit(1)

    if hasattr(os, "getppid") and os.getppid() == parent:
        threading.Thread(target=watch, daemon=True).start()
