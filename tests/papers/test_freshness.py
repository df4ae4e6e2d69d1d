"""Pages carry the signature of the code and the data that printed them, and stale ones are named."""

import ast
import json

import pytest

from remanence_papers import freshness, scripts, signatures, views
from remanence_papers.registry import REPRODUCTIONS

ENTRY = REPRODUCTIONS["maciazek-table-1"]


def page(folder, **changes):
    signature = {"code": signatures.code_signature(ENTRY.home), "data": {}}
    document = {"name": ENTRY.name, "scale": "paper", "signature": signature, **changes}
    folder.mkdir(exist_ok=True)
    given = {name: value for name, value in document.items() if value is not None}
    (folder / f"{ENTRY.name}.json").write_text(json.dumps(given))
    return freshness.stale(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"signature": {"code": "0" * 64, "data": {}}}, "has changed"),
        ({"signature": None}, "before pages were signed"),
        ({"name": "no-such-figure"}, "no reproduction"),
    ],
)
def test_a_page_is_fresh_if_the_code_of_today_printed_it(changes, reason, tmp_path, capsys):
    found = page(tmp_path / "pages", **changes)
    assert (not found) if reason is None else reason in next(iter(found.values()))
    (tmp_path / "pages" / "small" / ".seeds").mkdir(parents=True)
    (tmp_path / "pages" / "small" / ".seeds" / "one-seed.json").write_text("{}")
    freshness.main([str(tmp_path / "pages")])
    assert f"Of 1 pages and three scripts, {len(found)} are stale" in capsys.readouterr().out


def test_a_page_that_read_other_data_is_stale(tmp_path):
    pages, data = tmp_path / "pages", tmp_path / "data"
    data.mkdir()
    (data / "mnist.npz").write_bytes(b"today's")
    today = signatures.data_signature(data / "mnist.npz")
    code = signatures.code_signature(ENTRY.home)
    assert not page(pages, signature={"code": code, "data": {"mnist.npz": today}})
    assert not freshness.stale(pages, data)
    page(pages, signature={"code": code, "data": {"mnist.npz": "0" * 64}})
    assert not freshness.stale(pages), "nobody says which are right"
    assert next(iter(freshness.stale(pages, data).values())) == "it read another mnist.npz"
    for number in (1, 2):  # most pages read today's, and one did not
        page(pages / str(number), signature={"code": code, "data": {"mnist.npz": today}})
    assert list(freshness.stale(pages)) == [str(pages / f"{ENTRY.name}.json")]


def test_a_page_of_a_script_is_stale_once_the_script_or_what_it_imports_says_something_else(tmp_path):
    folder = tmp_path / "docs/reproductions"
    folder.mkdir(parents=True)
    script = tmp_path / scripts.SCRIPTS["balle-glm"].path
    script.parent.mkdir()
    script.write_text("from remanence import Records\nprint(Records)\n")
    (folder / "balle-glm.md").write_text("| a |\n")
    assert "before pages were signed" in scripts.stale_scripts(folder)[str(folder / "balle-glm.md")]
    (folder / scripts.SIGNATURES).write_text(json.dumps({"balle-glm": signatures.script_signature(script)}))
    assert not scripts.stale_scripts(folder)
    script.write_text("# A comment.\nfrom remanence import Records\nprint(Records)\n")
    assert not scripts.stale_scripts(folder)
    script.write_text("from remanence import Criterion\nprint(Criterion)\n")
    assert "has changed" in next(iter(scripts.stale_scripts(folder).values()))


def test_a_signature_covers_what_is_imported_through_others_and_not_what_is_not():
    module, _, name = ENTRY.home.partition(":")
    needed = signatures.closure([(module, name)])
    trained = ("remanence.heads.span", "train_dual"), ("remanence.heads.linear_reader", "_ridge")
    assert {(module, name), *trained} <= needed
    assert (module, "cifar") not in needed  # beside it, and not called by it
    assert not {place for place in needed if "pan_" in place[0] or "remanence.cli" in place[0]}


def test_a_name_that_a_package_hands_on_is_followed_to_where_it_is_defined(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "from remanence import bounds, Records\n\ndef f():\n    return bounds.gaussian, Records\n"
    (tmp_path / "remanence_papers_handed_on.py").write_text(text)
    modules = {place[0] for place in signatures.closure([("remanence_papers_handed_on", "f")])}
    assert "remanence.core.records" in modules
    assert "remanence.bounds.settings" in modules


def test_comments_docstrings_and_sentences_do_not_count_and_code_does():
    def said(text):
        return signatures._canonical(ast.parse(text))

    first = said('"""A page."""\n\ndef f(x):\n    """Doubles."""\n    return 2 * x\n')
    assert said('"""Another."""\ndef f( x ):\n    """Twice."""\n    # more\n    return 2*x\n') == first
    assert said("def f(x: int) -> int:\n    return 2 * x\n") == first
    assert said("def f(x):\n    return 3 * x\n") != first
    page = "f({note!r}, loss={loss!r})"
    asked = said(page.format(note="What is the paper's?", loss="cosine"))
    assert said(page.format(note="This is the paper's value.", loss="cosine")) == asked
    assert said(page.format(note="What is the paper's?", loss="euclidean")) != asked


def test_a_page_shows_its_signature(tmp_path):
    document = {
        "name": ENTRY.name,
        "title": "T",
        "reference": "R",
        "dataset": "D",
        "scale": "small",
        "seed": 0,
    }
    document |= {"trials": None, "rows": [{"a": 1}], "panels": [], "notes": [], "settings": {}}
    document |= {"environment": {"torch": "2", "device": "cpu", "seconds": 1.0}}
    document |= {"signature": {"code": "abcdef123456789", "data": {"mnist.npz": "0123456789abcdef"}}}
    path = tmp_path / f"{ENTRY.name}.json"
    path.write_text(json.dumps(document))
    shown = views.markdown(views.load(path), picture=None)
    assert ", code abcdef123456, mnist.npz 0123456789ab)" in shown
