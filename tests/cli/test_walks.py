"""The six walks of the docs: every command runs, exits and prints as the script says."""

import re
import runpy
import shlex
import shutil

import pytest

from test_project import ROOT

WALKS = ROOT / "docs" / "walks"
SCRIPTS = sorted(WALKS.glob("*.sh"))


def steps(script):
    """Each command, the code that it exits with, and what it prints."""
    found = []
    for line in script.read_text().splitlines():
        if line.startswith("#> "):
            found[-1][2].append(" ".join(line.removeprefix("#> ").split()))
        elif line and not line.startswith("#"):
            command, _, code = line.partition("  # exits with ")
            found.append((shlex.split(command), int(code or 0), []))
    return found


def test_there_are_six_walks_of_fewer_than_ten_commands_each():
    assert len(SCRIPTS) == 6
    assert all(0 < len(steps(script)) < 10 for script in SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_command_of_a_walk_does_what_it_says(script, run, tmp_path):
    for file in WALKS.glob("*.py"):
        shutil.copy(file, tmp_path)
    for (program, *arguments), code, expected in steps(script):
        if program == "python":
            runpy.run_path(arguments[0], run_name="__main__")
            continue
        assert program == "remanence"
        ended, out, err = run(*arguments)
        assert ended == code, err
        shown = " ".join(out.split())
        for words in expected:
            assert words in shown


def test_the_page_of_walks_shows_every_script():
    page = (ROOT / "docs" / "walks.md").read_text()
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert [script.read_text() for script in SCRIPTS] == shown
