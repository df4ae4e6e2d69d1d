import dataclasses
import json
import math
import re
import string
from functools import cache

import pytest
import torch
from small_models import random_model, trained, tuned_on

from remanence.bounds import Segment
from remanence.core.exceptions import IncompatibleGameError, InputError
from remanence.report.writing import FORMATS
from remanence.results.verdict import Policy, Verdict
from remanence.texts.attacks import NearVerbatim, Sampling
from remanence.texts.canaries import Claim, Planted, TextCanaries, codes, natural, told_by_losses
from remanence.texts.game import audit_text, text_game
from remanence.texts.probabilities import queries_for
from remanence.texts.tiny import as_language_model, made_up_records


def test_canaries_are_in_or_out_by_a_coin_and_the_same_seed_gives_the_same(tmp_path):
    made = codes(400, digits=6, seed=3)
    assert made.inserted + made.left_out != list(made.records)
    assert len(made.inserted) + len(made.left_out) == len(made) == 400
    assert 160 < len(made.inserted) < 240  # four deviations of a fair coin
    assert len({record["prefix"] for record in made.records}) == 400
    assert all(len(r["secret"]) == 6 and r["secret"].isdecimal() for r in made.records)
    assert made.candidates == 10**6
    again = codes(400, digits=6, seed=3)
    assert (again.records, again.chosen.tolist()) == (made.records, made.chosen.tolist())
    assert codes(400, seed=4).chosen.tolist() != made.chosen.tolist()
    made.save(tmp_path / "canaries.json")
    read = TextCanaries.load(tmp_path / "canaries.json")
    assert (read.records, read.candidates) == (made.records, made.candidates)
    assert read.chosen.tolist() == made.chosen.tolist()
    assert natural(made_up_records(10, seed=0), seed=0).candidates is None


@pytest.mark.parametrize("text", ["", "{}", '{"records": [], "chosen": [true]}', "[1]"])
def test_files_that_hold_no_canaries_are_refused(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match="canaries cannot be read"):
        TextCanaries.load(tmp_path / "c.json")


def test_canaries_and_claims_without_a_meaning_are_refused():
    for make in (
        lambda: codes(1, seed=0),
        lambda: codes(5, template="same", seed=0),
        lambda: codes(5, digits=0, seed=0),
        lambda: natural([{"text": "a"}], seed=0),
        Claim,
        lambda: Claim(1.0, dpsgd=(Segment(1.0),)),
        lambda: Claim(-1.0),
        lambda: Claim(1.0, delta=0),
    ):
        with pytest.raises(InputError):
            make()


def gaussian(noise, seed, count=1200):
    """Scores of a mechanism whose every canary is a Gaussian mechanism of its own: μ = 1 / noise, exactly."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(2, (count,), generator=generator).bool()
    return chosen + noise * torch.randn(count, generator=generator), chosen


def refuted(scores, chosen, claim):
    return told_by_losses(scores, chosen).p_value(claim.curve) <= 0.05


def test_a_correct_claim_is_never_contradicted_over_ten_seeds_and_half_the_noise_is():
    claim = Claim(dpsgd=(Segment(1.0, steps=1),))
    assert not any(refuted(*gaussian(1.0, seed), claim) for seed in range(10))
    assert all(refuted(*gaussian(0.5, seed), claim) for seed in range(10))
    assert refuted(*gaussian(1e-6, 0), claim)  # noise forgotten


def test_scores_that_know_nothing_prove_nothing():
    scores = torch.randn(500, generator=torch.Generator().manual_seed(0))
    chosen = torch.randint(2, (500,), generator=torch.Generator().manual_seed(1)).bool()
    found = Planted(by_coin=True, claim=Claim(0.0)).said(scores, chosen, chosen)[0]
    assert found.epsilon_at_least == 0
    assert found.p_value_of_the_claim > 0.05


def test_a_coin_for_every_secret_and_whole_secrets_are_two_tests_that_share_the_confidence():
    scores, chosen = gaussian(0.3, 0, count=400)
    spoken = torch.arange(int(chosen.sum())) < 150
    losses = Planted(by_coin=True, claim=Claim(8.0)).said(scores, chosen, spoken)[0]
    both = Planted(10**6, by_coin=True, claim=Claim(8.0)).said(scores, chosen, spoken)[0]
    assert losses.p_value_of_the_claim > 0.5  # no coin can refute so large an ε with 400 canaries
    assert both.p_value_of_the_claim <= 0.01  # one in a million was guessed 150 times
    assert losses.epsilon_at_least < 5 < 8 < both.epsilon_at_least
    none = Planted(10**6, by_coin=True, claim=Claim(8.0)).said(scores, chosen, spoken & False)[0]
    assert none.epsilon_at_least <= losses.epsilon_at_least  # a second test takes a share of the confidence


@pytest.mark.parametrize(("tries", "expected"), [(1, 2), (5, 7), (100, 144)])
def test_a_guess_is_what_the_best_sampler_without_the_training_achieves(tries, expected):
    """All three-digit codes, listed: mass spread evenly over as many as still count is the best that can be done."""
    made = codes(40, digits=3, seed=0)
    game = text_game(trained()[1], _lower(made), tries=tries)

    def counted(spread):
        law = torch.full((1000,), -torch.inf, dtype=torch.float64)
        law[:spread] = -math.log(spread)
        return int((queries_for(law.numpy()) <= tries).sum())

    sampled = max(counted(spread) for spread in range(1, 1000))
    assert sampled == expected
    assert game.baseline().value == pytest.approx(expected / 1000)


def _lower(made):
    """In the characters of the tiny model, and short enough for it."""
    records = tuple({"prefix": r["prefix"].lower()[12:], "secret": r["secret"]} for r in made.records)
    return dataclasses.replace(made, records=records)


def test_near_misses_are_not_counted_where_a_guess_is_exact():
    game = text_game(trained()[1], _lower(codes(40, digits=3, seed=0)))
    with pytest.raises(IncompatibleGameError, match="near-verbatim"):
        NearVerbatim().check(game.knowledge)
    Sampling().check(game.knowledge)


def test_a_prefix_whose_tokens_change_with_the_secret_makes_guessing_easier():
    """An adversary who tries every way to cut the prefix has as many times the chances."""
    pieces = ["x", " ", *string.digits, *(f" {digit}" for digit in "01234")]

    def joined(text):  # a space and a low digit after it are one token
        return [pieces.index(piece) for piece in re.findall(r" [0-4]|.", text)]

    records = tuple({"prefix": "x" * n + " ", "secret": f"{n:02d}"} for n in range(1, 90))
    made = TextCanaries(records, torch.arange(89) % 2 == 0, 100.0)
    model, decode = random_model(len(pieces), context=99), lambda ids: "".join(pieces[i] for i in ids)
    plain, split = (
        dataclasses.replace(model, decode=decode, encode=encode)
        for encode in (lambda text: [pieces.index(c) for c in text], joined)
    )
    assert (made.cuts(plain), made.cuts(split)) == (1, 2)
    assert text_game(split, made, tries=1).baseline().value == pytest.approx(2 * 2 / 100)


@cache
def fine_tuned():
    made = natural(made_up_records(160, seed=7), seed=0)
    base = trained()[0]
    return as_language_model(tuned_on(made.inserted, base=base.logits, draw=2), "tuned"), base, made


def test_a_fine_tuning_without_noise_contradicts_a_small_epsilon_and_not_a_large_one(tmp_path):
    made, result = fine_tuned()[2], _audited(0.7)
    assert result.verdict is Verdict.CONTRADICTED
    assert result.strongest.findings[0].epsilon_at_least > 1.5
    assert not any(record["prefix"] in result.save(tmp_path).read_text() for record in made.records)
    assert result.strongest.control.rate < 0.05
    assert _audited(20.0).verdict is _audited(None).verdict is Verdict.EXPOSED  # they do come out


@pytest.mark.parametrize("epsilon", [None, 0.7, 20.0])
def test_every_format_tells_the_claim_and_what_canaries_show(epsilon):
    result = _audited(epsilon)
    written = {name: write(result) for name, write in FORMATS.items()}
    assert all(str(result.verdict) in text for text in written.values())
    dossier = written["dossier"]
    assert f"ε is at least {result.strongest.findings[0].epsilon_at_least:.3g}" in dossier
    assert ("The claim: refuted" in dossier) == (epsilon == 0.7)
    assert ("The claim: not refuted" in dossier) == (epsilon == 20.0)
    queries = next(line for line in dossier.splitlines() if "from queries" in line)
    assert "Not tested" not in queries
    assert "By canaries" in dossier


@cache
def _audited(epsilon):
    model, base, made = fine_tuned()
    return audit_text(model, made, base=base, claim=None if epsilon is None else Claim(epsilon))


def test_a_claim_that_is_not_refuted_is_never_believed():
    base, tuned = trained()
    for seed in range(5):
        made = natural(made_up_records(120, seed=11), seed=seed)
        result = audit_text(tuned, made, base=base, claim=Claim(0.0), policy=Policy(0.9))
        assert result.verdict is Verdict.UNPROVEN
        assert result.bounds == ()


def test_a_claim_needs_canaries():
    with pytest.raises(InputError, match="nothing to test the claim with"):
        audit_text(trained()[1], made_up_records(5, seed=1), claim=Claim(1.0))


def test_the_command_makes_a_file_to_train_on_and_a_key(tmp_path, run):
    code, out, _ = run("canaries", tmp_path / "c", "--count", "60", "--digits", "4", "--seed", "3")
    assert code == 0
    made = TextCanaries.load(tmp_path / "c" / "key.json")
    assert (made.records, made.candidates) == (codes(60, digits=4, seed=3).records, 1e4)
    lines = [json.loads(line) for line in (tmp_path / "c" / "train.jsonl").read_text().splitlines()]
    assert [{n: line[n] for n in ("prefix", "secret")} for line in lines] == made.inserted
    assert all(line["text"] == line["prefix"] + line["secret"] for line in lines)
    assert (tmp_path / "c" / "key.json").stat().st_mode & 0o077 == 0  # for its owner alone
    assert f"{len(lines)} of 60" in out
    code, _, told = run("canaries", tmp_path / "c")
    assert (code, "There are canaries already" in told) == (2, True)
    (tmp_path / "half/train.jsonl").mkdir(parents=True)
    assert run("canaries", tmp_path / "half")[0] == 2
    assert not (tmp_path / "half/key.json").exists()
    for place in ("x", "y"):
        run("canaries", tmp_path / place, "--count", "50")
    one, other = (TextCanaries.load(tmp_path / place / "key.json") for place in ("x", "y"))
    assert one.chosen.tolist() != other.chosen.tolist()  # nobody knows the coins of others


def test_the_command_takes_records_of_ones_own(tmp_path, run):
    own = made_up_records(30, seed=1)
    for name, records in (("own", own), ("twice", [*own, own[0]])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run("canaries", tmp_path / "c", "--texts", tmp_path / "own.jsonl")[0] == 0
    assert list(TextCanaries.load(tmp_path / "c" / "key.json").records) == own
    for wrong, says in (
        (["--texts", tmp_path / "own.jsonl", "--count", "5"], "Exactly one of --texts and --count"),
        (["--texts", tmp_path / "twice.jsonl"], "1 of them repeated"),
        (["--texts", tmp_path / "none.jsonl"], "texts cannot be read"),
        (["--count", "1"], "count cannot be used"),
        (["--template", "all alike "], "same prefix"),
    ):
        code, _, told = run("canaries", tmp_path / "d", *wrong)
        assert (code, says in told) == (2, True)
        assert not (tmp_path / "d").exists()
