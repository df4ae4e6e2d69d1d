"""`remanence attacks`: what there is to attack with."""

from __future__ import annotations

from rich.table import Table

from remanence.cli.output import console


def attacks() -> None:
    """List the attacks: what each needs, what it sees, and which paper it comes from."""
    from remanence.attacks.catalogue import catalogue

    table = Table("attack", "what it does", "needs", "sees", "from", show_lines=True)
    for info in catalogue().values():
        table.add_row(info.name, info.summary, info.needs, info.sees, info.reference.short)
    console().print(table)
