"""Somebody who deletes the folder of a door deletes the capability, and everything else still works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remanence.core.doors import doors

ROOT = Path(__file__).parent.parent
DOORS = [door.name for door in doors()]


def without(door: str, place: Path) -> dict[str, str]:
    """A copy of the repository without a door, and the environment that finds it."""
    left_out = shutil.ignore_patterns(".*", "__pycache__", "docs", "site", "remanence-runs", "dist")
    shutil.copytree(ROOT, place, ignore=left_out)
    shutil.rmtree(place / "src" / "remanence" / door)
    shutil.rmtree(place / "tests" / door)
    shutil.rmtree(place / "tests" / "goldens")  # of all doors together
    facts = place / "src" / "remanence-0.1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: remanence\nVersion: 0.1.0\n")
    entries = [f"{name} = remanence.{name}.door:DOOR" for name in DOORS if name != door]
    (facts / "entry_points.txt").write_text("\n".join(["[remanence.doors]", *entries]) + "\n")
    path = os.pathsep.join(str(place / each) for each in ("src", "papers", "tests"))
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def call(place: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    how = {"cwd": place, "env": environment, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *arguments], check=False, **how)  # noqa: S603


QUICK = ("private", "tables")  # that no room imports one, test_project.py sees by reading


@pytest.mark.parametrize(
    "door", [pytest.param(door, marks=() if door in QUICK else pytest.mark.slow) for door in DOORS]
)
def test_without_a_door_the_command_line_lists_and_audits_the_rest(door, tmp_path):
    environment = without(door, tmp_path / "copy")
    target = "digits-noisy-sum" if door != "private" else "diabetes-shortlist"
    code = "from remanence.core.catalogue import catalogue; from remanence.cli.main import main; catalogue(); main()"
    line = ["audit", target, "--trials", "5", "--attack", "oblivious", "--out", "run", "--json"]
    found = call(tmp_path / "copy", environment, "-c", code, *line)
    assert found.returncode in (0, 1, 3), found.stderr
    assert f'"target": "{target}"' in found.stdout


@pytest.mark.slow
def test_without_texts_the_suite_is_green(tmp_path):
    environment = without("texts", tmp_path / "copy")
    suites = "core results report networks cli tables test_contracts.py test_project.py"
    named = [f"tests/{name}" for name in suites.split()]
    left_out = " and ".join(
        f"not {what}" for what in ("block", "public_name", "texts", "no_page", "old_spelling", "walks")
    )
    # docs, names and options of the door itself
    found = call(
        tmp_path / "copy", environment, "-m", "pytest", "-q", "-x", "-n", "2", "-k", left_out, *named
    )
    assert found.returncode == 0, found.stdout[-3000:]
