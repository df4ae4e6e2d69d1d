"""A new attack and a new game, each in one file outside the package, used from the command line."""

import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ATTACK = f"{HERE / 'own_attack.py'}:Believe"


@pytest.mark.parametrize(
    ("factory", "limit", "verdict", "code"),
    [
        ("survey", "0.84", "PROTECTED", 0),  # proven: at most 5/6
        ("survey", "0.6", "EXPOSED", 1),
        ("noiseless", "0.8", "EXPOSED", 1),
    ],
)
def test_an_attack_and_a_game_of_ones_own_meet_on_the_command_line(
    factory, limit, verdict, code, run, tmp_path
):
    target = f"{HERE / 'own_game.py'}:{factory}"
    assert run("audit", target, "--attack", ATTACK, "--max-success", limit, "--out", ".")[0] == code
    document = json.loads((tmp_path / "audit.json").read_text())
    assert document["verdict"] == verdict
    (evidence,) = document["evidence"]
    assert evidence["attack"] == "believe"
    assert evidence["settings"] == {"contrary": False}
    assert evidence["main"]["trials"] == 400
    # Four standard deviations of a mean of 400 at 3/4 are 0.087.
    assert evidence["main"]["rate"] == pytest.approx(1.0 if factory == "noiseless" else 0.75, abs=0.087)
    assert evidence["control"]["rate"] == pytest.approx(0.5, abs=0.1)
