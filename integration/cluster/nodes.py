"""Nodes of a Ray cluster on this machine, and their workers: found by their processes, stopped in a unit, killed."""

import contextlib
import os
import signal
import time
from pathlib import Path


def raylet(cluster, place):
    return cluster.list_all_nodes()[place].all_processes["raylet"][0].process.pid


def children(parent):
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended since
            if f"PPid:\t{parent}\n" in status.read_text():
                found.append(int(status.parent.name))
    return found


def stopped_in_a_unit(cluster, place):
    """A worker of a node, stopped while it carries out a unit: Ray names a process by the function that it runs.

    What it is doing is not done. Whoever kills it now loses a unit, however quick units are.
    """
    while True:
        for worker in children(raylet(cluster, place)):
            with contextlib.suppress(OSError):
                if in_a_unit(worker):
                    os.kill(worker, signal.SIGSTOP)
                    if in_a_unit(worker):
                        return worker
                    os.kill(worker, signal.SIGCONT)
        time.sleep(0.005)


def in_a_unit(worker):
    return Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::_carry_out")


def kill_node(cluster, place):
    """The raylet and its workers, as a power cut would."""
    lost = raylet(cluster, place)
    for process in [*children(lost), lost]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
