"""Which parts of a file of texts are secrets, and what stands before them.

A line is JSON: {"prefix": ..., "secret": ...}, {"text": ..., "secret": ...}, {"text": ..., "spans": [[from, to], ...]},
{"messages": [...], "secret": ...} or {"text": ...} (or a string) together with a rule that finds the secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any, final

from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.scale.reading import MOST_DATA, UnusableFileError, opened, parse_json
from remanence.texts.language_model import LanguageModel, Secret

_LONGEST_LINE = 10_000_000  # characters: a file that is no list of texts would fill the memory


Finder = Callable[[LanguageModel, str, int], Iterator[Secret]]


@final
@dataclass(frozen=True)
class Numbers:
    """Every number of at least so many digits is a secret; the text before it is the prefix.

    >>> [match.group() for match in Numbers(4).found("Room 12, code 482913, 2024-05")]
    ['482913', '2024']
    """

    digits: int = 4

    def __post_init__(self) -> None:
        whole("digits", self.digits)

    def found(self, text: str) -> Iterator[re.Match[str]]:
        """Where they are."""
        return re.finditer(rf"\d{{{self.digits},}}", text)

    def __call__(self, model: LanguageModel, text: str, line: int) -> Iterator[Secret]:
        """The secrets of one text."""
        return split(model, text, [match.span() for match in self.found(text)], line)


@final
@dataclass(frozen=True)
class Names:
    """Every occurrence of a name that was given is a secret; the text before it is the prefix."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise InputError(
                "There are no names to look for.",
                needs="at least one, none of them empty",
                got=repr(list(self.names)),
                hint="Names(('Ada Example',))",
            )

    def __call__(self, model: LanguageModel, text: str, line: int) -> Iterator[Secret]:
        """The secrets of one text."""
        pattern = "|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True))
        return split(model, text, [match.span() for match in re.finditer(pattern, text)], line)


@final
@dataclass(frozen=True)
class Windows:
    """Every window of a text: so many tokens are known, and so many after them are to come out."""

    prefix: int = 50
    continuation: int = 50
    stride: int = 50

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole(name, value)

    def __call__(self, model: LanguageModel, text: str, line: int) -> Iterator[Secret]:
        """The secrets of one text; a text that is shorter than a window has none."""
        tokens = tuple(model.tokens(text))
        opening = model.opening if tokens[: len(model.opening)] == model.opening else ()
        tokens = tokens[len(opening) :]
        last = len(tokens) - self.prefix - self.continuation
        for part, first in enumerate(range(0, last + 1, self.stride), 1):
            middle = first + self.prefix
            wanted = tokens[middle : middle + self.continuation]
            yield Secret(opening + tokens[first:middle], wanted, line, part)


def split(
    model: LanguageModel, text: str, spans: Sequence[tuple[int, int]], line: int = 1
) -> Iterator[Secret]:
    """The tokens of each `text[start:stop]` as they are in the whole text, and those before them.

    Training saw the text as a whole, so that its own tokens are asked for: from the first that holds a character of
    the secret to the one that holds its last. The first may begin before the secret, usually with a space, and the last
    may end after it. What they spell contains the secret, so that it is at least as likely to come out as they are.
    """
    tokens, ends = model.places(text)
    for part, (start, stop) in enumerate(spans, 1):
        first = next((place for place, end in enumerate(ends) if end > start), len(tokens))
        final = next((end for end in ends[first:] if end >= stop), ends[-1] if ends else 0)
        length = sum(1 for _ in takewhile(lambda end, final=final: end <= final, ends[first:]))
        prompt, secret = tokens[:first], tokens[first : first + length] if start < stop else []
        if not prompt and model.start is not None:
            prompt = [model.start]
        if not prompt or not secret:
            raise InputError(
                f"Line {line} has nothing before its secret."
                if not prompt
                else f"Line {line} has no secret.",
                needs="a prefix that the adversary knows and a secret after it, at least a token each",
                got=f"{len(prompt)} tokens before it, {len(secret)} in it",
                hint="give every record a few words before the secret",
            )
        yield Secret(tuple(prompt), tuple(secret), line, part)


def read_texts(
    path: str | Path, model: LanguageModel, *, find: Finder | None = None, prefix_tokens: int | None = None
) -> list[Secret]:
    """All secrets of a file with one JSON record per line; `prefix_tokens` keeps the last so many of each prefix."""
    return read_records(records_of(path), model, find=find, prefix_tokens=prefix_tokens)


def records_of(path: str | Path) -> list[Any]:
    """What stands in a file with one JSON record per line."""
    path = Path(path)
    try:
        # Some editors begin a file with a mark of its encoding.
        with opened(path, MOST_DATA) as packed, TextIOWrapper(packed, encoding="utf-8-sig") as file:
            return list(_lines(file, path))
    except (UnusableFileError, UnicodeDecodeError) as error:
        raise InputError(
            "The texts cannot be read.",
            needs="a text file in UTF-8",
            got=f"{path}: {error}",
            hint="train.jsonl",
        ) from None


def read_records(
    records: Iterator[Any] | Sequence[Any],
    model: LanguageModel,
    *,
    find: Finder | None = None,
    prefix_tokens: int | None = None,
) -> list[Secret]:
    """The secrets of records as `read_texts` finds them in a file: dictionaries or strings."""
    if prefix_tokens is not None:
        whole("prefix_tokens", prefix_tokens)
    found, lines = [], 0
    for lines, record in enumerate(records, 1):
        for secret in _of_record(model, record, find, lines):
            prompt = secret.prompt if prefix_tokens is None else model.shortened(secret.prompt, prefix_tokens)
            length = len(prompt) + len(secret.tokens)
            if length > model.context:
                raise InputError(
                    f"Line {lines} is longer than the model can see.",
                    needs=f"at most {model.context} tokens, prefix and secret together",
                    got=f"{len(prompt)} and {len(secret.tokens)}",
                    hint="--prefix-tokens 50 keeps the end of each prefix; --windows cuts long texts",
                )
            found.append(Secret(prompt, secret.tokens, secret.line, secret.part))
    if not found:
        raise InputError(
            "There is no secret to look for.",
            needs="at least one record with a secret in it",
            got="an empty file" if lines == 0 else f"{lines} texts in which the rule finds none",
            hint='{"prefix": "The code of Ada is", "secret": " 482913"}, or --numbers, --names or --windows',
        )
    return found


def _lines(file: TextIOWrapper, path: Path) -> Iterator[Any]:
    for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE + 1), ""), 1):
        try:
            if len(line) > _LONGEST_LINE:
                raise UnusableFileError(f"more than {_LONGEST_LINE} characters in one line")
            yield parse_json(line)
        except UnusableFileError as error:
            raise InputError(
                f"Line {number} of {path.name} is not a record.",
                needs="one JSON object or string in each line, and no empty line",
                got=str(error)[:200],
                hint='{"prefix": "The code of Ada is", "secret": " 482913"}',
            ) from None


def _of_record(model: LanguageModel, record: Any, find: Finder | None, line: int) -> Iterator[Secret]:
    """The secrets of one record, by what it says itself or by the rule."""
    fields = {"text": record} if isinstance(record, str) else record
    if not isinstance(fields, dict):
        raise _unclear(line, f"{type(record).__name__} instead of an object or a string")
    if any(isinstance(value, str) and not _is_unicode(value) for value in fields.values()):
        raise _unclear(line, "half of a character, which JSON can write and no text can hold")
    if "messages" in fields:
        model, fields = _of_chat(model, fields, line, whole_turn=find is None)
    text, prefix, secret, spans = (fields.get(name) for name in ("text", "prefix", "secret", "spans"))
    if isinstance(prefix, str) and isinstance(secret, str):
        return split(model, prefix + secret, [(len(prefix), len(prefix) + len(secret))], line)
    if isinstance(text, str) and isinstance(secret, str) and secret:
        start = text.rfind(secret)
        if start < 0:
            raise _unclear(line, "a secret that is not in its text")
        return split(model, text, [(start, start + len(secret))], line)
    if isinstance(text, str) and spans is not None:
        if not (isinstance(spans, list) and all(_is_span(span, len(text)) for span in spans)):
            raise _unclear(line, "spans that are not places in its text")
        return split(model, text, [(first, last) for first, last in spans], line)
    if isinstance(text, str) and find is not None:
        return find(model, text, line)
    raise _unclear(line, f"fields {', '.join(sorted(map(str, fields))) or 'none'}")


def _of_chat(
    model: LanguageModel, fields: dict[str, Any], line: int, *, whole_turn: bool
) -> tuple[LanguageModel, dict[str, Any]]:
    """A conversation as the model's own template writes it, and a model that reads such texts.

    The secret is what the record says, or the whole last turn where no rule is to find it.
    """
    messages, chat = fields["messages"], model.chat
    if chat is None:
        raise InputError(
            f"Line {line} is a conversation.",
            needs="a tokenizer with a chat template",
            got=f"{model.name}, which has none",
            hint="the tokenizer of the instruct model; or prefix and secret, or a text",
        )
    if not (isinstance(messages, list) and messages and all(_is_message(each) for each in messages)):
        raise _unclear(line, "messages that are not a list of a role and a content each")
    if not all(_is_unicode(each["content"]) for each in messages):
        raise _unclear(line, "half of a character, which JSON can write and no text can hold")
    own = {"text": chat.render(messages)}
    if "secret" in fields or whole_turn:
        own["secret"] = fields.get("secret", messages[-1]["content"].strip())
    return replace(model, encode=chat.encode, ends=chat.ends, opening=()), own


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(n), str) for n in ("role", "content"))


def _is_unicode(text: str) -> bool:
    """Whether a text has no surrogates, of which two make a character.

    >>> _is_unicode("é"), _is_unicode("\\ud800")
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_span(span: Any, length: int) -> bool:
    whole_numbers = isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)
    return whole_numbers and 0 <= span[0] < span[1] <= length


def _unclear(line: int, got: str) -> InputError:
    return InputError(
        f"Line {line} does not say what its secret is.",
        needs="prefix and secret; text and secret; text and spans; or a text and a rule",
        got=got,
        hint="--numbers 4, --names names.txt or --windows 50 find the secrets of plain texts",
    )
