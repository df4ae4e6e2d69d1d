"""The report in a browser and on paper."""

import re
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from audit_results import DATA, MADE_UP, decided, poisoned, result
from remanence import Verdict
from remanence.core.catalogue import catalogue
from remanence.core.doors import doors
from remanence.report.html import index, report
from remanence.report.writing import GALLERY, write_index, write_report
from remanence.results import caveats as common

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
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert watched.overflows() == []
    assert 1 <= watched.printed(f"report-{verdict.lower()}") <= 4


_SCROLLING = """() => [...document.querySelectorAll(".table")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel)"""


@pytest.mark.parametrize("door", doors(), ids=lambda door: door.name)
def test_every_attack_of_a_door_with_every_caveat_fits_four_printed_pages(watch, tmp_path, door):
    found = result(Verdict.EXPOSED)
    best = found.strongest
    homes = [common, *([import_module(door.caveats)] if door.caveats else [])]
    raised = tuple(each for home in homes for each in vars(home).values() if isinstance(each, common.Caveat))
    arrays = {**best.arrays, "class": torch.arange(40) % 10}
    worst = replace(best, caveats=raised, unresolved=tuple(range(40)), arrays=arrays)
    own = [info.name for info in catalogue().values() if info.home in door.attacks]
    everything = replace(found, evidence=tuple(replace(worst, attack=name) for name in own))
    watched = watch(write_report(everything, tmp_path).as_uri())
    watched.keep(f"report-everything-{door.name}")
    assert watched.violations() == []
    assert watched.overflows() == []
    watched.page.set_viewport_size({"width": 1280, "height": 900})
    assert watched.page.evaluate(_SCROLLING) == []  # no column of a table is out of sight
    assert watched.printed(f"report-everything-{door.name}") <= 4
    assert watched.too_wide_for_paper() == []


@pytest.mark.parametrize("verdict", Verdict)
def test_the_signature_is_on_the_first_printed_page(watch, tmp_path, verdict):
    watched = watch(write_report(result(verdict), tmp_path).as_uri())
    watched.page.emulate_media(media="print")
    watched.page.set_viewport_size({"width": 688, "height": 1017})  # A4 within its margins
    box = watched.page.locator(".signature").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 1017


PICTURES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["table", "pictures"])
def test_a_gallery_is_accessible_and_nothing_of_it_is_cut(watch, tmp_path, kind):
    found = result(Verdict.EXPOSED)
    rows = DATA.features[:6] if kind == "table" else PICTURES
    shown = {"targets": rows, "reconstructions": rows + 0.01, "controls": rows.flip(0)}
    best = replace(found.strongest, gallery={**shown, "succeeded": torch.ones(6, dtype=torch.bool)})
    names = [f"a column with a long name, {place}" for place in range(rows[0].numel())]
    subject = {**found.subject, **({"columns": names} if kind == "table" else {})}
    write_report(replace(found, evidence=(best,), subject=subject), tmp_path, gallery=True)
    watched = watch((tmp_path / GALLERY).as_uri())
    watched.keep(f"gallery-{kind}")
    assert watched.violations() == []
    assert watched.complaints == []
    assert watched.overflows() == []
    assert kind == "pictures" or watched.page.get_by_text("a column with a long name, 0").count() == 6


def test_an_update_shows_where_it_leaks(watch, tmp_path):
    found = result(Verdict.EXPOSED)
    layers = [
        {"name": "0", "rank": 8, "unexplained": 1e-6},
        {"name": "features.3.weight", "rank": None, "unexplained": None},
    ]
    door = {**found.threat_model, "door": "updates"}
    leaking = replace(found, threat_model=door, subject={**found.subject, "leak_map": layers})
    watched = watch(write_report(leaking, tmp_path).as_uri())
    watched.keep("report-leak-map")
    assert watched.page.get_by_text("Where the update leaks").count() >= 1
    assert watched.violations() == []
    assert watched.overflows() == []


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
    assert watched.overflows() == []
    assert watched.page.get_by_text("1 PROTECTED").count() == 1
    assert watched.page.get_by_text("1000 (912 to 1000)").is_visible()  # the numbers stay on a telephone
    links = watched.page.locator("a")
    assert links.count() == 4
    links.nth(0).click()
    assert watched.page.title().startswith("PROTECTED")
    assert watched.complaints == []


def test_the_first_screen_answers_the_first_question(watch, tmp_path):
    watched = watch(write_report(result(Verdict.EXPOSED), tmp_path).as_uri())
    for text in ("EXPOSED", "An attack succeeds more often", "The adversary sees", "What to do now"):
        box = watched.page.get_by_text(text, exact=False).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900


@pytest.mark.parametrize("name", MADE_UP)
def test_the_number_in_the_headline_is_that_of_what_decided(watch, tmp_path, name):
    found = MADE_UP[name]()
    page = watch(write_report(found, tmp_path).as_uri()).page
    numbers, shown = decided(found)
    headline = page.locator(".headline")
    assert page.locator(".band strong").inner_text() == found.verdict
    assert re.findall(r"\d+(?:\.\d+)?", headline.inner_text())[: len(numbers)] == numbers
    drawn = page.locator("svg[data-figure=line] text").all_text_contents()
    for words in shown:
        assert any(text.startswith(words) for text in drawn), (words, drawn)
    box = headline.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900  # without scrolling
