"""Privacy as a unit test: a fixture for pytest, found by it once remanence is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from remanence.auditing import AuditResult


_LAST: list[str] = []  # what the last audit says, for a failing assertion about its verdict


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say target, number and limit where a verdict is not the expected one."""
    if type(left).__name__ != "Verdict" or not _LAST:  # its module is loaded by audits alone
        return None
    return [f"{left} {op} {right}", *_LAST]


@pytest.fixture
def audit_release(
    tmp_path: Path, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[..., AuditResult]:
    """Audit a game and keep its report: `assert audit_release(game, max_success=0.1).verdict is Verdict.PROTECTED`.

    The report is in the test's own folder, which pytest keeps for the last runs; its place and the
    verdict are among the test's properties in a JUnit file. The target has the test's name unless you name it.
    """

    def run(
        game: object,
        attacks: object = None,
        *,
        max_success: float = 0.1,
        trials: int | None = None,
        seed: int = 0,
        target: str | None = None,
    ) -> AuditResult:
        from remanence.auditing import audit
        from remanence.report.writing import write_report
        from remanence.results.verdict import Policy

        settings = {"trials": trials, "seed": seed, "target": target or request.node.name}
        result = audit(game, attacks, policy=Policy(max_success), **settings)  # pyright: ignore
        result.save(tmp_path)
        page = write_report(result, tmp_path)
        _LAST[:] = [*str(result).splitlines(), f"Report: {page}"]
        record_property("remanence_verdict", str(result.verdict))
        record_property("remanence_report", str(page))
        return result

    return run
