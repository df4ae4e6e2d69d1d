"""Sweeps: other settings of the same training, each an audit of its own."""

import json
import math
import statistics
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from conftest import dpsgd_game, heads_game, pictures, shortlist_game, synthetic
from remanence import (
    GLM,
    SGD,
    Criterion,
    EmpiricalPrior,
    Game,
    InputError,
    LeaveOneOut,
    Logistic,
    Membership,
    Perceptron,
    Policy,
    PriorAware,
    Reconstructor,
    Records,
    bounds,
    mean_squared_error,
    play,
)
from remanence.auditing import AuditResult
from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.exceptions import UnreadableAuditError
from remanence.report.sweep import document, rows, svg
from remanence.sweeping import grid, parse_axes, sweep, with_settings
from remanence.targets import digits_noisy_sum


def test_a_point_is_the_audit_of_the_game_with_that_setting():
    points = sweep(
        dpsgd_game(), {"noise_multiplier": [0.2, 5]}, [PriorAware()], trials=40, policy=Policy(0.9)
    )
    for point, noise in zip(points, (0.2, 5.0), strict=True):
        expected = play(dpsgd_game(noise_multiplier=noise), PriorAware(), trials=40)
        assert point.result.strongest.main == expected.main
    rates = [point.result.strongest.main.rate for point in points]
    assert rates[0] > rates[1], "more noise protects"


def test_ceilings_follow_the_settings():
    game = digits_noisy_sum()
    changed, note = with_settings(game, {"noise_multiplier": 4, "candidates": 10})
    assert changed.bounds[0].success == pytest.approx(bounds.of(changed.mechanism, 1 / 10).success)
    assert changed.bounds[0].success != game.bounds[0].success
    assert note == ""


def test_a_ceiling_that_nobody_can_prove_is_dropped_and_said():
    game = shortlist_game(candidates=4)
    proven = with_bound(game)
    changed, note = with_settings(proven, {"processes": 1})
    assert changed.bounds == ()
    assert "no proven ceiling" in note


def with_bound(game):
    return replace(game, bounds=(bounds.gaussian(0.25, noise_multiplier=1.0),))


def test_known_data_candidates_and_sets_can_be_swept_too():
    game = dpsgd_game()
    changed, _ = with_settings(game, {"known_data": 7, "candidates": 3})
    assert (len(changed.known_data), len(changed.prior.candidates)) == (7, 3)
    sets, _ = with_settings(heads_game(), {"counts": 2})
    assert (sets.prior.counts, sets.targets.counts) == (2, 2)


def test_games_within_games_are_reached():
    inner, _ = with_settings(Membership(dpsgd_game()), {"steps": 2})
    assert inner.game.mechanism.steps == 2
    alone, _ = with_settings(LeaveOneOut(GLM(Logistic()), synthetic()), {"penalty": 3})
    assert alone.mechanism.penalty == 3.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nois": 1}, "no setting named 'nois'"),
        ({"steps": 2.5}, "steps cannot be 2.5"),
        ({"steps": True}, "steps cannot be True"),
        ({"noise_multiplier": "much"}, "cannot be 'much'"),
        ({"known_data": 1000}, "from 1 to 20"),
        ({"candidates": 0}, "from 1 to 5"),
        ({"sample_rate": 7}, "sample_rate cannot be used"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        with_settings(dpsgd_game(), settings)


def test_a_model_that_exists_cannot_be_trained_otherwise():
    mechanism = GLM(Logistic())
    data = synthetic()
    release = mechanism.release(data[1:], data[:1][None], None)
    with pytest.raises(InputError, match="a release that exists"):
        with_settings(LeaveOneOut(mechanism, data, release=release), {"penalty": 1.0})


@pytest.mark.parametrize("text", ["noise", "=1", "noise=", "noise=1,,2"])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(InputError, match="cannot be read"):
        parse_axes([text])


def test_a_setting_is_named_once_and_every_combination_is_visited():
    with pytest.raises(InputError, match="named twice"):
        parse_axes(["a=1", "a=2"])
    assert len(grid(parse_axes(["a=1,2,3", "b=true,false", "c=none"]))) == 6


def command(monkeypatch, capsys, *arguments):
    from remanence.cli.main import main

    monkeypatch.setattr(sys, "argv", ["remanence", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, *capsys.readouterr()


def test_the_command_writes_a_table_a_picture_and_every_audit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["sweep", "digits-noisy-sum", "--set", "noise_multiplier=0.5,4", "--set", "candidates=10,100"]
    code, out, _ = command(
        monkeypatch, capsys, *arguments, "--trials", "30", "--max-success", "0.3", "--out", "s"
    )
    assert code == 0
    assert out.count("retrain-and-compare") == 4
    assert "PROTECTED" in out
    found = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert [point["settings"]["noise_multiplier"] for point in found["points"]] == [0.5, 0.5, 4, 4]
    for point in found["points"]:
        folder = "-".join(f"{name}={value}" for name, value in point["settings"].items())
        stored = json.loads((tmp_path / "s" / folder / "audit.json").read_text())
        assert stored["evidence"] == point["audit"]["evidence"]
    picture = ET.fromstring((tmp_path / "s" / "sweep.svg").read_text())  # noqa: S314
    words = "".join(picture.itertext())
    assert "ceiling, candidates 100" in words
    assert "![digits-noisy-sum" in (tmp_path / "s" / "sweep.md").read_text()
    code, again, told = command(monkeypatch, capsys, "sweep", "--resume", "s")
    assert "were there already, 0 were played" in told
    assert again == out
    code, _, told = command(monkeypatch, capsys, "audit", "--resume", "s")
    assert code == 2
    assert "s: sweep" in told


def test_heads_have_an_epsilon_a_ceiling_of_their_own_kind_and_an_accuracy():
    game = heads_game(per_class=2)
    game = replace(game, criterion=replace(game.criterion, threshold=0.003))
    changed, note = with_settings(game, {"epsilon": 1})
    delta = 6**-1.1  # two records of each of three classes
    expected = noise_for_epsilon(1.0, delta=delta, sample_rate=1.0, steps=15)
    assert changed.mechanism.noise_multiplier == expected
    assert note == ""
    kappas = [guess.value for guess in changed.prior.class_baselines(changed.criterion, [0, 1, 2])]
    settings = {"noise_multiplier": expected, "steps": 15, "person": bounds.Person(records=2)}
    # Nobody said that two records of a class are independent: they are one person's, and every class counts the same.
    proven = sum(bounds.dpsgd(2 * kappa, **settings).success for kappa in kappas) / 3
    assert changed.bounds[0].success == pytest.approx(proven)
    assert max(kappas) < proven < 1
    assert with_settings(changed, {"epsilon": None})[0].bounds == ()

    attack = Reconstructor(steps=20, batch=16, width=8)
    points = sweep(game, {"epsilon": [None, 0.1]}, [attack], trials=20, policy=Policy(0.999))
    (plain, plain_error), (noisy, noisy_error) = (point.accuracy for point in points)
    assert plain - plain_error > noisy + noisy_error
    release = game.mechanism.release(
        None, game.targets.sample(200, torch.Generator().manual_seed(5)), torch.Generator().manual_seed(6)
    )
    test = game.prior.records
    right = [
        float((functional.linear(test.embedding, weight, bias).argmax(1) == test.labels).double().mean())
        for weight, bias in zip(release["weight"], release["bias"], strict=True)
    ]
    error = statistics.stdev(right) / len(right) ** 0.5
    assert abs(plain - statistics.mean(right)) < 4 * math.hypot(plain_error, error)
    headings, lines = rows(points)
    assert headings[-2:] == ["TPR at 1 % FPR", "accuracy"]
    assert lines[0][-1].startswith(f"{1000 * plain:.0f}")
    assert document(points, {})["points"][1]["accuracy"] == noisy
    assert "accuracy" in svg(points, "heads")


@pytest.mark.parametrize("wrong", ["much", True, -1.0])
def test_an_epsilon_that_is_none_is_refused(wrong):
    with pytest.raises(InputError, match="epsilon"):
        with_settings(heads_game(), {"epsilon": wrong})


def test_the_noise_for_an_epsilon_is_that_of_the_steps_that_are_taken_whatever_comes_first():
    game = heads_game()
    one, other = (
        with_settings(game, settings)[0].mechanism
        for settings in ({"epsilon": 2, "epochs": 60}, {"epochs": 60, "epsilon": 2})
    )
    assert one == other
    assert one.noise_multiplier == noise_for_epsilon(2.0, delta=3**-1.1, sample_rate=1.0, steps=60)


def test_a_single_logit_has_an_accuracy_too():
    data = pictures(430, classes=2, seed=2)
    data = Records(10 * data.features, data.labels)
    mechanism = SGD(Perceptron((9, 1)), epochs=60, learning_rate=0.05, initial_seed=0)
    game = Game(
        mechanism, EmpiricalPrior(data[200:400]), data[:200], Criterion(mean_squared_error, 0.1),
        targets=EmpiricalPrior(data[400:]),
    )  # fmt: skip
    attack = Reconstructor(steps=5, batch=8, width=8, shadows=20)
    (point,) = sweep(game, {"epochs": [60]}, [attack], trials=5, policy=Policy(0.9))
    logits = mechanism.answer(
        mechanism.release(data[:200], data[400:401][None], torch.Generator()), data[200:400]
    )
    by_hand = float(((logits[0, :, 0] > 0) == data.labels[200:400]).double().mean())
    assert point.accuracy[0] == pytest.approx(by_hand, abs=0.02)
    assert by_hand > 0.6


def test_heads_whose_targets_have_no_classes_can_be_swept_without_a_ceiling():
    game = heads_game()
    loose = replace(game, targets=EmpiricalPrior(game.targets.records, 3))
    changed, _ = with_settings(loose, {"epochs": 5, "noise_multiplier": 2.0})
    assert changed.bounds == ()
    with pytest.raises(InputError, match="no δ"):
        with_settings(loose, {"epsilon": 2})


def test_a_folder_of_several_results_names_them(tmp_path):
    for name in ("epsilon=5", "epsilon=20"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "audit.json").write_text("{}")
    with pytest.raises(UnreadableAuditError, match="epsilon=20, epsilon=5"):
        AuditResult.load(tmp_path)
