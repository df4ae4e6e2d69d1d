"""Language models, PEFT adapters and files of texts, from local files.

Models are read from safetensors. Nothing is downloaded, no pickle is opened, and no code that comes with a model is
run. A line of a file of texts is JSON: {"prefix": ..., "secret": ...}, {"text": ..., "secret": ...},
{"text": ..., "spans": [[from, to], ...]}, {"messages": [...], "secret": ...} or {"text": ...} (or a string) together
with a rule that finds the secrets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open

from remanence.core.checks import extra, refusing, whole
from remanence.core.exceptions import InputError
from remanence.scale.reading import (
    MOST_DATA,
    UNREADABLE,
    UnusableFileError,
    measured,
    opened,
    parse_json,
    read_bytes,
)
from remanence.texts.mechanism import LanguageModel, Secret
from remanence.texts.transformers import language_model

_LONGEST_LINE = 10_000_000  # characters: another kind of file would fill the memory
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which no tokenizer reads

Finder = Callable[[LanguageModel, str, int], Iterator[Secret]]


@final
@dataclass(frozen=True)
class Numbers:
    """Every number of at least this many digits is a secret; the text before it is the prefix.

    >>> Numbers(4).spans("Room 12, code 482913, 2024-05")
    [(14, 20), (22, 26)]
    """

    digits: int = 4

    def __post_init__(self) -> None:
        whole("digits", self.digits)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where they are in a text."""
        return [match.span() for match in re.finditer(rf"\d{{{self.digits},}}", text)]

    def __call__(self, model: LanguageModel, text: str, line: int) -> Iterator[Secret]:
        """The secrets of one text."""
        return split(model, text, self.spans(text), line)


@final
@dataclass(frozen=True)
class Windows:
    """Every window of a text: this many tokens are known, and as many after them are the secret."""

    tokens: int = 50

    def __post_init__(self) -> None:
        whole("tokens", self.tokens)

    def __call__(self, model: LanguageModel, text: str, line: int) -> Iterator[Secret]:
        """The secrets of one text; a text that is shorter than both has none."""
        tokens, opening = tuple(model.tokens(text)), model.opening
        opening = opening if tokens[: len(opening)] == opening else ()
        tokens, size = tokens[len(opening) :], self.tokens
        for part, first in enumerate(range(0, len(tokens) - 2 * size + 1, size), 1):
            middle = first + size
            yield Secret(opening + tokens[first:middle], tokens[middle : middle + size], line, part)


def split(
    model: LanguageModel, text: str, spans: Sequence[tuple[int, int]], line: int = 1
) -> Iterator[Secret]:
    """The tokens of each `text[start:stop]` within the whole text, and those before them.

    Training saw the text as a whole, so the secret's tokens there are used: from the first that holds a character of
    the secret to the one that holds its last. The first may begin before the secret, usually with a space, and the last
    may end after it. They contain the secret, so it is at least as likely to come out as they are.
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
                needs="a prefix that the adversary knows and a secret after it, at least one token each",
                got=f"{len(prompt)} tokens before it, {len(secret)} in it",
                hint="give every record a few words before the secret",
            )
        yield Secret(tuple(prompt), tuple(secret), line, part)


Source = str | Path | Sequence[Any]  # a file of JSON lines, or a list of such records


def read_texts(source: Source, model: LanguageModel, find: Finder | None = None) -> list[Secret]:
    """All secrets of a file or list of records; `find` finds those of plain texts."""
    records = records_of(source) if isinstance(source, str | Path) else source
    found: list[Secret] = []
    for line, record in enumerate(records, 1):
        for secret in _of_record(model, record, find, line):
            if len(secret.prompt) + len(secret.tokens) > model.context:
                raise InputError(
                    f"Line {line} is longer than the model can see.",
                    needs=f"at most {model.context} tokens, prefix and secret together",
                    got=f"{len(secret.prompt)} and {len(secret.tokens)}",
                    hint="the end of the prefix is enough; --windows 50 cuts long texts",
                )
            found.append(secret)
    if not found:
        raise InputError(
            "There is no secret to look for.",
            needs="at least one record with a secret in it",
            got=f"{len(records)} texts in which the rule finds none" if records else "an empty file",
            hint='{"prefix": "The code of Ada is", "secret": " 482913"}, or --numbers or --windows',
        )
    return found


def records_of(path: str | Path) -> list[Any]:
    """The records of a file with one JSON record per line."""
    path, needs = Path(path), "a text file in UTF-8"
    with (
        refusing(UNREADABLE, "The texts cannot be read.", needs=needs, got=path, hint="train.jsonl"),
        opened(path, MOST_DATA) as packed,
        TextIOWrapper(packed, encoding="utf-8-sig") as file,  # some editors write a byte-order mark
    ):
        return list(_lines(file, path))


def _lines(file: TextIOWrapper, path: Path) -> Iterator[Any]:
    needs = "one JSON object or string in each line, and no empty line"
    hint = '{"prefix": "The code of Ada is", "secret": " 482913"}'
    for number, line in enumerate(iter(partial(file.readline, _LONGEST_LINE + 1), ""), 1):
        wrong = f"Line {number} of {path.name} is not a record."
        with refusing(UnusableFileError, wrong, needs=needs, got="this line", hint=hint):
            if len(line) > _LONGEST_LINE:
                raise UnusableFileError(f"more than {_LONGEST_LINE} characters in one line")
            yield parse_json(line)


def _of_record(model: LanguageModel, record: Any, find: Finder | None, line: int) -> Iterator[Secret]:
    """The secrets of one record, by its own fields or by the rule."""
    fields = {"text": record} if isinstance(record, str) else record
    if not isinstance(fields, dict):
        raise _unclear(line, f"{type(record).__name__} instead of an object or a string")
    if "messages" in fields:
        model, fields = _of_chat(model, fields, line, whole_turn=find is None)
    if any(isinstance(value, str) and _SURROGATE.search(value) for value in fields.values()):
        raise _unclear(line, "a lone surrogate, which is not valid text")
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
            raise _unclear(line, "spans outside its text")
        return split(model, text, [(first, last) for first, last in spans], line)
    if isinstance(text, str) and find is not None:
        return find(model, text, line)
    raise _unclear(line, f"fields {', '.join(sorted(map(str, fields))) or 'none'}")


def _of_chat(
    model: LanguageModel, fields: dict[str, Any], line: int, *, whole_turn: bool
) -> tuple[LanguageModel, dict[str, Any]]:
    """A conversation as the model's own template writes it, and a model that reads such texts.

    The secret is the record's own, or the whole last turn if there is no rule.
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
        raise _unclear(line, "messages that are not a list of objects with role and content")
    own = {"text": chat.render(messages)}
    if "secret" in fields or whole_turn:
        own["secret"] = fields.get("secret", messages[-1]["content"].strip())
    return replace(model, encode=chat.encode, ends=chat.ends, opening=()), own


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(n), str) for n in ("role", "content"))


def _is_span(span: Any, length: int) -> bool:
    whole_numbers = isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)
    return whole_numbers and 0 <= span[0] < span[1] <= length


def _unclear(line: int, got: str) -> InputError:
    return InputError(
        f"Line {line} does not say what its secret is.",
        needs="prefix and secret; text and secret; text and spans; or a text and a rule",
        got=got,
        hint="--numbers 4 or --windows 50 finds the secrets of plain texts",
    )


_USUAL = "megatron.core"  # peft writes this into every adapter, and imports it if there is a megatron_config
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
# Exceptions that libraries raise on malformed files.
_READING = (
    OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, ImportError, ArithmeticError,
    MemoryError, SafetensorError, UnusableFileError,
)  # fmt: skip

_READS = "the packages that read language models"


def load_language_model(
    path: str | Path, adapter: str | Path | None = None, *, device: torch.device | str = "cpu"
) -> tuple[LanguageModel, LanguageModel | None]:
    """The model of a folder, with its adapter if there is one; and without it."""
    transformers, path = extra("transformers", "text", _READS), Path(path)
    transformers.utils.logging.disable_progress_bar()
    _check_model(path)
    options = {"local_files_only": True, "trust_remote_code": False}
    needs = "a causal language model that transformers knows, in local files, without code of its own"
    hint = "model.save_pretrained(folder) and tokenizer.save_pretrained(folder)"
    with refusing(_READING, "The model cannot be read.", needs=needs, got=path, hint=hint):
        refuse_named_code(json.loads(read_bytes(path / "config.json")))  # some contain Infinity
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **options
        )
    missing = sorted([*told["missing_keys"], *(str(key) for key in told["mismatched_keys"])])
    if missing:  # the library initialises them at random without an error
        raise InputError(
            "The model is incomplete.",
            needs="all weights that config.json requires",
            got=f"{path} without {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            hint="copy the whole folder; a model in parts has several .safetensors files and an index",
        )
    with refusing(_READING, "The tokenizer cannot be read.", needs=needs, got=path, hint=hint):
        words = transformers.AutoTokenizer.from_pretrained(path, **options)
    model, hashes = model.to(device), _sha256(path)
    if adapter is None:
        return language_model(model, words, name=path.name, sha256=hashes), None
    before = language_model(model, words).probe()
    (adapted, named), own_hash = _with_adapter(model, Path(adapter)), _sha256(Path(adapter))
    both = hashlib.sha256((hashes + own_hash).encode()).hexdigest()
    tuned = language_model(adapted, words, name=f"{path.name} with {Path(adapter).name}", sha256=both)
    tuned = replace(tuned, made_for=named)
    plain = language_model(adapted, words, name=path.name, sha256=hashes, as_base=adapted.disable_adapter)
    if not torch.allclose(plain.probe(), before, rtol=1e-3, atol=1e-3):
        # Adapters such as PiSSA subtract their initial values from the base weights.
        plain = load_language_model(path, device=device)[0]
    return tuned, plain


def _check_model(path: Path) -> None:
    """Refuse anything but a model in a safe format, before a library opens it."""
    found = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    pickles = [name for name in found or [path.name] if name.endswith(_PICKLES)]
    if not path.exists():
        problem = f"{path}, which does not exist"
    elif "adapter_config.json" in found and "config.json" not in found:
        problem = "an adapter without its model"
    elif path.is_dir() and "config.json" not in found:
        problem = f"a folder with {', '.join(found[:5]) or 'nothing'} in it"
    elif any(name.endswith(".safetensors") for name in found):
        return
    elif pickles:
        problem = f"{pickles[0]}, a pickle, which may run code"
    else:
        problem = "no weights" if path.is_dir() else path.name
    raise InputError(
        "The model cannot be read.",
        needs="a folder with config.json and weights in safetensors",
        got=problem,
        hint="model.save_pretrained(folder) writes safetensors; an adapter goes to --adapter",
    )


def refuse_named_code(settings: dict[str, Any]) -> None:
    """Raise if settings name a module or a kernel that a library would import: a folder must not choose code."""
    named = [key for key in ("megatron_config", "megatron_core") if settings.get(key) not in (None, _USUAL)]
    attention = [key for key in settings if key.endswith("attn_implementation") and "/" in str(settings[key])]
    if named or attention:
        raise UnusableFileError(f"{(named + attention)[0]} names code that would be run")


def _with_adapter(model: Any, folder: Path) -> tuple[Any, str]:
    """The model with the adapter, all of whose weights must match, and the base that it names."""
    peft = extra("peft", "text", _READS)
    weights, settings = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    unreadable, foreign = "The adapter cannot be read.", "The adapter is for another model."
    whole_one = {
        "needs": "a folder with adapter_config.json and adapter_model.safetensors",
        "hint": "peft_model.save_pretrained(folder) writes both",
    }
    own_base = {
        "needs": "an adapter whose weights all match this model",
        "hint": "the base model that adapter_config.json names",
    }
    if not weights.is_file() or not settings.is_file():
        inner = sorted(each.parent.name for each in folder.glob("*/adapter_config.json"))
        told = f" with the adapters {', '.join(inner[:5])}; name one of them" if inner else ""
        if (folder / "adapter_model.bin").is_file():
            told = " with adapter_model.bin, a pickle, which may run code"
        raise InputError(unreadable, got=f"{folder}{told}", **whole_one)
    with refusing(_READING, unreadable, got=folder, **whole_one):
        with safe_open(measured(weights), "pt") as file:
            own = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        told = parse_json(read_bytes(settings))
        kind, named = told["peft_type"], str(told.get("base_model_name_or_path") or "")
        refuse_named_code(told)
    with refusing(_READING, foreign, got=folder, **own_base):
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=False)
        state = peft.get_peft_model_state_dict(adapted)
    placed = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if own != placed:
        strange = sorted(own.items() ^ placed.items())[0][0]
        got = f"a weight that does not match, {strange} ({kind}, made for {named})"
        raise InputError(foreign, got=got, **own_base)
    return adapted, named


def _sha256(path: Path) -> str:
    """The hash of all weights and settings, file by file in the order of their names."""
    total = hashlib.sha256()
    for each in sorted([*path.glob("*.safetensors"), *path.glob("*config.json")]):
        with each.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
