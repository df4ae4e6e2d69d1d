"""For the API reference: examples in docstrings are code, not quotations."""

import re

import griffe

_EXAMPLE = re.compile(r"(?:^>>>.*\n?(?:^(?!\s*$).*\n?)*)", re.MULTILINE)  # up to the next empty line


class DoctestFences(griffe.Extension):
    """Puts doctests into fences before they are read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", obj.docstring.value
            )
