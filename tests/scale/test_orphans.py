"""Workers end with their parent, and nothing private outlives a run."""

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import SOURCES

VALUE = "3.14159265358979"
GAME = f"""
import os, time, torch
from remanence import Criterion, FinitePrior, Game, Records, looped, mismatch
people = Records({VALUE} + torch.arange(12.0).double()[:, None].expand(12, 3), torch.zeros(12))
def train(records, seed):
    with open(os.environ["WORKERS"], "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    time.sleep(0.2)
    return {{"mean": records.features.mean(0) + seed % 7}}
def game():
    return Game(looped(train), FinitePrior(people[:4]), people[4:], Criterion(mismatch, 0.5))
"""


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(process, 0)
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return False


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("SIGTERM", "SIGINT")]


@pytest.mark.parametrize("name", ["SIGKILL", *SLOW])
def test_workers_end_with_their_parent_and_leave_no_game_behind(name, tmp_path):
    (tmp_path / "mine.py").write_text(GAME)
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / "tmp"), "WORKERS": str(tmp_path / "workers"), "PYTHONPATH": SOURCES}
    command = "audit mine.py:game --attack oblivious --max-success 0.9 --trials 400 --unit-trials 2 --out run"
    line = [sys.executable, "-m", "remanence", *command.split(), "--executor", "processes", "--workers", "2"]
    with (tmp_path / "told").open("w") as told:
        parent = subprocess.Popen(  # noqa: S603
            line, cwd=tmp_path, stderr=told, stdout=told, env={**os.environ, **places}, start_new_session=True
        )
        while not (tmp_path / "run/units").exists() or len(list((tmp_path / "run/units").iterdir())) < 3:
            assert parent.poll() is None, (tmp_path / "told").read_text()
            time.sleep(0.05)
        number = getattr(signal, name)
        os.kill(parent.pid, number)
        assert parent.wait(60) == (-9 if name == "SIGKILL" else 128 + number)
    workers = {int(line) for line in (tmp_path / "workers").read_text().split()}
    assert workers
    assert parent.pid not in workers
    for _ in range(200):
        if not any(map(alive, workers)):
            break
        time.sleep(0.05)
    assert not any(map(alive, workers)), "an orphan lives on"
    secret = struct.pack("<d", float(VALUE)) * 3
    for path in (*(tmp_path / "tmp").rglob("*"), *(tmp_path / "run").rglob("*")):
        assert not path.is_file() or secret not in path.read_bytes(), path
    said = (tmp_path / "told").read_text()
    assert "Traceback" not in said
    assert name == "SIGKILL" or "Interrupted. " in said
