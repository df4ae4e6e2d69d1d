"""Published sums from files."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

from remanence.cli.main import main

PEOPLE = pd.DataFrame(
    {
        "region": ["north"] * 4 + ["south"] * 3 + ["east"],
        "sex": ["f", "f", "m", "m", "f", "f", "m", "m"],
        "salary": [3100.5, 2800.0, 4100.25, 3900.0, 2500.0, 2700.0, 5200.0, 3333.25],
        "ill": [0, 1, 0, 0, 1, 1, 0, 1],
    }
)


def published(column, kind, *groupings, digits=2):
    """What a dashboard shows: one line for each group."""
    lines = []
    for names in groupings:
        for key, group in PEOPLE.groupby(list(names)) if names else [((), PEOPLE)]:
            told = f"{getattr(group[column], kind)():.{digits}f}"
            lines.append(
                {**dict(zip(names, key, strict=True)), "count": len(group), f"{kind}_{column}": told}
            )
    return pd.DataFrame(lines, columns=["region", "sex", "count", f"{kind}_{column}"])


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PEOPLE.to_csv("people.csv", index=False)

    def run(table, *options):
        table.to_csv("sums.csv", index=False)
        command = ["remanence", "audit", "sums.csv", "--data", "people.csv", *options, "--out", "out"]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as caught:
            main()
        made = tmp_path / "out" / "audit.json"
        return caught.value.code, json.loads(made.read_text()) if made.exists() else None

    return run


EVERY = ((), ("region",), ("sex",), ("region", "sex"))


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_whoever_is_alone_in_a_group_is_proven(command, kind):
    code, found = command(published("salary", kind, *EVERY), "--label", "salary")
    evidence = found["evidence"][0]
    assert (code, found["verdict"]) == (1, "EXPOSED")
    # East has one person, the south one man; then the north's women and men stay pairs.
    assert evidence["proven"] == evidence["main"]["successes"] == 2


def test_coarse_numbers_tell_nobody_and_prove_nothing(command):
    code, found = command(published("salary", "mean", (), ("sex",), digits=0), "--label", "salary")
    assert (code, found["verdict"], found["evidence"][0]["main"]["successes"]) == (3, "UNPROVEN", 0)


def test_bits_that_fill_their_group_are_told(command):
    found = command(published("ill", "sum", *EVERY, digits=0), "--label", "ill", "--max-success", "0.9")[1]
    # Nobody of the north's men is ill, both women of the south are, and those who are alone follow.
    assert found["evidence"][0]["proven"] == 6


def test_noise_has_a_ceiling_and_needs_a_range(command, capsys):
    noisy = published("ill", "sum", (), ("region",))
    noisy["sum_ill"] = noisy["sum_ill"].astype(float) + np.random.default_rng(0).normal(0, 20, len(noisy))
    code, found = command(noisy, "--label", "ill", "--noise", "20", "--max-success", "0.8")
    assert (code, found["verdict"]) == (0, "PROTECTED")
    assert "proven" not in found["evidence"][0]
    assert command(published("salary", "sum", ()), "--label", "salary", "--noise", "20")[0] == 2
    assert "--range 0,100" in capsys.readouterr().err


WRONG = [
    (lambda t: t.assign(count=t["count"] + 1), "line 1 counts 9, and 8 are there"),
    (lambda t: t.assign(mean_salary="1.00"), "not published about this table"),
    (lambda t: t.rename(columns={"mean_salary": "x"}), "not clear what was published"),
    (lambda t: t.replace("north", "west"), "and 0 are there"),
]


@pytest.mark.parametrize(("spoil", "said"), WRONG)
def test_other_numbers_are_refused(command, capsys, spoil, said):
    assert command(spoil(published("salary", "mean", (), ("region",))), "--label", "salary") == (2, None)
    assert said in capsys.readouterr().err
