"""Every format of a report by its name, and reports as files next to their result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from remanence.auditing import AuditResult
from remanence.report.dossier import dossier
from remanence.report.gallery import gallery_page
from remanence.report.html import dossier_page, index, report
from remanence.report.junit import junit
from remanence.report.markdown import model_card, summary
from remanence.report.sarif import sarif
from remanence.scale.files import write_files

FORMATS: dict[str, Callable[[AuditResult], str]] = {
    "html": report,
    "markdown": summary,
    "junit": junit,
    "sarif": sarif,
    "model-card": model_card,
    "dossier": dossier,
    "dossier-html": dossier_page,
}


REPORT, GALLERY, INDEX = "report.html", "gallery.html", "index.html"


def write_report(result: AuditResult, folder: Path, *, gallery: bool = False) -> Path:
    """Write the report, and the gallery where it is wanted; only the owner can read either."""
    pages = {REPORT: report(result), GALLERY: gallery_page(result) if gallery else None}
    write_files(folder, {name: page.encode() for name, page in pages.items() if page is not None})
    if pages[GALLERY] is None:
        (folder / GALLERY).unlink(missing_ok=True)  # of an earlier run
    return folder / REPORT


def write_index(results: Mapping[str, AuditResult], folder: Path) -> Path:
    """Write one page that links the report in each of these subfolders."""
    galleries = {name for name in results if (folder / name / GALLERY).exists()}
    write_files(folder, {INDEX: index(results, galleries).encode()})
    return folder / INDEX
