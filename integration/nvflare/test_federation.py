"""Run by `make test-nvflare`, in an environment of its own: see the Makefile."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def federation(workspace, manner):
    """What the simulator printed, and the clients' logs."""
    done = subprocess.run(
        [sys.executable, str(HERE / "federation.py"), str(workspace), manner],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
    )
    logs = "".join(path.read_text() for path in Path(workspace).rglob("log.txt"))
    return done.stdout + done.stderr + logs


def test_the_guard_logs_what_every_update_gives_away(tmp_path):
    said = federation(tmp_path, "log")
    assert "8 samples can be read off it" in said


def test_an_update_that_exposes_its_batch_is_withheld(tmp_path):
    assert "This update was withheld" in federation(tmp_path, "withhold")
