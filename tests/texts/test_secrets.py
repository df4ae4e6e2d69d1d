import dataclasses
import json

import pytest
import torch
from small_models import random_model, spelled

from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError
from remanence.texts.mechanism import Chat, Secret
from remanence.texts.probabilities import Decoding, log_probabilities
from remanence.texts.reading import Numbers, Windows, read_texts, refuse_named_code, split

WORDS = [
    "<s>",
    "code",
    " of",
    " ada",
    " is",
    " 48",
    "29",
    " ",
    "4",
    "8",
    ".",
    " 2",
    "a",
    " b",
    "Ada",
    " Byron",
    " 12",
]


def worded(**settings):
    return dataclasses.replace(spelled(WORDS), **settings)


def words(tokens):
    return [WORDS[token] for token in tokens]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_secret_has_the_tokens_that_it_has_in_its_text():
    found = read_texts([{"prefix": "code of ada is ", "secret": "4829"}], worded())
    assert [words(found[0].prompt), words(found[0].tokens)] == [
        ["<s>", "code", " of", " ada", " is"],
        [" 48", "29"],
    ]


def test_every_way_to_say_where_a_secret_is_gives_the_same(tmp_path):
    text = "code of ada is 4829"
    records = [
        {"prefix": "code of ada is ", "secret": "4829"},
        {"text": text + ".", "secret": "4829"},
        {"text": text + ".", "spans": [[15, 19]]},
        {"text": text + "."},
        text + ".",
    ]
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
    decode = lambda ids: bytes(ids).decode(errors="replace")  # noqa: E731
    model = dataclasses.replace(
        random_model(256, context=64), encode=lambda text: list(text.encode()), decode=decode
    )
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
    for prefix, secret, asked in (
        ("ca", "cb", ["ca", "c", "b"]),  # nothing is joined: prefix and secret have tokens of their own
        ("a", "bcab", ["abc", "ab"]),  # the first token begins before the secret
        ("ba", "b", ["ab"]),
    ):
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

    return dataclasses.replace(worded(), chat=Chat(render, read, lambda text: ends(text, read)))


def ends(text, read):
    found, place = [], 0
    for token in read(text):
        place += len(WORDS[token])
        found.append(place)
    return found


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
    for wrong in ([], "hello", [{"role": "user"}], [{"role": "user", "content": 5}]):
        with pytest.raises(InputError, match="messages that are not"):
            read_texts([{"messages": wrong}], chatting())


def test_numbers_count_the_secrets_of_a_line():
    found = read_texts(["code 12 of Ada Byron is 4829. 12"], worded(), find=Numbers(2))
    assert [(words(s.tokens), s.line, s.part) for s in found] == [
        ([" 12"], 1, 1),
        ([" 48", "29"], 1, 2),
        ([" 12"], 1, 3),
    ]


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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prefix": "code"', "Line 2 of t.jsonl is not a record"),
        ("", "Line 2 of t.jsonl is not a record"),
        ("[1, 2]", "Line 2 does not say what its secret is"),
        ('{"text": "code of ada"}', "Line 2 does not say"),
        ('{"text": "code of ada", "secret": "is"}', "a secret that is not in its text"),
        ('{"text": "code", "spans": [[0, 9]]}', "spans outside its text"),
        ('{"text": "code", "spans": [[3, 3]]}', "spans outside its text"),
        ('{"text": "code", "spans": [[false, 3]]}', "spans outside its text"),
        ('{"prefix": "code", "secret": 12}', "Line 2 does not say"),
        ('{"prefix": "code", "secret": ""}', "Line 2 has no secret"),
        ("[" * 100_000, "Line 2 of t.jsonl is not a record"),
        ('{"prefix": "code", "secret": "\\ud800"}', "Line 2 of t.jsonl is not a record"),
        ("5", "int instead of an object"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, line, says):
    file = tmp_path / "t.jsonl"
    file.write_text('{"prefix": "code of", "secret": " ada"}\n' + line + "\n")
    with pytest.raises(InputError, match=says):
        read_texts(file, worded())


def test_a_file_may_begin_with_a_mark_of_its_encoding(tmp_path):
    line = '{"prefix": "code of", "secret": " ada"}'
    (tmp_path / "t.jsonl").write_text(line, encoding="utf-8-sig")
    assert read_texts(tmp_path / "t.jsonl", worded()) == read_texts([json.loads(line)], worded())


def test_files_that_hold_nothing_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="an empty file"):
        read_texts(tmp_path / "empty.jsonl", worded())
    with pytest.raises(InputError, match="1 texts in which the rule finds none"):
        read_texts(write(tmp_path / "none.jsonl", ["code"]), worded(), find=Numbers())
    with pytest.raises(InputError, match="cannot be read"):
        read_texts(tmp_path / "missing.jsonl", worded())
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_texts(tmp_path / "bytes.jsonl", worded())


def test_a_text_that_does_not_fit_the_model_is_refused():
    record = {"prefix": "code of ada is ", "secret": "4829"}
    with pytest.raises(InputError, match="Line 1 is longer than the model can see"):
        read_texts([record], worded(context=6))
    assert read_texts([record], worded(context=7))
    with pytest.raises(InputError, match="tokenizer does not fit"):
        read_texts([record], worded(vocabulary=5))
    with pytest.raises(InputError, match="a lone surrogate"):
        read_texts([{**record, "secret": "\ud800"}], worded())


def test_rules_without_a_meaning_are_refused():
    for rule in (Numbers, Windows):
        with pytest.raises(InputError):
            rule(0)


def test_a_model_that_looks_ahead_or_answers_in_another_shape_is_refused():
    model = random_model()
    model.require_causal()
    for logits, says in (
        (lambda ids: model.logits(ids.flip(1)).flip(1), "not a causal model"),
        (lambda ids: model.logits(ids)[..., :3], "does not answer like a language model"),
        (lambda ids: model.logits(ids) * float("nan"), "NaN"),
    ):
        with pytest.raises(InputError, match=says):
            dataclasses.replace(model, logits=logits).require_causal()


@pytest.mark.parametrize(
    "settings",
    [
        {"peft_type": "LORA", "megatron_config": {"a": 1}, "megatron_core": "evil"},
        {"peft_type": "LORA", "megatron_config": {"a": 1}},
        {"peft_type": "LORA", "megatron_core": "evil"},
        {"model_type": "llama", "_attn_implementation": "somebody/kernel"},
        {"model_type": "llama", "attn_implementation": {"text": "somebody/kernel"}},
    ],
)
def test_settings_that_name_code_are_refused(settings):
    """A folder may not choose code that a library would import."""
    with pytest.raises(UnusableFileError, match="names code"):
        refuse_named_code(settings)


def test_settings_as_libraries_write_them_are_read():
    refuse_named_code({"peft_type": "LORA", "megatron_config": None, "megatron_core": "megatron.core"})
    refuse_named_code({"model_type": "llama", "_attn_implementation": "sdpa"})
