"""A Llama with an adapter by peft, fine-tuned privately by Opacus and recorded: what is claimed, and less noise."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "texts"))

from dp_lora import SHORT, verdicts

from remanence.results.verdict import Verdict


@pytest.mark.parametrize("seed", range(10))
def test_a_correct_run_is_never_contradicted_and_less_noise_is(seed):
    assert Verdict.CONTRADICTED not in verdicts("as claimed", seed, SHORT)
    for wrong in ("half the noise", "noise forgotten"):
        assert verdicts(wrong, seed, SHORT)[0] is Verdict.CONTRADICTED
