"""Ranks that learn together, started by torchrun on this machine."""

import json
import os
import subprocess
import sys

import pytest

GAME = """
import sys
sys.path.insert(0, "TESTS")
from conftest import heads_game, network_game
"""

TOGETHER = """
import torch
from torch import distributed, nn
from remanence.reconstructor.learning import Learner
from remanence.reconstructor.shadows import ShadowFarm, split
from remanence.scale.ranks import joined, rank, ranks
from factory import heads_game

with joined("cpu"):
    farm = ShadowFarm(split(heads_game().knowledge)[0], torch.Generator().manual_seed(0))
    shadows = farm.stored(50)
    torch.manual_seed(rank())  # networks that start differently
    network = nn.Linear(9, 1)
    seen = []

    def draw():
        seen.append(farm.block(8).targets.features.flatten(2)[:, 0])
        return seen[-1]

    def loss(model, batch):
        return (model(batch) - 1).square().mean()

    fitted = Learner(20, 0.05).fit(network, draw, loss, lambda model, _: (float(rank()), ""))
    found = [None] * ranks()
    mine = len(shadows), torch.cat(seen).sum().item(), [p.tolist() for p in fitted.parameters()]
    distributed.all_gather_object(found, mine)
    if rank() == 0:
        (count, sums, weights), (other_count, other_sums, other_weights) = found
        assert (count, other_count) == (25, 25)
        assert sums != other_sums, "both ranks saw the same shadows"
        assert weights == other_weights, "the ranks hold different networks"
        print("in step")
"""


def torchrun(folder, *arguments):
    return subprocess.run(  # noqa: S603
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
            *arguments,
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


@pytest.fixture
def folder(tmp_path, request):
    (tmp_path / "factory.py").write_text(GAME.replace("TESTS", str(request.config.rootpath / "tests")))
    return tmp_path


@pytest.mark.slow
def test_ranks_draw_their_own_shadows_and_hold_the_same_network(folder):
    (folder / "together.py").write_text(TOGETHER)
    ended = torchrun(folder, "together.py")
    assert ended.returncode == 0, ended.stderr
    assert "in step" in ended.stdout


AGAIN = """
import torch
from remanence import Reconstructor
from remanence.scale.ranks import joined, rank
from factory import heads_game

with joined("cpu"):
    attack = Reconstructor(steps=20, batch=16, width=8, checkpoint="net")
    attack.learn(heads_game().knowledge, torch.Generator().manual_seed(0))
    print(f"rank {rank()} has learnt")
"""


@pytest.mark.slow
def test_learning_on_two_ranks_goes_on_from_one_checkpoint(folder):
    (folder / "again.py").write_text(AGAIN)
    for _ in range(2):  # the second time there is a checkpoint
        ended = torchrun(folder, "again.py")
        assert ended.returncode == 0, ended.stderr
        assert all(f"rank {rank} has learnt" in ended.stdout for rank in (0, 1))
    assert (folder / "net.0.pt").exists()


@pytest.mark.slow
def test_an_audit_under_torchrun_is_written_once(folder):
    audit = ["audit", "factory.py:heads_game", "--attack", "reconstructor", "--max-success", "0.5"]
    ended = torchrun(folder, "-m", "remanence", *audit, "--trials", "40", "--out", "run")
    assert ended.returncode == 0, ended.stderr
    found = json.loads((folder / "run" / "audit.json").read_text())
    assert ended.stdout.count("Result: run/audit.json") == 1
    main, control = found["evidence"][0]["main"], found["evidence"][0]["control"]
    assert main["trials"] == 120
    assert main["lower"] > control["upper"], "together they learnt nothing"
