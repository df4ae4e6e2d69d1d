"""`remanence init` writes what `remanence audit` runs."""

import sys

import pytest

from remanence.cli.init import Kind
from remanence.cli.main import main


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["remanence", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("kind", [Kind.TABLE, Kind.FUNCTION])
def test_the_stub_runs_as_it_is(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "init", kind, "--max-success", "0.2") == 0
    assert "max_success = 0.2" in (tmp_path / "audit.toml").read_text()
    assert call(monkeypatch, "audit", "audit.toml") == 1
    assert list(tmp_path.rglob("report.html"))


def test_the_stub_of_a_head_is_a_game(tmp_path, monkeypatch):
    from remanence.cli.loading import load_game

    assert call(monkeypatch, "init", "head", "--folder", str(tmp_path)) == 0
    assert load_game(f"{tmp_path / 'target.py'}:factory").default_trials > 0


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    (tmp_path / "target.py").write_text("mine")
    assert call(monkeypatch, "init", "table", "--folder", str(tmp_path)) == 2
    assert "--folder NEW" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target.py"]
    assert (tmp_path / "target.py").read_text() == "mine"


def test_whoever_names_nothing_is_asked(tmp_path, monkeypatch, capsys):
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("3\n"))
    assert call(monkeypatch, "init", "--folder", str(tmp_path)) == 0
    assert "What are you about to release?" in capsys.readouterr().out
    assert 'target = "run"' in (tmp_path / "audit.toml").read_text()
    assert not (tmp_path / "target.py").exists()
