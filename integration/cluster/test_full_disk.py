"""A disk that is really full: a tmpfs of a few hundred kilobytes. Run by `make test-cluster`, as root."""

import json
import subprocess
import sys

import pytest

AUDIT = [
    "audit",
    "digits-dpsgd",
    "--unit-trials",
    "2",
    "--trials",
    "200",
]  # 100 units, a page of the disk each


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["/usr/bin/umount", place], check=True)


def remanence(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "remanence", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def result(folder):
    document = json.loads((folder / "audit.json").read_text())
    del document["environment"]
    return document, (folder / "audit.arrays.safetensors").read_bytes()


@pytest.mark.parametrize("executor", [[], ["--executor", "processes", "--workers", "2"]])
def test_a_full_disk_keeps_what_is_finished_and_a_larger_one_goes_on(small_disk, tmp_path, executor):
    assert remanence(*AUDIT, "--out", tmp_path / "alone").returncode == 1
    run = small_disk / "run"
    full = remanence(*AUDIT, "--out", run, *executor)
    assert full.returncode == 2, full.stderr
    assert "No space left on device" in full.stderr
    assert f"--resume {run} continues" in full.stderr
    kept = len(list((run / "units").glob("*.safetensors")))
    assert 0 < kept < 100
    assert not list(run.rglob(".*")), "half a file is left"
    assert f"{kept} done" in remanence("status", run).stdout
    subprocess.run(["/usr/bin/mount", "-o", "remount,size=4m", small_disk], check=True)
    again = remanence(*AUDIT, "--resume", run, *executor)
    assert again.returncode == 1, again.stderr
    assert f"Units that were already there: {kept}; played: {100 - kept}." in again.stderr
    assert result(run) == result(tmp_path / "alone")
