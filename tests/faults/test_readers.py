"""Hostile files: every reader refuses with a sentence, quickly, in little memory, and runs nothing.

REMANENCE_INPUTS=10000 tries as many for each reader; `make test-faults` does.
"""

import contextlib
import os
import resource
import struct
import sys
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import READERS, claiming, show
from safetensors.torch import save

from remanence.core.exceptions import RemanenceError
from remanence.scale.reading import UnusableFileError, parse_tensors

INPUTS = int(os.environ.get("REMANENCE_INPUTS", "40"))
TRIED: list[bool] = []  # whether each mutated file was refused
BEFORE = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kilobytes
TOKENS = [
    b"1e999", b"NaN", b"-1", b"0", b"1" * 5000, b"null", b"[]", b"{}", b'"\\ud800"', b"\xff\xfe", b"\x00", b"[" * 3000,
    b"99999999999999999999", b"1e308", b'"\\u202e"', b"true", b'"' + b"x" * 3000 + b'"', b"F64", b"C64", b"BF16",
    struct.pack("<Q", 2**63), struct.pack("<Q", 0), b"cos\nsystem\n", b"<script>", b"\r\n::error::", b"[/red]",
]  # fmt: skip


@st.composite
def mutations(draw):
    """A few edits, each at some place: flip, cut, insert, repeat, or replace by something nasty."""
    kinds = st.sampled_from(["flip", "cut", "drop", "insert", "repeat", "swap number"])
    edit = st.tuples(kinds, st.floats(0, 1), st.integers(0, 255), st.sampled_from(TOKENS))
    return draw(st.lists(edit, min_size=1, max_size=4))


def mutated(content: bytes, edits) -> bytes:
    for kind, where, number, token in edits:
        place = int(where * max(0, len(content) - 1))
        if kind == "flip" and content:
            content = content[:place] + bytes([content[place] ^ (number or 1)]) + content[place + 1 :]
        elif kind == "cut":
            content = content[:place]
        elif kind == "drop":
            content = content[:place] + content[place + number :]
        elif kind == "insert":
            content = content[:place] + token + content[place:]
        elif kind == "repeat":
            content = content[:place] + content[place : place + number] * 3 + content[place:]
        else:  # the next number, word or string becomes something else
            start = min([i for i in range(place, len(content)) if content[i] in b'0123456789"[{'] or [place])
            end = min([i for i in range(start + 1, len(content)) if content[i] in b',}]\n"'] or [start])
            content = content[:start] + token + content[end:]
    return content


@pytest.mark.parametrize("kind", READERS)
def test_a_mutated_file_is_read_or_refused(kind, tmp_path):
    write, read = READERS[kind]
    path = write(tmp_path)
    original, before = path.read_bytes(), len(TRIED)
    read(path)  # it is one that can be read

    @settings(
        max_examples=INPUTS,
        deadline=10_000,  # milliseconds: nothing hangs
        suppress_health_check=list(HealthCheck),
        derandomize=INPUTS < 1000,
        database=None,
    )
    @given(mutations())
    def refused_or_read(edits):
        path.write_bytes(mutated(original, edits))
        TRIED.append(False)
        try:
            read(path)
        except RemanenceError as refused:
            TRIED[-1] = bool(str(refused).encode())

    refused_or_read()
    assert any(TRIED[before:]), "no input was hostile enough to be refused"


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    "special", ["fifo", "device", "folder", "empty", "deep", "long name", "link in a circle"]
)
def test_what_is_no_file_is_a_sentence_and_not_waited_for(kind, special, tmp_path):
    write, read = READERS[kind]
    path = write(tmp_path)
    path.unlink()
    if special == "fifo":
        os.mkfifo(path)
    elif special == "device":
        path.symlink_to("/dev/zero")
    elif special == "folder":
        path.mkdir()
    elif special == "empty":
        path.write_bytes(b"")
    elif special == "deep":
        path.write_bytes(b"[" * 200_000)
    elif special == "long name":
        path = path.with_name("x" * 5000 + path.suffix)
    else:
        path.symlink_to(path)
    read = show if kind == "arrays" else read  # which hashes it first
    finished = threading.Event()

    def attempt():
        with contextlib.suppress(RemanenceError):
            read(path)
        finished.set()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(10)
    assert finished.is_set(), "it hangs, or ended with a traceback"


@pytest.mark.parametrize("shape", [(2**33,), (2**62, 2**62), (-1,), (2**20, 2**13)])
def test_a_header_that_claims_more_than_there_is_allocates_nothing(shape, tmp_path):
    (tmp_path / "batch.npz").write_bytes(claiming(shape))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RemanenceError):
        READERS["batch"][1](tmp_path / "batch.npz")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20 // 10, "kilobytes"


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'executed'}",)

    (tmp_path / "gradient.pt").write_bytes(pickle.dumps({"weight": Evil()}))
    with pytest.raises(RemanenceError):
        READERS["gradient of torch.save"][1](tmp_path / "gradient.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("kind", [torch.complex64, torch.float8_e4m3fn], ids=str)
def test_tensors_of_numbers_that_no_audit_computes_with_are_refused(kind):
    with pytest.raises(UnusableFileError, match=f"'a' is {str(kind).removeprefix('torch.')}"):
        parse_tensors(save({"a": torch.zeros(2).to(kind)}))


def test_the_counts_are_told(capsys):
    with capsys.disabled():
        sys.stdout.write(f"\n{len(TRIED)} mutated files, {sum(TRIED)} refused, the others read\n")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - BEFORE < 2**20, "a gibibyte"
