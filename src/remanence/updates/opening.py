"""Open a network and a client's update: read and checked, as the gradient of a mean, and how coarse its numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import is_finite
from remanence.scale.reading import (
    MOST_TENSORS,
    UnusableFileError,
    map_tensors,
    parse_state,
    read_arrays,
    read_bytes,
)
from remanence.scale.user_code import call_factory
from remanence.updates.declared import Declared, Parameters, gradient_at
from remanence.updates.dense.belonging import belonging, misfit, require_noise
from remanence.updates.dense.layers import LARGE, DenseHead, dense_head
from remanence.updates.dense.reader import DenseReader
from remanence.updates.parts import largest, row_slices, working
from remanence.updates.patches.model import patch_model
from remanence.updates.patches.reader import PatchReader
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import Reader
from remanence.updates.texts.model import text_model
from remanence.updates.texts.reader import TokenReader
from remanence.updates.watching import logits_of, loss_of

_WRAPPERS = ("module.", "_orig_mod.")  # prefixes that DataParallel, DDP and torch.compile add to names
_COMPUTED_WITH = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FEW = 4096  # numbers that are looked at first
_MOST = 1e100  # a number of an update: its square is finite in double precision
_HOLDS_WEIGHTS = "{} holds weights, not an update: the network's own were subtracted."


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Named tensors from a .safetensors file, an .npz file, or a state dict of tensors only (no code is run)."""
    try:
        if path.suffix == ".safetensors":
            return map_tensors(path, MOST_TENSORS)
        if path.suffix == ".npz":
            return {
                name: torch.from_numpy(np.array(value))
                for name, value in read_arrays(path, most=MOST_TENSORS).items()
            }
        found = parse_state(read_bytes(path, MOST_TENSORS))
    except UnusableFileError as error:
        reason = str(error)
    else:
        if isinstance(found, dict) and found and all(isinstance(value, Tensor) for value in found.values()):
            return {str(name): value for name, value in found.items()}
        reason = f"{type(found).__name__} that is not a mapping from names to tensors"
    raise InputError(
        "The tensors cannot be read.",
        needs="a .safetensors file, an .npz file of arrays, or a state dict of tensors only saved by torch.save",
        got=f"{path}: {reason}",
        hint="safetensors.torch.save_file({name: p.grad for name, p in model.named_parameters()}, path)",
    )


def unwrapped(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors by the network's own names, without the prefixes of DataParallel, DDP and torch.compile."""
    own, found = model.state_dict().keys(), _by_name(model, tensors)
    for _ in range(len(_WRAPPERS)):
        for wrapper in _WRAPPERS:
            if found and not own & found.keys() and all(name.startswith(wrapper) for name in found):
                found = {name.removeprefix(wrapper): value for name, value in found.items()}
    return found


def _by_name(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Numbered arrays, as `numpy.savez(path, *arrays)` and Flower write them, by the network's names in order."""
    numbers = [f"arr_{index}" for index in range(len(tensors))]
    if not tensors or set(numbers) != set(tensors):
        return dict(tensors)
    for names in (list(model.state_dict()), [name for name, _ in model.named_parameters()]):
        if len(names) == len(numbers):
            return {name: tensors[number] for name, number in zip(names, numbers, strict=True)}
    raise InputError(
        "The arrays have no names, and their number does not match the network.",
        needs=f"the network's {len(model.state_dict())} tensors in their order",
        got=f"{len(numbers)} arrays",
        hint="numpy.savez(path, *[value.numpy() for value in model.state_dict().values()]), or with names",
    )


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights at which the gradient was taken."""
    weights = unwrapped(model, read_tensors(path))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise InputError(
            "The weights do not fit the network.",
            needs=f"the tensors of {type(model).__name__}",
            got=" ".join(lines)[:300],
            hint="the factory of the network that was trained",
        ) from None


def check_gradient(model: nn.Module, gradient: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Refuse a gradient of another network, and name the layer; buffers and frozen layers are ignored."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not wanted:
        raise InputError(
            "This network is entirely frozen, so it has no update.",
            needs="a parameter with requires_grad",
            got="none",
            hint="return the network from its factory as the client trains it",
        )
    others = model.state_dict().keys() | dict(model.named_parameters()).keys()
    missing, surplus = wanted.keys() - gradient.keys(), gradient.keys() - others
    if missing or surplus:
        raise InputError(
            f"The gradient does not belong to this network: {source}.",
            needs=f"one tensor for each of the {len(wanted)} parameters",
            got="; ".join(
                f"{word} {', '.join(sorted(names)[:4])}{' and more' if len(names) > 4 else ''}"
                for word, names in (("missing", missing), ("unknown", surplus))
                if names
            ),
            hint="{name: p.grad for name, p in model.named_parameters()} of the network that the factory makes",
        )
    for name, parameter in wanted.items():
        if gradient[name].shape != parameter.shape:
            raise InputError(
                f"The gradient of {name} has another shape: {source}.",
                needs=f"{tuple(parameter.shape)}",
                got=f"{tuple(gradient[name].shape)}",
                hint="the network and the gradient must come from the same architecture",
            )
        if gradient[name].dtype not in _COMPUTED_WITH:
            raise InputError(
                f"The gradient of {name} is in a format that is not used for computing: {source}.",
                needs="float16, bfloat16, float32 or float64",
                got=str(gradient[name].dtype),
                hint="multiply the codes by their scale first, as the server does, and save the product in float32",
            )
        if not is_finite(gradient[name]):
            raise InputError(
                f"The gradient of {name} is not finite: {source}.",
                needs="finite numbers",
                got=f"{int((~gradient[name].isfinite()).sum())} entries that are NaN or infinite",
                hint="check the loss of that batch; mixed precision may have overflowed",
            )
    if not any(gradient[name].count_nonzero() for name in wanted):
        raise InputError(
            f"The gradient is zero everywhere: {source}.",
            needs="the gradient of a batch",
            got="zeros only",
            hint="save it after loss.backward() and before optimizer.zero_grad()",
        )
    return {name: gradient[name] for name in wanted}


def read_batch(path: Path, dtype: torch.dtype) -> Records:
    """Inputs and labels from an .npz file with the arrays `inputs` and `labels` (or `x` and `y`)."""
    try:
        held = read_arrays(path, ("inputs", "labels", "x", "y"))
    except UnusableFileError as error:
        held, reason = {}, str(error)
    else:
        reason = f"arrays {', '.join(held) or 'of other names'}"
    inputs, labels = held.get("inputs", held.get("x")), held.get("labels", held.get("y"))
    if inputs is None or labels is None:
        raise InputError(
            "The batch cannot be read.",
            needs="an .npz file with the arrays inputs and labels",
            got=f"{path}: {reason}",
            hint="numpy.savez(path, inputs=x, labels=y), as the network and the loss receive them",
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1 or not len(labels):
        raise InputError(
            "The labels of the batch are not classes.",
            needs="one whole number per input, and at least one input",
            got=f"{labels.dtype} of shape {labels.shape}",
            hint="class indices, as cross_entropy takes them",
        )
    records = Records(
        torch.from_numpy(np.ascontiguousarray(inputs)).to(dtype), torch.from_numpy(labels).long()
    )
    records.require_finite("batch")
    return records


def holds_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a file that should hold an update holds weights instead: it is too close to the network's own."""
    apart = total = 0.0
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and name in tensors and tensors[name].shape == parameter.shape:
            own, given = parameter.detach().flatten(1), tensors[name].flatten(1)
            for rows in row_slices(own):
                part = own[rows].to(working(own))
                apart += float((given[rows].to(part) - part).norm()) ** 2
                total += float(part.norm()) ** 2
    return total > 0 and apart < 0.25 * total


def widened(value: Tensor) -> Tensor:
    """The same in double precision; a large tensor in single precision is not converted."""
    return value if value.numel() > LARGE and value.dtype == torch.float32 else value.double()


def rounding_of(tensors: Mapping[str, Tensor]) -> Rounding:
    """How coarse these numbers are, whatever their storage format; the coarsest tensor counts."""
    kept = [value for value in tensors.values() if value.is_floating_point()]
    for coarse in (torch.bfloat16, torch.float16, torch.float32):
        if all(_holds(value, coarse) for value in kept):
            return Rounding.of([coarse])
    return Rounding.of(value.dtype for value in kept)


def _holds(value: Tensor, coarse: torch.dtype) -> bool:
    """Whether a format keeps every number of a tensor; a few numbers are tried first."""
    rows = value.flatten(1) if value.ndim > 1 else value.reshape(1, -1)
    parts = (rows.flatten()[:_FEW], *(rows[some] for some in row_slices(rows)))
    return all(torch.equal(part.to(coarse).to(part), part) for part in parts)


def rounding_of_difference(weights: Mapping[str, Tensor]) -> Rounding:
    """How coarse a difference of weights is: it was rounded on the scale of the weights, not of the step."""
    relative = rounding_of(weights).relative
    each = {name: relative / 2 * largest(value) for name, value in weights.items() if value.numel()}
    return Rounding(relative, max(each.values()), tuple(each.items()))


def difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Old weights minus new ones, as a gradient points; tensors that do not match are left to `check_gradient`."""

    def match(name: str, value: Tensor) -> bool:
        return name in before and value.is_floating_point() and value.shape == before[name].shape

    return {name: before[name] - value if match(name, value) else value for name, value in after.items()}


def recognise(module: nn.Module, shape: tuple[int, ...] | None = None) -> Reader:
    """The reader of a network: of tokens, patches or dense layers; in evaluation mode."""
    was_training = {name for name, part in module.named_modules() if part.training}
    module.eval()
    try:
        with suppress(InputError):
            return TokenReader(text_model(module))
        with suppress(InputError):
            found = patch_model(module, shape)
            if module.get_parameter(found.own("weight")).requires_grad:
                return PatchReader(found)
        return dense_reader(module, shape)
    finally:
        for name, part in module.named_modules():
            part.training = name in was_training


def dense_reader(module: nn.Module, shape: tuple[int, ...] | None) -> DenseReader:
    """The reader of the dense layers in which a network ends."""
    if shape is None:
        return DenseReader(dense_head(module))
    parameter = next(module.parameters(), torch.zeros(()))
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    example = torch.randn(4, *shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
    return DenseReader(dense_head(module, example))


@final
@dataclass(frozen=True)
class Update:
    """One update as the gradient of a mean, and findings about it."""

    gradient: Mapping[str, Tensor]
    rounding: Rounding
    source: str = "the update"
    notes: tuple[str, ...] = ()
    scale_is_known: bool = True  # it is the gradient of a mean, not times a learning rate
    sign_is_known: bool = False  # it points along the gradient
    decay: float = 0.0  # the multiple of the weights that was found in it and subtracted


def opened(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    declared: Declared,
    *,
    is_after: bool = False,
    source: str = "the update",
) -> Update:
    """A client's message: a gradient, a difference of weights, or whole weights `is_after` a round."""
    held, notes, rate = unwrapped(model, tensors), (), declared.training.learning_rate
    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    if not is_after and rate is None and holds_weights(model, held):
        is_after, notes = True, (_HOLDS_WEIGHTS.format(Path(source).name),)
    held = difference(weights, held) if is_after else held
    gradient = check_gradient(model, held, source)
    if rate is None:
        rounding = rounding_of_difference(weights) if is_after else rounding_of(gradient)
        return _usable(Update(gradient, rounding, source, notes, scale_is_known=not is_after))
    signed = rate if is_after else -rate
    gradient = {name: widened(value) / signed for name, value in gradient.items()}
    return _usable(Update(gradient, rounding_of_difference(weights).times(1 / rate), source, notes))


def _usable(update: Update) -> Update:
    """The same, if its numbers can be squared: they were divided by a learning rate, or a training diverged."""
    if not all(largest(value) < _MOST for value in update.gradient.values() if value.numel()):
        raise InputError(
            f"The numbers of this update are too large to compute with: {update.source}.",
            needs=f"numbers below {_MOST:g}, after division by the learning rate",
            got="larger ones, or some that are not finite",
            hint="the learning rate that the client used, at which its training does not diverge",
        )
    return update


def belongs(reader: Reader, model: nn.Module, update: Update, declared: Declared) -> Update:
    """The update without its weight decay, if it can belong to this network at these weights; `MisfitError` if not."""
    _check_declared(reader, declared, update.gradient)
    if isinstance(reader, DenseReader):
        return _belongs(reader.head, model, update, declared)
    training = declared.training
    if not training.is_plain or not training.weight_decay:
        return update
    if not update.scale_is_known:
        raise InputError(
            "The weight decay in this update is unknown.",
            needs="the client's learning rate, by which weights before and after a step differ",
            got="--weight-decay without --learning-rate",
            hint="--learning-rate 0.01",
        )
    return replace(update, gradient=_without(model, update, training.weight_decay))


def _belongs(head: DenseHead, model: nn.Module, update: Update, declared: Declared) -> Update:
    """The same behind dense layers, where every neuron must balance."""
    layers = head.layers_of(update.gradient)
    if declared.noise is not None:
        assert declared.batch_size is not None
        deviation = declared.noise.multiplier * declared.noise.max_grad_norm / declared.batch_size
        require_noise(head, layers, deviation, update.source)
        return update
    if not declared.training.is_plain:
        return update
    fit = belonging(head, layers, update.rounding)
    if not fit.is_one_step and not update.rounding.tensors:  # an undeclared difference of weights
        coarse = rounding_of_difference({name: value.detach() for name, value in model.named_parameters()})
        tried = belonging(head, layers, coarse)
        update, fit = (replace(update, rounding=coarse), tried) if tried.is_one_step else (update, fit)
    if not fit.is_one_step:
        raise misfit(fit, update.source)
    if fit.decay:
        return replace(update, gradient=_without(model, update, fit.decay), decay=fit.decay)
    return update


def _without(model: nn.Module, update: Update, decay: float) -> dict[str, Tensor]:
    """The update's gradient without this multiple of the weights."""
    parameters = dict(model.named_parameters())
    return {
        name: widened(value) - decay * widened(parameters[name].detach())
        for name, value in update.gradient.items()
    }


def own_update(model: nn.Module, reader: Reader, batch: Records, declared: Declared) -> Update:
    """The update of the owner's own batch; a language model's texts are their own labels."""
    training = declared.training
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    _check_declared(reader, declared, named, is_own=True)
    inputs = batch.features.long() if isinstance(reader, TokenReader) else batch.features

    def slopes(weights: Parameters) -> Parameters:
        return gradient_at(weights, lambda own: _own_loss(model, own, inputs, batch.labels))

    weights = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    rounding = rounding_of({name: value.detach() for name, value in named.items()})
    if not training.is_plain:
        rounding = rounding_of_difference(weights).times(1 / (training.learning_rate or 1.0))
    return _usable(Update(training.along(named, slopes), rounding, "your own batch", sign_is_known=True))


def _own_loss(model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the owner's batch at these weights."""
    said = logits_of(functional_call(model, weights, (inputs.clone(),)))
    if not isinstance(said, Tensor):
        raise InputError(
            "No loss can be computed from the network's output.",
            needs="logits, or an output that has them",
            got=type(said).__name__,
            hint="a model with a head: ...ForImageClassification, ...ForSequenceClassification, ...ForCausalLM",
        )
    if said.ndim == 3:
        said, wanted = said[:, :-1].flatten(0, 1), inputs[:, 1:].flatten()
    else:
        wanted, classes = labels, 2 if said.ndim == 1 else max(2, said.shape[-1])
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise InputError(
                "A label has no class in the network.",
                needs=f"labels from 0 to {classes - 1}",
                got=f"labels from {int(labels.min())} to {int(labels.max())}",
                hint="encode the classes as 0, 1, ...",
            )
    return loss_of(said, wanted)


def _check_declared(
    reader: Reader, declared: Declared, trained: Mapping[str, Tensor], *, is_own: bool = False
) -> None:
    """Refuse frozen biases, steps that cannot be recomputed, and noise that cannot be tested or is not there."""
    training, head = declared.training, reader.head if isinstance(reader, DenseReader) else None
    if declared.noise is not None and (is_own or head is None):
        raise InputError(
            "Declared noise cannot be tested here, so its ceiling would rest on nothing.",
            needs="an update that was sent, of a network that ends in dense layers: neurons balance but for the noise",
            got="a batch, whose update is computed without noise"
            if is_own
            else f"a network that reads {reader.many}",
            hint="remanence bound, for noise that you trust to be there",
        )
    if head is None:
        reader.check(training, ())
    for name, bias in zip(head.names, head.biases, strict=True) if head is not None else ():
        if bias is not None and f"{name}.bias".removeprefix(".") not in trained:
            raise InputError(
                f"The bias of layer {name!r} is not in the update.",
                needs="the gradient of every bias of the dense layers: inputs are read off it",
                got="a bias that is frozen, or made of other parameters",
                hint="the same network with that bias trained: it gives away at least as much",
            )
    if not training.is_plain and training.learning_rate is None and (is_own or head is None):
        raise InputError(
            "Several steps cannot be recomputed.",
            needs="the client's learning rate",
            got=f"{training.steps} steps of {training.optimizer}",
            hint="--learning-rate 0.01",
        )


def open_network(target: str, declared: Declared) -> nn.Module:
    """The network with the declared weights, in evaluation mode."""
    model = load_network(target)
    if declared.weights is not None:
        load_weights(model, declared.weights)
    return model.eval()


def load_network(target: str) -> nn.Module:
    """The network that `path/to/file.py:factory` returns."""
    path, colon, factory = target.rpartition(":")
    network = call_factory(Path(path), factory, "a network") if colon else None
    if not isinstance(network, nn.Module):
        raise InputError(
            "There is no network to audit.",
            needs="path/to/file.py:factory, where factory() returns a torch.nn.Module",
            got=f"{target} ({type(network).__name__})" if colon else target,
            hint="put `def make(): return MyNetwork()` into a file and name it file.py:make",
        )
    return network
