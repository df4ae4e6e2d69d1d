"""Faults at the system calls that write: a process that is killed there, or a disk that is full."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import contextmanager

from remanence.scale import files

_WRITES = {"write", "fsync", "replace", "unlink", "rmdir", "makedirs"}


class Killed(BaseException):
    """What kill -9 looks like from within: nothing that comes after it has any effect."""


class _Failing:
    """A module whose calls fail from some moment on: once with an error, or all of them after a kill."""

    def __init__(self, module, plan):
        self.module, self.plan = module, plan

    def __getattr__(self, name):
        found = getattr(self.module, name)
        if name not in {*_WRITES, "mkstemp"}:
            return found

        def call(*given, **named):
            self.plan.step(lambda: self._half(name, given))
            return found(*given, **named)

        return call

    def _half(self, name, given):
        if name == "write":  # some of it arrives
            self.module.write(given[0], bytes(given[1])[: len(given[1]) // 2])


class Plan:
    def __init__(self, kill_at=None, full_at=None):
        self.kill_at, self.full_at = kill_at, full_at
        self.calls, self.dead = 0, False

    def step(self, half):
        self.calls += 1
        if self.dead:
            raise Killed
        if self.calls == self.kill_at:
            half()
            self.dead = True
            raise Killed
        if self.full_at is not None and self.calls >= self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def failing(kill_at=None, full_at=None):
    """Within, the process dies at this call that writes, or the disk is full from it on."""
    plan = Plan(kill_at, full_at)
    files.os, files.tempfile = _Failing(os, plan), _Failing(tempfile, plan)
    try:
        yield plan
    finally:
        files.os, files.tempfile = os, tempfile
