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
    "options", [{"attack": ["evil.py:Evil"]}, {"attack": ["retrain-and-compare", "evil.py:Evil"]}]
)
def test_a_folder_from_somebody_else_runs_no_code_that_it_names(run, tmp_path, options):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run(*SHORTLIST, "--out", "run")
    stored = json.loads((tmp_path / "run/run.json").read_text())
    stored["settings"]["options"] |= options
    (tmp_path / "run/run.json").write_text(json.dumps(stored, indent=2))
    code, _, told = run(*SHORTLIST, "--resume", "run")
    assert code == 2
    assert "attack: then" in told
    assert not (tmp_path / "ran").exists()
