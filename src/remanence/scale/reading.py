"""Untrusted files: measured before they are read, checked before they are used, never run.

Everything here raises `UnusableFileError` with the reason, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import struct
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from remanence.core.checks import brief

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

KIB, MIB, GIB = 2**10, 2**20, 2**30
MOST_TEXT = 32 * MIB  # of JSON: parsed, it takes twenty times as much
MOST_TENSORS = 4 * GIB  # of one file
MOST_DATA = 64 * GIB  # of a table, a model or texts, which a library reads
_DEEPEST = 64


class UnusableFileError(Exception):
    """A file that is not what it should be. `missing`: there is none."""

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


UNREADABLE = (UnusableFileError, UnicodeDecodeError)  # of a text


def read_bytes(path: Path, most: int = MOST_TEXT, *, follow: bool = True) -> bytes:
    """The contents of a regular file of at most `most` bytes; pipes and devices are refused at once."""
    with opened(path, most, follow=follow) as file:
        return file.read(most)


def measured(path: Path, most: int = MOST_DATA) -> Path:
    """The same file, for a library that opens it by its name."""
    with opened(path, most):
        return path


@contextlib.contextmanager
def opened(path: Path, most: int, *, follow: bool = True) -> Iterator[BinaryIO]:
    """The same file, to be read in parts."""
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    )
    flags |= 0 if follow else getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise UnusableFileError("a folder" if stat.S_ISDIR(state.st_mode) else "not a regular file")
            if state.st_size > most:
                raise UnusableFileError(f"{state.st_size:,} bytes, and {most:,} are the most that is read")
            yield file
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnusableFileError(error.strerror or "not there", missing=True) from None
    except (OSError, ValueError, MemoryError) as error:  # a name may be too long, or hold a zero
        raise UnusableFileError(getattr(error, "strerror", None) or str(error) or "too large") from None


def parse_json(content: bytes | str, schema: Mapping[str, Any] | None = None) -> Any:
    """A document of plain values that a schema allows: no NaN, no half of a character, not too deep."""
    try:
        text = content if isinstance(content, str) else content.decode()
        return _checked(json.loads(text, parse_constant=_no_number), schema)
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnusableFileError(f"not JSON: {brief(error)}") from None


def parse_toml(content: bytes) -> dict[str, Any]:
    """The same for TOML."""
    try:
        return _checked(tomllib.loads(content.decode()))
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnusableFileError(f"not TOML: {brief(error)}") from None


def parse_tensors(content: bytes) -> dict[str, Tensor]:
    """Real or whole numbers out of a safetensors file, whose own library checks the header against the file."""
    from safetensors.torch import load

    return _numbers(lambda: load(content))


def map_tensors(path: Path, most: int) -> dict[str, Tensor]:
    """The same without a copy: numbers stay in the file until they are used."""
    from safetensors.torch import load_file

    return _numbers(lambda: load_file(measured(path, most)))


def _numbers(read: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        found = read()
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise UnusableFileError(f"not safetensors: {brief(error)}") from None
    for name, values in found.items():
        kind = str(values.dtype).removeprefix("torch.")
        if kind.startswith(("complex", "float8", "float4")) or values.ndim > _DEEPEST:
            raise UnusableFileError(f"{name[:80]!r} is {kind}, of {values.ndim} dimensions")
    return found


def tensor_notes(content: bytes) -> dict[str, str]:
    """What the header of a safetensors file that can be read says about it."""
    (length,) = struct.unpack("<Q", content[:8])
    return parse_json(content[8 : 8 + length]).get("__metadata__", {})


def parse_state(content: bytes) -> Any:
    """What `torch.save` wrote, tensors and plain values alone; no tensor may claim more than the file holds."""
    import torch

    _check_zip(BytesIO(content))  # older ones say in a pickle how much is to be allocated
    try:
        found = torch.load(BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:  # noqa: BLE001, pickle's own errors, and those of many others
        raise UnusableFileError(f"{type(error).__name__}: {brief(error)}") from None
    _check_sizes(found, len(content))
    return found


def read_archive(path: Path, most: int) -> dict[str, bytes]:
    """The contents of a zip file, which may hold at most `most` bytes when unpacked."""
    with opened(path, most) as file:
        _check_zip(file, most)
        try:
            with zipfile.ZipFile(file) as archive:
                return {info.filename: archive.read(info) for info in archive.infolist()}
        except Exception as error:  # noqa: BLE001, zlib's and lzma's own among them
            raise UnusableFileError(brief(error)) from None


def read_arrays(path: Path, names: tuple[str, ...] | None = None, most: int = GIB) -> dict[str, np.ndarray]:
    """Arrays of numbers out of an .npz file; with `names`, those of them that are there."""
    import numpy as np

    there = read_archive(path, most)
    packed = {name.removesuffix(".npy"): part for name, part in there.items() if name.endswith(".npy")}
    packed = {name: part for name, part in packed.items() if names is None or name in names}
    for name, content in packed.items():
        if not is_whole_array(content):
            raise UnusableFileError(f"{name} is not an array of numbers, or not all of it is there")
    found = {name: np.load(BytesIO(content)) for name, content in packed.items()}
    for name, array in found.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise UnusableFileError(f"{name} is not an array of numbers, or has more than 64 bits for each")
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in found.items()}


def is_whole_array(content: bytes) -> bool:
    """Whether an .npy file holds what its header says, and nothing that would be unpickled."""
    file = BytesIO(content)
    try:
        shape, _, dtype = _array_header(file)
    except (ValueError, MemoryError, RecursionError, UnusableFileError):
        return False
    return not dtype.hasobject and len(content) - file.tell() == math.prod(shape) * dtype.itemsize


def _array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise UnusableFileError(f"a format {version[0]}.{version[1]} of arrays")
    return (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)


def _check_zip(packed: BinaryIO, most: int | None = None) -> None:
    """Refuse an archive that holds more than `most` bytes, or much more than its own size."""
    try:
        with zipfile.ZipFile(packed) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise UnusableFileError(f"not an archive: {brief(error)}") from None
    total, weight = sum(info.file_size for info in infos), packed.seek(0, os.SEEK_END)
    if len(infos) > 100_000 or total > (most or 2 * weight + MIB):
        raise UnusableFileError(f"{len(infos):,} parts of {total:,} bytes in a file of {weight:,}")


def _check_sizes(found: Any, most: int) -> None:
    import torch

    waiting, seen = [found], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen > 10**6:
            raise UnusableFileError("more than a million values")
        if isinstance(value, torch.Tensor):
            is_plain = not value.is_complex() and value.layout == torch.strided
            if not is_plain or value.numel() * value.element_size() > most:
                raise UnusableFileError(
                    "a tensor that claims more than the file holds, or is not of real numbers"
                )
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value


def _checked(document: Any, schema: Mapping[str, Any] | None = None) -> Any:
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} levels")
        for value in level:
            if isinstance(value, str):
                value.encode()  # half of a character cannot be written anywhere
            elif isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{value} is not a number")
            elif isinstance(value, int) and abs(value) >= 2**64:
                raise ValueError("a number of more than 64 bits")
        inner = [[*value.keys(), *value.values()] for value in level if isinstance(value, dict)]
        level = [item for value in (*inner, *(v for v in level if isinstance(v, list))) for item in value]
    if schema is not None:
        conform(document, schema)
    return document


def conform(document: Any, schema: Mapping[str, Any]) -> None:
    """Refuse a document that its schema does not allow."""
    from jsonschema.exceptions import ValidationError

    try:
        _validator(json.dumps(schema)).validate(document)
    except ValidationError as error:
        raise UnusableFileError(f"at {error.json_path[:200]}: {error.message[:200]}") from None


@lru_cache(maxsize=32)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
