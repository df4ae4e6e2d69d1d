"""The form of a secret or of a whole record: text with open places, and how a model's tokens spell it."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import final

from remanence.core.exceptions import InputError
from remanence.scale.reading import UnusableFileError, read_bytes

_PLACE = re.compile(r"\{([^{}]*)\}")
_ALPHABETS = {"digits": string.digits, "letters": string.ascii_lowercase}

State = frozenset[
    tuple[int, str]
]  # the piece that is being spelled, and what of it was; several where it is open


@final
@dataclass(frozen=True)
class Template:
    """Text in which some places are open: one string of each piece, in their order.

    >>> form = Template.parse("The code of {Ada|Bruno} is {digits:4}")
    >>> form.matches("The code of Ada is 0599"), form.matches("The code of Eve is 0599")
    (True, False)
    >>> round(math.exp(form.log_candidates)), str(form)
    (20000, 'The code of {one of 2} is {digits:4}')
    """

    pieces: tuple[frozenset[str], ...]
    described: str

    @classmethod
    def parse(cls, text: str) -> Template:
        """The form that a text describes.

        `{digits:6}` and `{letters:8}` stand for so many of them, `{ACGT:8}` for so many of these characters,
        `{Ada|Bruno}` for one of these words, and `{@names.txt}` for one of that file's lines.
        """
        pieces: list[frozenset[str]] = []
        described = ""
        for number, part in enumerate(_PLACE.split(text)):  # text and open places in turn
            own, words = (
                _open_place(part, text) if number % 2 else ([frozenset({part})] if part else [], part)
            )
            pieces += own
            described += words
        if not any(len(piece) > 1 for piece in pieces):
            raise _unclear(text, "no open place")
        return cls(tuple(pieces), described)

    @classmethod
    def of(cls, text: str) -> Template:
        """The form of a text: every digit may be any digit, the rest is known."""
        digits = frozenset(string.digits)
        return cls(
            tuple(digits if character in digits else frozenset({character}) for character in text),
            "every digit is open",
        )

    @property
    def start(self) -> State:
        """Where nothing was spelled yet."""
        return frozenset({(0, "")})

    def after(self, state: State, text: str) -> State:
        """Where more text leads; nowhere if no completion goes on like this."""
        for character in text:
            state = frozenset(
                then
                for place, spelled in state
                if place < len(self.pieces)
                for then in self._after(place, spelled + character)
            )
        return state

    def _after(self, place: int, spelled: str) -> Iterable[tuple[int, str]]:
        if spelled in self._beginnings[place]:
            yield place, spelled
        if spelled in self.pieces[place]:
            yield place + 1, ""

    @cached_property
    def _beginnings(self) -> tuple[frozenset[str], ...]:
        """For each piece, what some of its strings begin with."""
        return tuple(frozenset(s[:n] for s in piece for n in range(1, len(s))) for piece in self.pieces)

    def ends(self, state: State) -> bool:
        """Whether what was spelled is a completion."""
        return (len(self.pieces), "") in state

    def matches(self, text: str) -> bool:
        """Whether a text is a completion."""
        return self.ends(self.after(self.start, text))

    @property
    def head(self) -> str:
        """The text before the first open place, which everybody knows who knows the form."""
        return next(iter(self.pieces[0])) if len(self.pieces[0]) == 1 else ""

    @property
    def log_candidates(self) -> float:
        """The logarithm of how many completions there are, from above."""
        return sum(math.log(len(piece)) for piece in self.pieces)

    @cached_property
    def nested(self) -> int:
        """How many completions may lie on one way through the tree, each the beginning of the next: mostly 1."""
        following: list[dict[str, set[str]]] = [{} for _ in self.pieces]
        for piece, own in zip(self.pieces, following, strict=True):
            for choice in piece:
                for place, character in enumerate(choice):
                    own.setdefault(choice[:place], set()).add(character)
        seen, waiting = {self.start}, [self.start]
        while waiting:
            state = waiting.pop()
            characters: set[str] = set().union(
                *(following[place][spelled] for place, spelled in state if place < len(self.pieces))
            )
            if characters and self.ends(state):
                return self._lengths
            for then in {self.after(state, character) for character in characters} - seen:
                seen.add(then)
                waiting.append(then)
        return 1

    @property
    def _lengths(self) -> int:
        totals = {0}
        for piece in self.pieces:
            own = {len(choice) for choice in piece}
            totals = {total + length for total in totals for length in own}
        return len(totals)

    def __str__(self) -> str:
        return self.described


@final
class Spelling:
    """Which tokens of a model go on with a template, from wherever it stands."""

    def __init__(self, texts: Sequence[str], template: Template) -> None:
        self.template, self._texts = template, texts
        self._moves: dict[State, tuple[list[int], list[State]]] = {}
        self._by_first: dict[str, list[int]] = {}
        for token, text in enumerate(texts):
            if text:
                self._by_first.setdefault(text[0], []).append(token)

    def moves(self, state: State) -> tuple[list[int], list[State]]:
        """The tokens that may come next, and where each leads."""
        if state not in self._moves:
            tokens: list[int] = []
            states: list[State] = []
            for first, beginning in self._by_first.items():
                if self.template.after(state, first):
                    for token in beginning:
                        if then := self.template.after(state, self._texts[token]):
                            tokens.append(token)
                            states.append(then)
            self._moves[state] = tokens, states
        return self._moves[state]

    def after(self, tokens: Sequence[int]) -> State:
        """Where these tokens lead."""
        return self.template.after(self.template.start, self.spelled(tokens))

    def spelled(self, tokens: Sequence[int]) -> str:
        """What tokens spell inside a text."""
        return "".join(self._texts[token] for token in tokens)


@lru_cache(maxsize=4)
def token_texts(decode: Callable[[Sequence[int]], str], vocabulary: int) -> tuple[str, ...]:
    """What each of a model's tokens adds to a text.

    Many tokenizers drop a space at the beginning of a text, so that tokens are looked at behind another one.
    """
    before = next((token for token in range(vocabulary) if decode([token]).isalnum()), None)
    if before is None:
        return tuple(decode([token]) for token in range(vocabulary))
    length = len(decode([before]))
    return tuple(decode([before, token])[length:] for token in range(vocabulary))


def _open_place(inside: str, text: str) -> tuple[list[frozenset[str]], str]:
    """What may stand in an open place, and how to tell it: words to choose from may be somebody's name."""
    if inside.startswith("@"):
        try:
            lines = read_bytes(Path(inside[1:])).decode().splitlines()
        except (UnusableFileError, UnicodeDecodeError) as error:
            raise _unclear(text, f"a file that cannot be read ({error})") from None
        found = frozenset(line.strip() for line in lines if line.strip())
    elif count := re.fullmatch(r"(.+):(\d{1,3})", inside):
        alphabet = frozenset(_ALPHABETS.get(count.group(1), count.group(1)))
        if len(alphabet) < 2 or int(count.group(2)) == 0:
            raise _unclear(text, f"{{{inside}}}")
        return [alphabet] * int(count.group(2)), f"{{{inside}}}"
    else:
        found = frozenset(inside.split("|"))
    if len(found) < 2 or "" in found:
        raise _unclear(text, f"{{{inside}}}")
    return [found], f"{{one of {len(found)}}}"


def _unclear(text: str, got: str) -> InputError:
    return InputError(
        "The form cannot be understood.",
        needs="text with open places, each with at least two choices",
        got=f"{got} in {text!r}",
        hint="'The code of {@names.txt} is {digits:6}', where names.txt has a name in each line",
    )
