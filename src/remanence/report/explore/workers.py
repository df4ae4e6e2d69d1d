"""Questions that take seconds, in processes that end when the asker leaves, or when they hold much memory."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from anyio import CancelScope, CapacityLimiter, create_task_group, open_process
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from starlette.requests import Request

from remanence.core.exceptions import InputError, RemanenceError
from remanence.report.explore import answers
from remanence.report.explore.answers import Question
from remanence.scale.orphans import end_with
from remanence.scale.reading import KIB, MIB

_AT_ONCE = 2  # processes that compute at the same time
_MOST = 256 * MIB  # that a process may hold when it has answered, and be asked again
_LENGTH = struct.Struct("<Q")  # in front of a question and of an answer
_COMMAND = (sys.executable, "-c", "from remanence.report.explore.workers import work; work()")


class AskerLeftError(Exception):
    """The connection was closed before there was an answer."""


class Workers:
    """Processes that answer one question after the other."""

    def __init__(self) -> None:
        self._turns = CapacityLimiter(_AT_ONCE)
        self._idle: list[Process] = []

    async def ask(self, request: Request, question: str, given: Mapping[str, str]) -> answers.Json:
        """The answer, when it is its turn, and as long as somebody wants to know."""
        said: list[bytes] = []
        async with create_task_group() as group:
            group.start_soon(_leave_with, request, group.cancel_scope)
            async with self._turns:
                said.append(await self._answer(json.dumps([question, dict(given)]).encode()))
            group.cancel_scope.cancel()
        if not said:
            raise AskerLeftError
        told = json.loads(said[0])
        if "error" in told:
            raise InputError(**told["error"])
        return told["answer"]

    async def _answer(self, asked: bytes) -> bytes:
        process = await self._take()
        assert process.stdin is not None
        assert process.stdout is not None
        said = BufferedByteReceiveStream(process.stdout)
        try:
            await process.stdin.send(_LENGTH.pack(len(asked)) + asked)
            answer = await said.receive_exactly(*_LENGTH.unpack(await said.receive_exactly(_LENGTH.size)))
            (held,) = _LENGTH.unpack(await said.receive_exactly(_LENGTH.size))
            if held < _MOST:
                self._idle.append(process)
            return answer
        finally:
            if process not in self._idle:
                with CancelScope(shield=True):
                    if process.returncode is None:
                        process.kill()
                    await process.aclose()

    async def _take(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        with CancelScope(shield=True):  # one that is half started would be nobody's
            return await open_process(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None)
        raise AssertionError("a shielded scope is not left early")


async def _leave_with(request: Request, scope: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def work() -> None:
    """In such a process: questions from its standard input, and the answers on its standard output."""
    end_with(os.getppid())
    listening, speaking, sys.stdout = sys.stdin.buffer, sys.stdout.buffer, sys.stderr
    while head := listening.read(_LENGTH.size):
        question, given = json.loads(listening.read(*_LENGTH.unpack(head)))
        try:
            told = {"answer": QUESTIONS[question](Question.read(given), given)}
        except RemanenceError as error:
            told = {"error": vars(error)}
        said = json.dumps(told).encode()
        speaking.write(_LENGTH.pack(len(said)) + said + _LENGTH.pack(_held()))
        speaking.flush()


def _held() -> int:
    """The memory of this process; at its peak, where the system says no more."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return pages * os.sysconf("SC_PAGE_SIZE")


QUESTIONS: dict[str, Callable[[Question, dict[str, str]], answers.Json]] = {
    "bound": lambda question, _: answers.answer(question),
    "budget": lambda question, _: answers.budget(question),
    "rate-curve": lambda question, _: answers.rate_curve(question, answers.budget(question)["epsilon"]),
    "solve": lambda question, given: answers.solve(question, answers.number(given, "max_success")),
}
