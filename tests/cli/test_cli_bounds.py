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


def test_a_bound_speaks_in_frequencies_and_states_what_it_assumes(ask):
    text = " ".join(ask(f"bound {SETTINGS} --candidates 100").split())
    assert "narrowed a record down to 100 candidates guesses it without your model 10 times in 1000" in text
    assert "and with your whole training run 25.4 times in 1000 at most" in text
    assert "Poisson sampling" in text
    assert "Hayes et al. 2023" in text


def test_the_json_of_a_bound_has_the_promised_keys(ask):
    document = ask(f"bound {SETTINGS} --candidates 100 --delta 1e-5 --json")
    assert {
        "success", "log10_success", "baseline", "log10_baseline", "advantage", "epsilon", "delta",
        "noise_multiplier", "method", "assumptions", "seconds",
    } <= document.keys()  # fmt: skip
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


def test_epsilon_is_turned_into_noise(ask):
    document = ask("bound --epsilon 4 --delta 1e-5 --sample-rate 0.02 --steps 1000 --candidates 10 --json")
    assert document["noise_multiplier"] == pytest.approx(0.98739, abs=1e-4)
    assert document["success"]["upper"] == pytest.approx(0.3274, abs=1e-4)


def test_a_budget_alone_bounds_any_mechanism(ask):
    document = ask("bound --epsilon 1 --delta 1e-5 --candidates 10 --json")
    assert document["method"] == "dp"
    assert document["success"]["upper"] == pytest.approx(0.27184, abs=1e-5)


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
    ("bound --noise-multiplier nan --steps 10 --candidates 10", "noise_multiplier"),
    ("bound --noise-multiplier 1 --steps 10 --sample-rate 1.5 --candidates 10", "sample_rate"),
    ("bound --noise-multiplier 1 --steps 10 --sample-rate 0 --candidates 10", "sample_rate"),
    ("bound --noise-multiplier 1 --steps 0 --candidates 10", "steps"),
    ("bound --noise-multiplier 1 --steps 1000000000000 --candidates 10", "steps"),
    (f"bound {SETTINGS} --baseline 1", "baseline"),
    (f"bound {SETTINGS} --baseline 0", "baseline"),
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
    (f"calibrate --max-success nan {TEN}", "max_success"),
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
    (
        f"bound {SETTINGS} --candidates 9 --records-per-person 9 --dataset-size 8",
        "a whole number from 1 to 8",
    ),
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


def test_sizes_and_epochs_are_turned_into_a_rate_and_steps_and_echoed(ask):
    sizes = "--dataset-size 60000 --batch-size 600 --epochs 10"
    out = ask(f"bound --noise-multiplier 1.1 --candidates 100 {sizes}")
    assert "That is a sampling rate of 0.01 and 1000 steps." in out
    assert "25.4 times in 1000 at most" in out
    out = ask(f"calibrate --max-success 0.05 --candidates 100 {sizes}")
    assert "Your settings: a sampling rate of 0.01 and 1000 steps." in out
    out = ask(f"frontier --over epsilon --points 2 --from 1 --to 2 {sizes}")
    assert out.startswith("For one record: a sampling rate of 0.01, 10 candidates, δ = 1e-05, 1000 steps.\n")


def test_a_last_batch_that_is_not_full_is_a_step_and_never_lowers_the_ceiling(ask):
    sizes = "--dataset-size 1000 --batch-size 300 --epochs 2 --noise-multiplier 3 --candidates 10 --json"
    poisson = ask(f"bound {sizes}")
    assert (poisson["sample_rate"], poisson["steps"]) == (0.3, 8)
    passes = ask(f"bound {sizes} --batches shuffled")
    assert (passes["sample_rate"], passes["steps"]) == (1 / 3, 6)  # three batches with drop_last, two passes
    two = ask("bound --noise-multiplier 3 --steps 2 --sample-rate 1 --candidates 10 --json")
    assert passes["success"]["upper"] == pytest.approx(two["success"]["upper"])


def test_steps_of_a_loader_that_drops_its_last_batch_are_as_many_passes_as_it_makes(ask):
    sizes = "--dataset-size 1999 --batch-size 1000 --steps 100"
    found = ask(f"bound {sizes} --noise-multiplier 8 --candidates 2 --batches shuffled --json")
    assert found["success"]["upper"] == pytest.approx(norm.cdf(10 / 8))  # one batch in a pass: 100 passes
    assert "drop_last" in found["assumptions"][0]


def test_what_was_assumed_is_said(ask):
    out = ask("bound --epsilon 8 --delta 1e-5 --candidates 100")
    assert "Assumed: (8, 1e-05)-DP and nothing else" in out
    assert "Here it says nothing." in out
    assert "add --steps and --sample-rate" in out
    out = ask("bound --noise-multiplier 9 --steps 50 --candidates 100")
    assert "Assumed: full batches, a sampling rate of 1." in out
    assert "--dataset-size and --batch-size" in out
    assert "Assumed" not in ask(f"bound {SETTINGS} --candidates 100")


def test_a_person_is_named_wherever_their_ceiling_is_printed(ask):
    line = f"bound {SETTINGS} --candidates 100 --records-per-person 5"
    out = " ".join(ask(line).split())
    assert "narrowed a person with at most 5 records down to 100 candidates" in out
    assert "294 times in 1000 at most" in out
    assert ask(f"{line} --json")["whose"] == "a person with at most 5 records"


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("poisson", "25.4"),
        ("people", "25.4"),
        ("shuffled", "709"),
        ("fixed", "181"),
        ("balls-in-bins", "24.8"),
    ],
)
def test_every_way_of_batching_has_a_ceiling(ask, way, told):
    assert f"{told} times in 1000 at most" in ask(f"bound {SETTINGS} --candidates 100 --batches {way}")


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


def test_noise_for_a_person_is_one_command(ask):
    person = "--sample-rate 0.01 --steps 1000 --records-per-person 5"
    document = ask(f"calibrate --max-success 0.05 --candidates 100 {person} --json")
    assert document["noise_multiplier"] == pytest.approx(2.4458, abs=1e-3)
    assert document["whose"] == "a person with at most 5 records"
    assert "a person with at most 3 records" in ask("frontier --points 2 --records-per-person 3")


def test_a_bracket_that_could_not_be_narrowed_says_so(ask):
    out = ask("bound --noise-multiplier 0.72 --sample-rate 1.4e-5 --steps 30 --baseline 1.7782794e-12")
    assert "could not be narrowed further: a known test reaches 1 time in 10^11.7" in out
