"""A backbone out of a .pt2 file of torch.export, which is read here and not by torch.

torch.export.load unpickles, evaluates shapes and compiles what the file says. Here the file is a list of operations on
numbers: each is looked up among those of ATen that compute and do nothing else, and called. Shapes, guards, sample
inputs and everything else that torch would execute are not looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from remanence.scale.reading import GIB, UnusableFileError, parse_json, parse_state, read_archive

_MOST = 16 * GIB  # of a model
_ABOUT = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
_FOLDERS = ("models/", "data/weights/", "data/constants/", "data/sample_inputs/")  # the last is not read

_KINDS = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64, 6: torch.float16, 7: torch.float32,
    8: torch.float64, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
_LAYOUTS = {7: torch.strided}
_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
# On sizes, which are whole numbers.
_ON_NUMBERS: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in (
        "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc")},
    "torch.sym_int": int, "torch.sym_float": float, "torch.sym_max": max, "torch.sym_min": min,
    "torch.sym_not": operator.not_,
}  # fmt: skip
_PLAIN = {
    kind
    for plain in ("Tensor", "int", "bool", "float", "number", "Device", "Generator")
    for kind in (plain, f"Optional[{plain}]", f"List[{plain}]", f"Optional[List[{plain}]]")
} | {"List[Optional[Tensor]]", "Optional[List[Optional[Tensor]]]"}
_FOUND = {"Tensor", "List[Tensor]"}
# Words that choose among formulas; no other text reaches an operation, least of all a file's name.
_WORDS = {
    "rounding_mode", "approximate", "mode", "padding", "interpolation", "reduce", "indexing", "equation", "ord",
    "norm", "side", "pad_mode", "assert_msg",
}  # fmt: skip
_ON_SIZES = {
    "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "item", "sym_constrain_range",
    "sym_constrain_range_for_size", "_assert_scalar", "_assert_tensor_metadata",
}  # fmt: skip
_WITHOUT_GRADIENTS = "torch.ops.higher_order.wrap_with_set_grad_enabled"


_VALUES = {
    "as_none", "as_tensor", "as_tensors", "as_int", "as_ints", "as_bool", "as_bools", "as_float", "as_floats",
    "as_string", "as_sym_int", "as_sym_ints", "as_sym_float", "as_sym_floats", "as_sym_bool", "as_sym_bools",
    "as_optional_tensor", "as_optional_tensors", "as_scalar_type", "as_memory_format", "as_layout", "as_device",
}  # fmt: skip
_WRONG = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    RuntimeError,
    AssertionError,
    OverflowError,
)


class ExportedBackbone(nn.Module):
    """Pictures in, numbers out, in the one mode that it was exported in."""

    def __init__(self, path: Path, device: str | torch.device = "cpu") -> None:
        super().__init__()
        self._device = torch.device(device)
        parts = {name.partition("/")[2]: content for name, content in read_archive(path, _MOST).items()}
        if foreign := [name for name in parts if not name.startswith(_FOLDERS) and name not in _ABOUT]:
            raise UnusableFileError(f"{foreign[0][:80]!r} is no part of an exported program")
        try:
            self._take(parts)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise UnusableFileError(
                f"not a program as torch.export.save writes it ({error!r:.200})"
            ) from None

    def _take(self, parts: Mapping[str, bytes]) -> None:
        models = [name for name in parts if name.startswith("models/")]
        if models != ["models/model.json"]:
            raise UnusableFileError(
                f"it holds {len(models)} programs of torch.export, or one of an older torch"
            )
        module = parse_json(parts["models/model.json"])["graph_module"]
        self._graph = module["graph"]
        _check(self._graph)  # all of it, before the first operation runs
        held = {
            **_tensors(parts, "data/constants/model", "constants"),
            **_tensors(parts, "data/weights/model", "weights"),
        }
        self._held: dict[str, Tensor] = {}
        inputs = []
        for given in module["signature"]["input_specs"]:
            ((kind, spec),) = given.items()
            if kind == "user_input":
                inputs.append(spec["arg"]["as_tensor"]["name"])
            elif kind in ("parameter", "buffer", "tensor_constant"):
                value = held[spec[f"{kind}_name"]].to(self._device)
                # torch multiplies by a parameter in another order than by a tensor.
                learnt = kind == "parameter" and value.is_floating_point()
                self._held[spec["arg"]["name"]] = nn.Parameter(value) if learnt else value
            else:
                raise UnusableFileError(f"an input of the kind {kind[:40]}")
        outputs = [next(iter(spec)) for spec in module["signature"]["output_specs"]]
        if len(inputs) != 1 or outputs != ["user_output"]:
            raise UnusableFileError(
                f"{len(inputs)} inputs and the outputs {', '.join(outputs)[:100]}; one of each is needed"
            )
        self._input = inputs[0]
        self._sizes = [size.get("as_int") for size in self._graph["tensor_values"][inputs[0]]["sizes"]]

    def forward(self, pictures: Tensor) -> Tensor:
        """What the last operation gives."""
        sizes = pictures.shape
        if len(sizes) != len(self._sizes) or any(
            n not in (None, m) for n, m in zip(self._sizes, sizes, strict=True)
        ):
            told = " x ".join("any" if size is None else str(size) for size in self._sizes)
            any_batch = "; a batch of any size needs dynamic_shapes=({0: torch.export.Dim('batch')},)"
            raise RuntimeError(
                f"exported for {told}, and these are {' x '.join(map(str, sizes))}"
                + ("" if self._sizes[:1] == [None] else any_batch)
            )
        try:
            (found,) = self._run(self._graph, {**self._held, self._input: pictures})
        except _WRONG as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        if not isinstance(found, Tensor) or found.shape[:1] != sizes[:1]:
            raise RuntimeError("it gives something else than one row of numbers for each picture")
        return found

    def _run(self, graph: Mapping[str, Any], values: dict[str, Any]) -> list[Any]:
        for node, over in zip(graph["nodes"], _over(graph), strict=True):
            target = node["target"]
            if target == _WITHOUT_GRADIENTS:
                found: Any = self._without_gradients(node["inputs"], values)
            else:
                found = self._call(_operation(target), node["inputs"], values)
            names = list(_names(node["outputs"]))
            results = found if isinstance(found, list | tuple) else [found]
            values.update(zip(names, results, strict=True) if names else ())
            for name in over:
                values.pop(name, None)
        return [self._value(output, values) for output in graph["outputs"]]

    def _call(self, operation: Callable[..., Any], inputs: list[Any], values: Mapping[str, Any]) -> Any:
        by_place, by_name = [], {}
        for given in inputs:
            value = self._value(given["arg"], values)
            if given.get("kind") == 2:
                by_name[given["name"]] = value
            else:
                by_place.append(value)
        if operation in _ON_NUMBERS.values() and not all(isinstance(x, int | float) for x in by_place):
            raise ValueError("sizes that are no numbers")
        return operation(*by_place, **by_name)

    def _without_gradients(self, inputs: list[Any], values: Mapping[str, Any]) -> list[Any]:
        enabled, inner, *given = (argument["arg"] for argument in inputs)
        graph = inner["as_graph"]["graph"]
        own = dict(zip(_names(graph["inputs"]), (self._value(g, values) for g in given), strict=True))
        with torch.set_grad_enabled(bool(enabled["as_bool"])):
            return self._run(graph, own)

    def _value(self, argument: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        ((kind, given),) = argument.items()
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return values[given["name"]]
            case "as_name":
                return values[given]
            case "as_int" | "as_bool" | "as_string" | "as_ints" | "as_bools":
                return given
            case "as_float":
                return float(given)
            case "as_floats":
                return [float(number) for number in given]
            case "as_tensors":
                return [values[each["name"]] for each in given]
            case "as_sym_int" | "as_sym_float" | "as_sym_bool" | "as_optional_tensor":
                return self._value(given, values)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools" | "as_optional_tensors":
                return [self._value(each, values) for each in given]
            case "as_scalar_type":
                return _KINDS[given]
            case "as_memory_format":
                return _FORMATS[given]
            case "as_layout":
                return _LAYOUTS[given]
            case "as_device":
                return self._device
        raise ValueError(f"a value of the kind {kind[:40]}")


def _check(graph: Mapping[str, Any]) -> None:
    for node in graph["nodes"]:
        if node["target"] != _WITHOUT_GRADIENTS:
            _operation(node["target"])
        for given in node["inputs"]:
            (kind,) = given["arg"]
            if kind == "as_graph" and node["target"] == _WITHOUT_GRADIENTS:
                _check(given["arg"][kind]["graph"])
            elif kind not in _VALUES:
                raise UnusableFileError(f"a value of the kind {kind[:40]}")


def _over(graph: Mapping[str, Any]) -> list[set[str]]:
    """The values that nothing needs after each operation."""
    needed, over = set(_mentioned(graph["outputs"])), []
    for node in reversed(graph["nodes"]):
        used = {*_mentioned(node["inputs"]), *_mentioned(node["outputs"])}
        over.append(used - needed)
        needed |= used
    return over[::-1]


def _mentioned(values: Any) -> Iterator[str]:
    """Every name within; too many do no harm."""
    if isinstance(values, Mapping):
        yield from (values[key] for key in ("name", "as_name") if isinstance(values.get(key), str))
        values = list(values.values())
    if isinstance(values, list):
        for value in values:
            yield from _mentioned(value)


def _names(values: list[Any]) -> Iterator[str]:
    for value in values:
        ((kind, given),) = value.items()
        if kind == "as_tensors":
            yield from (each["name"] for each in given)
        elif kind != "as_none":
            yield given["name"] if kind == "as_tensor" else given["as_name"]


@cache
def _operation(target: str) -> Callable[..., Any]:
    """What a name stands for, if it computes and does nothing else."""
    if target in _ON_NUMBERS:
        return _ON_NUMBERS[target]
    start, _, name = target.rpartition("torch.ops.aten.")
    packet, _, overload = name.partition(".")
    if not start and packet.isidentifier() and overload.isidentifier() and hasattr(torch.ops.aten, packet):
        found = getattr(getattr(torch.ops.aten, packet), overload, None)
        if isinstance(found, torch._ops.OpOverload) and _computes(found, packet):
            return found
    raise UnusableFileError(f"{target[:100]!r} is no operation that only computes")


def _computes(operation: torch._ops.OpOverload, name: str) -> bool:
    inner = name.startswith("_") and name != "_unsafe_view" and torch.Tag.core not in operation.tags
    told = [str(each.type) for each in operation._schema.returns]
    computes = not inner and bool(told) and _FOUND.issuperset(told)
    return (computes or name in _ON_SIZES) and all(
        str(a.type) in _PLAIN or (a.name in _WORDS and str(a.type) in ("str", "Optional[str]"))
        for a in operation._schema.arguments
    )


def _tensors(parts: Mapping[str, bytes], start: str, kind: str) -> dict[str, Tensor]:
    if f"{start}.pt" in parts:  # torch 2.8
        return parse_state(parts[f"{start}.pt"])
    folder = start.rpartition("/")[0]
    stored: dict[str, Tensor] = {}
    for name, entry in parse_json(parts[f"{start}_{kind}_config.json"])["config"].items():
        about = entry["tensor_meta"]
        if entry["use_pickle"] or about is None:
            raise UnusableFileError(f"{name[:80]} is pickled")
        content = parts[f"{folder}/{entry['path_name']}"]
        sizes, strides = ([each["as_int"] for each in about[which]] for which in ("sizes", "strides"))
        kind_of = _KINDS[about["dtype"]]
        if math.prod(sizes) * kind_of.itemsize > len(content):
            raise UnusableFileError(f"{name[:80]} claims more than the file holds")
        flat = (
            torch.frombuffer(bytearray(content), dtype=kind_of) if content else torch.zeros(0, dtype=kind_of)
        )
        stored[name] = flat.as_strided(sizes, strides, about["storage_offset"]["as_int"]).clone()
    return stored
