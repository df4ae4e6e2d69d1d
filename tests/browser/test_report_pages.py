"""The report in a browser and on paper."""

import re
from dataclasses import replace

import pytest
import torch

from audit_results import poisoned, result
from remanence import Verdict
from remanence.attacks.catalogue import catalogue
from remanence.report.html import index, report
from remanence.report.writing import write_index, write_report
from remanence.results.caveats import CAVEATS

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("verdict", Verdict)
def test_a_report_is_quiet_accessible_and_asks_nobody(watch, tmp_path, verdict, scheme):
    path = write_report(result(verdict), tmp_path)
    watched = watch(path.as_uri(), scheme=scheme)
    watched.keep(f"report-{verdict.lower()}-{scheme}")
    assert watched.violations() == []
    assert watched.complaints == []
    assert watched.addresses == [path.as_uri()]


@pytest.mark.parametrize("verdict", Verdict)
def test_a_report_fits_a_telephone_and_four_printed_pages(watch, tmp_path, verdict):
    watched = watch(write_report(result(verdict), tmp_path).as_uri(), width=360)
    watched.keep(f"report-{verdict.lower()}-narrow")
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
    printed = watched.page.pdf(prefer_css_page_size=True)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 4


def test_every_attack_with_every_caveat_fits_four_printed_pages(watch, tmp_path):
    found = result(Verdict.EXPOSED)
    best = found.strongest
    arrays = {**best.arrays, "class": torch.arange(40) % 10}
    worst = replace(best, caveats=tuple(CAVEATS.values()), unresolved=tuple(range(40)), arrays=arrays)
    everything = replace(found, evidence=tuple(replace(worst, attack=name) for name in catalogue()))
    watched = watch(write_report(everything, tmp_path).as_uri())
    watched.keep("report-everything")
    assert watched.violations() == []
    assert len(re.findall(rb"/Type\s*/Page\b", watched.page.pdf(prefer_css_page_size=True))) <= 4


def test_the_first_screen_answers_the_first_question(watch, tmp_path):
    watched = watch(write_report(result(Verdict.EXPOSED), tmp_path).as_uri())
    for text in ("EXPOSED", "An attack succeeds more often", "The adversary sees", "Caveats"):
        box = watched.page.get_by_text(text, exact=False).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900


@pytest.mark.parametrize("verdict", Verdict)
def test_no_script_of_a_stranger_runs(watch, tmp_path, verdict):
    evil = poisoned(result(verdict))
    for page in (report(evil), index({"<script>alert(2)</script>": evil})):
        path = tmp_path / "evil.html"
        path.write_text(page)
        watched = watch(path.as_uri())
        assert watched.page.locator("script, img").count() == 0
        assert watched.complaints == []
        assert "alert(1)" in watched.page.inner_text("main")


def test_the_index_leads_to_every_report(watch, tmp_path):
    results = {verdict.lower(): result(verdict) for verdict in Verdict}
    for folder, found in results.items():
        write_report(found, tmp_path / folder)
    watched = watch(write_index(results, tmp_path).as_uri())
    watched.keep("index")
    assert watched.violations() == []
    links = watched.page.locator("a")
    assert links.count() == 4
    links.nth(0).click()
    assert watched.page.title().startswith("PROTECTED")
    assert watched.complaints == []
