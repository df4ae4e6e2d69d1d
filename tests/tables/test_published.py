"""Published sums from files, and whole training sets at once."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from remanence import audit
from remanence.cli.main import main
from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import IncompatibleGameError
from remanence.core.records import Records
from remanence.core.references import REMANENCE
from remanence.results.verdict import Policy
from remanence.tables.forest_solver import ForestSolver
from remanence.tables.sklearn import table_game
from remanence.tables.whole_set import WholeSet

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


BITS = np.random.default_rng(0).integers(0, 2, (30, 5))
OUTCOME = (BITS[:, 0] ^ BITS[:, 1]).astype(int)


class Proposes(Attack):
    """Always the same records."""

    info = AttackInfo("proposes", "Proposes records.", "nothing", "nothing", REMANENCE)

    def __init__(self, records):
        self.proposed = records

    def check(self, knowledge):
        pass

    def prepare(self, knowledge, generator):
        return lambda release: Reconstruction(self.proposed[None])


def whole_set():
    forest = RandomForestClassifier(3, random_state=0).fit(BITS, OUTCOME)
    return WholeSet.of(table_game(forest, BITS, OUTCOME))


def test_a_set_counts_in_any_order_and_a_drawn_one_is_the_control():
    game, order = whole_set(), torch.randperm(30, generator=torch.Generator().manual_seed(1))
    found = audit(game, [Proposes(game.data[order])], policy=Policy(0.9)).strongest
    assert found.main.successes == 30
    assert found.control.successes < 25
    others = Records(1 - game.data.features, game.data.labels)
    assert audit(game, [Proposes(others)], policy=Policy(0.9)).strongest.main.successes < 25


def test_a_guess_is_as_good_as_people_drawn_without_the_model():
    game = whole_set()
    drawn = game._drawn(torch.Generator().manual_seed(5))
    met = audit(game, [Proposes(drawn)], policy=Policy(0.9)).strongest.main.rate
    assert game.baseline().lower - 0.25 < met <= game.baseline().value + 0.2


def test_the_solver_wants_an_adversary_who_knows_no_row():
    forest = RandomForestClassifier(3, random_state=0).fit(BITS, OUTCOME)
    ForestSolver().check(whole_set().knowledge)
    with pytest.raises(IncompatibleGameError):
        ForestSolver().check(table_game(forest, BITS, OUTCOME).knowledge)
