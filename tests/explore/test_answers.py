"""The page's answers: the command line's own numbers, to the last printed digit."""

import contextlib
import io
import itertools
import json
import shlex

import pytest

from remanence import InputError
from remanence.report.explore import answers
from remanence.report.explore.answers import RANGES, Question, answer, budget, estimate, number, solve

SETTINGS = {"delta": "1e-05", "sample_rate": "0.02", "steps": "200", "candidates": "50"}
QUESTIONS = [
    {**SETTINGS, "noise_multiplier": "0.9"},
    {**SETTINGS, "epsilon": "3"},
    {**SETTINGS, "noise_multiplier": "4", "sample_rate": "1", "candidates": "1000000"},
]
FIVE = {**SETTINGS, "noise_multiplier": "2.5", "records_per_person": "5"}


@pytest.mark.parametrize("given", [*QUESTIONS, FIVE, {**SETTINGS, "epsilon": "3", "records_per_person": "2"}])
def test_the_page_says_what_the_command_line_says(given, run):
    found = answer(Question.read(given))
    command = shlex.split(found["command"])[1:]
    assert run(*command)[1].startswith(found["sentence"])
    document = json.loads(run(*command, "--json")[1])
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(found["python"], {})  # noqa: S102
    assert float(said.getvalue()) == document["success"]["upper"]
    assert found["noise_multiplier"] == document["noise_multiplier"]


def test_epsilon_and_delta_alone_prove_what_the_command_line_says(run):
    found = budget(Question.read({**SETTINGS, "epsilon": "3"}))
    out = run(*["bound", "--epsilon", "3", "--delta", "1e-05", "--candidates", "50"])[1]
    assert f"{found['alone'].split()[0]} times in 1000 at most" in out


def thousandths(found: dict) -> float:
    number, unit = found["most"].split(" ", 1)
    assert unit == "in 1000"
    return float(number)


def test_an_estimate_is_close_to_the_certificate():
    for given in QUESTIONS:
        question = Question.read(given)
        quick, slow = estimate(question), answer(question)
        assert thousandths(quick) == pytest.approx(thousandths(slow), rel=5e-3)
        assert quick["dots"]["guess"] == slow["dots"]["guess"]


def test_the_dots_never_show_less_than_the_ceiling():
    found = answer(Question.read(QUESTIONS[0]))
    assert found["dots"]["guess"] == 20
    assert sum(found["dots"].values()) >= thousandths(found) - 1e-9
    assert sum(found["dots"].values()) < thousandths(found) + 1


def test_the_noise_for_a_goal_reaches_it_and_less_does_not():
    question = Question.read(QUESTIONS[0])
    noise = solve(question, 0.03)["noise_multiplier"]

    def most(value: float) -> float:
        return thousandths(answer(Question.read({**SETTINGS, "noise_multiplier": repr(value)})))

    assert most(noise) <= 30
    assert most(0.99 * noise) > 30


def test_more_noise_is_less_risk_and_one_epsilon_is_many_risks():
    question = Question.read(QUESTIONS[0])
    noises = answers.noise_curve(question)["points"]
    assert all(high >= low - 1e-12 for (_, high), (_, low) in itertools.pairwise(noises))
    rates = answers.rate_curve(question, 4.0)["points"]
    assert rates[0][1] < 0.8 * rates[-1][1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("noise_multiplier", "0.05"),
        ("noise_multiplier", "-1"),
        ("noise_multiplier", "nan"),
        ("noise_multiplier", "9" * 1000),
        ("steps", "1000000000"),
        ("steps", "1.5"),
        ("steps", "<script>"),
        ("sample_rate", "0"),
        ("candidates", "1"),
        ("delta", ""),
        ("records_per_person", "0"),
    ],
)
def test_what_no_training_can_have_is_refused_with_a_sentence(name, text):
    with pytest.raises(InputError) as refused:
        Question.read({**QUESTIONS[0], name: text})
    assert refused.value.needs.endswith(f"to {RANGES[name][1]:g}")
    assert len(refused.value.got) <= 40


def test_the_noise_and_the_budget_exclude_each_other():
    for given in (SETTINGS, {**QUESTIONS[0], "epsilon": "1"}):
        with pytest.raises(InputError, match="Exactly one of noise_multiplier and epsilon"):
            Question.read(given)


def test_the_ends_of_every_range_are_numbers():
    for name, ends in RANGES.items():
        assert [number({name: repr(end)}, name) for end in ends] == list(ends)


def test_a_person_with_more_records_is_at_more_risk_on_the_page():
    one, five = (Question.read({**FIVE, "records_per_person": count}) for count in ("1", "5"))
    assert thousandths(answer(one)) < thousandths(answer(five))
    assert "a person with at most 5 records" in answer(five)["sentence"]
    assert float(budget(one)["budget"]) < float(budget(five)["budget"])
    assert budget(one)["epsilon"] == budget(five)["epsilon"]
    assert solve(one, 0.1)["noise_multiplier"] < solve(five, 0.1)["noise_multiplier"]
    assert thousandths(estimate(five)) == pytest.approx(thousandths(answer(five)), rel=5e-3)
    # Five records in every batch count five times.
    full = {**FIVE, "sample_rate": "1", "noise_multiplier": "500"}
    fifth = {**full, "noise_multiplier": "100", "records_per_person": "1"}
    assert answer(Question.read(full))["most"] == answer(Question.read(fifth))["most"]
