"""Ctrl+C, SIGTERM, SIGHUP and a reader who has left: the exit code that a shell expects, and a sentence."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_PATIENCE = 1.5  # seconds in which the run is closed in order; what is finished is on disk anyway
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_progress: list[Callable[[], str]] = []  # what is done and left, while something is played


class Interrupted(BaseException):
    """This process was told to end: nothing that a user's code, or click, would catch."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Unheard(io.FileIO):
    """Standard output that a reader such as `head -1` may leave: the rest is dropped."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except BrokenPipeError:
            return len(content)


def outlive_the_reader() -> None:
    """Let a command end with its own exit code although its reader has left; 1, as elsewhere, would say EXPOSED."""
    out = sys.stdout
    if out is not sys.__stdout__ or not isinstance(out, io.TextIOWrapper):
        return  # what is printed is collected elsewhere
    names = ("encoding", "errors", "line_buffering", "write_through")
    settings = {name: getattr(out, name) for name in names}
    raw = _Unheard(out.fileno(), "w", closefd=False)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(raw), **settings)


@contextlib.contextmanager
def ending_with(progress: Callable[[], str]) -> Iterator[None]:
    """Within, an interruption ends with this sentence."""
    _progress.append(progress)
    try:
        yield
    except Interrupted as signalled:
        end(signalled.number)
    finally:
        _progress.clear()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, signals raise `Interrupted`; a process that is deep in a computation ends all the same."""
    listening, speaking = os.pipe()
    os.set_blocking(speaking, False)
    # Not those that nohup ignores.
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _raise) for number in heard}
    earlier = signal.set_wakeup_fd(speaking, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(listening,), daemon=True).start()
    try:
        yield
    except Interrupted as signalled:
        end(signalled.number)
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(speaking)  # which ends the thread


def let_go() -> None:
    """Stop handling signals, for a server that ends in its own way."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _SIGNALS[1:]:
        signal.signal(number, signal.SIG_DFL)


def end(number: int) -> NoReturn:
    """Report the progress, and exit."""
    with _once:
        for ignored in _SIGNALS:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(ignored, signal.SIG_IGN)
        sentence = "Interrupted."
        with contextlib.suppress(Exception):
            sentence = f"Interrupted. {_progress[0]()}" if _progress else sentence
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.write(f"\r{sentence}\n")
            sys.stderr.flush()
        os._exit(128 + number)  # at once: nothing waits for workers, who end with this process


_once = threading.Lock()


def _raise(number: int, _frame: object) -> None:
    raise Interrupted(number)


def _watch(listening: int) -> None:
    while number := os.read(listening, 1):
        if number[0] in _SIGNALS:
            threading.Event().wait(_PATIENCE)
            end(number[0])
    os.close(listening)
