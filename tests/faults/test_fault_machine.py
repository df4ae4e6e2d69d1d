"""Sequences of starts, kills, full disks, moves, damage, rivals and changed code: the right result, or a refusal.

REMANENCE_SEQUENCES=500 tries as many; `make test-faults` does.
"""

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conftest import noisy_sum, shortlist_game
from faults import Killed, failing
from remanence import AuditResult, Journal, Policy, RemanenceError, RetrainAndCompare, Run, audit, looped
from remanence.core.exceptions import InputError
from remanence.scale.files import PART

SEQUENCES = int(os.environ.get("REMANENCE_SEQUENCES", "12"))
COUNTED = {"sequences": 0, "starts": 0, "killed": 0, "refused": 0, "finished": 0}


def training(factor: float):
    def train(records, seed):
        return {"sum": noisy_sum(records, seed)["sum"] * (1.0 + factor * (seed % 3))}

    return train


def played(code: float, run: Run) -> AuditResult:
    game = replace(shortlist_game(distance=2.0, candidates=3), mechanism=looped(training(code)))
    return audit(game, [RetrainAndCompare(repeats=2)], policy=Policy(0.9), trials=12, run=run)


def told(result: AuditResult):
    """All that a verdict rests on."""
    best = result.strongest
    return str(result.verdict), best.main, best.control, tuple(best.arrays["error"].flatten().tolist())


@cache
def expected(code: float):
    return told(played(code, Run(unit_trials=3)))


class FaultMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        COUNTED["sequences"] += 1
        self.base = Path(tempfile.mkdtemp())
        self.folder = self.base / "run"
        self.code, self.written, self.damaged = 0.0, set(), False

    def teardown(self):
        shutil.rmtree(self.base, ignore_errors=True)

    def _go(self, *, resume, kill_at=None, full_at=None):
        COUNTED["starts"] += 1
        journal = Journal(self.folder)
        try:
            with failing(kill_at, full_at), Run(journal=journal, unit_trials=3, resume=resume) as run:
                result = played(self.code, run)
                self.written.add(self.code)  # from here on the result may be there
                result.save(self.folder)
        except Killed:
            COUNTED["killed"] += 1
        except RemanenceError:
            COUNTED["refused"] += 1
            assert full_at is not None or self.damaged, "a refusal without a reason"
        else:
            COUNTED["finished"] += 1
            assert told(result) == expected(self.code)
            assert told(AuditResult.load(self.folder)) == expected(self.code)
            assert not list(self.folder.rglob(f".*{PART}")), "the next start sweeps what a killed one left"
            self.damaged = False
        finally:
            journal._lock.release(force=True)  # as the system does for a process that is gone

    @rule(resume=st.booleans())
    def start(self, resume):
        self._go(resume=resume)

    @rule(resume=st.booleans(), moment=st.integers(1, 90))
    def start_and_kill(self, resume, moment):
        self._go(resume=resume, kill_at=moment)

    @rule(moment=st.integers(1, 90))
    def start_on_a_full_disk(self, moment):
        self._go(resume=False, full_at=moment)

    @rule()
    def change_code(self):
        self.code = 0.5 - self.code

    @precondition(lambda self: self.folder.exists())
    @rule(name=st.sampled_from(["run", "moved", "renamed"]))
    def move(self, name):
        to = self.base / name
        if not to.exists():
            self.folder.rename(to)
            self.folder = to

    @precondition(lambda self: self.folder.exists())
    @rule(which=st.integers(0, 100), place=st.integers(0, 10**6), cut=st.booleans())
    def damage(self, which, place, cut):
        there = sorted(path for path in self.folder.rglob("*") if path.is_file() and path.name != "run.lock")
        if there:
            victim = there[which % len(there)]
            content = bytearray(victim.read_bytes())
            if content and not cut:
                content[place % len(content)] ^= 1 << place % 8
            victim.write_bytes(content[: place % len(content)] if cut and content else content)
            self.damaged = True

    @rule()
    def rival(self):
        holder, journal = Journal(self.folder), Journal(self.folder)
        try:
            holder.begin({})
        except InputError:
            return  # damaged: refused for that reason
        try:
            with pytest.raises(InputError, match="Another run is using this folder"):
                journal.begin({})
        finally:
            holder.forget_if_empty()

    @invariant()
    def what_is_stored_is_right_or_refused(self):
        try:
            found = told(AuditResult.load(self.folder))
        except RemanenceError:
            return
        assert found in [expected(code) for code in self.written]


def test_every_sequence_ends_with_the_right_result_or_a_refusal(capsys):
    torch.set_num_threads(1)
    tried = settings(
        max_examples=SEQUENCES,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=SEQUENCES < 100,
        database=None,
    )
    run_state_machine_as_test(FaultMachine, settings=tried)
    with capsys.disabled():
        sys.stdout.write(f"\n{', '.join(f'{name}: {count}' for name, count in COUNTED.items())}\n")
    assert COUNTED["sequences"] >= SEQUENCES
