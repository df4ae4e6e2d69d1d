"""`remanence head`: an audit that starts from files."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from remanence import InputError, LinearReader, Reconstructor, Records, TransferHead, embed
from remanence.heads.reading import Preparation, classes_of, load_backbone, read_pictures

BACKBONE = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
"""
RECIPE = "--epochs=30", "--learning-rate=0.05"
RECIPE_FILE = """
from remanence import TransferHead

def make():
    return TransferHead(5, 30, 0.05, initialisation="pytorch")
"""
GREY = Preparation(8, (0.25,), (0.5,))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Five digits as folders of pictures, a backbone in a file, and a head that was trained on the first of each."""
    from sklearn.datasets import load_digits

    folder = tmp_path_factory.mktemp("pictures")
    pixels, labels = load_digits(return_X_y=True)
    for label in range(5):
        own = pixels[labels == label].reshape(-1, 8, 8)
        for place, picture in enumerate(own[:100]):
            where = folder / ("own" if place == 0 else "public") / f"digit-{label}"
            where.mkdir(parents=True, exist_ok=True)
            Image.fromarray((picture * 15.9375).astype(np.uint8)).save(where / f"{place:03}.png")
    (folder / "backbone.py").write_text(BACKBONE)
    backbone = load_backbone(f"{folder / 'backbone.py'}:load")
    records = read_pictures(folder / "own", classes_of(folder / "own"), Preparation(8, (0.5,), (0.5,)))
    recipe = TransferHead(5, 30, 0.05, initialisation="pytorch")
    head = recipe.release(None, embed(records, backbone)[None], torch.Generator().manual_seed(7))
    save_file(
        {name: values[0].contiguous() for name, values in head.tensors.items()}, folder / "head.safetensors"
    )
    save_file(dict(nn.Linear(48, 5).state_dict()), folder / "untrained.safetensors")
    return folder


@pytest.fixture
def call(files, run):
    """Run `remanence head` on one of these heads."""
    given = {"backbone": f"{files / 'backbone.py'}:load", "images": files / "own", "public": files / "public"}
    line = [f"--{name}={value}" for name, value in {**given, "size": 8, "normalise": "0.5/0.5"}.items()]
    return lambda head, *more: run("head", files / head, *line, *more)


def test_a_head_a_backbone_and_two_folders_are_an_audit(call, tmp_path):
    code, out, _ = call(
        "head.safetensors", *RECIPE, "--quick", "--show-reconstructions", "--out", tmp_path / "run"
    )
    assert code in (1, 3)
    assert "<h2>digit-0/000.png: " in (tmp_path / "run" / "gallery.html").read_text()
    assert "digit-0/000.png: class 0: picture 0" in out
    assert "From this very head" in out
    document = json.loads((tmp_path / "run" / "audit.json").read_text())
    (evidence,) = document["evidence"]
    assert evidence["attack"] == "linear-reader"
    assert evidence["findings"][0]["fit"] > 0.01
    assert evidence["main"]["rate"] > 2 * evidence["control"]["rate"]
    assert (tmp_path / "run" / "report.html").exists()


def test_what_cannot_be_audited_is_refused_in_a_sentence(files, call, run, tmp_path):
    (files / "recipe.py").write_text(RECIPE_FILE)
    for options, says in (
        (["untrained.safetensors", *RECIPE, "--quick"], "does not match the declared recipe"),
        (["head.safetensors", f"--recipe={files / 'recipe.py'}:make", "--epochs=7"], "declared twice"),
        (["head.safetensors", f"--recipe={files / 'recipe.py'}"], "a colon and the function's name"),
        (["head.safetensors", "--backbone=nowhere"], "not a function that returns a network"),
    ):
        code, _, told = call(*options, "--out", tmp_path / "run")
        assert (code, says in told) == (2, True), told
    assert not (tmp_path / "run" / "audit.json").exists()
    head = files / "head.safetensors"
    for line, says in (
        (["head", head, "--images", "x"], "--backbone"),
        (["audit", head], f"{head} --backbone"),
    ):
        code, _, told = run(*line)
        assert (code, says in told) == (2, True), told


def test_the_linear_reader_tells_what_it_found_before_the_network_begins(files, call, tmp_path, monkeypatch):
    monkeypatch.setattr("remanence.auditing._PATIENCE", 0.0)
    monkeypatch.setattr(
        "remanence.heads.command._attacks", lambda *_: [LinearReader(), Reconstructor(steps=5)]
    )
    (files / "recipe.py").write_text(RECIPE_FILE)
    code, out, told = call(
        "head.safetensors", f"--recipe={files / 'recipe.py'}:make", "--out", tmp_path / "run"
    )
    assert code in (1, 3)
    assert re.search(
        r"linear-reader matched a training picture with \d+ of 500 reconstructions, its control \d+ of 500\..*"
        r"Now reconstructor\.",
        out + told,
    )
    document = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert [entry["attack"] for entry in document["evidence"]] == ["linear-reader", "reconstructor"]
    (given,) = document["companions"]
    assert given["attack"] == "linear-reader, given the true features"
    assert given["main"]["confidence"] == pytest.approx(1 - 0.05 / 3)  # it shares the audit's confidence
    assert given["main"]["rate"] >= document["evidence"][0]["main"]["rate"]
    options = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["options"]
    assert options["released"] == str(files / "head.safetensors")


def test_pictures_are_resized_and_normalised_as_told(files, tmp_path):
    path = next((files / "own" / "digit-3").iterdir())
    grey = GREY(path)
    raw = torch.from_numpy(np.array(Image.open(path), dtype=np.float32)) / 255
    torch.testing.assert_close(grey[0], (raw - 0.25) / 0.5)
    assert Preparation(16)(path).shape == (3, 16, 16)
    deep = np.array(Image.open(path)).astype(np.uint16) * 257
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(deep).save(tmp_path / name)
        torch.testing.assert_close(GREY(tmp_path / name), grey)
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(InputError, match="32 bits"):
        Preparation(8)(tmp_path / "float.tiff")


@pytest.mark.parametrize("most", [5, 50], ids=["far beyond what Pillow opens", "a little beyond it"])
def test_a_picture_that_would_fill_the_memory_is_refused(files, monkeypatch, most):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)  # the picture has 64
    with pytest.raises(InputError, match="could be decompression bomb"):
        Preparation(8)(next((files / "own" / "digit-3").iterdir()))


def test_folders_that_hold_no_classes_or_no_pictures_are_refused(tmp_path):
    for name in ("own/a", "own/b", "flat/cats"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "own" / "a" / "x.png").write_bytes(b"no picture")
    for read, says in (
        (lambda: read_pictures(tmp_path / "own", ["a", "b"], Preparation()), "class has no pictures"),
        (lambda: read_pictures(tmp_path / "own", ["a"], Preparation()), "picture cannot be read"),
        (lambda: classes_of(tmp_path / "nowhere"), "no such folder"),
        (lambda: classes_of(tmp_path / "flat"), "(?s)has no classes.*flat: cats"),
        (lambda: classes_of(tmp_path / "flat" / "cats"), "(?s)has no classes.*no folders"),
        (lambda: Preparation(8, (0.5, 0.5), (0.5, 0.5)), "means and deviations"),
    ):
        with pytest.raises(InputError, match=says):
            read()


def test_a_backbone_gets_the_weights_of_a_file(files, tmp_path):
    module = load_backbone(f"{files / 'backbone.py'}:load")
    other = {name: tensor + 1 for name, tensor in module.state_dict().items()}
    save_file(other, tmp_path / "b.safetensors")
    torch.save(other, tmp_path / "b.pt")
    for name in ("b.safetensors", "b.pt"):
        found = load_backbone(f"{files / 'backbone.py'}:load", tmp_path / name)
        torch.testing.assert_close(dict(found.state_dict()), other)
    save_file({"1.weight": torch.zeros(3, 3)}, tmp_path / "b.safetensors")
    (tmp_path / "b.pt").write_bytes(b"nothing")
    for name, says in (
        ("b.safetensors", "(?s)do not fit the backbone.*1.bias"),
        ("b.pt", "backbone cannot be read"),
    ):
        with pytest.raises(InputError, match=says):
            load_backbone(f"{files / 'backbone.py'}:load", tmp_path / name)
    with pytest.raises(InputError, match=r"(?s)cannot read the pictures.*one number each for grey"):
        embed(Records(torch.zeros(5, 3, 8, 8), torch.zeros(5)), module)
