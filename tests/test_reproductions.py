"""`remanence reproduce`: the framework, on a reproduction that takes no time; and what each figure promises."""

import json
import sys

import pytest

from remanence import SuccessRate
from remanence.cli import main
from remanence.references import HAYES_2023
from remanence.reproductions import registry, views
from remanence.reproductions.reproduction import (
    Outcome,
    Panel,
    Reproduction,
    Settings,
    as_text,
    curve,
    interval,
)


def tiny(settings: Settings) -> Outcome:
    rows = [
        {"epsilon": float(k), "attack": interval(SuccessRate(k, settings.trials or 10)), "paper": None}
        for k in (1, 2)
    ]
    pictures = Panel("faces", pictures=[[[[0.0, 1.0], [1.0, 0.0]]]], picture_rows=["one"])
    curves = Panel("rates", "ε", "success", [curve("attack", rows, "epsilon", "attack")])
    return Outcome("a stand-in", rows, [curves, pictures], {"steps": 3}, ["nothing was trained"])


@pytest.fixture
def tiny_entry(monkeypatch):
    entry = Reproduction("tiny", "Nothing", HAYES_2023.at("Figure 0"), f"{__name__}:tiny", 0)
    monkeypatch.setitem(registry.REPRODUCTIONS, "tiny", entry)
    return entry


def reproduce(monkeypatch, capsys, *arguments) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["remanence", "reproduce", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    printed = capsys.readouterr()
    return int(stopped.value.code or 0), printed.out, printed.err


def test_without_a_name_every_reproduction_is_listed(monkeypatch, capsys):
    code, out, _ = reproduce(monkeypatch, capsys)
    assert code == 0
    assert all(name in out for name in registry.REPRODUCTIONS)


def test_a_run_writes_what_it_prints(tiny_entry, tmp_path, monkeypatch, capsys):
    code, out, _ = reproduce(monkeypatch, capsys, "tiny", "--out", tmp_path, "--trials", 20, "--seed", 7)
    assert code == 0
    document = json.loads((tmp_path / "tiny.json").read_text())
    assert document["rows"][1]["attack"]["rate"] == 0.1
    assert document["seed"] == 7
    page = (tmp_path / "tiny.md").read_text()
    for text in (as_text(document["rows"][0]["attack"]), "a stand-in", "nothing was trained"):
        assert text in out
        assert text in page
    assert "tiny.svg" in page
    assert (tmp_path / "tiny.svg").read_text().count("faces") == 1


def test_a_stored_result_draws_the_same_picture_again(tiny_entry, tmp_path, monkeypatch, capsys):
    reproduce(monkeypatch, capsys, "tiny", "--out", tmp_path / "first")
    reproduce(monkeypatch, capsys, tmp_path / "first/tiny.json", "--out", tmp_path / "second")
    for file in ("tiny.svg", "tiny.md", "tiny.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_without_matplotlib_there_is_no_picture_and_a_sentence(tiny_entry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(views, "find_spec", lambda name: None)
    code, _, err = reproduce(monkeypatch, capsys, "tiny", "--out", tmp_path)
    assert code == 0
    assert "matplotlib" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.json", "tiny.md"]
    assert "tiny.svg" not in (tmp_path / "tiny.md").read_text()


WRONG = [
    (("no-such-figure",), "no reproduction named"),
    (("tiny", "--scale", "paper"), "needs the paper's data"),
    (("hayes-figure-3", "--scale", "paper", "--data", "nowhere"), "mnist.npz"),
    (("missing.json",), "cannot be read"),
    (("tiny", "--out", "/proc/nothing"), "cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_run_is_refused_in_a_sentence_and_writes_nothing(
    arguments, message, tiny_entry, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    code, _, err = reproduce(monkeypatch, capsys, *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "other"}'])
def test_a_damaged_document_is_refused(text, tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.json").write_text(text)
    code, _, err = reproduce(monkeypatch, capsys, tmp_path / "tiny.json", "--out", tmp_path)
    assert code == 2
    assert "cannot be read" in err


@pytest.mark.parametrize("name", registry.REPRODUCTIONS)
def test_the_registry_tells_where_each_lives(name):
    module, _, function = registry.find(name).home.partition(":")
    __import__(module)
    assert callable(getattr(sys.modules[module], function))
