"""Results in MLflow: the numbers as metrics, audit.json as an artefact, never a reconstruction."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.core.exceptions import InputError
from remanence.report import words
from remanence.results.storage import DOCUMENT


def log(result: AuditResult) -> None:
    """Log into the active run, or into a new one, wherever MLflow is set up to keep its runs."""
    try:
        import mlflow  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "MLflow is not installed.", needs="the package mlflow", got="an environment without it",
            hint="pip install mlflow",
        ) from None  # fmt: skip
    best = result.strongest
    metrics = {
        "remanence.success": best.main.rate,
        "remanence.success_lower": best.main.lower,
        "remanence.success_upper": best.main.upper,
        "remanence.control": best.control.rate,
        "remanence.baseline": best.baseline.value,
        "remanence.limit": result.policy.max_success,
    }
    ceilings = {
        "remanence.bound": words.tightest(result),
        "remanence.bound_on_average": words.average(result),
    }
    metrics |= {name: bound.success for name, bound in ceilings.items() if bound is not None}
    mlflow.log_metrics(metrics)
    mlflow.set_tags({"remanence.verdict": str(result.verdict), "remanence.attack": best.attack})
    mlflow.log_dict(result.sealed()[0], DOCUMENT)
