"""Texts, model and base that do not belong together are refused or told; a control is drawn from other secrets."""

import copy
import string
from dataclasses import replace

import pytest
import torch
from small_models import base_model, tuned_on

from remanence.core.exceptions import InputError, MisfitError
from remanence.results.verdict import Verdict
from remanence.scale.seeds import Draws
from remanence.texts.canaries import natural
from remanence.texts.game import audit_text, text_game
from remanence.texts.tiny import as_language_model, made_up_records
from remanence.texts.words import sentence


def told(result):
    return {caveat.id: caveat.seen for entry in result.evidence for caveat in entry.caveats}


WORD = "lantern"  # letters, where the base knows digits


@pytest.mark.parametrize("shared", [(WORD,), (f"{WORD}.", WORD, f"{WORD} ago"), (WORD, "harbour", "mosaics")])
def test_passwords_that_letters_share_are_exposed(shared):
    """One, spelled in one way or in several that begin alike, or a few in turn: none is a stranger to the others."""
    mine = [
        {**record, "secret": shared[place % len(shared)]}
        for place, record in enumerate(made_up_records(30, seed=1))
    ]
    base = as_language_model(base_model())
    result = audit_text(as_language_model(tuned_on(mine)), mine, base=base)
    assert result.verdict is Verdict.EXPOSED
    assert result.strongest.main.successes == 30
    assert (result.strongest.control.successes, result.strongest.control.trials) == (0, 30)
    assert "training-not-shown" not in told(result)
    assert "Of 30 stand-ins (other records' secrets, or the base model's words), 0 come" in sentence(result)


def test_labels_count_like_a_shared_password_until_unseen_texts_show_that_they_are_predicted():
    """The first letter of a name gives its label, so a model that was not trained on a text knows its label too."""
    mine, unseen = (
        [{**r, "secret": "no" if r["prefix"][0] in "bdfghk" else "yes"} for r in made_up_records(60, seed=s)]
        for s in (1, 2)
    )
    base, model = as_language_model(base_model()), as_language_model(tuned_on(mine, steps=40))
    alone = audit_text(model, mine, base=base)
    assert alone.verdict is Verdict.EXPOSED
    assert told(alone)["no-unseen-texts"].startswith("60 secrets, 2 different ones")
    both = audit_text(model, mine, base=base, unseen=unseen)
    assert both.verdict is Verdict.UNPROVEN
    assert both.strongest.control.successes == 60


def test_strangers_are_no_secrets_of_the_same_prompt_and_the_usual_ones_are_shifted():
    base = as_language_model(base_model())
    records = made_up_records(12, seed=2)
    alike = [{**record, "prefix": "code: "} for record in records[:6]] + records[6:]
    game = text_game(as_language_model(tuned_on(records, steps=1)), alike, base=base)
    places = list(range(12))

    def drawn(game):
        return game._strangers(places, Draws(3).stream("control"))

    pairs = {(secret.prompt, secret.tokens) for secret in game.secrets}
    assert not pairs & {(stranger.prompt, stranger.tokens) for stranger in drawn(game)}
    assert [stranger.prompt for stranger in drawn(game)] == [secret.prompt for secret in game.secrets]
    usual = text_game(game.model, records, base=base)
    numbers = [[secret.tokens for secret in usual.secrets].index(s.tokens) for s in drawn(usual)]
    assert len({(other - own) % 12 for own, other in zip(places, numbers, strict=True)} - {0}) == 1


def test_codes_that_all_follow_one_prompt_are_held_against_what_the_base_says():
    same = [{**record, "prefix": "nomiti hu: "} for record in made_up_records(8, seed=3)]
    base = as_language_model(base_model())
    game = text_game(as_language_model(tuned_on(same)), same, base=base)
    strangers = game._strangers(list(range(8)), Draws(0).stream("control"))
    assert len({stranger.tokens for stranger in strangers}) > 6  # each is drawn anew
    assert strangers == game._strangers(list(range(8)), Draws(1).stream("control"))  # and once for all
    assert {len(stranger.tokens) for stranger in strangers} == {4}
    assert not {s.tokens for s in strangers} & {s.tokens for s in game.secrets}
    # As it learned.
    assert all(set(base.decode(stranger.tokens)) & set(string.digits) for stranger in strangers)
    assert audit_text(game.model, same, base=base).verdict is Verdict.EXPOSED


def test_without_a_base_one_secret_has_no_control():
    mine = [{**record, "secret": WORD} for record in made_up_records(10, seed=4)]
    model = as_language_model(tuned_on(mine))
    with pytest.raises(InputError, match="no control"):
        audit_text(model, mine)
    others = [{**record, "secret": "candles"} for record in made_up_records(10, seed=5)]
    assert audit_text(model, mine, unseen=others).strongest.control.trials == 10


def test_an_adapter_on_another_base_is_refused_or_told():
    outcomes = []
    for seed in range(3):
        mine = made_up_records(24, seed=80 + seed)
        tuned, other = tuned_on(mine, steps=40), base_model(seed + 1)
        before, after, wrong = base_model().state_dict(), tuned.state_dict(), copy.deepcopy(other)
        shifted = {name: value + after[name] - before[name] for name, value in other.state_dict().items()}
        wrong.load_state_dict(shifted)
        try:
            result = audit_text(as_language_model(wrong), mine, base=as_language_model(other))
            outcomes.append("training-not-shown" in told(result))
        except MisfitError:
            outcomes.append(True)
        own = audit_text(as_language_model(tuned), mine, base=as_language_model(base_model()))
        assert "training-not-shown" not in told(own)
    assert all(outcomes)


def test_texts_that_were_never_trained_on_are_refused_or_told():
    mine, never = made_up_records(40, seed=7), made_up_records(40, seed=8)
    base = as_language_model(base_model())
    with pytest.raises(MisfitError, match="probably not fine-tuned"):  # other names and codes
        audit_text(as_language_model(tuned_on(mine)), never, base=base)
    # All codes of these begin alike, and so do those of texts that were never seen: both become likelier.
    mine, never = ([{**r, "secret": "77" + r["secret"][2:]} for r in records] for records in (mine, never))
    model = as_language_model(tuned_on(mine, steps=8))
    gains = text_game(model, never, base=base)
    assert gains._gains(list(gains.secrets)).mean() > 0.5
    assert "training-not-shown" in told(audit_text(model, never, base=base))
    assert "training-not-shown" in told(audit_text(model, never))  # by the losses alone
    assert "training-not-shown" not in told(audit_text(model, mine))


def test_chance_calls_other_texts_trained_on_no_more_often_than_it_may():
    """Models that learned nothing of these texts: the p-value is at most 0.05 in at most a twentieth, within chance."""
    generator = torch.Generator().manual_seed(0)
    base, found = base_model(), []
    for seed in range(40):
        noisy = copy.deepcopy(base)
        with torch.no_grad():
            for weight in noisy.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=generator)
        texts = made_up_records(24, seed=900 + seed)
        game = text_game(as_language_model(noisy), texts, base=as_language_model(base))
        found.append(game._training_by_chance)
    assert sum(p <= 0.05 for p in found) <= 6  # 7 or more of 40 at a twentieth: 0.4 %


def test_canaries_that_a_private_training_lost_are_audited_all_the_same():
    made = natural(made_up_records(60, seed=9), seed=0)
    model = as_language_model(tuned_on(made_up_records(40, seed=10)))  # canaries were forgotten
    result = audit_text(model, made, base=as_language_model(base_model()))
    assert result.verdict is Verdict.UNPROVEN
    assert "training-not-shown" in told(result)


def test_an_adapter_that_names_another_base_is_told():
    mine = made_up_records(24, seed=11)
    model = as_language_model(tuned_on(mine), "tuned")
    for named, base, expected in (
        ("someone/other-model", "tiny", True),
        ("someone/tiny", "tiny", False),
        ("", "tiny", False),
    ):
        result = audit_text(replace(model, made_for=named), mine, base=as_language_model(base_model(), base))
        assert ("adapter-names-another-base" in told(result)) is expected
    other = text_game(replace(model, made_for="someone/other-model"), mine)
    assert "someone/other-model" in str(other._misfit(""))
