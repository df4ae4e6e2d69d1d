"""audit.json and the arrays beside it: written whole or not at all, and checked when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from remanence.exceptions import UnreadableAuditError
from remanence.scale.files import write_files

DOCUMENT = "audit.json"
ARRAYS = "audit.arrays.safetensors"
GALLERY = "gallery.safetensors"

Json = dict[str, Any]


def seal(document: Json, arrays: Mapping[str, Tensor]) -> tuple[Json, bytes]:
    """The document with the hash of its packed arrays, checked against the schema."""
    packed = save_tensors(dict(arrays))
    sealed = {**document, "arrays": {"file": ARRAYS, "sha256": hashlib.sha256(packed).hexdigest()}}
    jsonschema.Draft202012Validator(schema()).validate(sealed)
    return sealed, packed


def write(
    document: Json, packed: bytes, folder: Path, *, gallery: Mapping[str, Tensor] | None = None
) -> Path:
    """Write a sealed document into a folder and return the path of its audit.json.

    All files are complete on disk before one replaces an older one; audit.json comes last. A gallery of
    an earlier run does not survive.
    """
    shown = {} if gallery is None else {GALLERY: save_tensors(dict(gallery))}
    write_files(folder, {**shown, ARRAYS: packed, DOCUMENT: dumps(document).encode()})
    if gallery is None:
        (folder / GALLERY).unlink(missing_ok=True)
    return folder / DOCUMENT


def read_gallery(path: Path) -> dict[str, Tensor] | None:
    """The reconstructions stored beside a document, where they were asked for."""
    file = (path if path.is_dir() else path.parent) / GALLERY
    if not file.exists():
        return None
    try:
        tensors = load_tensors(file.read_bytes())
    except (OSError, SafetensorError) as error:
        raise unreadable(file, str(error)) from None
    if set(tensors) != {"targets", "reconstructions", "controls", "succeeded"}:
        raise unreadable(file, f"tensors {', '.join(sorted(tensors))}")
    return tensors


def read(path: Path) -> tuple[Json, dict[str, Tensor]]:
    """Read a document and its arrays back; refuse, with the reason, what does not validate."""
    if path.is_dir() and not (path / DOCUMENT).exists():
        inner = sorted(each.parent.name for each in path.glob(f"*/{DOCUMENT}"))
        if inner:
            raise UnreadableAuditError(
                "This folder holds several results.",
                needs="one of them",
                got=", ".join(inner[:10]),
                hint=str(path / inner[0]),
            )
    path = path / DOCUMENT if path.is_dir() else path
    try:
        document = parse(path.read_text(encoding="utf-8"), path)
        packed = (path.parent / ARRAYS).read_bytes()
        if hashlib.sha256(packed).hexdigest() != document["arrays"]["sha256"]:
            raise unreadable(path, f"{ARRAYS} is not the file that this result was written with")
        return document, load_tensors(packed)
    except OSError as error:
        raise unreadable(path, f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise unreadable(path, f"not JSON: {error}") from None


def parse(text: str, path: Path | str = "the file") -> Json:
    """A document from its text, checked against the schema."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
        jsonschema.Draft202012Validator(schema()).validate(document)
        return document
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"not JSON: {error}") from None
    except jsonschema.ValidationError as error:
        raise unreadable(path, f"at {error.json_path}: {error.message[:200]}") from None


def dumps(document: Json) -> str:
    """JSON without NaN, which no other reader would accept."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@cache
def schema() -> Json:
    """The JSON Schema of audit.json, as shipped in the package."""
    return json.loads((files("remanence.results") / "audit.schema.json").read_text(encoding="utf-8"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def unreadable(path: Path | str, reason: str) -> UnreadableAuditError:
    """The error for a result that cannot be trusted."""
    return UnreadableAuditError(
        "The stored result cannot be read.",
        needs=f"an {DOCUMENT} written by remanence, with {ARRAYS} beside it",
        got=f"{path}: {reason}",
        hint="run the audit again",
    )
