"""audit.json and its arrays: written completely or not at all, and validated when read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors
from torch import Tensor

from remanence.core.exceptions import UnreadableAuditError
from remanence.core.plain_text import plainly
from remanence.scale.files import remove, write_files
from remanence.scale.reading import (
    MOST_TENSORS,
    UnusableFileError,
    conform,
    parse_json,
    parse_tensors,
    read_bytes,
)

DOCUMENT = "audit.json"
ARRAYS = "audit.arrays.safetensors"
GALLERY = "gallery.safetensors"

Json = dict[str, Any]


def seal(document: Json, arrays: Mapping[str, Tensor]) -> tuple[Json, bytes]:
    """The document with the hash of its packed arrays, checked against the schema."""
    packed = save_tensors(dict(arrays))
    sealed = plainly({**document, "arrays": {"file": ARRAYS, "sha256": hashlib.sha256(packed).hexdigest()}})
    conform(sealed, schema())
    return sealed, packed


def write(
    document: Json, packed: bytes, folder: Path, *, gallery: Mapping[str, Tensor] | None = None
) -> Path:
    """Write a sealed document into a folder and return the path of its audit.json.

    All files are complete on disk before any replaces an older one; audit.json comes last. The gallery of
    an earlier run is deleted.
    """
    shown = {} if gallery is None else {GALLERY: save_tensors(dict(gallery))}
    write_files(folder, {**shown, ARRAYS: packed, DOCUMENT: dumps(document).encode()})
    if gallery is None:
        remove(folder / GALLERY)
    return folder / DOCUMENT


def read_gallery(path: Path) -> dict[str, Tensor] | None:
    """The reconstructions stored next to a document, if any."""
    file = located(path).with_name(GALLERY)
    try:
        tensors = parse_tensors(read_bytes(file, MOST_TENSORS))
    except UnusableFileError as error:
        if error.missing:
            return None
        raise unreadable(file, str(error)) from None
    if set(tensors) != {"targets", "reconstructions", "controls", "succeeded"}:
        raise unreadable(file, f"tensors {', '.join(sorted(tensors))}")
    if len({len(values) if values.ndim else -1 for values in tensors.values()}) != 1:
        raise unreadable(file, "not as many targets as reconstructions")
    return tensors


def read(path: Path) -> tuple[Json, dict[str, Tensor]]:
    """Read a document and its arrays back; refuse one that does not validate, with the reason.

    Its text is escaped so that it is safe to show anywhere.
    """
    path = located(path)
    arrays = path.with_name(ARRAYS)
    try:
        document = parse_json(read_bytes(path))
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version > schema()["properties"]["schema_version"]["const"]:
            raise unreadable(path, f"version {version}, made by a later remanence", "update remanence")
        conform(document, schema())
        packed = read_bytes(arrays, MOST_TENSORS)
        if hashlib.sha256(packed).hexdigest() != document["arrays"]["sha256"]:
            raise unreadable(path, f"{ARRAYS} is not the file that this result was written with")
        return plainly(document), parse_tensors(packed)
    except UnusableFileError as error:
        raise unreadable(path, str(error)) from None


def located(path: Path) -> Path:
    """The audit.json of a results folder, or of its own name; refuse a folder that holds several results."""
    try:
        if not path.is_dir():
            return path
    except (OSError, ValueError):  # not a valid file name
        return path
    inner = sorted(each.parent.name for each in path.glob(f"*/{DOCUMENT}"))
    if inner and not (path / DOCUMENT).exists():
        raise UnreadableAuditError(
            "This folder holds several results.",
            needs="one of them",
            got=", ".join(inner[:10]),
            hint=str(path / inner[0]),
        )
    return path / DOCUMENT


def dumps(document: Json) -> str:
    """JSON without NaN, which other readers reject."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@cache
def schema() -> Json:
    """The JSON Schema of audit.json, as shipped in the package."""
    return json.loads((files("remanence.results") / "audit.schema.json").read_text(encoding="utf-8"))


def unreadable(path: Path | str, reason: str, hint: str = "run the audit again") -> UnreadableAuditError:
    """The error for a result that cannot be trusted."""
    return UnreadableAuditError(
        "The stored result cannot be read.",
        needs=f"an {DOCUMENT} written by remanence, with {ARRAYS} beside it",
        got=f"{path}: {reason}",
        hint=hint,
    )
