"""Hostile .pt2 archives: torch runs what most of them hold; here each is refused, or what it holds is not read."""

import io
import json
import pickle
import shutil
import warnings
import zipfile

import pytest
import torch
from torch import nn

from remanence.core.exceptions import InputError
from remanence.heads.backbones import load_backbone

WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
PROGRAM = "models/model.json"
MARK = "opened"  # what a hostile file leaves behind where it was run
CODE = f"open('{MARK}', 'w')"


class Surprise:
    """What a pickle may do when it is read."""

    def __reduce__(self):
        return (open, (MARK, "w"))


class Small(nn.Module):
    """A few layers, a constant, sizes that are computed, several outputs of one operation, and no gradients within."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.GELU())
        self.start = nn.Parameter(torch.ones(1, 1, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.scale = torch.tensor([1.0, 2.0])

    def forward(self, pictures):
        words = self.layers(pictures).flatten(2)
        words = torch.cat([self.start.expand(words.shape[0], -1, -1), words], 1)
        words, _ = self.attention(words, words, words, need_weights=False)
        one, two = words.chunk(2, -1)
        with torch.no_grad():
            kept = two * self.scale[1]
        large = torch.where(one > 0, one, -torch.inf).softmax(-1).nan_to_num()
        return (one + kept + large).reshape(pictures.shape[0], -1)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    module = Small().eval()
    batches = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings(action="ignore"):  # torch's, about itself
        program = torch.export.export(module, (torch.zeros(2, 1, 4, 4),), dynamic_shapes=batches)
        torch.export.save(program, folder / "small.pt2")
        torch.export.save(program.run_decompositions(), folder / "core.pt2")
    return folder, module


@pytest.fixture
def small(archives, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(archives[0] / "small.pt2", tmp_path)
    return tmp_path / "small.pt2"


def rewritten(path, changes):
    """The same archive with some parts replaced by bytes, or changed by a function of their JSON."""
    with zipfile.ZipFile(path) as archive:
        parts = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    for name, change in changes.items():
        if callable(change):
            document = json.loads(parts[name])
            change(document)
            parts[name] = json.dumps(document).encode()
        else:
            parts[name] = change
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"small/{name}", content)
    return str(path)


def saved(value):
    packed = io.BytesIO()
    torch.save(value, packed)
    return packed.getvalue()


def pickled(where, prefix):
    def change(document):
        entry = next(iter(document["config"].values()))
        entry.update(use_pickle=True, path_name=f"{prefix}_evil")

    return {where: change, f"{where.rpartition('/')[0]}/{prefix}_evil": saved(Surprise())}


def node(target, *arguments, name="surprise"):
    """One more operation at the start of the program, whose result nobody uses."""

    def change(document):
        inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
        told = {
            "target": target,
            "inputs": inputs,
            "outputs": [{"as_none": True}],
            "metadata": {},
            "name": name,
        }
        document["graph_module"]["graph"]["nodes"].insert(0, told)

    return {PROGRAM: change}


def text(words):
    return {"as_string": words}


def renamed(old, new):
    def change(document):
        document["graph_module"] = json.loads(
            json.dumps(document["graph_module"]).replace(json.dumps(old), json.dumps(new))
        )

    return {PROGRAM: change}


def subgraph(document):
    graph = document["graph_module"]["graph"]
    inner = next(n for n in graph["nodes"] if "higher_order" in n["target"])["inputs"][1]["arg"]["as_graph"]
    inner["graph"]["nodes"][0]["target"] = "torch.load"


def deep(document):
    document["graph_module"]["graph"]["nodes"][0]["metadata"] = json.loads("[" * 200 + "]" * 200)


def claiming(document):
    about = next(iter(document["config"].values()))["tensor_meta"]
    about["sizes"], about["strides"] = [{"as_int": 2**40}], [{"as_int": 0}]


def beyond(document):
    next(iter(document["config"].values()))["tensor_meta"]["storage_offset"] = {"as_int": 10**6}


def custom(document):
    document["config"]["evil"] = {
        "path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None,
    }  # fmt: skip


REFUSED = {
    "a pickled weight": pickled(WEIGHTS, "weight"),
    "a pickled constant": pickled(CONSTANTS, "tensor"),
    "an opaque object": pickled(CONSTANTS, "opaque_obj"),
    "a custom object": {CONSTANTS: custom, "data/constants/custom_obj_0": pickle.dumps(Surprise())},
    "weights as older versions wrote them": {"data/weights/model.pt": saved({"start": Surprise()})},
    "constants as older versions wrote them": {"data/constants/model.pt": saved({"scale": Surprise()})},
    "a compiled library": {"data/aotinductor/model/model.so": b"\x7fELF"},
    "more files": {"extra/run.py": CODE.encode()},
    "a second program": {"models/other.json": b"{}"},
    "a program of an older torch": {"serialized_exported_program.json": b"{}"},
    "a function of torch": node("torch.load", text("small.pt2")),
    "a module that torch imported": node("torch.os.system", text(f"touch {MARK}")),
    "a library to load": node("torch.ops.load_library", text("evil.so")),
    "a file to write": node(
        "torch.ops.aten.from_file.default", text(MARK), {"as_bool": True}, {"as_int": 8}
    ),
    "another namespace": node("torch.ops.prim.Print.default", text("x")),
    "an operation with text": node("torch.ops.aten.warn.default", text("x")),
    "a seed for all": node("torch.ops.aten.manual_seed.default", {"as_int": 0}),
    "a caller of methods": node("_operator.methodcaller", text("x")),
    "a power that never ends": node("_operator.pow", {"as_int": 9}, {"as_int": 10**9}),
    "an extension": node("#evil:op"),
    "a word as a target": node(CODE),
    "an operator as a value": node("torch.ops.aten.relu.default", {"as_operator": "torch.os.system"}),
    "a function within a graph within": {PROGRAM: subgraph},
    "a weight that claims a terabyte": {WEIGHTS: claiming},
    "a weight beyond its file": {WEIGHTS: beyond},
    "a program that is a list": {PROGRAM: b"[]"},
    "a program that is deep": {PROGRAM: deep},
}  # fmt: skip
UNREAD = {
    "sample inputs": {"data/sample_inputs/model.pt": saved(((Surprise(),), {}))},
    "sample inputs as a plain pickle": {"data/sample_inputs/model.pt": pickle.dumps(Surprise())},
    "a shape": renamed("Symbol('s77', positive=True, integer=True)", f"__import__('builtins').{CODE}"),
    "a guard": {PROGRAM: lambda document: document.update(guards_code=[CODE])},
    "a name that is code": renamed("pictures", f"pictures={CODE}"),
    "a name that ends its line": renamed("pictures", f"pictures):\n    {CODE}\ndef later(self"),
    "a tree of values": {
        PROGRAM: lambda document: document["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec='[1, {"type": "builtins.dict", "context": "{\\"__enum__\\": 1, \\"fqn\\": \\"evil:x\\"}", '
            '"children_spec": []}]'
        )
    },
    "names of arguments": {
        PROGRAM: lambda document: document["graph_module"]["module_call_graph"][0]["signature"].update(
            forward_arg_names=[f"x={CODE}"]
        )
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_run_or_claims_too_much_is_refused(kind, small, tmp_path):
    (tmp_path / "evil.py").write_text(CODE)
    with pytest.raises(InputError, match="backbone cannot be read"):
        load_backbone(rewritten(small, REFUSED[kind]))(torch.zeros(2, 1, 4, 4))
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("kind", UNREAD)
def test_what_is_not_needed_is_not_looked_at(kind, small, archives, tmp_path):
    (tmp_path / "evil.py").write_text(CODE)
    pictures = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = archives[1](pictures)
        torch.testing.assert_close(load_backbone(rewritten(small, UNREAD[kind]))(pictures), expected)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("name", ["small.pt2", "core.pt2"])
def test_an_honest_archive_computes_what_torch_computes(name, archives):
    with warnings.catch_warnings(action="ignore"):
        torchs = torch.export.load(archives[0] / name).module()
    ours = load_backbone(str(archives[0] / name))
    for count in (2, 3, 7):
        pictures = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            assert torch.equal(ours(pictures), torchs(pictures))


@pytest.mark.parametrize(
    "content", [b"", b"nothing", b"PK\x05\x06" + b"\0" * 18], ids=["empty", "text", "no parts"]
)
def test_what_is_no_archive_is_refused(content, tmp_path):
    (tmp_path / "none.pt2").write_bytes(content)
    with pytest.raises(InputError, match="backbone cannot be read"):
        load_backbone(str(tmp_path / "none.pt2"))
