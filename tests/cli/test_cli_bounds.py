"""The commands that need no model: what they print and what they refuse."""

import json
import math
import re

import pytest
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from remanence import bounds
from remanence.cli.training_options import bound_entry

SETTINGS = "--noise-multiplier 1.1 --sample-rate 0.01 --steps 1000"


@pytest.fixture
def ask(run):
    """Run a command line, and return what it printed; `--json` is read."""

    def asked(line):
        code, out, err = run(*line.split())
        assert (code, err) == (0, "")
        return json.loads(out) if "--json" in line else out

    return asked


HUNDRED = f"bound {SETTINGS} --candidates 100"
PASSES = "--dataset-size 60000 --batch-size 600 --epochs 10"
FIVE = "--records-per-person 5"
SMALL = "--noise-multiplier 0.72 --sample-rate 1.4e-5 --steps 30 --baseline 1.7782794e-12"
PRINTED = {
    HUNDRED: [
        "narrowed a record down to 100 candidates guesses it without your model 10 times in 1000",
        "and with your whole training run 25.4 times in 1000 at most",
        "Poisson sampling",
        "Hayes et al. 2023",
    ],
    f"bound --noise-multiplier 1.1 --candidates 100 {PASSES}": [
        "That is a sampling rate of 0.01 and 1000 steps.",
        "25.4 times in 1000 at most",
    ],
    f"calibrate --max-success 0.05 --candidates 100 {PASSES}": [
        "Your settings: a sampling rate of 0.01 and 1000 steps."
    ],
    f"frontier --over epsilon --points 2 --from 1 --to 2 {PASSES}": [
        "For one record: a sampling rate of 0.01, 10 candidates, δ = 1e-05, 1000 steps. "
    ],
    "bound --epsilon 8 --delta 1e-5 --candidates 100": [
        "Assumed: (8, 1e-05)-DP and nothing else",
        "Here it says nothing.",
        "add --steps and --sample-rate",
    ],
    "bound --noise-multiplier 9 --steps 50 --candidates 100": [
        "Assumed: full batches, a sampling rate of 1.",
        "--dataset-size and --batch-size",
    ],
    f"{HUNDRED} {FIVE}": [
        "narrowed a person with at most 5 records down to 100 candidates",
        "294 times in 1000 at most",
    ],
    "frontier --points 2 --records-per-person 3": ["a person with at most 3 records"],
    f"bound {SMALL}": ["could not be narrowed further: a known test reaches 1 time in 10^11.7"],
    f"{HUNDRED} --batches people": ["25.4 times in 1000 at most"],
    f"{HUNDRED} --batches shuffled": ["709 times in 1000 at most"],
    f"{HUNDRED} --batches fixed": ["181 times in 1000 at most"],
    f"{HUNDRED} --batches balls-in-bins": ["24.8 times in 1000 at most"],
}


@pytest.mark.parametrize("line", PRINTED)
def test_a_command_speaks_in_frequencies_and_says_what_it_assumes(ask, line):
    printed = " ".join(ask(line).split())
    assert [words for words in PRINTED[line] if words not in printed] == []
    assert ("Assumed" in printed) == any("Assumed" in words for words in PRINTED[line])


NUMBERS = {
    "bound --epsilon 4 --delta 1e-5 --sample-rate 0.02 --steps 1000 --candidates 10": (0.98739, 0.3274),
    "bound --epsilon 1 --delta 1e-5 --candidates 10": (None, 0.27184),
    f"calibrate --max-success 0.05 --candidates 100 --sample-rate 0.01 --steps 1000 {FIVE}": (2.4458, 0.05),
    # One batch in a pass with drop_last, and so 100 passes: Φ(10 / 8).
    "bound --dataset-size 1999 --batch-size 1000 --steps 100 --noise-multiplier 8 --candidates 2 "
    "--batches shuffled": (8, norm.cdf(10 / 8)),
}


@pytest.mark.parametrize("line", NUMBERS)
def test_the_numbers_of_a_document_are_right(ask, line):
    document, (noise, success) = ask(f"{line} --json"), NUMBERS[line]
    assert document["success"]["upper"] == pytest.approx(success, abs=5e-5)
    assert document.get("noise_multiplier") == pytest.approx(noise, abs=1e-3)
    assert document["whose"] == ("a person with at most 5 records" if FIVE in line else "one record")
    assert document["method"] == ("certified" if "--steps" in line else "dp")
    assert ("drop_last" in document["assumptions"][0]) == ("shuffled" in line)


def test_the_json_of_a_bound_has_the_promised_keys(ask):
    document = ask(f"bound {SETTINGS} --candidates 100 --delta 1e-5 --json")
    keys = "log10_success baseline log10_baseline advantage delta noise_multiplier method assumptions seconds"
    assert {*keys.split()} <= document.keys()
    success = document["success"]
    assert 0.01 < success["lower"] <= success["upper"] < success["lower"] * (1 + 2e-4)
    accountant = PRVAccountant()  # of Opacus: a Fourier accountant, with an error that it states
    accountant.history = [(1.1, 0.01, 1000)]
    assert document["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5, eps_error=0.005), abs=0.01)


def test_below_1e_300_only_logarithms_are_printed():
    tiny = bounds.dpsgd(log_baseline=-1849.529 * math.log(10), noise_multiplier=10.0, steps=100)
    document = bound_entry("certified", tiny)
    assert document["success"] == {"lower": None, "upper": None}
    assert document["baseline"] is None
    assert document["log10_success"]["upper"] == pytest.approx(-1809.685, abs=1e-2)


@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ("noise_multiplier", "--sample-rate 0.02 --steps 1000"),
        ("steps", "--sample-rate 0.02 --noise-multiplier 1.1"),
        ("sample_rate", "--steps 1000 --noise-multiplier 1.1"),
    ],
)
def test_what_is_left_out_is_solved_for_and_certified(ask, missing, given):
    line = f"calibrate --max-success 0.3 --candidates 10 --delta 1e-5 {given}"
    document = ask(f"{line} --json")
    assert document["solved_for"] == missing
    assert document["success"]["upper"] <= 0.3
    assert document["epsilon"] > 0
    assert "To keep every attack at or below 300 times in 1000" in ask(line)


def test_a_frontier_is_a_table_or_json(ask):
    lines = ask("frontier --points 3").splitlines()
    assert lines[0] == "For one record: ε = 4, 10 candidates, δ = 1e-05, 100 steps."
    assert len(lines) == 5
    points = ask("frontier --points 3 --json")["points"]
    assert [point["whose"] for point in points] == ["one record"] * 3


SIZES = "--dataset-size 1000 --batch-size 100"
NINE = "--noise-multiplier 1 --candidates 9"
TEN = "--candidates 10 --steps 9 --sample-rate 1"
WRONG = [
    ("bound --noise-multiplier -1 --steps 10 --candidates 10", "noise_multiplier"),
    ("bound --noise-multiplier 1 --steps 10 --sample-rate 1.5 --candidates 10", "sample_rate"),
    ("bound --noise-multiplier 1 --steps 0 --candidates 10", "steps"),
    (f"bound {SETTINGS} --baseline 1", "baseline"),
    (f"bound {SETTINGS} --candidates 1", "--candidates cannot be used"),
    (f"bound {SETTINGS}", "Exactly one of --candidates"),
    (f"bound {SETTINGS} --candidates 10 --baseline 0.1", "Exactly one of --candidates"),
    (f"bound {SETTINGS} --epsilon 1 --candidates 10", "Exactly one of --noise-multiplier and --epsilon"),
    ("bound --candidates 10", "Exactly one of --noise-multiplier and --epsilon"),
    ("bound --epsilon 1 --steps 10 --candidates 10", "--delta"),
    ("bound --epsilon 1 --sample-rate 0.1 --candidates 10", "--steps"),
    ("bound --noise-multiplier 1 --candidates 10", "--steps"),
    ("calibrate --max-success 0.3 --candidates 10", "two of"),
    (f"calibrate --max-success 0.05 {TEN}", "above the baseline"),
    (f"calibrate --max-success 0.3 --candidates 10 {SETTINGS}", "two of"),
    (f"bound {SETTINGS} --candidates 10 --records-per-person 0", "records per person"),
    (f"bound {SETTINGS} --candidates 10 --records-per-person 5000", "1 to 1,000"),
    (f"bound {NINE} --steps 9 --sample-rate 0.3 --batches balls-in-bins", "a whole number"),
    ("bound --epsilon 1 --candidates 10 --records-per-person 2", "--steps"),
    (f"bound {SETTINGS} --candidates 10 --batch-size 32", "--dataset-size"),
    (f"bound {SETTINGS} --candidates 10 {SIZES}", "Exactly one of --sample-rate and --batch-size"),
    (f"bound {NINE} {SIZES} --epochs 2 --steps 9", "Exactly one of --steps and --epochs"),
    (f"bound {NINE} --epochs 2", "--dataset-size and --batch-size"),
    (f"bound {NINE} --dataset-size 9 --batch-size 10", "at least"),
    (f"bound {NINE} {SIZES} --epochs -1", "above 0"),
    ("bound --epsilon 1 --delta 1e-5 --steps 9 --candidates 9", "--sample-rate, or"),
    (f"bound {SETTINGS} --candidates 9 --records-per-person 9 --dataset-size 8", "whole number from 1 to 8"),
    ("frontier --from 1 --to 0.5", "end of the range"),
    ("frontier --points 2 --sample-rate 0.1", "--over epsilon"),
    ("frontier --points 1", "2 to 10,000"),
    ("frontier --points 2 --out f.svg", "remanence frontier --json"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_a_mistake_is_answered_in_needs_got_try(run, tmp_path, line, message):
    code, out, err = run(*line.split())
    assert (code, out) == (2, "")
    assert message in err
    assert [line.split(":")[0].strip() for line in err.strip().splitlines()[1:]] == ["needs", "got", "try"]
    assert list(tmp_path.iterdir()) == []


def test_a_last_batch_that_is_not_full_is_a_step_and_never_lowers_the_ceiling(ask):
    sizes = "--dataset-size 1000 --batch-size 300 --epochs 2 --noise-multiplier 3 --candidates 10 --json"
    poisson = ask(f"bound {sizes}")
    assert (poisson["sample_rate"], poisson["steps"]) == (0.3, 8)
    passes = ask(f"bound {sizes} --batches shuffled")
    assert (passes["sample_rate"], passes["steps"]) == (1 / 3, 6)  # three batches with drop_last, two passes
    two = ask("bound --noise-multiplier 3 --steps 2 --sample-rate 1 --candidates 10 --json")
    assert passes["success"]["upper"] == pytest.approx(two["success"]["upper"])


def test_the_mu_of_gaussian_dp_stands_beside_epsilon(ask):
    full = "--noise-multiplier 10 --sample-rate 1 --steps 100 --delta 1e-5"
    assert "It is μ-GDP with μ = 1.\n" in ask(f"bound {full} --candidates 100")  # √100 / 10
    for baseline in ("1e-9", "0.01", "0.6"):
        found = ask(f"bound {full} --baseline {baseline} --json")
        assert found["mu"] == pytest.approx(1.0, rel=1e-6)
        reached = norm.cdf(norm.ppf(float(baseline)) + found["mu"])
        assert reached == pytest.approx(found["success"]["upper"], rel=1e-6)
    sampled = ask(f"bound {SETTINGS} --candidates 100 --delta 1e-5")
    assert "For this guess its ceiling is that of μ-GDP with μ = 0.3724." in sampled
    assert "μ-GDP with μ = " in ask(f"calibrate --max-success 0.3 {TEN} --delta 1e-5")


@pytest.mark.parametrize("command", ["bound --noise-multiplier 9", "calibrate --max-success 0.3"])
def test_an_epsilon_beside_another_way_of_batching_says_whose_it_is(ask, command):
    line = f"{command} --candidates 10 --steps 9 --sample-rate 0.5 --delta 1e-5"
    assert "-DP for one record under Poisson" not in ask(line)
    assert re.search("-DP.* for one record under Poisson sampling", ask(f"{line} --batches shuffled"))
