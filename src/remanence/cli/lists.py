"""What there is: `remanence attacks` and `remanence targets`."""

from __future__ import annotations

from rich.padding import Padding
from rich.table import Table

from remanence.cli.playing import console

_WIDE = 110  # columns that the table needs


def attacks() -> None:
    """List the attacks: what each needs, what it sees, and which paper it comes from."""
    from remanence.core.catalogue import catalogue

    terminal, found = console(), catalogue().values()
    if terminal.width < _WIDE:
        for info in found:
            terminal.print(info.name, style="bold", highlight=False)
            told = f"{info.summary} Needs {info.needs}. Sees {info.sees}. ({info.reference.short})"
            terminal.print(Padding(told, (0, 0, 1, 2)), highlight=False)
        return
    table = Table("attack", "what it does", "needs", "sees", "from", show_lines=True)
    table.columns[0].no_wrap = True
    for info in found:
        table.add_row(info.name, info.summary, info.needs, info.sees, info.reference.short)
    terminal.print(table)


def targets() -> None:
    """List the built-in targets."""
    from remanence.targets import TARGETS

    table = Table("target", "what it is")
    table.columns[0].no_wrap = True
    for name, factory in TARGETS.items():
        table.add_row(name, (factory.__doc__ or "").strip())
    console().print(table)
