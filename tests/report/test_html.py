"""The page that people hand over: self-contained, free of data, and true to audit.json."""

import re
from dataclasses import asdict, replace
from functools import cache

import numpy as np
import pytest
import torch

from audit_results import DATA, Page, poisoned, result
from conftest import shortlist_game
from remanence import AuditResult, Policy, Verdict
from remanence.bounds import gaussian
from remanence.heads.this_head import ThisHead
from remanence.networks.game import Membership
from remanence.report import words
from remanence.report.figures import errors, roc
from remanence.report.frequencies import thousandths
from remanence.report.gallery import gallery_page
from remanence.report.html import card, classes, index, records, report
from remanence.report.markdown import summary
from remanence.report.remedies import remedies
from remanence.report.writing import FORMATS


@cache
def outputs(verdict: Verdict) -> dict[str, str]:
    return all_outputs(result(verdict))


def all_outputs(found: AuditResult) -> dict[str, str]:
    pages = {name: write(found) for name, write in FORMATS.items()}
    return {**pages, "card": card(found), "index": index({"folder": found})}


@pytest.mark.parametrize("verdict", Verdict)
def test_the_first_screen_holds_the_verdict_its_numbers_and_the_scope(verdict):
    found = result(verdict)
    text = Page(card(found)).text
    best = found.strongest
    for shown in (
        str(verdict),
        found.meaning,
        found.done(best),
        f"The rate is {thousandths(best.main.rate)} in 1000",
        f"between {thousandths(best.main.lower)} and {thousandths(best.main.upper)}",
        f"your limit is {thousandths(found.policy.max_success)}",
        words.scope(found),
    ):
        assert shown in text
    whole = Page(report(found)).text
    assert whole.index(words.scope(found)) < whole.index("Caveats") < whole.index("Evidence")


@pytest.mark.parametrize("verdict", Verdict)
def test_the_page_needs_no_network_and_no_script_and_stays_small(verdict):
    page = outputs(verdict)["html"]
    assert len(page.encode()) < 2_000_000
    for tag, attributes in Page(page).tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "form")
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", page)
    assert "default-src 'none'" in page


def numbers_of(data) -> list[str]:
    values = [*data.features.flatten().tolist()]
    return [text for value in values for text in (repr(value), f"{value:.6g}", f"{value:.5f}")]


@pytest.mark.parametrize("name", [*FORMATS, "card", "index"])
def test_no_output_contains_training_data(name):
    page = outputs(Verdict.EXPOSED)[name]
    assert not [number for number in numbers_of(DATA) if number in page]


def test_the_search_for_training_data_would_find_it():
    found = with_gallery(result(Verdict.EXPOSED))
    page = gallery_page(found)
    assert page is not None
    assert f"{DATA.features[0, 0]:.4g}" in page
    assert "This page shows training records." in page


@pytest.mark.parametrize("verdict", Verdict)
def test_no_output_promises_more_than_a_limit_and_a_threat_model(verdict):
    for name, page in outputs(verdict).items():
        promise = re.search(r"\b(anonym\w*|safe\w*|complian\w*|GDPR)\b", Page(page).text, re.IGNORECASE)
        assert not promise, name


@pytest.mark.parametrize("verdict", Verdict)
def test_a_script_in_every_string_stays_text(verdict):
    for name, page in all_outputs(poisoned(result(verdict))).items():
        if name in ("junit", "sarif"):
            continue  # not read by a browser; checked for well-formedness with the formats
        assert "<script" not in page, name
        assert "<img" not in page, name
        assert "onerror=" not in page or "&lt;img" in page
        if name in ("html", "card", "index"):
            assert "alert(1)" in Page(page).text


def test_right_or_wrong_answers_have_no_curve():
    for figure in (errors, roc):
        assert figure(result(Verdict.PROTECTED)) is None  # four candidates at equal distances
        assert figure(result(Verdict.EXPOSED)) is not None


def test_errors_relative_to_the_public_have_a_curve_and_a_rate_of_their_own():
    found = result(Verdict.EXPOSED)
    generator = np.random.default_rng(0)
    public = generator.lognormal(sigma=2.0, size=(400, 2))  # what makes errors incomparable, and cancels
    arrays = {
        "error": 0.5 * public * generator.uniform(0.5, 1, size=public.shape),
        "control_error": public * generator.uniform(0.5, 1, size=public.shape),
        "public_error": public,
    }
    tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
    evidence = replace(found.strongest, arrays=tensors)

    def by(error):
        model = {**found.threat_model, "criterion": {**found.threat_model["criterion"], "error": error}}
        return replace(found, evidence=(evidence,), threat_model=model)

    relative = by("mean squared error")
    assert ", relative" not in Page(report(by("euclidean distance"))).text  # the public's is a squared error
    assert f"{evidence.attack}, relative" in Page(roc(relative)).text
    # All of 400 trials: at least 0.005^(1/400) = 0.9868 by Chernoff, at a fifth of the 2.5 % that an end may be wrong.
    assert re.search(r"; 1000\s\(98[67][\d.]*\sto\s1000\), relative", Page(report(relative)).text)
    del evidence.arrays["public_error"]
    assert ", relative" not in Page(report(relative)).text


def test_a_page_of_many_trials_stays_small():
    found = result(Verdict.EXPOSED)
    draws = np.random.default_rng(0).lognormal(size=(2, 40_000, 1))
    arrays = {"error": torch.from_numpy(draws[0]), "control_error": torch.from_numpy(draws[1])}
    many = replace(found, evidence=(replace(found.strongest, arrays=arrays),))
    assert len(errors(many)) + len(roc(many)) < 200_000


def test_without_numbers_per_trial_the_report_leaves_the_curves_out():
    found = result(Verdict.EXPOSED)
    bare = AuditResult.from_json(found.to_json(), {})
    page = Page(report(bare)).text
    assert "true positives" not in page
    assert words.found(found) in page


def with_classes(found: AuditResult) -> AuditResult:
    best = found.strongest
    return replace(found, evidence=(replace(best, arrays={**best.arrays, "class": DATA.labels}),))


def test_the_unluckiest_records_and_classes_come_first():
    found = with_classes(result(Verdict.EXPOSED))
    errors_found = found.strongest.arrays["error"].flatten()
    shown = records(found)
    assert [error for _, error, _ in shown] == errors_found.sort().values[:10].tolist()
    assert shown[0][0] == int(errors_found.argmin())
    best = found.strongest
    missed = replace(best, arrays={**best.arrays, "succeeded": DATA.labels[:, None] == 1})
    by_class = classes(replace(found, evidence=(missed,)))
    assert [(label, rate.rate) for label, rate in by_class] == [(1, 1.0), (0, 0.0)]
    by_class = classes(found)
    assert sum(rate.trials for _, rate in by_class) == 40
    assert sum(rate.successes for _, rate in by_class) == found.strongest.main.successes
    assert all(rate.confidence == pytest.approx(0.975) for _, rate in by_class)
    assert "class by class" in Page(report(found)).text
    assert "no class is exposed" not in Page(report(found)).text
    idle = replace(best, control=best.main, arrays=found.strongest.arrays)  # as much without the training
    assert "no class is exposed by these numbers" in Page(report(replace(found, evidence=(idle,)))).text
    assert records(result(Verdict.PROTECTED)) == []


def with_released(found: AuditResult, public: int, classes: int = 3) -> AuditResult:
    """The same result with a released head: class 0 came back, class 1 is like everybody, the others are far away."""
    threshold = found.threat_model["criterion"]["threshold"]
    errors, as_close = [0.1, 0.5, *range(7, classes + 5)], [0, 7, *[3] * (classes - 2)]
    table = [[n, n + 40, threshold * errors[n], as_close[n], public, 1] for n in range(classes)]
    head = ThisHead(torch.tensor(table), torch.tensor(threshold), torch.tensor(0.4))
    return replace(found, evidence=(replace(found.strongest, findings=(head,)),))


@pytest.mark.parametrize(
    ("public", "chance", "verdict"), [(99, "0.01", "yes"), (9, "0.1", "undecided: 59 public pictures needed")]
)
def test_the_very_head_has_a_row_for_each_class(public, chance, verdict):
    found = with_released(result(Verdict.EXPOSED), public)
    error = 0.1 * found.threat_model["criterion"]["threshold"]
    first = f"0 | 40 | {error:.3g} | 0 of {public} | {chance} | {verdict}"
    text = summary(found)
    table = text[text.index("**This very head**") :]
    assert re.search(
        rf"\| {re.escape(first)} \|\n\| 1 \| 41 \|.* 7 of {public} .* no \|\n\| 2 \| 42 \|.* no \|", table
    )
    page = Page(report(found)).text
    assert first.replace(" |", "") in page[page.index("This very head") :]


def test_a_summary_of_many_classes_still_fits_a_pull_request_and_brings_no_script_along():
    text = summary(with_released(result(Verdict.EXPOSED), 99, classes=100))
    assert len(text.splitlines()) <= 60
    assert "And 80 more rows" in text
    for name in ("html", "markdown"):
        page = FORMATS[name](poisoned(with_released(result(Verdict.EXPOSED), 99)))
        assert "This very head" in page
        assert not re.search("<script|<img", page)


def test_the_noise_that_would_change_the_verdict_does():
    found = result(Verdict.PROTECTED)  # against another limit, by a mechanism that says its noise
    model = {**found.threat_model, "mechanism": {"name": "noisy sum", "noise_multiplier": 2**0.5}}
    strict = replace(found, policy=Policy(0.4), verdict=Verdict.UNPROVEN, threat_model=model)
    text = " ".join(remedies(strict))
    noise = float(re.search(r"noise multiplier of ([\d.]+)", text).group(1))
    assert gaussian(1 / 4, noise_multiplier=noise).success <= 0.4
    assert gaussian(1 / 4, noise_multiplier=noise * 0.999).success > 0.4


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (Verdict.PROTECTED, "would make it CONTRADICTED"),
        (Verdict.UNPROVEN, "would make it EXPOSED"),
        (Verdict.EXPOSED, "Only a proof can make it PROTECTED"),
        (Verdict.CONTRADICTED, "Find out what differs"),
    ],
)
def test_every_verdict_says_what_would_change_it(verdict, sentence):
    assert sentence in Page(outputs(verdict)["html"]).text


def with_gallery(found: AuditResult) -> AuditResult:
    rows = DATA.features[:6]
    shown = {"targets": rows, "reconstructions": rows + 0.01, "controls": DATA.features[6:12]}
    best = replace(found.strongest, gallery={**shown, "succeeded": torch.ones(6, dtype=torch.bool)})
    return replace(found, evidence=(best,))


def test_a_leave_one_out_audit_keeps_targets_and_reconstructions_side_by_side():
    shown = result(Verdict.EXPOSED).gallery
    assert shown is not None
    assert torch.equal(shown["targets"], DATA.features[:30])
    assert torch.allclose(shown["reconstructions"], shown["targets"], rtol=0.05)
    assert not torch.allclose(shown["controls"], shown["targets"], rtol=0.05)
    assert shown["succeeded"].all()


def test_pictures_in_a_gallery_are_pictures():
    generator = torch.Generator().manual_seed(0)
    targets, guesses, controls = torch.rand(3, 2, 64, generator=generator)
    shown = {"targets": targets, "reconstructions": guesses, "controls": controls}
    found = result(Verdict.EXPOSED)
    best = replace(found.strongest, gallery={**shown, "succeeded": torch.tensor([True, False])})
    page = gallery_page(replace(found, evidence=(best,)))
    assert page is not None
    assert page.count('src="data:image/png;base64,') == 6
    assert "not recovered" in page
    assert "img-src data:" in page


def test_a_membership_game_is_told_as_one():
    found = result(Verdict.PROTECTED)
    said = asdict(Membership(shortlist_game()).words)
    game = replace(found, threat_model={**found.threat_model, "said": said})
    rate = found.strongest.main
    told = f"told the target from another record in {rate.successes} of {rate.trials} trials."
    assert told in Page(report(game)).text


def test_a_notebook_shows_the_card():
    assert result(Verdict.EXPOSED)._repr_html_() == card(result(Verdict.EXPOSED))
