"""What there is: `remanence attacks` and `remanence targets`."""

from __future__ import annotations

from rich.padding import Padding
from rich.table import Table

from remanence.cli.playing import console


def attacks() -> None:
    """List the attacks: what each needs, what it sees, and which paper it comes from."""
    from remanence.core.catalogue import catalogue

    terminal = console()
    for info in catalogue().values():
        terminal.print(info.name, style="bold", highlight=False)
        told = f"{info.summary} Needs {info.needs}. Sees {info.sees}. ({info.reference.short})"
        terminal.print(Padding(told, (0, 0, 1, 2)), highlight=False)


def targets() -> None:
    """List the built-in targets."""
    from remanence.targets import TARGETS

    table = Table("target", "what it is")
    table.columns[0].no_wrap = True
    for name, factory in TARGETS.items():
        table.add_row(name, (factory.__doc__ or "").strip())
    console().print(table)
