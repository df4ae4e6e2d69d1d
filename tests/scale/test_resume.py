"""kill -9 at random moments: nothing that was recorded is lost, and none of it is done again."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import SOURCES
from remanence.scale.journal import Journal

SLOW_GAME = """
import os, time, torch
from remanence import Criterion, FinitePrior, Game, Records, looped, mismatch
import beside

people = Records(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(12))

def train(records, seed):
    with open(os.environ["TRAINED"], "a") as file:
        file.write(f"{seed}\\n")
    time.sleep(0.01)
    return {"mean": records.features.mean(0) + (1e-3 + beside.NOISE) / 2 * (seed % 1000)}

def game():
    return Game(looped(train), FinitePrior(people[:4]), people[4:], Criterion(mismatch, 0.5))
"""

# Loads everything once; every line on stdin is a command line that a fork of it runs, and its process is printed.
SERVER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and & let those who start tests ignore them
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.argv = ["remanence"]
import remanence.cli.main, remanence.auditing, remanence.cli.loading, remanence.report.terminal
import remanence.report.writing, jsonschema
import torch; torch.set_num_threads(1)
from remanence.core.catalogue import catalogue
from remanence.scale.fingerprints import code_version
catalogue(), code_version()  # once: the package may be edited while this runs
remanence.report.writing.write_report = lambda *_, **__: None  # no test of this file looks at the page
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["remanence", *line.split()]
        sys.stdout = open(os.devnull, "w")
        remanence.cli.main.main()
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), flush=True)
"""


class CommandLine:
    """The command line in processes of its own, which may be killed."""

    def __init__(self, folder: Path):
        self.folder = folder
        with (folder / "told").open("w") as told:
            self.server = subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told,
                env={"TRAINED": str(folder / "trained"), "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCES},
                text=True, cwd=folder,
            )  # fmt: skip

    def run(
        self, command: str, *, kill_with: int | None = None, delay: float = 0.0, by: int = signal.SIGKILL
    ):
        """The number of the signal that ended it, or minus its exit code.

        It is killed some seconds after the folder `run` has that many units.
        """
        self.server.stdin.write(f"{command}\n")
        self.server.stdin.flush()
        child = int(self.server.stdout.readline())
        if kill_with is not None:
            while len(self.journal.finished()) < kill_with:
                time.sleep(0.001)
            time.sleep(delay)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, by)
        return int(self.server.stdout.readline())

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "run")

    def begin(self) -> None:
        """An audit of twenty units, of which about six were done when it was killed."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        (self.folder / "slow.py").write_text(SLOW_GAME)
        (self.folder / "beside.py").write_text("NOISE = 1e-3\n")
        killed = self.folder / "killed"  # once; a run folder can be copied
        if not killed.exists():
            assert self.run(f"{AUDIT} 40 --out run", kill_with=6) == KILLED
            shutil.copytree(self.folder / "run", killed)
        else:
            shutil.copytree(killed, self.folder / "run")

    def told(self) -> str:
        """All that went to stderr."""
        return (self.folder / "told").read_text()

    def trained(self) -> list[str]:
        """Which seeds were trained with since the last call."""
        file = self.folder / "trained"
        found = file.read_text().splitlines() if file.exists() else []
        file.write_text("")
        return found


@pytest.fixture(scope="module")
def command_line(tmp_path_factory):
    line = CommandLine(tmp_path_factory.mktemp("resume"))
    with line.server:
        yield line


def result(folder: Path) -> tuple[dict, bytes]:
    document = json.loads((folder / "audit.json").read_text())
    del document["environment"]
    return document, (folder / "audit.arrays.safetensors").read_bytes()


AUDIT = "audit slow.py:game --attack oblivious --max-success 0.9 --unit-trials 2 --trials"
RESUME = f"{AUDIT} 40 --resume run"
KILLED, UNPROVEN = 9, -3


def test_an_audit_that_was_killed_says_how_to_go_on_and_ends_with_the_same_bytes(command_line, run):
    command_line.begin()
    command_line.trained()
    assert command_line.run(f"{AUDIT} 40 --out whole") == UNPROVEN
    seeds, done = command_line.trained(), len(command_line.journal.finished())
    code, told, _ = run("status", command_line.folder / "run")
    assert (code, f"Units: {done} done, {20 - done} left." in told) == (0, True)
    assert "No process is at work" in told
    assert f"The same command with --resume {command_line.folder / 'run'} continues" in told
    moments = random.Random(0)  # noqa: S311
    for _ in range(3):
        before = command_line.journal.finished()
        again = {"kill_with": len(before) + moments.randrange(3), "delay": moments.uniform(0, 0.03)}
        assert command_line.run(RESUME, **again) == KILLED
        assert command_line.journal.finished() >= before, "a recorded unit was lost"
    recorded = len(command_line.journal.finished())
    command_line.trained()
    assert command_line.run(RESUME) == UNPROVEN
    assert len(command_line.trained()) == len(seeds) - 2 * recorded + 2, (
        "one unit is replayed, none done again"
    )
    assert result(command_line.folder / "run") == result(command_line.folder / "whole")


@pytest.mark.parametrize("changed", ["slow.py", "beside.py"])
def test_a_change_of_the_target_file_or_of_what_it_imports_is_noticed(command_line, changed):
    command_line.begin()
    source = command_line.folder / changed
    # Another length: Python's own cache looks at it.
    source.write_text(source.read_text().replace("1e-3", "0.0025"))
    assert command_line.run(RESUME) == -2
    assert "The audit differs from the one in this folder." in command_line.told()
    assert f"{changed}: then" in command_line.told()
    command_line.trained()
    assert command_line.run(f"{AUDIT} 40 --out run") == UNPROVEN
    assert len(command_line.trained()) == 40, "units of the older file were used"


def test_another_run_is_never_continued(command_line):
    command_line.begin()
    before = command_line.journal.finished()
    for command, message in {
        f"{AUDIT} 40 --resume nowhere": "There is no run in this folder.",
        f"{AUDIT} 100 --resume run": "trials: then 40, now 100",
        f"{RESUME} --seed 7": "seed: then 0, now 7",
        "audit diabetes-ridge --resume run": "target: then slow.py:game, now diabetes-ridge",
    }.items():
        assert command_line.run(command) == -2
        assert message in command_line.told()
    assert command_line.journal.finished() == before


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_with_a_sentence_and_the_run_goes_on(command_line, name):
    number = getattr(signal, name)
    command_line.begin()
    shutil.rmtree(command_line.folder / "run")
    before = len(command_line.told())
    assert command_line.run(f"{AUDIT} 40 --out run", kill_with=6, by=number) == -(128 + number)
    told = command_line.told()[before:]
    progress = (
        r"Interrupted\. \d+ of 20 units are done and kept, \d+ are left: the same command with --resume"
    )
    assert re.search(progress, told)
    assert "Traceback" not in told
    assert not list((command_line.folder / "run").rglob(".*"))
    assert command_line.run(RESUME) == UNPROVEN
