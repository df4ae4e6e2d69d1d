"""The options that commands share, as their user meets them."""

import json

import pytest

SHORTLIST = [
    "audit", "diabetes-shortlist", "--attack", "retrain-and-compare", "--trials", "30", "--unit-trials", "4",
    "--max-success", "0.4",
]  # fmt: skip


def test_processes_give_the_same_audit_and_say_so(run, tmp_path):
    for name, options in {"here": [], "there": ["--executor", "processes", "--workers", "2"]}.items():
        assert run(*SHORTLIST, "--out", name, *options)[0] == 1
    here, there = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("here", "there"))
    environments = here.pop("environment"), there.pop("environment")
    assert here == there
    assert [e["executor"] for e in environments] == ["InProcess, workers: 1", "Processes, workers: 2"]
    assert [e["unit_trials"] for e in environments] == ["4", "4"]


def test_thousands_of_workers_are_refused_before_one_is_started(run, tmp_path):
    code, _, told = run(*SHORTLIST, "--out", "many", "--executor", "processes", "--workers", "100000")
    assert code == 2
    assert "per core" in told
    assert not (tmp_path / "many").exists()


def test_status_is_readable_for_machines(run):
    run(*SHORTLIST, "--out", "run")
    code, out, _ = run("status", "run", "--json")
    found = json.loads(out)
    assert code == 0
    assert [work["units"] for work in found["works"]] == [8]
    assert (found["done"], found["left"], found["at_work"]) == (8, 0, False)
    assert found["finished"]
    assert found["settings"]["options"]["target"] == "diabetes-shortlist"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SHORTLIST, "--workers", "3"], "One process is one worker."),
        ([*SHORTLIST, "--address", "10.0.0.1:6379"], "Only Ray has a cluster."),
        ([*SHORTLIST, "--executor", "ray"], "ray is not installed."),
        ([*SHORTLIST, "--resume", "s3://bucket/run"], "A run folder is not a URL."),
        (["status", "nowhere"], "There is no run in this folder."),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(run, tmp_path, arguments, message):
    code, out, told = run(*arguments)
    assert (code, out) == (2, "")
    assert told.startswith(f"InputError: {message}\n  needs: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "options", [{"attack": ["evil.py:Evil"]}, {"attack": ["retrain-and-compare", "evil.py:Evil"]}]
)
def test_a_folder_from_somebody_else_runs_no_code_that_it_names(run, tmp_path, options):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run(*SHORTLIST, "--out", "run")
    stored = json.loads((tmp_path / "run/run.json").read_text())
    stored["settings"]["options"] |= options
    (tmp_path / "run/run.json").write_text(json.dumps(stored, indent=2))
    code, _, told = run("audit", "--resume", "run")
    assert code == 2
    assert "attack: then" in told
    assert not (tmp_path / "ran").exists()


def test_an_audit_file_may_name_the_executor(run, tmp_path):
    settings = {
        "target": "diabetes-shortlist",
        "trials": 8,
        "unit_trials": 4,
        "max_success": 0.4,
        "out": "found",
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    (tmp_path / "audit.toml").write_text("\n".join([*lines, 'attack = ["retrain-and-compare"]']))
    run("audit", "audit.toml")
    assert len(list((tmp_path / "found" / "units").iterdir())) == 2
    assert (tmp_path / "found" / "audit.json").exists()
