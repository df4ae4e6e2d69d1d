"""Every format of a report, by its name on the command line."""

from __future__ import annotations

from collections.abc import Callable

from remanence.auditing import AuditResult
from remanence.report.dossier import dossier
from remanence.report.exchange import cyclonedx, eval_results, in_toto
from remanence.report.html import dossier_page, report
from remanence.report.junit import junit
from remanence.report.markdown import model_card, summary
from remanence.report.sarif import sarif

FORMATS: dict[str, Callable[[AuditResult], str]] = {
    "html": report,
    "markdown": summary,
    "junit": junit,
    "sarif": sarif,
    "model-card": model_card,
    "dossier": dossier,
    "dossier-html": dossier_page,
    "in-toto": in_toto,
    "cyclonedx": cyclonedx,
    "eval-results": eval_results,
}
