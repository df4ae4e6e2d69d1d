"""What a terminal, the log of a CI host or a page is sent."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, marks of direction, halves of characters
_FORMULA = {"=", "+", "-", "@"}  # how a formula begins in a spreadsheet
_COMMAND = re.compile(r"^\s*(::|##)")  # which CI hosts obey at the start of a line


def plain(text: object) -> str:
    r"""Text on one line, in which nothing is hidden and nothing commands.

    >>> plain("red\x1b[31m"), plain("a\n::error::b"), plain("::error::b"), plain("a\u202eb")
    ('red\\x1b[31m', 'a ::error::b', '\\::error::b', 'a\\u202eb')
    """
    line = " ".join(part for part in re.split(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+", str(text)))
    if not line.isascii() or not line.isprintable():
        line = "".join(_visible(character) for character in line)
    return _COMMAND.sub(r"\\\1", line)


def plainly(value: Any) -> Any:
    """The same for all text in a document.

    >>> plainly({"a": ["\\x1b", 1]})
    {'a': ['\\\\x1b', 1]}
    """
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(name): plainly(item) for name, item in value.items()}
    return [plainly(item) for item in value] if isinstance(value, list) else value


def inert(value: Any) -> Any:
    """A cell of a table that no spreadsheet takes for a formula: text that begins like one gets an apostrophe.

    >>> inert("=cmd()"), inert("+1"), inert("age"), inert(-1.5)
    ("'=cmd()", "'+1", 'age', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = plain(value)  # a line of its own would be a cell of its own
    return f"'{text}" if text.lstrip()[:1] in _FORMULA else text


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return (
        character.encode("ascii", "backslashreplace").decode()
        if ord(character) > 127
        else repr(character)[1:-1]
    )
