"""`remanence head`: an audit that starts from files."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from remanence import InputError, LinearReader, Reconstructor, Records, embed
from remanence.cli.main import app
from remanence.core.exceptions import MisfitError
from remanence.heads.reading import Preparation, classes_of, load_backbone, read_pictures
from remanence.scale.user_code import call_factory

BACKBONE = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU())
"""
RECIPE_OF = 'TransferHead(5, 30, 0.05, initialisation="pytorch")'
RECIPE = "--epochs=30", "--learning-rate=0.05"


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
    backbone = call_factory(folder / "backbone.py", "load", "a module")
    records = read_pictures(folder / "own", classes_of(folder / "own"), Preparation(8, (0.5,), (0.5,)))
    features = backbone(records.features).detach()
    torch.manual_seed(7)
    head = nn.Linear(48, 5)
    save_file(dict(head.state_dict()), folder / "untrained.safetensors")
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), records.labels).backward()
        optimizer.step()
    save_file(dict(head.state_dict()), folder / "head.safetensors")
    return folder


def call(files, head, *more):
    given = {"backbone": f"{files / 'backbone.py'}:load", "images": files / "own", "public": files / "public"}
    line = [f"--{name}={value}" for name, value in {**given, "size": 8, "normalise": "0.5/0.5"}.items()]
    return CliRunner().invoke(app, ["head", str(files / head), *line, *more])


def test_a_head_a_backbone_and_two_folders_are_an_audit(files, tmp_path):
    more = ["--quick", "--show-reconstructions", "--out", str(tmp_path / "run")]
    found = call(files, "head.safetensors", *RECIPE, *more)
    assert found.exit_code in (1, 3), found.output
    assert "<h2>digit-0/000.png: " in (tmp_path / "run" / "gallery.html").read_text()
    assert "digit-0/000.png: class 0: picture 0" in found.output
    assert "From this very head" in found.output
    document = json.loads((tmp_path / "run" / "audit.json").read_text())
    (evidence,) = document["evidence"]
    assert evidence["attack"] == "linear-reader"
    assert evidence["findings"][0]["fit"] > 0.01
    assert evidence["main"]["rate"] > 2 * evidence["control"]["rate"]
    assert (tmp_path / "run" / "report.html").exists()


def test_a_head_of_another_recipe_has_no_verdict(files, tmp_path):
    found = call(files, "untrained.safetensors", *RECIPE, "--quick", "--out", str(tmp_path / "run"))
    assert isinstance(found.exception, MisfitError)
    assert not (tmp_path / "run" / "audit.json").exists()


def test_a_head_needs_all_of_its_files_and_a_command_of_its_own(files):
    given = [str(files / "head.safetensors"), "--images", str(files / "own")]
    found = CliRunner().invoke(app, ["head", *given])
    assert isinstance(found.exception, InputError)
    assert found.exception.got == "no --backbone, no --public"
    found = CliRunner().invoke(app, ["audit", given[0]])
    assert "head.safetensors --backbone" in found.exception.hint


def test_the_linear_reader_tells_what_it_found_before_the_network_begins(files, tmp_path, monkeypatch):
    monkeypatch.setattr("remanence.auditing._PATIENCE", 0.0)
    monkeypatch.setattr(
        "remanence.heads.command._attacks", lambda *_: [LinearReader(), Reconstructor(steps=5)]
    )
    (files / "recipe.py").write_text(
        f"from remanence import TransferHead\n\n\ndef make():\n    return {RECIPE_OF}\n"
    )
    recipe = f"--recipe={files / 'recipe.py'}:make"
    found = call(files, "head.safetensors", recipe, "--epochs=7")
    assert "declared twice" in str(found.exception)
    found = call(files, "head.safetensors", recipe.removesuffix(":make"))
    assert "recipe.py has no function named ''" in str(found.exception)
    found = call(files, "head.safetensors", recipe, "--out", str(tmp_path / "run"))
    assert found.exit_code in (1, 3), found.exception
    assert re.search(
        r"linear-reader matched a training picture with \d+ of 500 reconstructions, its control \d+ of 500\..*"
        r"Now reconstructor\.",
        found.output,
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
    grey = Preparation(8, (0.25,), (0.5,))(path)
    raw = torch.from_numpy(np.array(Image.open(path), dtype=np.float32)) / 255
    torch.testing.assert_close(grey[0], (raw - 0.25) / 0.5)
    assert Preparation(16)(path).shape == (3, 16, 16)
    deep = np.array(Image.open(path)).astype(np.uint16) * 257
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(deep).save(tmp_path / name)
        torch.testing.assert_close(Preparation(8, (0.25,), (0.5,))(tmp_path / name), grey)
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "float.tiff")
    with pytest.raises(InputError, match="32 bits"):
        Preparation(8)(tmp_path / "float.tiff")


@pytest.mark.parametrize("most", [5, 50], ids=["far beyond what Pillow opens", "a little beyond it"])
def test_a_picture_that_would_fill_the_memory_is_refused(files, monkeypatch, most):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)  # the picture has 64
    with pytest.raises(InputError, match="could be decompression bomb"):
        Preparation(8)(next((files / "own" / "digit-3").iterdir()))


def test_what_is_no_picture_or_no_backbone_is_refused_in_a_sentence(files, tmp_path):
    for name in "ab":
        (tmp_path / "own" / name).mkdir(parents=True)
    with pytest.raises(InputError, match="class has no pictures"):
        read_pictures(tmp_path / "own", classes_of(tmp_path / "own"), Preparation())
    (tmp_path / "own" / "a" / "x.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="picture cannot be read"):
        read_pictures(tmp_path / "own", ["a"], Preparation())
    with pytest.raises(InputError, match="no such folder"):
        classes_of(tmp_path / "nowhere")
    (tmp_path / "flat" / "cats").mkdir(parents=True)
    for folder, got in ((tmp_path / "flat", "cats"), (tmp_path / "flat" / "cats", "no folders")):
        with pytest.raises(InputError, match="has no classes") as refused:
            classes_of(folder)
        assert got in str(refused.value)
    with pytest.raises(InputError, match="means and deviations"):
        Preparation(8, (0.5, 0.5), (0.5, 0.5))
    line = ["head", str(files / "head.safetensors"), "--backbone", "nowhere"]
    line += ["--images", str(files / "own")]
    found = CliRunner().invoke(
        app, [*line, "--public", str(files / "public"), "--out", str(tmp_path / "run")]
    )
    assert "not a function that returns a network" in str(found.exception)


def test_a_backbone_gets_the_weights_of_a_file(files, tmp_path):
    module = load_backbone(f"{files / 'backbone.py'}:load")
    other = {name: tensor + 1 for name, tensor in module.state_dict().items()}
    save_file(other, tmp_path / "b.safetensors")
    torch.save(other, tmp_path / "b.pt")
    for name in ("b.safetensors", "b.pt"):
        found = load_backbone(f"{files / 'backbone.py'}:load", tmp_path / name)
        torch.testing.assert_close(dict(found.state_dict()), other)
    save_file({"1.weight": torch.zeros(3, 3)}, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="do not fit the backbone") as caught:
        load_backbone(f"{files / 'backbone.py'}:load", tmp_path / "b.safetensors")
    assert "1.bias" in caught.value.got
    (tmp_path / "b.pt").write_bytes(b"nothing")
    with pytest.raises(InputError, match="backbone cannot be read"):
        load_backbone(f"{files / 'backbone.py'}:load", tmp_path / "b.pt")
    wrong = Records(torch.zeros(5, 3, 8, 8), torch.zeros(5))
    with pytest.raises(InputError, match="cannot read the pictures") as caught:
        embed(wrong, module)
    assert "one number each for grey" in caught.value.hint
