"""Remanence in other people's habits: a settings file, a fixture, an experiment tracker."""

import json

import pytest

from conftest import settings_arguments
from remanence import InputError

pytest_plugins = ["pytester"]

FACTORY = "from remanence.targets import diabetes_shortlist as factory\n"
TESTS = """
from remanence import Verdict

def test_it(audit_release):
    assert audit_release(factory(), max_success=0.9, trials=40).verdict is Verdict.UNPROVEN

def test_it_not(audit_release):
    assert audit_release(factory(), max_success=0.1, trials=40).verdict is Verdict.UNPROVEN
"""


def test_a_settings_file_holds_the_options_and_the_command_line_wins(tmp_path, run):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/model.py").write_text(FACTORY)
    settings = 'target = "model.py:factory"\nattack = ["retrain-and-compare"]\ntrials = 30\nseed = 5\nout = "found"\n'
    (tmp_path / "mine/audit.toml").write_text(settings + "max_success = 0.95\naccept_unproven = true\n")
    code, out, err = run("audit", "mine/audit.toml", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["target"] == "mine/model.py:factory"
    assert document["seed"] == 5
    assert document["policy"]["max_success"] == 0.95
    assert [entry["main"]["trials"] for entry in document["evidence"]] == [30]
    assert document == json.loads((tmp_path / "mine/found/audit.json").read_text())
    code, out, _ = run("audit", "mine/audit.toml", "--json", "--max-success", "0.1")
    assert (code, json.loads(out)["policy"]["max_success"]) == (1, 0.1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('target = "x', "not TOML"),
        ('target = "x"\nmax_sucess = 0.1', "try:   max_success"),
        ('command = "tabel"\ntarget = "x"', "try:   table"),
        ('target = "x"\n[about]\nowned = "me"', "try:   owner"),
        ('target = "x"\nabout = 3', "a table of texts"),
        ('target = "x"\naccept_unproven = "false"', "true or false, without quotes"),
        ('target = "x"\nout = ["a", "b"]', "needs: a text or a number"),
        ('target = "x"\nattack = ["exact", {a = 1}]', "attack cannot be used"),
    ],
)
def test_a_mistake_in_a_settings_file_is_named_with_what_was_meant(tmp_path, text, reason):
    (tmp_path / "audit.toml").write_text(text)
    with pytest.raises(InputError) as refused:
        settings_arguments(tmp_path / "audit.toml")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('target = "wine-pipeline"', ["audit", "wine-pipeline"]),  # a built-in name is not a path
        ('target = "m.skops"\ncommand = "table"\ndata = "t.csv"', ["table", "{}/m.skops", "--data={}/t.csv"]),
        (
            'target = "h"\ncommand = "head"\nquick = true\nshow_reconstructions = false',
            ["head", "h", "--quick"],
        ),
        ('target = "x"\njson = true', ["audit", "x", "--json"]),
        ('target = "x"\nattack = ["a", "b"]', ["audit", "x", "--attack=a", "--attack=b"]),
    ],
)
def test_settings_are_the_arguments_of_their_command(tmp_path, text, arguments):
    (tmp_path / "m.skops").touch()
    (tmp_path / "audit.toml").write_text(text)
    found = settings_arguments(tmp_path / "audit.toml")
    assert found == [each.format(tmp_path) for each in arguments]


def test_what_the_owner_says_about_the_audit_is_on_the_page_to_sign(tmp_path, run):
    text = 'target = "digits-noisy-sum"\ntrials = 40\nout = "out"\n[about]\ntitle = "Digits 2026"\nowner = "Ada"\n'
    (tmp_path / "audit.toml").write_text(text)
    run("audit", "audit.toml")
    about = json.loads((tmp_path / "out/audit.json").read_text())["about"]
    assert about == {"title": "Digits 2026", "owner": "Ada"}
    page = (tmp_path / "out/report.html").read_text()
    assert page.index("Digits 2026") < page.index("Technical annex")


def test_the_fixture_makes_privacy_a_unit_test(pytester):
    pytester.makepyfile(FACTORY + TESTS)
    outcome = pytester.runpytest_subprocess("--junit-xml=found.xml", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=1, failed=1)
    told, properties = outcome.stdout.str(), (pytester.path / "found.xml").read_text()
    target = "EXPOSED  test_it_not"
    assert all(text in told for text in ("EXPOSED is UNPROVEN", target, "your limit is 100", "of 40 trials"))
    for verdict in ("UNPROVEN", "EXPOSED"):
        assert f'name="remanence_verdict" value="{verdict}"' in properties
    assert "report.html" in properties
