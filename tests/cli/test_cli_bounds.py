"""The commands that need no model: what they print and what they refuse."""

import json
import math
import re
import subprocess
import sys

import pytest
from opacus.accountants import PRVAccountant
from scipy.stats import norm

from remanence import bounds
from remanence.cli.training_options import bound_entry

SETTINGS = ["--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "1000"]


def test_a_bound_speaks_in_frequencies_and_states_what_it_assumes(run):
    code, out, _ = run("bound", *SETTINGS, "--candidates", "100")
    text = " ".join(out.split())
    assert code == 0
    assert "narrowed a record down to 100 candidates guesses it without your model 10 times in 1000" in text
    assert "and with your whole training run 25.4 times in 1000 at most" in text
    assert "Poisson sampling" in text
    assert "Hayes et al. 2023" in text


def test_the_json_of_a_bound_has_the_promised_keys(run):
    code, out, err = run("bound", *SETTINGS, "--candidates", "100", "--delta", "1e-5", "--json")
    document = json.loads(out)
    assert code == 0
    assert err == ""
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


def test_epsilon_is_turned_into_noise(run):
    arguments = [
        "--epsilon",
        "4",
        "--delta",
        "1e-5",
        "--sample-rate",
        "0.02",
        "--steps",
        "1000",
        "--candidates",
        "10",
    ]
    document = json.loads(run("bound", *arguments, "--json")[1])
    assert document["noise_multiplier"] == pytest.approx(0.98739, abs=1e-4)
    assert document["success"]["upper"] == pytest.approx(0.3274, abs=1e-4)


def test_a_budget_alone_bounds_any_mechanism(run):
    document = json.loads(
        run("bound", "--epsilon", "1", "--delta", "1e-5", "--candidates", "10", "--json")[1]
    )
    assert document["method"] == "dp"
    assert document["success"]["upper"] == pytest.approx(0.27184, abs=1e-5)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("noise_multiplier", ["--sample-rate", "0.02", "--steps", "1000"]),
        ("steps", ["--sample-rate", "0.02", "--noise-multiplier", "1.1"]),
        ("sample_rate", ["--steps", "1000", "--noise-multiplier", "1.1"]),
    ],
)
def test_what_is_left_out_is_solved_for_and_certified(run, missing, arguments):
    limits = ["--max-success", "0.3", "--candidates", "10", "--delta", "1e-5"]
    code, out, _ = run("calibrate", *limits, *arguments, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["solved_for"] == missing
    assert document["success"]["upper"] <= 0.3
    assert document["epsilon"] > 0
    assert "To keep every attack at or below 300 times in 1000" in run("calibrate", *limits, *arguments)[1]


def test_a_frontier_is_printed_or_written(run, tmp_path):
    code, out, _ = run("frontier", "--points", "3")
    assert code == 0
    assert out.splitlines()[0] == "For one record: ε = 4, 10 candidates, δ = 1e-05, 100 steps."
    assert len(out.splitlines()) == 5
    points = json.loads(run("frontier", "--points", "3", "--json")[1])["points"]
    assert [point["whose"] for point in points] == ["one record"] * 3
    code, out, err = run("frontier", "--points", "3", "--out", "f.svg")
    assert (code, out) == (0, "")
    assert "wrote" in err
    assert (tmp_path / "f.svg").read_text().startswith("<svg")


SIZES = ["--dataset-size", "1000", "--batch-size", "100"]
TEN = ["--candidates", "10", "--steps", "9", "--sample-rate", "1"]
WRONG = [
    (["bound", "--noise-multiplier", "-1", "--steps", "10", "--candidates", "10"], "noise_multiplier"),
    (["bound", "--noise-multiplier", "nan", "--steps", "10", "--candidates", "10"], "noise_multiplier"),
    (["bound", *SETTINGS[:2], "--steps", "10", "--sample-rate", "1.5", "--candidates", "10"], "sample_rate"),
    (["bound", *SETTINGS[:2], "--steps", "10", "--sample-rate", "0", "--candidates", "10"], "sample_rate"),
    (["bound", *SETTINGS[:2], "--steps", "0", "--candidates", "10"], "steps"),
    (["bound", *SETTINGS[:2], "--steps", str(10**12), "--candidates", "10"], "steps"),
    (["bound", *SETTINGS, "--baseline", "1"], "baseline"),
    (["bound", *SETTINGS, "--baseline", "0"], "baseline"),
    (["bound", *SETTINGS, "--candidates", "1"], "--candidates cannot be used"),
    (["bound", *SETTINGS], "Exactly one of --candidates"),
    (["bound", *SETTINGS, "--candidates", "10", "--baseline", "0.1"], "Exactly one of --candidates"),
    (
        ["bound", *SETTINGS, "--epsilon", "1", "--candidates", "10"],
        "Exactly one of --noise-multiplier and --epsilon",
    ),
    (["bound", "--candidates", "10"], "Exactly one of --noise-multiplier and --epsilon"),
    (["bound", "--epsilon", "1", "--steps", "10", "--candidates", "10"], "--delta"),
    (["bound", "--epsilon", "1", "--sample-rate", "0.1", "--candidates", "10"], "--steps"),
    (["bound", "--noise-multiplier", "1", "--candidates", "10"], "--steps"),
    (["calibrate", "--max-success", "0.3", "--candidates", "10"], "two of"),
    (
        ["calibrate", "--max-success", "0.05", *TEN],
        "above the baseline",
    ),
    (
        ["calibrate", "--max-success", "nan", *TEN],
        "max_success",
    ),
    (["calibrate", "--max-success", "0.3", "--candidates", "10", *SETTINGS], "two of"),
    (["frontier", "--from", "1", "--to", "0.5"], "end of the range"),
    (["bound", *SETTINGS, "--candidates", "10", "--records-per-person", "0"], "records per person"),
    (["bound", *SETTINGS, "--candidates", "10", "--records-per-person", "5000"], "1 to 1,000"),
    (
        [
            "bound",
            *SETTINGS[:2],
            "--steps",
            "9",
            "--sample-rate",
            "0.3",
            "--candidates",
            "10",
            "--batches",
            "balls-in-bins",
        ],
        "a whole number",
    ),
    (["bound", "--epsilon", "1", "--candidates", "10", "--records-per-person", "2"], "--steps"),
    (["calibrate", "--max-success", "0.3", *TEN, "--batches", "all"], "--batches with one of them"),
    (["bound", *SETTINGS, "--candidates", "10", "--batch-size", "32"], "--dataset-size"),
    (["bound", *SETTINGS, "--candidates", "10", *SIZES, "--epochs", "1"], "--sample-rate 0.1, or none"),
    (
        ["bound", "--noise-multiplier", "1", "--candidates", "9", *SIZES, "--epochs", "2", "--steps", "9"],
        "--steps 20",
    ),
    (
        ["bound", "--noise-multiplier", "1", "--candidates", "9", "--epochs", "2"],
        "--dataset-size and --batch-size",
    ),
    (
        [
            "bound",
            "--noise-multiplier",
            "1",
            "--candidates",
            "9",
            "--dataset-size",
            "9",
            "--batch-size",
            "10",
        ],
        "at least",
    ),
    (["bound", "--noise-multiplier", "1", "--candidates", "9", *SIZES, "--epochs", "-1"], "above 0"),
    (
        ["bound", "--epsilon", "1", "--delta", "1e-5", "--steps", "9", "--candidates", "9"],
        "--sample-rate, or",
    ),
    (
        ["bound", *SETTINGS, "--candidates", "9", "--records-per-person", "9", "--dataset-size", "8"],
        "a whole number from 1 to 8",
    ),
    (["frontier", "--points", "2", "--sample-rate", "0.1"], "--over epsilon"),
    (["frontier", "--points", "1"], "2 to 10,000"),
    (["frontier", "--points", "2", "--out", "f.csv"], ".svg"),
    (["frontier", "--points", "2", "--out", "/proc/nowhere/f.svg"], "a folder that can be created"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_a_mistake_is_answered_in_needs_got_try(run, tmp_path, arguments, message):
    code, out, err = run(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert [line.split(":")[0].strip() for line in err.strip().splitlines()[1:]] == ["needs", "got", "try"]
    assert list(tmp_path.iterdir()) == []


def test_sizes_and_epochs_are_turned_into_a_rate_and_steps_and_echoed(run):
    sizes = ["--dataset-size", "60000", "--batch-size", "600", "--epochs", "10"]
    code, out, _ = run("bound", "--noise-multiplier", "1.1", "--candidates", "100", *sizes)
    assert code == 0
    assert "That is a sampling rate of 0.01 and 1000 steps." in out
    assert "25.4 times in 1000 at most" in out
    out = run("calibrate", "--max-success", "0.05", "--candidates", "100", *sizes)[1]
    assert "Your settings: a sampling rate of 0.01 and 1000 steps." in out
    out = run("frontier", "--over", "epsilon", "--points", "2", "--from", "1", "--to", "2", *sizes)[1]
    assert out.splitlines()[0] == (
        "For one record: a sampling rate of 0.01, 10 candidates, δ = 1e-05, 1000 steps."
    )


def test_a_last_batch_that_is_not_full_is_a_step_and_never_lowers_the_ceiling(run):
    sizes = ["--dataset-size", "1000", "--batch-size", "300", "--epochs", "2", "--noise-multiplier", "3"]
    poisson = json.loads(run("bound", "--candidates", "10", *sizes, "--json")[1])
    assert (poisson["sample_rate"], poisson["steps"]) == (0.3, 8)
    passes = json.loads(run("bound", "--candidates", "10", *sizes, "--batches", "shuffled", "--json")[1])
    assert (passes["sample_rate"], passes["steps"]) == (1 / 3, 6)  # three batches with drop_last, two passes
    full = ["--noise-multiplier", "3", "--steps", "2", "--sample-rate", "1", "--json"]
    two = json.loads(run("bound", "--candidates", "10", *full)[1])
    assert passes["success"]["upper"] == pytest.approx(two["success"]["upper"])


def test_steps_of_a_loader_that_drops_its_last_batch_are_as_many_passes_as_it_makes(run):
    sizes = ["--dataset-size", "1999", "--batch-size", "1000", "--steps", "100"]
    asked = ["--noise-multiplier", "8", "--candidates", "2", "--batches", "shuffled", "--json"]
    found = json.loads(run("bound", *sizes, *asked)[1])
    assert found["success"]["upper"] == pytest.approx(norm.cdf(10 / 8))  # one batch in a pass: 100 passes
    assert "drop_last" in found["assumptions"][0]


def test_what_was_assumed_is_said(run):
    out = run("bound", "--epsilon", "8", "--delta", "1e-5", "--candidates", "100")[1]
    assert "Assumed: (8, 1e-05)-DP and nothing else" in out
    assert "Here it says nothing." in out
    assert "add --steps and --sample-rate" in out
    out = run("bound", "--noise-multiplier", "9", "--steps", "50", "--candidates", "100")[1]
    assert "Assumed: full batches, a sampling rate of 1." in out
    assert "--dataset-size and --batch-size" in out
    assert "Assumed" not in run("bound", *SETTINGS, "--candidates", "100")[1]


@pytest.mark.parametrize("wrong", [["--steps", "2.5"], ["--records-per-person", "1:900,5:20"]])
def test_what_is_not_a_whole_number_is_wrong_usage(run, wrong):
    settings = ["--noise-multiplier", "1", "--steps", "2", "--candidates", "10"]
    assert run("bound", *settings, *wrong)[0] == 2


def test_a_bound_loads_no_torch():
    code = (
        "import sys; sys.argv = ['remanence', 'bound', *sys.argv[1:]]\n"
        "from remanence.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'sklearn', 'scipy.stats', 'scipy.optimize'} & sys.modules.keys(), 'loaded too much'\n"
    )
    command = [sys.executable, "-c", code, *SETTINGS, "--candidates", "10"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def test_a_person_is_named_wherever_their_ceiling_is_printed(run):
    arguments = [*SETTINGS, "--candidates", "100", "--records-per-person", "5"]
    out = " ".join(run("bound", *arguments)[1].split())
    assert "narrowed a person with at most 5 records down to 100 candidates" in out
    assert "294 times in 1000 at most" in out
    document = json.loads(run("bound", *arguments, "--json")[1])
    assert document["whose"] == "a person with at most 5 records"


def test_every_way_of_batching_is_compared(run):
    out = run("bound", *SETTINGS, "--candidates", "100", "--batches", "all")[1]
    rows = {
        line.split()[0]: line.split()[1]
        for line in out.splitlines()
        if line.endswith(" in 1000") and "times" not in line
    }
    assert rows == {
        "poisson": "25.4",
        "people": "25.4",
        "shuffled": "709",
        "fixed": "181",
        "balls-in-bins": "24.8",
    }


def test_a_way_of_batching_without_a_useful_ceiling_has_no_known_proof(run):
    long = ["--noise-multiplier", "1.1", "--sample-rate", "0.01", "--steps", "20000", "--candidates", "100"]
    out = run("bound", *long, "--batches", "all")[1]
    assert re.search(r"shuffled +no proof is known\n", out)
    assert re.search(r"poisson +233 in 1000\n", out)
    certain = run(
        "bound", "--noise-multiplier", "0.1", "--steps", "99", "--candidates", "9", "--batches", "all"
    )[1]
    assert re.search(r"poisson +1000 in 1000\n", certain), (
        "where an attack succeeds, this is no lack of proofs"
    )


def test_the_mu_of_gaussian_dp_stands_beside_epsilon(run):
    full = ["--noise-multiplier", "10", "--sample-rate", "1", "--steps", "100", "--delta", "1e-5"]
    assert "It is μ-GDP with μ = 1.\n" in run("bound", *full, "--candidates", "100")[1]  # √100 / 10
    for baseline in ("1e-9", "0.01", "0.6"):
        found = json.loads(run("bound", *full, "--baseline", baseline, "--json")[1])
        assert found["mu"] == pytest.approx(1.0, rel=1e-6)
        assert norm.cdf(norm.ppf(float(baseline)) + found["mu"]) == pytest.approx(
            found["success"]["upper"], rel=1e-6
        )
    sampled = run("bound", *SETTINGS, "--candidates", "100", "--delta", "1e-5")[1]
    assert "For this guess its ceiling is that of μ-GDP with μ = 0.3724." in sampled
    solved = run("calibrate", "--max-success", "0.3", *TEN, "--delta", "1e-5")
    assert "μ-GDP with μ = " in solved[1]


def test_noise_for_a_person_is_one_command(run):
    arguments = ["--max-success", "0.05", "--candidates", "100", *SETTINGS[2:], "--records-per-person", "5"]
    document = json.loads(run("calibrate", *arguments, "--json")[1])
    assert document["noise_multiplier"] == pytest.approx(2.4458, abs=1e-3)
    assert document["whose"] == "a person with at most 5 records"
    assert run("frontier", "--points", "2", "--records-per-person", "3")[0] == 0


def test_a_bracket_that_could_not_be_narrowed_says_so(run):
    arguments = [
        "--noise-multiplier",
        "0.72",
        "--sample-rate",
        "1.4e-5",
        "--steps",
        "30",
        "--baseline",
        "1.7782794e-12",
    ]
    out = run("bound", *arguments)[1]
    assert "could not be narrowed further: a known test reaches 1 time in 10^11.7" in out
