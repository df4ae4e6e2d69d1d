import itertools
import math

import pytest
import torch
from small_models import MINE, UNSEEN, random_model, trained

from remanence.core.exceptions import InputError
from remanence.texts.attacks import Asked, TemplateSearch
from remanence.texts.decoding import Decoding
from remanence.texts.language_model import Secret
from remanence.texts.probabilities import log_probabilities
from remanence.texts.secrets import read_records
from remanence.texts.template import Spelling, Template, token_texts
from remanence.texts.template_search import ranks

FORM = Template.parse("{abcd:1}c{a|c|de|f}{bf:1}")
EVERY = [w + "c" + x + y for w in "abcd" for x in ("a", "c", "de", "f") for y in "bf"]


def spelling(model, form):
    return Spelling(token_texts(model.decode, model.vocabulary), form)


def sorted_by_hand(model, prompt, texts):
    every = [Secret(prompt, tuple(model.encode(text)), 1) for text in texts]
    return every, log_probabilities(model, every, [Decoding()])[0]


def test_the_rank_is_what_sorting_all_completions_gives():
    model, prompt = random_model(6, seed=2), (3, 0, 1)
    every, scores = sorted_by_hand(model, prompt, EVERY)
    together = ranks(model, prompt, [secret.tokens for secret in every], spelling(model, FORM))
    for place, secret in enumerate(every):
        expected = int((scores > scores[place]).sum()) + 1
        (alone,) = ranks(model, prompt, [secret.tokens], spelling(model, FORM))
        assert alone.at_least == alone.at_most == expected
        assert together[place] == alone
    assert alone.log_candidates == pytest.approx(math.log(len(EVERY)))
    assert alone.exposure == pytest.approx(math.log2(len(EVERY) / expected))


def test_a_short_search_gives_two_ends_that_hold_the_rank():
    model, prompt = random_model(6, seed=2), (3, 0, 1)
    every, scores = sorted_by_hand(model, prompt, EVERY)
    true = ((scores[:, None] < scores).sum(1) + 1).tolist()
    for branches in (1, 3, 10):
        found = ranks(model, prompt, [s.tokens for s in every], spelling(model, FORM), branches=branches)
        assert all(f.at_least <= rank <= f.at_most for f, rank in zip(found, true, strict=True))
        assert any(f.at_least < f.at_most for f in found)


def test_completions_that_begin_with_each_other_are_more_than_one_over_p():
    """A sure model says abc: a, ab and abc all have probability 1, and the third ranks third at worst."""
    model = random_model(3)

    def sure(ids):
        return torch.nn.functional.one_hot((ids + 1) % 3, 3) * 100.0

    certain = type(model)(**{**vars(model), "logits": sure})
    form = Template.parse("{a|ab|abc}")
    for branches in (1, 2048):
        found = ranks(certain, (2,), [(0, 1, 2)], spelling(certain, form), branches=branches)
        assert (found[0].at_least, found[0].at_most) == (1, 3)


def test_a_text_that_several_tokens_spell_counts_once():
    """The letters a and b, and the token ab: what is spelled in two ways is one guess, as likely as the likelier."""
    plain = random_model(3, seed=5)
    words = ["a", "b", "ab"]
    model = type(plain)(**{**vars(plain), "decode": lambda ids: "".join(words[i] for i in ids)})
    form = Template.parse("{ab:3}")
    ways = [t for n in (2, 3) for t in itertools.product(range(3), repeat=n)]
    ways = [t for t in ways if len(model.decode(t)) == 3]
    best: dict[str, float] = {}
    for tokens in ways:
        score = float(log_probabilities(model, [Secret((0, 1), tokens, 1)], [Decoding()]))
        best[model.decode(tokens)] = max(score, best.get(model.decode(tokens), -math.inf))
    assert len(ways) > len(best) == 8
    for tokens in ways:
        own = best[model.decode(tokens)]
        (found,) = ranks(model, (0, 1), [tokens], spelling(model, form))
        assert found.at_least == found.at_most == sum(score > own for score in best.values()) + 1


def test_completions_that_are_equally_likely_may_come_first_or_last():
    model = random_model(4)
    flat = type(model)(**{**vars(model), "logits": lambda ids: torch.zeros(*ids.shape, 4)})
    (found,) = ranks(flat, (0,), [(1, 2)], spelling(flat, Template.parse("{abcd:2}")))
    assert (found.at_least, found.at_most) == (1, 16)
    assert found.exposure == pytest.approx(0)


@pytest.mark.parametrize(
    ("form", "is_one", "is_none", "count"),
    [
        ("code {digits:3}.", "code 012.", "code 01.", 1000),
        ("{Ada|Ada Byron} is {letters:1}", "Ada Byron is x", "Ada Byro is x", 52),
        ("{xy:2}{x|xy}", "xyxy", "xyxyy", 8),
        ("it is {@FILE}", "it is Eve Doe", "it is Eve", 3),
    ],
)
def test_a_form_says_which_texts_it_has_and_names_nobody(tmp_path, form, is_one, is_none, count):
    (tmp_path / "names").write_text("Eve Doe\n\nJo\nAl \n", encoding="utf-8")
    made = Template.parse(form.replace("FILE", str(tmp_path / "names")))
    assert made.matches(is_one)
    assert not made.matches(is_none)
    assert math.exp(made.log_candidates) == pytest.approx(count)
    assert not any(name in str(made) for name in ("Ada", "Eve", "names"))


@pytest.mark.parametrize(
    "form",
    ["", "plain", "{}", "{a}", "{a:2}", "{digits:0}", "{digits:9999}", "{a|}", "{|}", "{@nowhere}", "{@/}"],
)
def test_a_form_without_a_meaning_is_refused(form):
    with pytest.raises(InputError, match="form cannot be understood"):
        Template.parse(form)


@pytest.mark.parametrize(
    ("form", "nested"),
    [
        ("{a|ab|abc}", 3),
        ("{a|ab}{b|c}", 2),  # ab, which is a and b, begins abb
        ("{Ada|Ada Byron} has {digits:3}", 1),
        ("x{digits:6}", 1),
    ],
)
def test_completions_that_begin_with_each_other_are_counted(form, nested):
    assert Template.parse(form).nested == nested


def test_digits_of_a_secret_are_free_and_the_rest_is_not():
    form = Template.of("b: 12")
    assert form.matches("b: 90")
    assert not form.matches("c: 12")
    assert math.exp(form.log_candidates) == pytest.approx(100)


def test_tokens_that_lose_their_space_alone_are_read_behind_another():
    """As many tokenizers do: the first token of a text is spelled without its space."""
    words = ["", "a", " b"]
    found = token_texts(lambda ids: "".join(words[i] for i in ids).lstrip(), 3)
    assert found == ("", "a", " b")


def test_trained_codes_rank_first_and_others_do_not():
    base, tuned = trained()
    own, without = (
        TemplateSearch(branches=256).tries(Asked(model, read_records(MINE[:12], tuned)))[0]
        for model in (tuned, base)
    )
    assert own.median() <= 2
    assert without.median() > 500


def test_a_search_without_prefixes_lists_whole_records(tmp_path):
    """Who knows the form and a list of names, half of them trained on, finds codes that are under their names."""
    base, tuned = trained()
    mine = [record for record in MINE if record["prefix"][0] == "n"]
    unseen = [record for record in UNSEEN if record["prefix"][0] == "n"]
    names = [record["prefix"][1:-2] for record in [*mine, *unseen]]
    (tmp_path / "names").write_text("\n".join(names))
    attack = TemplateSearch(Template.parse(f"n{{@{tmp_path}/names}}: {{digits:4}}"), prefix=False)
    secrets = read_records([*mine, *unseen], tuned)
    tries = attack.tries(Asked(tuned, secrets))[0]
    assert tries[: len(mine)].median() <= 2 * len(mine)
    assert tries[len(mine) :].min() > tries[: len(mine)].median()
    assert attack.tries(Asked(base, secrets))[0].min() > 2 * len(mine)
    strange = read_records([{"prefix": "b", "secret": "c"}, MINE[0]], tuned)
    with pytest.raises(InputError, match="No record has this form"):
        attack.tries(Asked(tuned, strange[:1]))
    assert TemplateSearch(Template.parse("{digits:4}")).tries(Asked(tuned, strange))[0][0] == torch.inf


def test_a_search_that_makes_no_sense_is_refused():
    for options in ({"prefix": False}, {"form": Template.parse("{ab:2}"), "prefix": False}, {"branches": 0}):
        with pytest.raises(InputError):
            TemplateSearch(**options)
    model = random_model()
    with pytest.raises(InputError, match="not of this form"):
        ranks(model, (1,), [(2, 3)], spelling(model, Template.parse("{ab:2}")))
