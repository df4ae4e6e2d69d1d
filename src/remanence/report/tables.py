"""Tables that need no tensors."""

from __future__ import annotations

from rich.table import Table

from remanence.attacks.catalogue import CATALOGUE


def attacks_table() -> Table:
    """What each attack needs, sees and comes from."""
    table = Table(show_lines=True)
    for heading in ("attack", "what it does", "needs", "sees", "from"):
        table.add_column(heading)
    for info in CATALOGUE.values():
        table.add_row(info.name, info.summary, info.needs, info.sees, info.reference.short)
    return table
