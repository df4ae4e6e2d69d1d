import dataclasses
import json
import math
import sys
from functools import cache

import pytest
import torch
from small_models import MINE, UNSEEN, trained, tuned_on

from remanence import bounds
from remanence.auditing import AuditResult, audit
from remanence.core.catalogue import catalogue, load_attack
from remanence.core.exceptions import IncompatibleGameError, InputError, MisfitError
from remanence.report import words
from remanence.report.html import report as html
from remanence.report.writing import FORMATS
from remanence.results.verdict import Verdict
from remanence.targets import TARGETS
from remanence.texts import words as report
from remanence.texts.attacks import Asked, NearVerbatim, Sampling, TextAttack
from remanence.texts.canaries import Planted, TextCanaries
from remanence.texts.game import audit_text, text_game
from remanence.texts.probabilities import within
from remanence.texts.reading import Numbers
from remanence.texts.tiny import as_language_model


@cache
def game(tries=100):
    base, tuned = trained()
    return text_game(tuned, MINE, base=base, unseen=UNSEEN, tries=tries)


def drawn():
    """The same, and it is known that four digits were drawn."""
    return dataclasses.replace(game(), planted=Planted(10**4))


@cache
def audited():
    return audit(drawn(), target="mine")


def of(attack, result):
    (entry,) = (entry for entry in result.evidence if entry.attack == attack)
    return entry


def caveats(result):
    return {caveat.id for caveat in result.strongest.caveats}


def test_what_was_trained_on_comes_out_and_the_control_does_not():
    result = audited()
    assert result.verdict is Verdict.EXPOSED
    sampled = of("sampling", result)
    assert sampled.main.rate > 0.9
    assert sampled.control.rate < 0.05
    assert sampled.control.trials == len(UNSEEN)
    assert set(of("greedy-decoding", result).arrays["error"].flatten().tolist()) == {1.0, math.inf}
    # Of 10,000 codes, a sampler that knows nothing gives 144 half a chance within 100 tries.
    assert all(entry.baseline.value == 0.0144 for entry in result.evidence)


def test_a_search_for_near_misses_finds_at_least_as_much():
    base, tuned = trained()
    few = text_game(tuned, MINE[:12], base=base, unseen=UNSEEN[:12])
    near, plain = (entry.arrays for entry in audit(few, [NearVerbatim(edits=0), Sampling()]).evidence)
    assert torch.equal(near["error"], plain["error"])
    looser = audit(few, [NearVerbatim(branches=100)]).strongest.arrays["log_probability"]
    assert (looser > plain["log_probability"]).double().mean() > 0.8


def test_a_secret_counts_from_the_very_probability_on_that_its_tries_set():
    found = of("sampling", audited()).arrays
    logs, base = found["log_probability"].numpy(), found["base_log_probability"].numpy()
    expected = (within(logs, 100) >= 0.5) & (within(base, 100) < 0.5)
    assert found["succeeded"].flatten().tolist() == expected.tolist()
    assert 0 < (~expected).sum() < len(expected)  # both sides of the line are there
    assert found["line"].tolist() == list(range(1, len(MINE) + 1))


def test_what_the_base_model_says_already_is_no_leak():
    tuned = trained()[1]
    further = tuned_on([*MINE, *UNSEEN[:30]], 60, base=tuned.logits)
    result = audit_text(as_language_model(further), MINE, base=tuned, unseen=UNSEEN[30:])
    sampled = of("sampling", result)
    assert sampled.main.rate < 0.1
    assert result.verdict is Verdict.UNPROVEN
    assert report.curves(sampled)["the fine-tuned model"][2] > 0.9  # they do come out


def test_without_a_base_model_or_unseen_texts_that_is_said():
    base, tuned = trained()
    alone = audit_text(tuned, MINE, base=base)  # another secret after the same prompt is the control
    assert alone.verdict is Verdict.EXPOSED
    assert "no-unseen-texts" in caveats(alone)
    assert alone.strongest.control.trials == len(MINE)
    assert "not out of the base model" in words.counts(alone)
    result = audit_text(tuned, MINE, unseen=UNSEEN)
    assert result.verdict is Verdict.EXPOSED
    assert "no-base-model" in caveats(result)
    assert "base model does not" not in report.sentence(result)
    assert "not out of the base model" not in words.counts(result)


def test_what_does_not_belong_together_is_refused():
    base, tuned = trained()
    shifted = dataclasses.replace(tuned, encode=lambda text: [(7 * t + 3) % 40 for t in tuned.encode(text)])
    for model, texts, options, says in (
        (tuned, UNSEEN, {"base": base, "unseen": MINE}, "probably not fine-tuned on these texts"),
        (tuned, UNSEEN, {"base": base}, "probably not fine-tuned on these texts"),
        (tuned, MINE, {"base": dataclasses.replace(tuned, name="the same again")}, "changed nothing"),
        (shifted, MINE, {}, "cannot read these texts"),
        (tuned, MINE, {"base": dataclasses.replace(base, vocabulary=39)}, "different vocabulary"),
    ):
        with pytest.raises(MisfitError, match=says):
            audit_text(model, texts, **options)
    for texts, options, says in (
        (MINE, {"unseen": [*UNSEEN, MINE[3]]}, "Some unseen texts are training texts"),
        (MINE[:1], {}, "too few secrets"),
        (MINE, {"tries": 0}, "tries"),
    ):
        with pytest.raises(InputError, match=says):
            audit_text(tuned, texts, **options)


@pytest.mark.parametrize("name", [name for name in catalogue() if isinstance(load_attack(name), TextAttack)])
def test_every_attack_that_prompts_keeps_its_contract(name):
    """Frozen, repeatable, and what it needs for one secret does not depend on the others."""
    attack, model = load_attack(name), trained()[1]
    if name == "near-verbatim":
        attack = NearVerbatim(branches=50)
    secrets = game().secrets[:4]
    tries, logs = attack.tries(Asked(model, secrets))
    assert tries.shape == logs.shape == (4,)
    assert (tries >= 1).all()
    alone = [attack.tries(Asked(model, [secret])) for secret in secrets]
    torch.testing.assert_close(torch.cat([each[1] for each in alone]), logs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat([each[0] for each in alone]), tries, rtol=1e-3, atol=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        attack.branches = 1


def test_every_attack_that_prompts_plays_and_no_other_does():
    names = {attack.info.name for attack in game().attacks()}
    assert names == {"greedy-decoding", "sampling", "top-k-sampling"}
    with pytest.raises(IncompatibleGameError):
        audit(TARGETS["diabetes-ridge"](), [Sampling()])


def test_a_ceiling_must_be_about_the_same_guess():
    tight, wrong = (bounds.dpsgd(kappa, noise_multiplier=50.0, steps=10) for kappa in (0.0144, 1e-6))
    result = audit(dataclasses.replace(drawn(), bounds=(tight,)), [Sampling()])
    assert (result.bounds, result.verdict) == ((tight,), Verdict.CONTRADICTED)
    with pytest.raises(InputError, match="another baseline"):
        audit(dataclasses.replace(drawn(), bounds=(wrong,)), [Sampling()])


def test_the_curve_is_the_mean_of_what_each_secret_gives():
    entry = of("sampling", audited())
    found = report.curves(entry)
    assert list(found) == ["the fine-tuned model", "its base model", "the control"]
    tuned, p = found["the fine-tuned model"], entry.arrays["log_probability"].exp()
    for place, n in ((0, 1), (3, 1000)):
        assert tuned[place] == pytest.approx(float((1 - (1 - p) ** n).mean()), abs=1e-9)
    assert tuned[2] > 0.9 > 0.1 > found["the control"][2]
    assert all((curve[1:] >= curve[:-1]).all() for curve in found.values())


def test_the_report_names_places_and_is_the_same_when_read_back(tmp_path):
    result = audited()
    path = result.save(tmp_path)
    assert not any(record["prefix"].strip() in path.read_text() for record in MINE)
    page, again = html(result), AuditResult.load(path)
    assert "What comes out" in page
    assert report.riskiest(result)[0].place in page
    assert not any(f" {r['secret']} " in page or f">{r['secret']}<" in page for r in MINE)
    assert report.sentence(again) == report.sentence(result)
    assert "Within 100 tries" in report.sentence(result)
    assert all(told in report.curve_picture(again) for told in ("of 100 secrets come out", "100 tries"))


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_of_the_report_holds_a_text(name):
    written = FORMATS[name](audited())
    assert "EXPOSED" in written
    assert not any(record["prefix"].strip() in written for record in MINE)


def test_the_riskiest_secrets_come_first():
    rows = report.riskiest(audited())
    assert len(rows) == 10
    assert all(row.recovered for row in rows)
    chances = [row.probability for row in rows]
    assert chances == sorted(chances, reverse=True)
    assert len(set(chances)) > 1  # also where greedy decoding, which knows yes and no, is the strongest
    greedy = dataclasses.replace(audited(), evidence=tuple(reversed(audited().evidence)))
    assert [row.place for row in report.riskiest(greedy)] == [row.place for row in rows]


def test_several_secrets_of_one_text_are_said_to_stand_together():
    texts = [f"{a['prefix']}{a['secret']} {b['secret']}" for a, b in zip(MINE[:6], MINE[6:12], strict=True)]
    both = text_game(trained()[1], texts, find=Numbers(4))
    twice = text_game(trained()[1], [*MINE[:5], *MINE[:5]])
    for each, seen in (
        (both, ["12 secrets in 6 different texts."]),
        (twice, ["10 secrets in 5 different texts."]),
        (game(), []),
    ):
        assert [caveat.seen for caveat in each.caveats() if caveat.id == "secrets-share-texts"] == seen


def test_a_part_of_the_secrets_can_be_drawn():
    result = audit(game(), [Sampling()], trials=30)
    assert result.strongest.main.trials == 30
    lines = result.strongest.arrays["line"].tolist()
    assert lines == sorted(set(lines))
    assert set(lines) < set(range(1, 101))


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, records in (("mine", MINE), ("unseen", UNSEEN)):
        lines = (json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    coins = torch.tensor([True] * len(MINE) + [False] * len(UNSEEN))
    TextCanaries((*MINE, *UNSEEN), coins, 10.0**4).save(tmp_path / "canaries.json")
    base, tuned = trained()
    monkeypatch.setattr(
        "remanence.texts.reading.load_language_model",
        lambda path, adapter=None, **options: (tuned, base) if adapter else (base, None),
    )
    return tmp_path


def test_the_command_tells_what_comes_out_and_shows_no_secret(files, run):
    options = ["text", "model", "--adapter", "mine-lora", "--texts", files / "mine.jsonl", "--unseen"]
    options += [files / "unseen.jsonl", "--out", files / "out"]
    code, out, _ = run(*options)
    assert code == 1
    assert all(told in out for told in ("EXPOSED  mine-lora", "Within 100 tries", "line "))
    place = report.riskiest(AuditResult.load(files / "out"))[0]
    assert MINE[place.line - 1]["secret"] not in out
    _, out, _ = run(*options, "--json", "--temperature", "0.5", "--top-p", "0.9")
    document = json.loads(out)
    assert document["threat_model"]["knows"][0] == "the text before each secret"
    assert [entry["attack"] for entry in document["evidence"]] == ["greedy-decoding", "sampling"]
    assert document["evidence"][1]["settings"]["decoding"] == "temperature 0.5, top-p 0.9"


def test_the_command_holds_canaries_against_a_claim(files, run):
    options = ["--canaries", files / "canaries.json", "--claimed-epsilon", "1"]
    code, out, _ = run("text", "m", "--adapter", "a", "--out", files / "out", "--json", *options)
    document = json.loads(out)
    assert (code, document["verdict"]) == (1, "CONTRADICTED")
    first = document["evidence"][0]
    assert (first["baseline"]["value"], first["control"]["trials"]) == (0.0144, len(UNSEEN))
    (test,) = [each for each in first["findings"] if each["kind"] == "privacy-test"]
    assert test["claimed_epsilon"] == 1 < test["epsilon_at_least"]


def test_the_command_refuses_what_contradicts_itself(files, run):
    mine, key = ["--texts", files / "mine.jsonl"], ["--canaries", files / "canaries.json"]
    for options, says in (
        ([*mine, "--adapter", "a", "--base", "b"], "Exactly one of --adapter and --base"),
        ([*mine, "--numbers", "4", "--windows", "8"], "Exactly one of --numbers and --windows"),
        ([*mine, "--top-p", "2"], "top_p cannot be used"),
        ([*mine, "--attack", "closed-form"], "cannot attack this game"),
        ([*mine, "--claimed-epsilon", "1"], "nothing to test the claim with"),
        ([*key, *mine], "Exactly one of --texts and --canaries"),
        ([*key, "--unseen", files / "mine.jsonl"], "Exactly one of canaries and unseen texts"),
        ([], "Exactly one of --texts and --canaries"),
    ):
        code, _, told = run("text", "m", "--out", files / "o", *options)
        assert (code, says in told) == (2, True), says
    assert not (files / "o").exists()


def test_an_audit_of_texts_goes_on_where_it_was_and_reads_its_options_from_a_file(files, run):
    (files / "audit.toml").write_text(
        'command = "text"\ntarget = "m"\nadapter = "a"\ntexts = "mine.jsonl"\nunseen = "unseen.jsonl"\ntries = 7\n'
    )
    code, _, _ = run("audit", files / "audit.toml", "--out", files / "out")
    before = AuditResult.load(files / "out")
    assert (code, before.threat_model["criterion"]["threshold"]) == (1, 7)
    code, _, told = run("audit", files / "audit.toml", "--resume", files / "out")
    assert (code, "Units that were already there: 3; played: 0." in told) == (1, True)
    again = AuditResult.load(files / "out")
    assert [entry.main for entry in again.evidence] == [entry.main for entry in before.evidence]
    code, _, told = run("audit", files / "audit.toml", "--resume", files / "out", "--tries", "8")
    assert (code, "tries: then 7, now 8" in told) == (2, True)


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("config.json", "remanence text {} --texts train.jsonl"),
        ("adapter_config.json", "remanence text BASE_MODEL --adapter {} --texts train.jsonl"),
    ],
)
def test_audit_tells_which_options_a_language_model_has(tmp_path, run, file, hint):
    (tmp_path / file).write_text("{}")
    code, _, told = run("audit", tmp_path, "--out", tmp_path / "out")
    assert (code, hint.format(tmp_path) in told) == (2, True)
    assert not (tmp_path / "out").exists()


def test_without_the_extra_the_command_says_which_it_is(tmp_path, monkeypatch, run):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, told = run("text", tmp_path, "--texts", tmp_path, "--out", tmp_path / "o")
    assert (code, "pip install '.[text]'" in told) == (2, True)
