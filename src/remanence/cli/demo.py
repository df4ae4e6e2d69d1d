"""`remanence demo`: every built-in target, audited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remanence.cli.output import Device, compute_device, console


def demo(out: Annotated[Path, "Folder for the results."] = Path("remanence-runs")) -> None:
    """Audit every built-in target and print a verdict for each."""
    from remanence.auditing import audit
    from remanence.report.terminal import summary_table
    from remanence.report.writing import write_index, write_report
    from remanence.scale.files import check_writable
    from remanence.targets import TARGETS

    check_writable(out)
    device = compute_device(Device.AUTO)
    results = {}
    for name, factory in TARGETS.items():
        typer.echo(f"auditing {name} ...", err=True)
        results[name] = audit(factory(), device=device, target=name)
        results[name].save(out / name, gallery=True)
        write_report(results[name], out / name, gallery=True)
    terminal = console()
    terminal.print(summary_table(list(results.values()), terminal.width))
    terminal.print(
        "All data are public sets that scikit-learn carries, or made up. EXPOSED is the expected verdict for most.\n"
        f"Reports: {write_index(results, out).resolve()}",
        highlight=False,
        soft_wrap=True,
    )
