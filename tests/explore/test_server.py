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


def test_every_question_is_answered_and_every_number_may_be_in_the_address_of_the_page(page):
    for name in ("estimate", "bound", "budget", "noise-curve", "rate-curve"):
        assert page.get(f"/api/{name}", params=QUESTION).status_code == 200
    assert all(name in page.get("/page.js").text for name in (*QUESTION, "epsilon", "records_per_person"))


def test_a_goal_is_solved_and_an_impossible_one_explained(page):
    found = page.get("/api/solve", params={**QUESTION, "max_success": "0.05"})
    assert found.json()["noise_multiplier"] > 1
    refused = page.get("/api/solve", params={**QUESTION, "max_success": "0.005"})
    assert refused.status_code == 400
    assert "a guess without the release already succeeds that often" in refused.json()["needs"]


STRANGERS = [
    ("host", "evil.example"),
    ("host", "127.0.0.1:8000.evil.example"),
    ("origin", "http://evil.example"),
]


@pytest.mark.parametrize(
    ("header", "stranger"), [*STRANGERS, ("origin", "null"), ("origin", "https://127.0.0.1:8000")]
)
@pytest.mark.parametrize("path", ["/", "/api/bound"])
def test_another_host_or_origin_is_refused(page, header, stranger, path):
    refused = page.get(path, headers={header: stranger}, params=QUESTION)
    assert refused.status_code == (400 if header == "host" else 403)
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


def test_our_own_mistake_is_a_sentence_too(monkeypatch):
    monkeypatch.setitem(server._AT_ONCE, "estimate", None)
    broken = TestClient(application(), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
    answer = broken.get("/api/estimate", params=QUESTION)
    assert answer.status_code == 500
    assert "Please report it" in answer.json()["error"]
