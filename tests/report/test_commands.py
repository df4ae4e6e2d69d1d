"""The commands report and compare, as a person calls them."""

import shlex

import pytest

from audit_results import result
from remanence import Verdict
from remanence.report.writing import FORMATS


def test_an_audit_writes_the_report_beside_its_result(run, tmp_path):
    code, out, _ = run("audit", "wine-pipeline")
    assert code == 1
    page = tmp_path / "remanence-runs/wine-pipeline/report.html"
    assert f"Report: {page.relative_to(tmp_path)}" in out
    assert "EXPOSED" in page.read_text()
    page.unlink()
    assert run("report", "remanence-runs/wine-pipeline/audit.json")[0] == 0
    assert page.exists()


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "html"])
def test_formats_for_machines_are_printed_or_written(run, tmp_path, form):
    result(Verdict.EXPOSED).save(tmp_path / "run")
    code, out, _ = run("report", "run", "--format", form)
    assert code == 0
    assert out == FORMATS[form](result(Verdict.EXPOSED))
    assert run("report", "run", "--format", form, "--out", "file")[0] == 0
    assert (tmp_path / "file").read_text() == out
    code, _, err = run("report", "run", "--format", form, "--out", "run")
    assert (code, f"--out run/report-{form}" in err) == (2, True)


def test_reconstructions_are_kept_on_request_and_go_away_without_it(run, tmp_path):
    (tmp_path / "mine.py").write_text("from remanence.targets import diabetes_shortlist as factory\n")
    folder = tmp_path / "remanence-runs/mine-factory"
    for extra, kept in ((["--show-reconstructions"], True), ([], False)):
        run("audit", "mine.py:factory", "--trials", "10", *extra)
        for name in ("gallery.html", "gallery.safetensors"):
            assert (folder / name).exists() == kept
            assert not kept or (folder / name).stat().st_mode & 0o777 == 0o600
    run("audit", "diabetes-shortlist", "--trials", "10")
    assert (tmp_path / "remanence-runs/diabetes-shortlist/gallery.html").exists()  # public data


def test_compare_exits_with_1_where_something_got_worse(run, tmp_path):
    result(Verdict.PROTECTED).save(tmp_path / "a")
    result(Verdict.UNPROVEN).save(tmp_path / "b")
    code, out, _ = run("compare", "a", "b")
    assert code == 1
    assert "| verdict | PROTECTED | UNPROVEN | worse |" in out
    assert run("compare", "b", "a")[0] == 0


def test_unproven_can_be_accepted_and_nothing_else(run, tmp_path):
    for verdict, code in ((Verdict.UNPROVEN, 0), (Verdict.EXPOSED, 1), (Verdict.CONTRADICTED, 1)):
        result(verdict).save(tmp_path / verdict)
        assert run("show", verdict, "--accept-unproven")[0] == code
    assert run("show", Verdict.UNPROVEN)[0] == 3


def test_a_report_takes_a_title_and_an_owner_for_this_page_only(run, tmp_path):
    result(Verdict.EXPOSED).save(tmp_path / "run")
    before = (tmp_path / "run" / "audit.json").read_bytes()
    said = "--title 'Heart risk' --owner 'Clinic <b>' --purpose triage --data-description '40 people'"
    code, _, _ = run("report", "run", *shlex.split(said))
    page = (tmp_path / "run" / "report.html").read_text()
    assert code == 0
    assert all(text in page for text in ("Heart risk", "Clinic &lt;b&gt;", "triage", "40 people"))
    assert result(Verdict.EXPOSED).digest()[:12] in page
    assert (tmp_path / "run" / "audit.json").read_bytes() == before
