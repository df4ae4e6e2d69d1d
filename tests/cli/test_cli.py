import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from remanence.cli.main import _MOVED, app
from remanence.core.doors import doors
from remanence.core.exceptions import InputError
from remanence.results.storage import DOCUMENT
from remanence.targets import TARGETS

BOUND = ["bound", "--noise-multiplier", "1", "--steps", "9", "--candidates", "9"]
HEADER = "import torch\nimport numpy as np\nfrom remanence import GLM, LeaveOneOut, Records\n"
HEADER += "from sklearn.linear_model import *\n"
HEADER += "from remanence.tables.sklearn import leave_one_out\n"
HEADER += "x = np.random.default_rng(0).normal(size=(30, 3))\ny = (x[:, 0] > 0).astype(int)\n"


def test_a_person_reads_the_verdict_the_scope_and_the_caveats(run):
    code, out, _ = run("audit", "wine-pipeline", "--max-success", "0.2")
    text = " ".join(out.split())
    assert code == 1
    assert text.startswith("EXPOSED wine-pipeline")
    decided = "your limit is 200", "by published-statistics"
    for words in (*decided, "177 other training records", "Caveats in the report"):
        assert words in text
    assert "optimality condition" not in text  # that is about closed-form, which decides nothing


def test_a_stored_result_is_shown_again_with_the_same_exit_code(run):
    first = run("audit", "diabetes-ridge")
    again = run("show", "remanence-runs/diabetes-ridge")
    assert first[0] == again[0] == 1
    assert first[1].splitlines()[:-3] == again[1].splitlines()[:-1]  # the first also names its report
    code, out, _ = run("show", "remanence-runs/diabetes-ridge", "--json")
    assert code == 1
    assert out == Path("remanence-runs/diabetes-ridge/audit.json").read_text()


SHOW = ["show", "remanence-runs/diabetes-ridge"]


@pytest.mark.parametrize(("arguments", "code"), [(BOUND, 0), (SHOW, 1), ([*SHOW, "--json"], 1)])
def test_a_reader_who_leaves_does_not_change_the_exit_code(run, arguments, code):
    run("audit", "diabetes-ridge")
    reading, writing = os.pipe()
    os.close(reading)  # as `| head -1` does, at the worst moment
    with os.fdopen(writing, "w") as nobody:
        command = [sys.executable, "-m", "remanence", *arguments]
        ended = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False)  # noqa: S603
    assert (ended.returncode, ended.stderr) == (code, "")


def test_the_demo_gives_a_verdict_for_each_and_says_where(run, tmp_path, monkeypatch):
    few = {name: TARGETS[name] for name in ("diabetes-ridge", "digits-noisy-sum")}
    monkeypatch.setattr("remanence.targets.TARGETS", few)
    code, out, _ = run("demo", "--out", "demo-runs")
    assert code == 0
    for target in few:
        assert target in out
        assert (tmp_path / "demo-runs" / target / DOCUMENT).exists()
        assert f'href="{target}/report.html"' in (tmp_path / "demo-runs/index.html").read_text()
        assert (tmp_path / "demo-runs" / target / "report.html").exists()
    assert out.rstrip().endswith(f"Reports: {tmp_path / 'demo-runs/index.html'}")


def test_a_factory_file_is_audited_and_may_print_import_its_neighbours_and_define_dataclasses(run, tmp_path):
    (tmp_path / "neighbour.py").write_text("ALPHA = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom neighbour import ALPHA\n"
        + HEADER
        + "@dataclass(frozen=True)\nclass Settings:\n    alpha: float = ALPHA\n"
        + "def game():\n    print('hello')\n    return leave_one_out(Ridge(Settings().alpha).fit(x, y), x, y)\n"
    )
    code, out, err = run("audit", "mine.py:game", "--json")
    assert code == 1
    document = json.loads(out)
    assert document["target"] == "mine.py:game"
    assert document["threat_model"]["mechanism"]["penalty"] == 2.0
    assert "hello" in err
    assert (tmp_path / "remanence-runs/mine-game" / DOCUMENT).exists()


def test_a_mistake_of_our_own_does_not_look_like_a_verdict(run, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("oops")

    monkeypatch.setattr("remanence.auditing.audit", broken)
    code, out, err = run("audit", "diabetes-ridge")
    assert code == 70
    assert out == ""
    assert "oops" in err


FACTORIES = {
    "raises": "def game():\n    return 1 / 0\n",
    "one_class": "def game():\n    d = Records(torch.tensor(x), torch.zeros(30))\n    return LeaveOneOut(GLM(), d)\n",
    "negative": "def game():\n    return leave_one_out(PoissonRegressor().fit(x, y), x, -y)\n",
    "nothing": "def game():\n    return None\n",
    "broken": "def game(:\n",
    "two": "import sys\nsys.exit(9)\ndef one(): ...\ndef two(): ...\ndef _hidden(): ...\n",
    "leaves": "import sys\ndef game():\n    sys.exit(0)\n",
}
SHORTLIST = ["audit", "diabetes-shortlist", "--max-success", "0.4"]
WRONG = [
    (["audit", "missing.py:game"], "missing.py"),
    (["audit", "raises.py:game"], "ZeroDivisionError: division by zero (raises.py, line"),
    (["audit", "one_class.py:game"], "a single class trains no classifier"),
    (["audit", "negative.py:game"], "labels of at least 0"),
    (["audit", "diabetes-ridge", "--max-success", "1.5"], "strictly between 0 and 1"),
    (["audit", "diabetes-ridge", "--out", "/proc/remanence"], "not a writable folder"),
    (["audit", "diabetes-ridge", "--out", "raises.py"], "not a writable folder"),
    (["audit", "diabetes-ridge", "--resume", "one", "--out", "two"], "--resume one and --out two"),
    (["audit", "nothing.py:game"], "NoneType"),
    (["audit", "broken.py:game"], "SyntaxError"),
    (["audit", "leaves.py:game"], "SystemExit"),
    (
        ["audit", "two.py"],
        "which has the functions one, two\n  try:   remanence audit two.py:one",
    ),  # read, and not run
    (["audit", "diabetes-shortlist", "--max-success", "0.04"], "a limit above what a guess achieves"),
    (["audit", "raises.py:other"], "has no function named 'other'"),
    (["audit", "no-such-target"], "remanence targets"),
    (["audit", "diabetes-ridge", "--attack", "magic"], "remanence attacks"),
    (["audit", "diabetes-ridge", "--attack", "closed-from"], "--attack closed-form"),
    (["audit", "diabetes-ridge", "--attack", "nowhere.py:Attack"], "was not found"),
    (["audit", "diabetes-ridge", "--attack", "raises.py:Missing"], "no function named"),
    (["audit", "diabetes-ridge", "--attack", "nothing.py:game"], "derives from remanence.Attack"),
    (["audit", "diabetes-ridge", "--attack", "retrain-and-compare"], "shortlist"),
    (["audit", "diabetes-ridge", "--attack", "closed-form", "--attack", "closed-form"], "named twice"),
    (["audit", "diabetes-ridge", "--trials", "0"], "at least 1"),
    ([*SHORTLIST, "--trials", "100000000", "--unit-trials", "1"], "too many units"),
    (["audit", "diabetes-ridge", "--seed", "-1"], "at least 0"),
    (["audit", "diabetes-ridge", "--device", "cuda"], "--device cpu"),
    (["show", "nowhere"], "No such file"),
    (["report", "nowhere", "--format", "junit", "--open"], "--format html"),
    ([*SHORTLIST, "--workers", "3"], "One process is one worker."),
    ([*SHORTLIST, "--address", "10.0.0.1:6379"], "Only Ray has a cluster."),
    ([*SHORTLIST, "--executor", "ray"], "ray is not installed."),
    ([*SHORTLIST, "--executor", "processes", "--workers", "100000"], "per core"),
    ([*SHORTLIST, "--resume", "s3://bucket/run"], "A run folder is not a URL."),
    ([*SHORTLIST, "--out", "s3://bucket/run"], "A run folder is not a URL."),
    (["status", "nowhere"], "There is no run in this folder."),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_a_mistake_is_answered_in_needs_got_try_and_leaves_nothing_behind(run, tmp_path, arguments, message):
    for name, body in FACTORIES.items():
        (tmp_path / f"{name}.py").write_text(HEADER + body)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    assert [line.split(":")[0].strip() for line in err.strip().splitlines()[1:]] == ["needs", "got", "try"]
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "line", ["audit", "audit x --trials many", "no-such-command", "audit x --device tpu"]
)
def test_wrong_usage_exits_with_2(run, line):
    code, _, err = run(*line.split())
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["targets"], ["audit", "--help"], ["head", "--help"], BOUND], ids=" ".join
)
def test_commands_that_need_no_tensors_do_not_load_torch(arguments):
    code = (
        "import sys; sys.argv = ['remanence', *sys.argv[1:]]\n"
        "from remanence.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'sklearn', 'scipy.stats', 'scipy.optimize'}\n"
        "heavy |= set() if 'bound' in sys.argv else {'scipy'}\n"
        "assert not heavy & sys.modules.keys(), 'loaded too much'\n"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_a_folder_with_a_built_in_name_is_not_taken_for_a_recording(run, tmp_path):
    (tmp_path / "diabetes-ridge").mkdir()
    (tmp_path / "diabetes-ridge/manifest.json").touch()
    code, _, err = run("audit", "diabetes-ridge", "--out", str(tmp_path / "run"), "--json")
    assert code == 1, err
    assert (tmp_path / "run/audit.json").is_file()


@pytest.mark.parametrize(("name", "command"), [each for door in doors() for each in door.files.items()])
def test_a_file_or_folder_of_a_door_names_its_command(run, tmp_path, name, command):
    given = Path(f"mine{name}" if name.startswith(".") else "mine")
    if not name.startswith("."):
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / name).touch()
    code, _, err = run("audit", str(given))
    assert code == 2
    assert f"try:   remanence {command.format(given)}\n" in err
    assert command.split()[0] in get_command(app).commands


OLD = _MOVED | {name: now for door in doors() for name, now in door.moved.items()}
OLD |= {
    f"{name.rpartition(' ')[0]} x {name.rpartition(' ')[2]}=3": now
    for name, now in OLD.items()
    if " --" in name and "--format" not in name
}
OLD |= {  # options that `audit` had before doors had commands of their own
    "audit head.pt --epochs=3": "remanence head --epochs",
    "audit model.skops --label outcome": "remanence table --label",
    "audit folder --unseen others.jsonl": "remanence text --unseen",
    "audit folder --names names.txt": "spans",
}


@pytest.mark.parametrize("typed", OLD)
def test_an_old_spelling_names_the_new_one(typed):
    found = CliRunner().invoke(app, typed.split())
    assert isinstance(found.exception, InputError)
    assert OLD[typed] in found.exception.hint


def test_an_option_that_audit_has_is_no_old_spelling():
    found = CliRunner().invoke(
        app, ["audit", "no-such-target", "--attack", "exact", "--trials=3", "--seed", "1"]
    )
    assert isinstance(found.exception, InputError)
    assert "no target named" in str(found.exception)


PLAYED = [*SHORTLIST, "--attack", "retrain-and-compare", "--trials", "30", "--unit-trials", "4"]


def test_processes_give_the_same_audit_and_say_so(run, tmp_path):
    for name, options in {"here": [], "there": ["--executor", "processes", "--workers", "2"]}.items():
        assert run(*PLAYED, "--out", name, *options)[0] == 1
    here, there = (json.loads((tmp_path / name / "audit.json").read_text()) for name in ("here", "there"))
    environments = here.pop("environment"), there.pop("environment")
    assert here == there
    assert [e["executor"] for e in environments] == ["InProcess, workers: 1", "Processes, workers: 2"]
    assert [e["unit_trials"] for e in environments] == ["4", "4"]


def test_status_is_readable_for_machines(run):
    run(*PLAYED, "--out", "run")
    code, out, _ = run("status", "run", "--json")
    found = json.loads(out)
    assert code == 0
    assert [work["units"] for work in found["works"]] == [8]
    assert (found["done"], found["left"], found["at_work"]) == (8, 0, False)
    assert found["finished"]
    assert found["settings"]["options"]["target"] == "diabetes-shortlist"


def test_a_folder_from_somebody_else_runs_no_code_that_it_names(run, tmp_path):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run(*PLAYED, "--out", "run")
    stored = json.loads((tmp_path / "run/run.json").read_text())
    stored["settings"]["options"] |= {"attack": ["retrain-and-compare", "evil.py:Evil"]}
    (tmp_path / "run/run.json").write_text(json.dumps(stored, indent=2))
    code, _, told = run(*PLAYED, "--resume", "run")
    assert code == 2
    assert "attack: then" in told
    assert not (tmp_path / "ran").exists()
