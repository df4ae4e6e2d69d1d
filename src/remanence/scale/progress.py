"""A progress bar on stderr for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from remanence.core.plain_text import plain

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")
_PATIENCE = 2.0
# Seconds, where there is no terminal to draw on; each line waits twice as long as the last.
_FIRST_LINE = 10.0


def track(items: Iterable[T], *, total: int, what: str | Callable[[], str]) -> Iterator[T]:
    """Yield the items; once two seconds have passed, show how many are done.

    A function for `what` is asked again after every item. If stderr is not a terminal, a notebook or a log gets a
    line now and then instead: how many are done, and how long the rest will take.

    >>> list(track("abc", total=3, what="letters"))
    ['a', 'b', 'c']
    """
    started, due = time.monotonic(), _FIRST_LINE
    bar = None
    try:
        for done, item in enumerate(items, start=1):
            yield item
            spent = time.monotonic() - started
            if bar is None and spent > _PATIENCE:
                bar = _bar()
                bar.add_task("", total=total)
            if bar is not None:
                description = what if isinstance(what, str) else what()
                bar.update(bar.task_ids[0], completed=done, description=description)
                if bar.disable and spent > due and done < total:
                    left = timedelta(seconds=round(spent / done * (total - done)))
                    note(f"{description}: {done} of {total}, about {left} left")
                    due = 2 * spent
    finally:
        if bar is not None:
            bar.stop()


def note(line: str) -> None:
    """Tell the user something that needs no answer."""
    print(plain(line), file=sys.stderr)  # noqa: T201


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    progress.start()
    return progress
