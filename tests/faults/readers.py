"""Every kind of file that is read, as a real one that was written by us, and what reads it."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from audit_results import result
from conftest import settings_arguments
from remanence import AuditResult, Verdict
from remanence.core.exceptions import InputError
from remanence.heads.reading import load_backbone
from remanence.private import recording
from remanence.report import markdown, terminal
from remanence.results.storage import ARRAYS, DOCUMENT, GALLERY, read_gallery
from remanence.scale.journal import MANIFEST, Journal, Plan, read_status
from remanence.scale.reading import UnusableFileError
from remanence.tables.reading import read_table
from remanence.texts.canaries import TextCanaries
from remanence.texts.reading import read_texts
from remanence.updates.opening import read_batch, read_tensors
from remanence_papers.views import load


def _audit(folder: Path) -> Path:
    result(Verdict.EXPOSED).save(folder)
    return folder / DOCUMENT


def _arrays(folder: Path) -> Path:
    return _audit(folder).with_name(ARRAYS)


def show(path: Path) -> None:
    found = AuditResult.load(path.parent)
    markdown.summary(found)
    terminal.audit_view(found)


def _show_arrays(path: Path) -> None:
    """Whatever the arrays are, the document agrees with their hash."""
    document = json.loads((path.parent / DOCUMENT).read_text())
    document["arrays"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / DOCUMENT).write_text(json.dumps(document))
    show(path)


def _gallery(folder: Path) -> Path:
    kept = {name: torch.rand(3, 4) for name in ("targets", "reconstructions", "controls")}
    path = folder / GALLERY
    path.write_bytes(save({**kept, "succeeded": torch.ones(3, dtype=torch.bool)}))
    return path


def _run(folder: Path) -> Path:
    journal = Journal(folder)
    journal.begin({"options": {"command": "audit", "target": "x.py:game", "seed": 0}, "code": {}, "data": {}})
    plan = Plan("playing", "x", 10, 3)
    journal.announce([plan])
    journal.write(plan.key(0), {"error": torch.rand(3)})
    journal.leave()
    return folder / MANIFEST


def _unit(folder: Path) -> Path:
    _run(folder)
    return next((folder / "units").iterdir())


def _read_unit(path: Path) -> None:
    try:
        Journal(path.parent.parent).read(path.stem)
    except UnusableFileError as error:  # set aside and run again
        raise InputError("damaged", needs="", got=str(error), hint="") from None


def _settings(folder: Path) -> Path:
    path = folder / "audit.toml"
    path.write_text('target = "model.py:factory"\nattack = ["oblivious"]\ntrials = 30\nmax_success = 0.95\n')
    return path


def _gradient(folder: Path, name: str = "gradient") -> Path:
    path = folder / f"{name}.safetensors"
    path.write_bytes(save({"weight": torch.rand(3, 4), "bias": torch.rand(3)}))
    return path


def _state(folder: Path) -> Path:
    path = folder / "gradient.pt"
    torch.save({"weight": torch.rand(3, 4), "bias": torch.rand(3)}, path)
    return path


def _batch(folder: Path) -> Path:
    path = folder / "batch.npz"
    np.savez(path, inputs=np.zeros((4, 3), np.float32), labels=np.arange(4))
    return path


def _recording(folder: Path) -> Path:
    about = {"framework": "by hand", "claimed": [[1.1, 0.1, 10]], "records": 10, "steps": 1, "rate": 0.1}
    made_again = {"replayed": dict.fromkeys(recording.PARTS, 1), "noted": {}, "rounding": 0.0, "seed": "os"}
    canaries = {"count": 1, "candidates": 1, "design": "real records", "sha256": "0"}
    tensors = {"settings": torch.rand(1, 2), "noise": torch.rand(1, 1), "scores": torch.rand(1, 1)}
    tensors = {name: values.double() for name, values in tensors.items()}
    tensors |= {"starts": torch.tensor([0, 3]), "indices": torch.arange(3).int(), "sizes": torch.tensor([1])}
    tensors["chosen"] = torch.zeros(1, dtype=torch.int64)
    (folder / "run").mkdir()
    content = save(tensors)
    (folder / "run" / recording.TENSORS).write_bytes(content)
    written = {"format": recording.FORMAT, "remanence": "1", "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {**about, **made_again, **written, "tensors": ["weight"], "canaries": canaries}
    (folder / "run" / recording.MANIFEST).write_text(json.dumps(manifest))
    return folder / "run" / recording.MANIFEST


def _reproduction(folder: Path) -> Path:
    curve = {"x": [1, 2], "y": [1, 2], "lower": None, "upper": None, "label": "ours"}
    panel = {"title": "t", "across": "a", "up": "b", "curves": [curve], "pictures": None, "log_up": False}
    path = folder / "mine.json"
    document = {
        "name": "mine", "title": "t", "reference": "r", "dataset": "d", "scale": "small", "seed": 0, "notes": ["n"],
        "rows": [{"a": 1.0, "b": "x"}], "panels": [{**panel, "log_across": False}], "settings": {"steps": 3},
        "environment": {"device": "cpu", "torch": "2", "seconds": 1.0},
    }  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def _table(folder: Path) -> Path:
    path = folder / "train.csv"
    path.write_text("age,sex,outcome\n" + "".join(f"{20 + n},{'fm'[n % 2]},{n % 3}\n" for n in range(20)))
    return path


class _Letters:
    """A language model's words, without the model."""

    context, start = 10**6, None

    def tokens(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def places(self, text: str) -> tuple[list[int], list[int]]:
        return self.tokens(text), list(range(1, len(text) + 1))

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


def _texts(folder: Path) -> Path:
    path = folder / "train.jsonl"
    lines = [{"prefix": f"The code of {name} is", "secret": " 2482"} for name in ("Ada", "Bob")]
    lines.append({"text": "Eve has 9123", "secret": "9123"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _canaries(folder: Path) -> Path:
    path = folder / "canaries.json"
    records = [{"prefix": f"code {n} is", "secret": f" {n}77"} for n in range(4)]
    path.write_text(json.dumps({"records": records, "chosen": [True, False] * 2, "candidates": 1000}))
    return path


def _backbone(folder: Path) -> Path:
    path = _gradient(folder, "backbone")
    path.with_name("backbone.py").write_text("from torch import nn\n\nmake = lambda: nn.Linear(4, 3)\n")
    return path


# What writes a real file into a folder, and what reads it; a refusal is a `RemanenceError`.
READERS = {
    "audit.json": (_audit, show),
    "arrays": (_arrays, _show_arrays),
    "gallery": (_gallery, lambda path: read_gallery(path.parent)),
    "run.json": (_run, lambda path: read_status(path.parent)),
    "unit": (_unit, _read_unit),
    "audit.toml": (_settings, settings_arguments),
    "gradient as safetensors": (_gradient, read_tensors),
    "gradient of torch.save": (_state, read_tensors),
    "batch": (_batch, lambda path: read_batch(path, torch.float32)),
    "recording": (_recording, lambda path: recording.read_recording(path.parent)),
    "reproduction": (_reproduction, load),
    "table": (_table, read_table),
    "texts": (_texts, lambda path: read_texts(path, _Letters())),
    "canaries": (_canaries, TextCanaries.load),
    "backbone": (_backbone, lambda path: load_backbone(f"{path.with_name('backbone.py')}:make", path)),
}


def claiming(shape: tuple[int, ...]) -> bytes:
    """An .npz whose header claims far more than it holds."""
    header = str({"descr": "<f8", "fortran_order": False, "shape": shape}).encode()
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 64
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inputs.npy", array)
        archive.writestr("labels.npy", array)
    return packed.getvalue()
