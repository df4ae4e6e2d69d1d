import json
import math
import os
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch

from conftest import Playing, heads_game, shortlist_game, synthetic
from remanence import (
    AuditResult,
    Bound,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    InputError,
    LinearReader,
    Membership,
    Oblivious,
    Policy,
    Reconstruction,
    Reduction,
    RetrainAndCompare,
    Uninformed,
    Verdict,
    audit,
    bounds,
    looped,
    mismatch,
)
from remanence.core import stratified
from remanence.core.exceptions import IncompatibleGameError, MisfitError, UnreadableAuditError
from remanence.core.references import REMANENCE
from remanence.heads.game import HeadGame
from remanence.results.caveats import TOO_FEW_TRIALS
from remanence.results.findings import ProvenRecords
from remanence.results.storage import ARRAYS, DOCUMENT, schema
from remanence.results.verification import check_ceiling


@pytest.fixture
def result(glm_game) -> AuditResult:
    return audit(glm_game, target="test")


def bounded_game(success: float):
    bound = Bound("test bound", math.log(success), ("none",), REMANENCE)
    return replace(shortlist_game(1.0, candidates=5), bounds=(bound,))


def test_the_document_is_valid_and_has_the_promised_keys(result):
    document, _ = result.sealed()
    assert {
        "schema_version", "version", "seed", "verdict", "policy", "threat_model", "evidence", "bounds", "environment"
    } <= document.keys()  # fmt: skip
    assert {"attack", "main", "control", "baseline", "caveats"} <= document["evidence"][0].keys()
    jsonschema.Draft202012Validator.check_schema(schema())


def test_equal_runs_differ_in_their_environment_alone(glm_game):
    first, second = (audit(glm_game, seed=4).sealed()[0] for _ in range(2))
    first.pop("environment")
    second.pop("environment")
    assert first == second


def test_a_stored_result_reads_back_the_same(result, tmp_path):
    path = result.save(tmp_path / "run")
    again = AuditResult.load(path.parent)
    assert again.to_json() == result.to_json()
    assert torch.equal(again.evidence[0].arrays["error"], result.evidence[0].arrays["error"])
    assert str(again) == str(result)
    described = replace(result, about={"title": "Patients"})
    assert AuditResult.load(described.save(tmp_path / "described").parent).about == {"title": "Patients"}
    assert "about" not in result.to_json()


def test_a_model_of_nothing_is_refused(glm_game):
    fitted = glm_game.mechanism.release(glm_game.data[1:], glm_game.data[:1][None], torch.Generator())
    broken = type(fitted)({name: values * torch.nan for name, values in fitted.tensors.items()})
    with pytest.raises(MisfitError, match="NaN or infinite"):
        audit(replace(glm_game, release=broken), [ClosedForm()], policy=Policy(0.5))


def more_successes_than_trials(folder) -> None:
    stored = (folder / DOCUMENT).read_text()
    (folder / DOCUMENT).write_text(stored.replace('"successes": 40', '"successes": 1000000', 1))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / DOCUMENT).unlink(), "No such file"),
        (lambda d: (d / ARRAYS).unlink(), "No such file"),
        (lambda d: (d / DOCUMENT).write_text("{"), "not JSON"),
        (lambda d: (d / DOCUMENT).write_text('{"schema_version": 1}'), "required"),
        (lambda d: (d / ARRAYS).write_bytes(b"x" * 100), "not the file"),
        (more_successes_than_trials, "1000000 successes"),
        ({"schema_version": 99}, "update remanence"),
        ({"verdict": "SAFE"}, "verdict"),
        ({"seed": math.nan}, "NaN"),
        ({"verdict": "PROTECTED"}, "does not follow"),
    ],
)
def test_what_does_not_validate_is_refused_with_the_reason(result, tmp_path, damage, reason):
    path = result.save(tmp_path)
    if isinstance(damage, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    else:
        damage(tmp_path)
    with pytest.raises(UnreadableAuditError, match=reason):
        AuditResult.load(tmp_path)


@pytest.mark.parametrize("written", [0, 1])
def test_a_failed_write_leaves_the_old_result_and_no_scraps(result, tmp_path, monkeypatch, written):
    result.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = []

    def full(*_):
        calls.append(1)
        if len(calls) > written:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        result.save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_that_is_written_contains_training_data(result, tmp_path, glm_game):
    result.save(tmp_path)
    text = (tmp_path / DOCUMENT).read_text()
    packed = (tmp_path / ARRAYS).read_bytes()
    for value in glm_game.data.features.flatten().tolist():
        assert repr(value) not in text
        assert f"{value:.6f}" not in text
        assert np.float64(value).tobytes() not in packed
        assert np.float32(value).tobytes() not in packed


NAMES = ("retrain-and-compare", "oblivious")


def test_trying_more_attacks_widens_every_interval(monkeypatch, capsys):
    monkeypatch.setattr("remanence.auditing._PATIENCE", 0.0)
    game = shortlist_game(1.0, candidates=5)
    one = audit(game, [RetrainAndCompare()], trials=100, policy=Policy(0.3))
    two = audit(game, [RetrainAndCompare(), Oblivious()], trials=100, policy=Policy(0.3))
    assert one.evidence[0].main.confidence == pytest.approx(0.95)
    assert two.evidence[0].main.confidence == pytest.approx(0.975)
    assert two.evidence[0].main.lower < one.evidence[0].main.lower
    told = capsys.readouterr().err
    found = two.evidence[0].main.successes
    assert f": retrain-and-compare recovered the target in {found} of 100 trials" in told
    assert "Now oblivious." in told
    first, second, total = (two.environment["seconds"][name] for name in (*NAMES, "total"))
    assert 0 < first + second <= total


@pytest.mark.parametrize(
    ("success", "limit", "verdict"),
    [
        (0.9, 0.21, Verdict.EXPOSED),
        (0.01, 0.21, Verdict.CONTRADICTED),
        (0.9, 0.95, Verdict.PROTECTED),
        (1.0, 0.95, Verdict.UNPROVEN),
    ],
)
def test_bounds_of_the_game_enter_the_verdict(success, limit, verdict):
    found = audit(bounded_game(success), trials=300, policy=Policy(limit))
    assert found.verdict is verdict
    assert found.to_json()["bounds"][0]["success"] == pytest.approx(success)


def test_a_bound_for_another_baseline_is_refused():
    game = bounded_game(0.01)
    for bound in (
        bounds.gaussian(0.2 * (1 - 1e-6), noise_multiplier=20.0),  # a guess among five has 0.2
        bounds.gaussian([0.2, 0.3], noise_multiplier=20.0),
    ):
        with pytest.raises(InputError, match="baseline"):
            audit(replace(game, bounds=(bound,)), trials=20, policy=Policy(0.3))


CEILING = bounds.dpsgd(0.2, noise_multiplier=2.0, sample_rate=0.5, steps=3)
TRAINING = {"noise_multiplier": 2.0, "sample_rate": 0.5, "steps": 3}


@pytest.mark.parametrize(
    ("changed", "settings", "guess", "said"),
    [
        ({}, {}, 0.2, ""),
        ({}, {}, 0.1, ""),
        ({}, {}, 0.2 * (1 + 1e-6), "computed for a guess of 0.2"),
        ({}, {"noise_multiplier": 2.1}, 0.2, ""),  # a recorded run loses a little to rounding
        ({}, {"noise_multiplier": 2.11}, 0.2, "for noise_multiplier 2.0, and the training has 2.11"),
        ({}, {"noise_multiplier": 1.999}, 0.2, "the training has 1.999"),
        ({}, {"sample_rate": 0.49}, 0.2, "the training has 0.49"),
        ({}, {"steps": 4}, 0.2, "the training has 4"),
        ({}, {"steps": None, "sample_rate": None}, 0.2, ""),
        ({}, {"noise_multiplier": None}, 0.2, "does not state the noise"),
        ({"log_success": CEILING.log_success - 1e-5}, {}, 0.2, "its recipe gives"),
        ({"log_success": CEILING.log_success + 1e-5}, {}, 0.2, ""),
        ({"whose": "a person with at most 5 records"}, {}, 0.2, "and its recipe says 'one record'"),
        ({"on_average": True}, {}, 0.2, "on_average True"),
        ({"name": "another"}, {}, 0.2, "name 'another'"),
        ({"assumptions": CEILING.assumptions[1:]}, {}, 0.2, "leaves out that Poisson sampling"),
        ({"recipe": None}, {}, 0.2, "has no recipe"),
    ],
)
def test_a_stored_ceiling_must_be_the_one_of_its_recipe_and_of_this_training(changed, settings, guess, said):
    found = check_ceiling(replace(CEILING, **changed), {**TRAINING, **settings}, guess)
    assert said in "".join(found)
    assert any(found) is (said != "")


@pytest.mark.parametrize("limit", [0.1, 0.2])
def test_a_limit_that_a_guess_breaks_is_refused(limit):
    with pytest.raises(InputError, match="No release can meet this limit"):
        audit(shortlist_game(1.0, candidates=5), trials=20, policy=Policy(limit))
    with pytest.raises(InputError, match=r"--max-success 0\.55$"):
        audit(Membership(shortlist_game(1.0, candidates=50)), trials=20, policy=Policy(limit))


def test_too_few_trials_are_said_to_be_too_few():
    game = shortlist_game(1.0, candidates=5)
    # With k trials and no success the upper end is 1 − 0.025^(1/k): 0.2497 for 13, 0.2647 for 12.
    assert TOO_FEW_TRIALS in audit(game, trials=12, policy=Policy(0.25)).evidence[0].caveats
    assert TOO_FEW_TRIALS not in audit(game, trials=13, policy=Policy(0.25)).evidence[0].caveats


def test_a_game_that_no_attack_can_play_is_refused_in_a_sentence():
    data = synthetic()
    game = Game(looped(dict), Uninformed(), data, targets=EmpiricalPrior(data))
    with pytest.raises(IncompatibleGameError, match="No attack can play"):
        audit(game)
    for wrong in ("retrain-and-compare", 5):
        with pytest.raises(InputError, match="attacks cannot be used"):
            audit(game, wrong)


def two_guesses(knowledge, generator):
    """A candidate twice, so that each target has two chances."""
    guesses = knowledge.prior.candidates[:1][[0, 0]]
    return lambda release: Reconstruction(guesses[None][[0] * len(release)])


def test_a_guess_is_computed_once_and_an_attack_checked_before_any_time_is_spent(monkeypatch):
    counted, checked, own = [], [], FinitePrior.baseline
    monkeypatch.setattr(FinitePrior, "baseline", lambda *given: counted.append(1) or own(*given))
    monkeypatch.setattr(Playing, "check", lambda *given: checked.append(1))
    criterion = Criterion(mismatch, 0.5, Reduction.BEST)
    attacks = [Playing(two_guesses), RetrainAndCompare()]
    game = replace(shortlist_game(1.0, candidates=5), criterion=criterion)
    found = audit(game, attacks, trials=20, policy=Policy(0.9))
    assert [each.baseline.value for each in found.evidence] == pytest.approx([0.4, 0.2])
    assert len(counted) == 1
    assert len(checked) == 1


def test_a_default_limit_computes_no_second_guess(monkeypatch):
    counted = []
    own = stratified._of_one_class
    monkeypatch.setattr(stratified, "_of_one_class", lambda *given: counted.append(1) or own(*given))
    audit(HeadGame(heads_game()), [LinearReader(60)], trials=2)
    assert len(counted) == 3  # classes


def test_a_folder_of_several_results_names_them(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.json").write_text("{}")
    with pytest.raises(UnreadableAuditError, match="one, other"):
        AuditResult.load(tmp_path)


def test_in_words_it_has_a_sentence_for_what_tells_and_none_for_what_does_not(result):
    best = replace(result.strongest, findings=(ProvenRecords(1, 9), ProvenRecords(0, 9)))
    told = str(replace(result, evidence=(best,)))
    assert "1 of 9 records is proven" in told
    assert "0 of 9" not in told
