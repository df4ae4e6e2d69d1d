"""Run by `make test-flower`, in an environment of its own and without a network: see the Makefile."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def federation(*arguments):
    done = subprocess.run(
        [sys.executable, str(HERE / "federation.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_recorded_updates_give_their_batches_away(tmp_path):
    assert "updates: 2 of 2" in federation("record", tmp_path / "kept")
    updates = sorted((tmp_path / "kept").glob("update-*.safetensors"))
    assert len(updates) == 2
    for update in updates:
        weights = update.with_name(update.name.replace("update-", "weights-"))
        options = [
            "--gradient",
            update,
            "--weights",
            weights,
            "--learning-rate",
            "0.1",
            "--json",
            "--out",
            tmp_path / "out",
        ]
        command = [
            sys.executable,
            "-m",
            "remanence",
            "update",
            f"{HERE / 'network.py'}:make",
            *map(str, options),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert max(entry["proven"] for entry in json.loads(done.stdout)["evidence"]) == 8


def test_exposed_updates_are_withheld():
    assert "updates: 0 of 2" in federation("withhold")
