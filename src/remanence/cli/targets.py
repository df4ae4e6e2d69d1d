"""`remanence targets`: what can be audited out of the box."""

from __future__ import annotations

from rich.table import Table

from remanence.cli.output import console


def targets() -> None:
    """List the built-in targets."""
    from remanence.targets import TARGETS

    table = Table("target", "what it is")
    table.columns[0].no_wrap = True
    for name, factory in TARGETS.items():
        table.add_row(name, (factory.__doc__ or "").strip())
    console().print(table)
