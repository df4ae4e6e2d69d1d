"""The commands report and compare, as a person calls them."""

import sys

import pytest

from audit_results import result
from remanence import Verdict
from remanence.cli.main import main
from remanence.report.writing import FORMATS


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["remanence", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return invoke


def test_an_audit_writes_the_report_beside_its_result(call, tmp_path):
    code, out, _ = call("audit", "wine-pipeline")
    assert code == 1
    page = tmp_path / "remanence-runs/wine-pipeline/report.html"
    assert f"Report: {page.relative_to(tmp_path)}" in out
    assert "EXPOSED" in page.read_text()
    page.unlink()
    assert call("report", "remanence-runs/wine-pipeline/audit.json")[0] == 0
    assert page.exists()


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "html"])
def test_formats_for_machines_are_printed_or_written(call, tmp_path, form):
    result(Verdict.EXPOSED).save(tmp_path / "run")
    code, out, _ = call("report", "run", "--format", form)
    assert code == 0
    assert out == FORMATS[form](result(Verdict.EXPOSED))
    assert call("report", "run", "--format", form, "--out", "file")[0] == 0
    assert (tmp_path / "file").read_text() == out


def test_reconstructions_are_kept_on_request_and_go_away_without_it(call, tmp_path):
    (tmp_path / "mine.py").write_text("from remanence.targets import diabetes_shortlist as factory\n")
    folder = tmp_path / "remanence-runs/mine-factory"
    for extra, kept in ((["--show-reconstructions"], True), ([], False)):
        call("audit", "mine.py:factory", "--trials", "10", *extra)
        for name in ("gallery.html", "gallery.safetensors"):
            assert (folder / name).exists() == kept
            assert not kept or (folder / name).stat().st_mode & 0o777 == 0o600
    call("audit", "diabetes-shortlist", "--trials", "10")
    assert (tmp_path / "remanence-runs/diabetes-shortlist/gallery.html").exists()  # public data


def test_compare_exits_with_1_where_something_got_worse(call, tmp_path):
    result(Verdict.PROTECTED).save(tmp_path / "a")
    result(Verdict.UNPROVEN).save(tmp_path / "b")
    code, out, _ = call("compare", "a", "b")
    assert code == 1
    assert "| verdict | PROTECTED | UNPROVEN | worse |" in out
    assert call("compare", "b", "a")[0] == 0


def test_unproven_can_be_accepted_and_nothing_else(call, tmp_path):
    for verdict, code in ((Verdict.UNPROVEN, 0), (Verdict.EXPOSED, 1), (Verdict.CONTRADICTED, 1)):
        result(verdict).save(tmp_path / verdict)
        assert call("show", verdict, "--accept-unproven")[0] == code
    assert call("show", Verdict.UNPROVEN)[0] == 3


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        (["report", "nowhere"], "an audit.json written by remanence"),
        (["report", "run", "--format", "sarif", "--open"], "--format html"),
        (["compare", "run", "nowhere"], "an audit.json written by remanence"),
        (["report", "run", "--out", "run/audit.json/x.html"], "a folder that can be created"),
    ],
)
def test_a_mistake_ends_with_a_sentence(call, tmp_path, arguments, needs):
    result(Verdict.EXPOSED).save(tmp_path / "run")
    code, _, err = call(*arguments)
    assert code == 2
    assert f"needs: {needs}" in err
    assert "Traceback" not in err


def test_a_report_takes_a_title_and_an_owner_for_this_page_only(call, tmp_path):
    result(Verdict.EXPOSED).save(tmp_path / "run")
    before = (tmp_path / "run" / "audit.json").read_bytes()
    said = (
        "--title",
        "Heart risk",
        "--owner",
        "Clinic <b>",
        "--purpose",
        "triage",
        "--data-description",
        "40 people",
    )
    code, _, _ = call("report", "run", *said)
    page = (tmp_path / "run" / "report.html").read_text()
    assert code == 0
    assert all(text in page for text in ("Heart risk", "Clinic &lt;b&gt;", "triage", "40 people"))
    assert result(Verdict.EXPOSED).digest()[:12] in page
    assert (tmp_path / "run" / "audit.json").read_bytes() == before
