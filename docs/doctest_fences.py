"""For the API reference: examples in docstrings are code, and the fields of a class are listed with their comments."""

import re

import griffe

_EXAMPLE = re.compile(r"(?:^>>>.*\n?(?:^(?!\s*$).*\n?)*)", re.MULTILINE)  # up to the next empty line
_COMMENT = re.compile(r"#\s*(.+?)\s*$")


class DoctestFences(griffe.Extension):
    """Puts doctests into fences, and the fields of dataclasses into the docstring, before it is read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring."""
        if obj.docstring and ">>>" in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(
                lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", obj.docstring.value
            )

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """A line for every field that the constructor takes: its name, and the comment beside it."""
        made = any("dataclass" in str(decorator.value) for decorator in cls.decorators)
        if not made or cls.docstring is None or "Args:" in cls.docstring.value:
            return
        own = [(name, each) for name, each in cls.members.items() if each.is_attribute and not each.is_alias]
        fields = [line for name, each in own if (line := _field(name, each))]
        if fields:
            cls.docstring.value = "\n".join([cls.docstring.value.rstrip(), "", "Args:", *fields])


def _field(name: str, attribute: griffe.Attribute) -> str | None:
    value = str(attribute.value or "")
    # griffe takes `ClassVar` off the annotation, and says so in a label; a field of the instance has its label.
    if attribute.annotation is None or "instance-attribute" not in attribute.labels or "init=False" in value:
        return None
    if attribute.lineno is None or attribute.endlineno is None:
        return None
    lines = attribute.lines_collection[attribute.filepath][attribute.lineno - 1 : attribute.endlineno]
    said = next((found.group(1) for line in reversed(lines) if (found := _COMMENT.search(line))), "")
    said = said or name.replace("_", " ")
    return f"    {name}: {said[0].upper()}{said[1:].rstrip('.')}."
