"""The server behind the page: its own address only, sentences for every mistake, and no script runs."""

import sys

import pytest
from starlette.testclient import TestClient

from remanence.report.explore import server
from remanence.report.explore.server import application

QUESTION = {
    "noise_multiplier": "1.1",
    "delta": "1e-5",
    "sample_rate": "1",
    "steps": "10",
    "candidates": "100",
}


@pytest.fixture(scope="module")
def page():
    with TestClient(application(), base_url="http://127.0.0.1:8000") as client:  # one loop, and its processes
        yield client


def test_the_page_and_its_parts_come_with_a_strict_policy(page):
    for path in ("/", "/page.js", "/page.css"):
        answer = page.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    assert page.get("/").text.count("<script") == 1


@pytest.mark.parametrize("name", ["estimate", "bound", "budget", "noise-curve", "rate-curve"])
def test_every_question_is_answered(page, name):
    assert page.get(f"/api/{name}", params=QUESTION).status_code == 200


def test_a_goal_is_solved_and_an_impossible_one_explained(page):
    found = page.get("/api/solve", params={**QUESTION, "max_success": "0.05"})
    assert found.json()["noise_multiplier"] > 1
    refused = page.get("/api/solve", params={**QUESTION, "max_success": "0.005"})
    assert refused.status_code == 400
    assert "a guess without the release already succeeds that often" in refused.json()["needs"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1:8000.evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8000"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/bound"])
def test_another_host_or_origin_is_refused(page, headers, path):
    refused = page.get(path, headers=headers, params=QUESTION)
    assert refused.status_code == (400 if "host" in headers else 403)
    assert refused.text.startswith(("Invalid host", '{"error":"This page answers its own address'))
    assert refused.headers["cross-origin-resource-policy"] == "same-origin"


def test_another_site_s_picture_is_no_question(page):
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        asked = page.get("/api/estimate", params=QUESTION, headers={"sec-fetch-site": site})
        assert asked.status_code == status
    assert page.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the page


def test_its_own_origin_is_welcome(page):
    for name in ("127.0.0.1", "localhost"):
        headers = {"host": f"{name}:8000", "origin": f"http://{name}:8000"}
        assert page.get("/api/estimate", params=QUESTION, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/bound?noise_multiplier=-1&sample_rate=1&steps=1&candidates=2&delta=1e-5", 400),
        ("GET", "/api/bound?noise_multiplier=1&sample_rate=1&steps=1000000000&candidates=2&delta=1e-5", 400),
        ("GET", "/api/bound?noise_multiplier=NaN&sample_rate=1&steps=1&candidates=2&delta=1e-5", 400),
        ("GET", "/api/bound", 400),
        ("GET", "/../../etc/passwd", 404),
        ("DELETE", "/api/bound", 405),
    ],
)
def test_a_wrong_question_is_answered_with_a_sentence(page, method, path, status):
    refused = page.request(method, path)
    assert refused.status_code == status
    assert refused.json()["error"].endswith(".")
    assert "Traceback" not in refused.text


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, run):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = run("explore", "--no-browser")
    assert code == 2
    assert "pip install '.[explore]' in a clone of the repository" in err


@pytest.fixture
def explored(monkeypatch, run):
    monkeypatch.setattr(server, "serve", lambda *, port, ready: ready("http://127.0.0.1:8000/"))
    return lambda options: run("explore", "--no-browser", *options.split())


def test_the_page_starts_from_the_options_of_bound(explored, page):
    sizes = "--dataset-size 60000 --batch-size 600 --epochs 10"
    code, out, _ = explored(f"--epsilon 3 --delta 1e-6 {sizes} --candidates 1000 --records-per-person 2")
    assert code == 0
    given = dict(part.split("=") for part in out.split()[1].split("#")[1].split("&"))
    assert given == {"epsilon": "3.0", "delta": "1e-06", "sample_rate": "0.01", "steps": "1000",
                     "candidates": "1000", "records_per_person": "2"}  # fmt: skip
    assert page.get("/api/bound", params=given).status_code == 200
    assert all(name in page.get("/page.js").text for name in given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--noise-multiplier 1 --epsilon 3", "Exactly one of --noise-multiplier and --epsilon"),
        ("--noise-multiplier 0.01", "a number from 0.1 to 1000"),
        ("--candidates 1", "a whole number from 2"),
    ],
)
def test_a_start_that_the_page_cannot_show_is_refused(explored, options, message):
    code, out, told = explored(options)
    assert (code, out) == (2, "")
    assert message in told


def test_our_own_mistake_is_a_sentence_too(monkeypatch):
    monkeypatch.setitem(server._AT_ONCE, "estimate", None)
    broken = TestClient(application(), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    answer = broken.get("/api/estimate", params=QUESTION)
    assert answer.status_code == 500
    assert "Please report it" in answer.json()["error"]
