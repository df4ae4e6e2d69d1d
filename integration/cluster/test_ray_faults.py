"""An audit on three Ray nodes: its driver, a node and a worker are killed; and an object store that is too small.

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
from nodes import kill_node, stopped_in_a_unit

from remanence.scale.journal import Journal

AUDIT = ["audit", "digits-dpsgd", "--attack", "prior-aware", "--max-success", "0.9"]
SIZES = ["--unit-trials", "3", "--trials", "600"]  # 200 units
VERDICTS = (0, 1, 3)  # exit codes of an audit that came to one
MARK = 0.7182818284590452  # in every record of the large game, and in nothing else


@pytest.fixture
def cluster(tmp_path):
    from ray.cluster_utils import Cluster

    smallest = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args=smallest)
    for _ in range(2):
        made.add_node(**smallest)
    yield made
    made.shutdown()


def remanence(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "remanence", *map(str, arguments), "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def ended(process, codes=(0,)):
    _, told = process.communicate(timeout=400)
    assert process.returncode in codes, told
    return told


def units(folder, at_least, process):
    journal = Journal(folder)
    while len(journal.finished()) < at_least:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def results(folder):
    found = {}
    for path in sorted(folder.rglob("audit.json")):
        document = json.loads(path.read_text())
        del document["environment"]
        found[path.name] = document, path.with_name("audit.arrays.safetensors").read_bytes()
    return found


def test_an_audit_outlives_a_worker_a_node_and_its_driver(cluster, tmp_path):
    ended(remanence(tmp_path / "alone", *AUDIT, *SIZES), VERDICTS)
    ray = ["--executor", "ray", "--address", cluster.address]
    folder = tmp_path / "ray"
    driver = remanence(folder, *AUDIT, *SIZES, *ray)
    units(folder, 20, driver)
    os.kill(stopped_in_a_unit(cluster, 1), signal.SIGKILL)
    units(folder, 50, driver)
    stopped_in_a_unit(cluster, 2)
    kill_node(cluster, 2)
    units(folder, 90, driver)
    driver.kill()
    said = driver.communicate()[1]
    done = len(Journal(folder).finished())
    assert 90 <= done < 200
    told = ended(remanence(folder, *AUDIT, *SIZES, "--resume", folder, *ray), VERDICTS)
    assert f"Units that were already there: {done};" in told
    print(f"a worker, a node and the driver were killed; {done} of 200 units outlived the driver")
    assert said.count("was lost") >= 2  # the worker's unit and the node's
    assert results(folder) == results(tmp_path / "alone")


LARGE = f"""
import torch
from remanence import *

def game():
    draw = torch.Generator().manual_seed(0)
    known = torch.rand(12_000, 1000, generator=draw, dtype=torch.float64)  # 96 MB: the store has 80
    known[:, :4] = {MARK!r}
    people = Records(known, (torch.arange(12_000) % 2).double())
    train = looped(lambda records, seed: {{"mean": records.features.double().mean(0)}})
    return Game(train, FinitePrior(people[:4]), people[4:], Criterion(mismatch, 0.5))
"""


def test_an_object_store_that_is_too_small_changes_nothing_and_keeps_nothing(cluster, tmp_path):
    (tmp_path / "large.py").write_text(LARGE)
    audit = ["audit", f"{tmp_path}/large.py:game", "--attack", "retrain-and-compare", "--trials", "12"]
    audit += ["--unit-trials", "2", "--max-success", "0.9"]
    ended(remanence(tmp_path / "alone", *audit), VERDICTS)
    told = ended(
        remanence(tmp_path / "ray", *audit, "--executor", "ray", "--address", cluster.address), VERDICTS
    )
    assert "Traceback" not in told
    assert results(tmp_path / "ray") == results(tmp_path / "alone")
    import struct

    pattern = struct.pack("<d", MARK) * 4
    session = Path(cluster.head_node.get_session_dir_path())
    kept = [path for path in session.rglob("*") if path.is_file() and pattern in path.read_bytes()]
    assert not kept, kept
    spilled = [path for path in Path("/tmp").glob("ray*/**/*spill*/*") if path.is_file()]  # noqa: S108
    assert not spilled, spilled
