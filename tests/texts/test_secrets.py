import dataclasses
import itertools
import json

import pytest
import torch
from small_models import random_model, spelled

from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError
from remanence.texts.game import text_game
from remanence.texts.mechanism import Chat, Secret
from remanence.texts.probabilities import Decoding, log_probabilities
from remanence.texts.reading import Numbers, Windows, read_texts, refuse_named_code, split

WORDS = ["<s>", "code", " of", " ada", " is", " 48", "29", " ", "4"]
WORDS += ["8", ".", " 2", "a", " b", "Ada", " Byron", " 12"]
RECORD = {"prefix": "code of ada is ", "secret": "4829"}


def worded(**settings):
    return dataclasses.replace(spelled(WORDS), **settings)


def words(tokens):
    return [WORDS[token] for token in tokens]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_secret_has_the_tokens_that_it_has_in_its_text():
    (found,) = read_texts([RECORD], worded())
    assert words(found.prompt) == ["<s>", "code", " of", " ada", " is"]
    assert words(found.tokens) == [" 48", "29"]


def test_every_way_to_say_where_a_secret_is_gives_the_same(tmp_path):
    text = "code of ada is 4829."
    spans, secret = {"text": text, "spans": [[15, 19]]}, {"text": text, "secret": "4829"}
    records = [RECORD, secret, spans, {"text": text}, text]
    found = read_texts(write(tmp_path / "t.jsonl", records), worded(), find=Numbers(4))
    assert len({(secret.prompt, secret.tokens) for secret in found}) == 1
    assert [(secret.line, secret.part) for secret in found] == [(n, 1) for n in range(1, 6)]


def test_a_secret_that_ends_within_a_token_is_asked_for_by_the_tokens_of_its_text():
    """As names are in languages without spaces: the model never saw the tokens of a text that was cut there."""
    record = {"text": "code of ada is 4829", "secret": "482"}
    (found,) = read_texts([record], worded())
    assert words(found.tokens) == [" 48", "29"]


@pytest.mark.parametrize("secret", ["é", "€", "日本", "x€", "🦊y"])
def test_a_character_of_several_tokens_is_asked_for_as_a_whole(secret):
    decode, encode = lambda ids: bytes(ids).decode(errors="replace"), lambda text: list(text.encode())
    model = dataclasses.replace(random_model(256, context=64), encode=encode, decode=decode)
    (found,) = read_texts([{"text": f"ß code €{secret}ü.", "secret": secret}], model)
    assert bytes(found.tokens).decode() == secret
    assert bytes(found.prompt).decode() == "ß code €"


@pytest.mark.parametrize("seed", range(2))
def test_a_secret_is_never_less_likely_to_be_seen_than_its_tokens_say(seed):
    """All ways to spell it, listed: its own tokens are one of them."""
    pieces = ["<s>", "a", "b", "c", "ab", "bc", "abc", "ca"]

    def seen(model, prompt, left):
        """The probability that what comes next begins with these characters."""
        law = model.logits(torch.tensor([prompt]))[0, -1].double().softmax(-1)
        total = 0.0
        for token, piece in enumerate(pieces[1:], 1):
            if piece.startswith(left):
                total += float(law[token])
            elif left.startswith(piece):
                total += float(law[token]) * seen(model, [*prompt, token], left[len(piece) :])
        return total

    model = spelled(pieces, seed=seed)
    split, joined = ("ca", "cb", ["ca", "c", "b"]), ("a", "bcab", ["abc", "ab"])  # begins before the secret
    for prefix, secret, asked in (split, joined, ("ba", "b", ["ab"])):
        (found,) = read_texts([{"prefix": prefix, "secret": secret}], model)
        assert [pieces[t] for t in found.prompt[1:] + found.tokens][-len(asked) :] == asked
        exact = float(log_probabilities(model, [found], [Decoding()]).exp())
        text = "".join(pieces[t] for t in found.tokens)
        assert secret in text
        assert exact <= seen(model, list(found.prompt), text) * (1 + 1e-5)


CONVERSATION = [{"role": "user", "content": "code of ada"}, {"role": "assistant", "content": " is 4829"}]


def chatting():
    """A model whose template writes the beginning of a text itself, once."""

    def render(messages):
        return "<s>" + "".join(each["content"] + "." for each in messages)

    def read(text):
        return worded().encode(text.removeprefix("<s>"))

    def ends(text):
        return list(itertools.accumulate(len(WORDS[token]) for token in read(text)))

    return dataclasses.replace(worded(), chat=Chat(render, read, ends))


def test_a_conversation_is_asked_for_as_the_template_writes_it():
    (whole,) = read_texts([{"messages": CONVERSATION}], chatting())
    assert words(whole.prompt) == ["<s>", "code", " of", " ada", "."]
    assert words(whole.tokens) == [" is", " 48", "29"]
    (part,) = read_texts([{"messages": CONVERSATION, "secret": "4829"}], chatting())
    assert words(part.prompt)[-1] == " is"
    assert words(part.tokens) == [" 48", "29"]
    (found,) = read_texts([{"messages": CONVERSATION}], chatting(), find=Numbers(4))
    assert found.tokens == part.tokens
    with pytest.raises(InputError, match="Line 1 is a conversation"):
        read_texts([{"messages": CONVERSATION}], worded())


def test_numbers_count_the_secrets_of_a_line():
    found = read_texts(["code 12 of Ada Byron is 4829. 12"], worded(), find=Numbers(2))
    assert [words(secret.tokens) for secret in found] == [[" 12"], [" 48", "29"], [" 12"]]
    assert [(secret.line, secret.part) for secret in found] == [(1, 1), (1, 2), (1, 3)]


def test_windows_are_cut_from_the_tokens():
    found = read_texts(["code of ada is 4829.", "code"], worded(), find=Windows(2))
    assert [(words(s.prompt), words(s.tokens), s.line, s.part) for s in found] == [
        (["<s>", "code", " of"], [" ada", " is"], 1, 1),  # every prompt begins as every text does
        (["<s>", " ada", " is"], [" 48", "29"], 1, 2),
    ]


def test_a_text_that_begins_with_its_secret_needs_a_token_before_it():
    model = random_model()
    with pytest.raises(InputError, match="Line 1 has nothing before its secret"):
        list(split(model, "abc", [(0, 3)]))
    begun = dataclasses.replace(model, start=4)
    assert list(split(begun, "abc", [(0, 3)])) == [Secret((4,), (0, 1, 2), 1)]


UNCLEAR = "Line 2 does not say what its secret is"
NO_RECORD = "Line 2 of t.jsonl is not a record"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prefix": "code"', NO_RECORD),
        ("", NO_RECORD),
        ("[" * 100_000, NO_RECORD),
        ('{"prefix": "code", "secret": "\\ud800"}', NO_RECORD),
        ("[1, 2]", UNCLEAR),
        ("5", "int instead of an object"),
        ('{"text": "code of ada"}', UNCLEAR),
        ('{"prefix": "code", "secret": 12}', UNCLEAR),
        ('{"prefix": "code", "secret": ""}', "Line 2 has no secret"),
        ('{"text": "code of ada", "secret": "is"}', "a secret that is not in its text"),
        *(
            (f'{{"text": "code", "spans": [[{span}]]}}', "spans outside its text")
            for span in ("0, 9", "3, 3", "false, 3")
        ),
        *(
            (f'{{"messages": {messages}}}', "messages that are not")
            for messages in ("[]", '"hello"', '[{"role": "user"}]', '[{"role": "user", "content": 5}]')
        ),
        (
            '{"prefix": "code of ada is code of ada is code", "secret": "4829"}',
            "Line 2 is longer than the model can see",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, says):
    (tmp_path / "t.jsonl").write_text(f"{json.dumps(RECORD)}\n{line}\n")
    with pytest.raises(InputError, match=says):
        read_texts(tmp_path / "t.jsonl", dataclasses.replace(chatting(), context=7))


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps(RECORD), encoding="utf-8-sig")
    assert read_texts(tmp_path / "t.jsonl", worded()) == read_texts([RECORD], worded())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b'"code"\n', "1 texts in which the rule finds none"),
        (b"\xff\xfe\x00", "UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_files_that_hold_nothing_are_refused(tmp_path, content, says):
    if content is not None:
        (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_texts(tmp_path / "t.jsonl", worded(), find=Numbers())


def test_a_tokenizer_of_another_model_and_half_a_character_are_refused():
    for record, model, says in (
        (RECORD, worded(vocabulary=5), "tokenizer does not fit"),
        ({**RECORD, "secret": "\ud800"}, worded(), "a lone surrogate"),
    ):
        with pytest.raises(InputError, match=says):
            read_texts([record], model)


def test_rules_without_a_meaning_are_refused():
    for rule in (Numbers, Windows):
        with pytest.raises(InputError):
            rule(0)


def test_a_model_that_looks_ahead_or_answers_otherwise_is_refused():
    model = random_model()
    model.require_causal()
    for logits, says in (
        (lambda ids: model.logits(ids.flip(1)).flip(1), "not a causal model"),
        (lambda ids: model.logits(ids)[..., :3], "does not answer like a language model"),
        (lambda ids: model.logits(ids) * float("nan"), "answers with NaN"),
        (lambda ids: model.logits(ids) + float("inf"), "answers with NaN"),
    ):
        texts = [{"prefix": "abcde", "secret": "a"}, {"prefix": "edcba", "secret": "c"}]
        with pytest.raises(InputError, match=says):
            text_game(dataclasses.replace(model, logits=logits), texts).fits()
    broken = dataclasses.replace(model, logits=lambda ids: model.logits(ids) * float("nan"))
    with pytest.raises(InputError, match="answers with NaN"):  # asked for a stranger to the one secret
        text_game(model, [{"prefix": "ab", "secret": "a"}] * 2, base=broken).fits()


@pytest.mark.parametrize(
    "settings",
    [
        {"megatron_config": {"a": 1}},
        {"megatron_core": "evil"},
        {"_attn_implementation": "somebody/kernel"},
        {"attn_implementation": {"text": "somebody/kernel"}},
    ],
)
def test_a_folder_may_not_choose_code_that_a_library_would_import(settings):
    usual = {"megatron_config": None, "megatron_core": "megatron.core", "_attn_implementation": "sdpa"}
    refuse_named_code(usual)  # as libraries write them
    with pytest.raises(UnusableFileError, match="names code"):
        refuse_named_code({**usual, **settings})
