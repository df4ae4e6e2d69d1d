"""A run folder in object storage: a real S3 server (rclone serve s3), killed drivers and damaged objects.

Run by `make test-cluster`, with loopback as the only network.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remanence.scale.journal import Journal

AUDIT = ["audit", "digits-dpsgd", "--unit-trials", "3", "--trials", "180"]  # 60 units
ADDRESS = "127.0.0.1:9876"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "FSSPEC_S3_ENDPOINT_URL": f"http://{ADDRESS}",
    "FSSPEC_S3_KEY": "auditor",
    "FSSPEC_S3_SECRET": "notasecret",
}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The folder behind the bucket `runs`."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "s3" / "runs").mkdir(parents=True)
    rclone = Path(sys.executable).with_name("rclone")
    command = [rclone, "serve", "s3", "--addr", ADDRESS, "--auth-key", "auditor,notasecret", tmp_path / "s3"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while "Starting s3 server" not in (line := server.stderr.readline()):
        assert server.poll() is None, line
    yield tmp_path / "s3" / "runs"
    server.terminate()
    server.communicate()


def remanence(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "remanence", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(process, code):
    out, err = process.communicate(timeout=200)
    assert process.returncode == code, err
    return out, err


def result(folder):
    document = json.loads((folder / "audit.json").read_text())
    del document["environment"]
    return document, (folder / "audit.arrays.safetensors").read_bytes()


def test_a_run_in_object_storage_outlives_its_driver(bucket, tmp_path):
    ended(remanence(*AUDIT, "--out", tmp_path / "alone"), 1)
    place = "s3://runs/mine"
    workers = ["--executor", "processes", "--workers", "2"]
    audit = remanence(*AUDIT, "--out", tmp_path / "far", "--journal", place, *workers)
    while len(list(bucket.glob("mine/units/*.safetensors"))) < 15:
        assert audit.poll() is None, audit.stderr.read()
        time.sleep(0.02)
    os.killpg(audit.pid, signal.SIGKILL)  # the driver and its workers
    audit.communicate()
    kept = len(Journal(place).finished())
    assert 15 <= kept < 60
    out, _ = ended(remanence("status", place), 0)
    assert f"{kept} done, {60 - kept} left" in out
    damaged = sorted(bucket.glob("mine/units/*.safetensors"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")
    _, told = ended(remanence("audit", "--resume", place, *workers), 1)
    assert f"{kept - 1} units were there already, {60 - kept + 1} were played." in told
    assert damaged.name in (bucket / "mine" / "log.txt").read_text()
    assert result(tmp_path / "far") == result(tmp_path / "alone")


def test_a_bucket_that_is_not_there_is_a_sentence(bucket, tmp_path):
    _, told = ended(remanence(*AUDIT, "--out", tmp_path / "far", "--journal", "s3://nowhere/mine"), 2)
    assert "The storage of the run failed." in told
    assert "Traceback" not in told
