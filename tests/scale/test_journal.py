"""The run folder: written once, checked when read, never mixed."""

import errno
import json
import os
import shutil
import stat
from dataclasses import replace

import pytest
import torch

from conftest import noisy_sum, shortlist_game
from remanence import Oblivious, Policy, RetrainAndCompare, audit, looped, play
from remanence.core.exceptions import InputError
from remanence.scale import files
from remanence.scale.journal import Journal, Plan, read_status
from remanence.scale.reading import UnusableFileError
from remanence.scale.run import Run

TENSORS = {"error": torch.arange(5.0), "succeeded": torch.tensor([True, False])}


def rate(journal, *, seed=0, trials=40, attack=None, resume=False):
    game, attack = shortlist_game(candidates=4), attack or RetrainAndCompare()
    with Run(journal=journal, unit_trials=5, resume=resume) as run:
        return play(game, attack, trials=trials, seed=seed, run=run).main, run


def units(folder):
    return sorted((folder / "units").iterdir())


def test_what_is_written_is_read(tmp_path):
    journal, key = Journal(tmp_path), "a" * 64
    journal.write(key, TENSORS)
    assert all(torch.equal(values, TENSORS[name]) for name, values in journal.read(key).items())
    assert journal.read("b") is None
    assert journal.finished() == {key}
    assert stat.S_IMODE(units(tmp_path)[0].stat().st_mode) == 0o600, "for its owner alone"


def test_a_file_that_was_changed_cut_short_or_renamed_is_found(tmp_path):
    journal = Journal(tmp_path)
    journal.write("a", TENSORS)
    (tmp_path / "units" / "b.safetensors").write_bytes(units(tmp_path)[0].read_bytes())
    with pytest.raises(match="checksum"):
        journal.read("b")
    whole = units(tmp_path)[0].read_bytes()
    flipped = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in (3, 8, 100, -40)]
    for damaged in (*flipped, *(whole[:length] for length in (0, 7, 20, len(whole) - 1))):
        units(tmp_path)[0].write_bytes(damaged)
        with pytest.raises(UnusableFileError):
            journal.read("a")


def test_a_damaged_unit_is_named_and_run_again(tmp_path, capsys):
    whole, _ = rate(Journal(tmp_path))
    victim = units(tmp_path)[3]
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    again, run = rate(Journal(tmp_path), resume=True)
    assert (run.reused, run.played) == (7, 1)
    assert again == whole
    assert victim.stem in capsys.readouterr().err


def test_a_finished_run_is_played_again_unless_it_is_resumed(tmp_path):
    rate(Journal(tmp_path))
    _, resumed = rate(Journal(tmp_path), resume=True)
    _, again = rate(Journal(tmp_path))
    assert (resumed.reused, resumed.played) == (8, 0)
    assert (again.reused, again.played) == (0, 8)


def test_units_of_other_settings_are_never_used_and_do_not_outlive_the_run(tmp_path):
    folder, other = tmp_path / "one", tmp_path / "other"
    rate(Journal(folder), seed=1)
    rate(Journal(other), attack=Oblivious())
    shutil.copytree(other / "units", folder / "units", dirs_exist_ok=True)
    assert len(units(folder)) == 16
    found, run = rate(Journal(folder), resume=True)
    assert (run.reused, run.played) == (0, 8)
    assert found == rate(None)[0]
    assert not {path.name for path in units(other)} & {path.name for path in units(folder)}


def test_more_trials_use_the_whole_units_of_fewer(tmp_path):
    rate(Journal(tmp_path), trials=12)
    _, run = rate(Journal(tmp_path), trials=20, resume=True)
    assert (run.reused, run.played) == (2, 2)


def test_more_units_than_a_folder_can_have_are_refused_before_any_is_played(tmp_path):
    with pytest.raises(InputError, match="too many units"):
        rate(Journal(tmp_path / "run"), trials=10**8)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_an_error_that_keeps_what_is_finished(tmp_path, monkeypatch):
    whole, _ = rate(None)
    flushed = []

    def full(handle):
        flushed.append(handle)
        if len(flushed) > 12:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(InputError, match="No space left on device") as caught:
        rate(Journal(tmp_path))
    assert f"--resume {tmp_path}" in caught.value.hint
    monkeypatch.undo()
    kept = len(units(tmp_path))
    assert 0 < kept < 8
    again, run = rate(Journal(tmp_path))
    assert (run.reused, again) == (kept, whole)
    assert not list(tmp_path.rglob(".*")), "no temporary file is left"


def test_reconstructions_reach_the_disk_on_request_alone(tmp_path):
    game = shortlist_game(candidates=4)
    for galleries in (False, True):
        folder = tmp_path / str(galleries)
        with Run(journal=Journal(folder), galleries=galleries) as run:
            result = audit(game, [RetrainAndCompare()], trials=20, policy=Policy(0.9), run=run)
        stored = b"".join(path.read_bytes() for path in units(folder))
        assert (b"gallery" in stored) is galleries
        assert (result.gallery is not None) is galleries


def test_the_manifest_says_what_there_is_to_do_before_it_is_done(tmp_path, monkeypatch):
    seen, write = [], Journal.write
    monkeypatch.setattr(Journal, "write", lambda *a: (seen.append(read_status(tmp_path)), write(*a)))
    with Run(journal=Journal(tmp_path), unit_trials=5) as run:
        attacks = [RetrainAndCompare(), Oblivious()]
        audit(shortlist_game(candidates=4), attacks, trials=40, policy=Policy(0.9), run=run)
    works = {work.name: work.units for work in seen[0].works}
    assert works == {"playing retrain-and-compare": 8, "playing oblivious": 8}
    assert (seen[0].done, seen[0].left, seen[0].at_work) == (0, 16, True)
    assert (seen[9].done, seen[9].left) == (9, 7)
    after = read_status(tmp_path)
    assert (after.done, after.left, after.at_work) == (16, 0, False)
    assert after.finished is not None


def test_a_run_whose_process_is_gone_is_not_at_work(tmp_path):
    journal = Journal(tmp_path)
    journal.begin({})
    journal.announce([Plan("playing", "x", total=30, at_once=3)])
    journal.write(Plan("playing", "x", 30, 3).key(0), TENSORS)
    assert read_status(tmp_path).at_work
    journal._lock.release()  # as the operating system does after a kill: the file stays
    found = read_status(tmp_path)
    assert (found.done, found.left, found.at_work) == (1, 9, False)


FOREIGN = {
    "units": "units/mine.safetensors",
    "units of the same form": f"units/{'a' * 64}.safetensors",
    "learning": "learning/notes",
    "a file of another kind": "notes.txt",
    "somebody else's run.json": "run.json",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_folder_that_holds_somebody_elses_files_is_refused_and_left_alone(tmp_path, kind):
    file = tmp_path / FOREIGN[kind]
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="does not belong to a run"):
        rate(Journal(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    assert file.read_text() == "mine"


def test_links_inside_are_not_followed(tmp_path):
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    rate(Journal(folder))
    shutil.copytree(folder / "units", elsewhere)
    shutil.rmtree(folder / "units")
    (folder / "units").symlink_to(elsewhere)
    with pytest.raises(InputError, match="is a link to another place"):
        rate(Journal(folder))
    assert len(list(elsewhere.iterdir())) == 8


def test_a_folder_within_learning_is_no_error_and_stays(tmp_path):
    rate(Journal(tmp_path))
    (tmp_path / "learning/mine").mkdir(parents=True)
    rate(Journal(tmp_path))
    assert (tmp_path / "learning/mine").is_dir()


def test_a_recorded_unit_that_comes_out_differently_is_no_ground_to_build_on(tmp_path):
    (tmp_path / "offset.txt").write_text("0")

    def train(records, seed):  # reads a file that nobody declared
        found = noisy_sum(records, seed)
        return {"sum": found["sum"] + seed % 3 * float((tmp_path / "offset.txt").read_text())}

    def played():
        game = replace(shortlist_game(candidates=4), mechanism=looped(train))
        with Run(journal=Journal(tmp_path / "run"), unit_trials=5, resume=True) as run:
            play(game, RetrainAndCompare(), trials=40, run=run)
        return run.reused, run.played

    assert played() == (0, 8)
    for lost in units(tmp_path / "run")[::2]:
        lost.unlink()
    assert played() == (4, 4)
    assert played() == (8, 0)
    (tmp_path / "offset.txt").write_text("100")
    with pytest.raises(InputError, match="gives another result now"):
        played()


@pytest.mark.parametrize("length", [0, 60])
def test_a_run_file_that_was_cut_off_does_not_stop_a_new_run(tmp_path, length):
    whole, _ = rate(Journal(tmp_path))
    content = (tmp_path / "run.json").read_bytes()
    (tmp_path / "run.json").write_bytes(content[:length])
    with pytest.raises(InputError, match="no run in this folder"):
        read_status(tmp_path)
    found, run = rate(Journal(tmp_path))
    assert (found, run.reused) == (whole, 8), "units say themselves what they are"


def test_a_run_of_a_later_version_is_not_touched(tmp_path):
    rate(Journal(tmp_path))
    later = json.loads((tmp_path / "run.json").read_text()) | {"remanence_run": 99}
    (tmp_path / "run.json").write_text(json.dumps(later, indent=2))
    before = (tmp_path / "run.json").read_bytes()
    for look in (lambda: rate(Journal(tmp_path)), lambda: read_status(tmp_path)):
        with pytest.raises(InputError, match="update remanence"):
            look()
    assert (tmp_path / "run.json").read_bytes() == before
    assert len(units(tmp_path)) == 8


def test_a_run_file_that_is_missing_or_of_another_shape_is_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"run\.json: not there"):
        read_status(tmp_path)
    rate(Journal(tmp_path))
    document = json.loads((tmp_path / "run.json").read_text())
    work = {"name": "x", "inputs": "y", "total": 10, "at_once": 1}
    wrong = [{"total": 10**18}, {"total": 10**12}, {"at_once": 0}, {"parts": {}}]  # parts: before the doors
    changes = [{"works": [{**work, **each}]} for each in wrong]
    changes += [{"works": [{"name": "x"}]}, {"works": None}, {"settings": [1]}, {"finished": 3}]
    changes += [{"settings": {"options": {"command": "audit; rm -rf ."}}}]
    for content in ("{", "[1", "{}", "[]", *(json.dumps({**document, **change}) for change in changes)):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(InputError, match="no run in this folder"):
            read_status(tmp_path)
