"""Privacy as a unit test: a fixture for pytest, found by it once remanence is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from remanence.auditing import AuditResult


@pytest.fixture
def audit_release(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> Callable[..., AuditResult]:
    """Audit a game and keep its report: `assert audit_release(game, max_success=0.1).verdict is Verdict.PROTECTED`.

    The report lies in the test's own folder, which pytest keeps for the last runs; its place and the
    verdict are among the test's properties in a JUnit file.
    """

    def run(
        game: object,
        attacks: object = None,
        *,
        max_success: float = 0.1,
        trials: int | None = None,
        seed: int = 0,
    ) -> AuditResult:
        from remanence.auditing import audit
        from remanence.report.writing import write_report
        from remanence.results.verdict import Policy

        result = audit(game, attacks, policy=Policy(max_success), trials=trials, seed=seed)  # pyright: ignore
        result.save(tmp_path)
        record_property("remanence_verdict", str(result.verdict))
        record_property("remanence_report", str(write_report(result, tmp_path)))
        return result

    return run
