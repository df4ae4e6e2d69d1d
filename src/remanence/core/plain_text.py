"""Text that is safe to print to a terminal, a CI log or a page."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control characters, direction marks, surrogates
_FORMULA = {"=", "+", "-", "@"}  # first characters of a spreadsheet formula
_COMMAND = re.compile(r"^\s*(::|##)")  # commands to a CI host, at the start of a line


def plain(text: object) -> str:
    r"""Text on one line, with hidden characters and CI commands escaped.

    >>> plain("red\x1b[31m"), plain("a\n::error::b"), plain("::error::b"), plain("a\u202eb")
    ('red\\x1b[31m', 'a ::error::b', '\\::error::b', 'a\\u202eb')
    """
    line = re.sub(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+", " ", str(text))
    if not line.isascii() or not line.isprintable():
        line = "".join(repr(c)[1:-1] if unicodedata.category(c) in _HIDDEN else c for c in line)
    return _COMMAND.sub(r"\\\1", line)


def plainly(value: Any) -> Any:
    """`plain`, applied to all text in a document.

    >>> plainly({"a": ["\\x1b", 1]})
    {'a': ['\\\\x1b', 1]}
    """
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(name): plainly(item) for name, item in value.items()}
    return [plainly(item) for item in value] if isinstance(value, list) else value


def inert(value: Any) -> Any:
    """A table cell that no spreadsheet reads as a formula: text that begins like one gets an apostrophe.

    >>> inert("=cmd()"), inert("+1"), inert("age"), inert(-1.5)
    ("'=cmd()", "'+1", 'age', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = plain(value)  # a line break would start a new cell
    return f"'{text}" if text.lstrip()[:1] in _FORMULA else text
