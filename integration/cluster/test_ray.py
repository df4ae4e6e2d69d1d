"""A Ray cluster of three nodes, one of which is killed in the middle of an audit of hundreds of units.

Run by `make test-cluster`, with loopback as the only network.
"""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from nodes import kill_node, stopped_in_a_unit

from remanence.scale.journal import Journal

AUDIT = ["audit", "digits-dpsgd", "--unit-trials", "3", "--trials", "1200"]  # 400 units


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 * 2**20})
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    yield made
    made.shutdown()


def remanence(folder, *arguments):
    """The command line, in a process of its own."""
    command = [sys.executable, "-m", "remanence", *AUDIT, "--out", str(folder), *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def result(folder):
    document = json.loads((folder / "audit.json").read_text())
    ran = document.pop("environment")["executor"]
    return document, (folder / "audit.arrays.safetensors").read_bytes(), ran


def test_an_audit_outlives_one_of_three_nodes(cluster, tmp_path):
    alone = remanence(tmp_path / "alone")
    assert alone.wait(300) == 1, alone.stderr.read()  # EXPOSED
    audit = remanence(tmp_path / "ray", "--executor", "ray", "--address", cluster.address)
    journal = Journal(tmp_path / "ray")
    while len(journal.finished()) < 100:
        assert audit.poll() is None, audit.stderr.read()
        time.sleep(0.02)
    stopped_in_a_unit(cluster, 2)
    at_the_time = len(journal.finished())
    kill_node(cluster, 2)
    said = audit.communicate(timeout=300)[1]
    assert audit.returncode == 1, said
    assert at_the_time < 400
    print(f"killed one of three nodes after {at_the_time} of 400 units")
    assert re.search(r"unit \d+ was lost \(\w+\) and is run again \(attempt 2 of 4\)", said)
    (document, arrays, ran), (expected, same_arrays, _) = result(tmp_path / "ray"), result(tmp_path / "alone")
    assert ran == "Ray, workers: 3" or ran == "Ray, workers: 2"
    assert document == expected
    assert arrays == same_arrays
    assert len(journal.finished()) == 400


def test_a_mistake_in_a_worker_arrives_whole(cluster, tmp_path):
    (tmp_path / "bad.py").write_text(
        "import torch\n"
        "from remanence import *\n"
        "people = Records(torch.eye(4), torch.zeros(4))\n"
        "def game():\n"
        "    train = looped(lambda records, seed: 7)\n"
        "    return Game(train, FinitePrior(people[:2]), people[2:], Criterion(mismatch, 0.5))\n"
    )
    arguments = ["audit", f"{tmp_path}/bad.py:game", "--attack", "oblivious", "--max-success", "0.9"]
    found = subprocess.run(
        [sys.executable, "-m", "remanence", *arguments, "--executor", "ray", "--address", cluster.address],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 2
    assert "The training function returned something that is not a release." in found.stderr
    assert "Traceback" not in found.stderr


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "remanence", "audit", "wine-pipeline", "--executor", "ray", "--address", "127.0.0.1:1"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 2, found.stderr
    assert "The Ray cluster cannot be reached." in found.stderr
    assert not (tmp_path / "remanence-runs").exists()
