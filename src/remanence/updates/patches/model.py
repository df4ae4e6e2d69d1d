"""Networks that read pictures in patches: a convolution whose stride is its kernel's size, and anything after it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import isqrt, prod
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, fold, pad, unfold

from remanence.core.exceptions import InputError
from remanence.updates.declared import Parameters, gradient_at
from remanence.updates.watching import logits_of, watching


@final
@dataclass(frozen=True)
class PatchModel:
    """A network in double precision whose first layer reads patches, `(positions, numbers)` each picture."""

    module: nn.Module
    name: str  # of the layer that reads patches
    shape: tuple[int, ...]  # of one picture
    positions: int
    places: str | None  # the parameter that is added to what the layer puts out, one row for each position
    last: str  # the bias whose gradient counts the labels
    dtype: torch.dtype = torch.float32  # in which the network itself computes
    weights: Parameters | None = None  # other than the module's own

    @property
    def layer(self) -> nn.Conv2d:
        """The layer that reads patches."""
        found = self.module.get_submodule(self.name)
        assert isinstance(found, nn.Conv2d)
        return found

    @property
    def weight(self) -> Tensor:
        """Of the layer, `(outputs, numbers)`."""
        return self.parameters[self.own("weight")].flatten(1)

    def embedded(self, patches: Tensor, ones: Tensor | float = 1.0) -> Tensor:
        """What the layer makes of patches; `ones` is the factor of its bias."""
        return patches @ self.weight.mT + (0 if self.bias is None else ones * self.bias)

    @property
    def bias(self) -> Tensor | None:
        """Of the layer, where it has one."""
        return self.parameters.get(self.own("bias"))

    def own(self, part: str) -> str:
        """The name of a parameter of the layer."""
        return f"{self.name}.{part}" if self.name else part

    @property
    def parameters(self) -> Parameters:
        """All weights."""
        return self.weights or {
            name: parameter.detach() for name, parameter in self.module.named_parameters()
        }

    @property
    def trained(self) -> Parameters:
        """All weights that are not frozen."""
        free = {name for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in self.parameters.items() if name in free}

    def at(self, weights: Parameters) -> PatchModel:
        """The same network with other weights; those that are not named stay."""
        return replace(self, weights={**self.parameters, **weights})

    def patches(self, pictures: Tensor) -> Tensor:
        """What the layer reads, `(pictures, positions, numbers)`."""
        layer = self.layer
        return unfold(pictures, layer.kernel_size, stride=layer.stride).mT  # pyright: ignore[reportArgumentType]

    def pictures(self, patches: Tensor) -> Tensor:
        """The pictures of patches that lie side by side."""
        layer = self.layer
        return fold(patches.mT, self.shape[1:], layer.kernel_size, stride=layer.stride)  # pyright: ignore[reportArgumentType]

    @property
    def grid(self) -> tuple[int, int]:
        """How many patches lie above and beside each other."""
        height, width = (size // step for size, step in zip(self.shape[1:], self.layer.stride, strict=True))
        return height, width

    def logits(self, embedded: Tensor, some: Mapping[str, Tensor] | None = None) -> Tensor:
        """What the network says about one picture of which the layer made this, `(positions, outputs)`."""
        made = embedded.mT.reshape(1, -1, *self.grid)
        handle = self.layer.register_forward_hook(lambda *_: made)
        try:
            blank = torch.zeros(1, *self.shape, dtype=torch.float64)
            with plainly():
                said = functional_call(self.module, {**self.parameters, **(some or {})}, (blank,))
        finally:
            handle.remove()
        return _logits(said)[0]

    def slopes(self, embedded: Tensor, label: Tensor, some: Parameters) -> tuple[Tensor, Parameters]:
        """The loss's derivative in what the layer puts out, and in some parameters."""

        def loss(made: Tensor, chosen: Parameters) -> Tensor:
            return cross_entropy(self.logits(made, chosen)[None], label[None])

        return grad(loss, argnums=(0, 1))(embedded, some)

    def update(self, pictures: Tensor, labels: Tensor) -> Parameters:
        """The gradient of the mean over a batch, computed in the precision of the weights."""
        trained = self.trained
        dtype = next(iter(trained.values())).dtype
        held = {**dict(self.module.named_buffers()), **self.parameters}
        fixed = {n: value.to(dtype) if value.is_floating_point() else value for n, value in held.items()}

        def loss(weights: Parameters) -> Tensor:
            with plainly():
                said = functional_call(self.module, {**fixed, **weights}, (pictures.to(dtype),))
            return cross_entropy(_logits(said), labels)

        return gradient_at(trained, loss)


def _logits(said: object) -> Tensor:
    found = logits_of(said)
    if not isinstance(found, Tensor):
        raise TypeError("a network that returns no logits")
    if found.ndim == 1 or found.shape[1] == 1:  # a sigmoid of one output is a softmax of 0 and it
        return pad(found.reshape(-1, 1), (1, 0))
    return found


def plainly() -> ExitStack:
    """Attention by formulas that can be differentiated twice."""
    stack = ExitStack()
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
    return stack


def patch_model(module: nn.Module, shape: tuple[int, ...] | None = None) -> PatchModel:
    """Find the layer that reads patches, by watching the network read a picture."""
    name, layer = next(
        ((name, one) for name, one in module.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)),
        ("", None),
    )
    if not isinstance(layer, nn.Conv2d) or not _reads_patches(layer):
        raise _unread("a first layer that is not a convolution whose stride is its kernel's size")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise _unread("a network that is frozen")
    shape = shape or _shape(module, layer)
    if shape is None or len(shape) != 3:
        raise _unread(f"pictures of an unknown shape ({shape})")
    own = copy.deepcopy(module).double().eval()
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    seen: list[tuple[str, Tensor, Tensor]] = []
    layers = {n: one for n, one in own.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}
    try:
        with watching(layers, seen), plainly():
            said = own(pictures)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise _unread(f"shape {shape}: {(str(error).splitlines() or [''])[0]}") from None
    said = logits_of(said)
    heads = [n for n, _, left in seen if isinstance(said, Tensor) and left.equal(said)]
    if seen[0][0] != name or not seen[0][1].equal(pictures) or not heads:
        raise _unread("a layer that does not read the pictures, or logits that no linear layer makes")
    if layers[heads[-1]].bias is None:
        raise _unread("a last layer without a bias, which would count the labels")
    made = seen[0][2]
    found = PatchModel(
        own, name, tuple(shape), made[0, 0].numel(), None, f"{heads[-1]}.bias", layer.weight.dtype
    )
    return replace(found, places=_places(found, pictures))


def _reads_patches(layer: nn.Conv2d) -> bool:
    plain = layer.padding in (0, (0, 0), "valid") and layer.dilation == (1, 1) and layer.groups == 1
    return plain and layer.stride == layer.kernel_size and layer.kernel_size != (1, 1)


def _shape(module: nn.Module, layer: nn.Conv2d) -> tuple[int, ...] | None:
    """The shape of a picture, from the network's configuration or its embeddings of positions."""
    size = getattr(getattr(module, "config", None), "image_size", None)
    if isinstance(size, int):
        return layer.in_channels, size, size
    for parameter in module.parameters():
        if parameter.ndim not in (2, 3) or parameter.shape[-1] != layer.out_channels:
            continue
        *before, rows = parameter.shape[:-1]
        if prod(before) != 1:
            continue
        for more in (0, 1, 2):  # tokens beside the patches: a class, a teacher
            side = isqrt(max(0, rows - more))
            if side > 1 and side**2 == rows - more:
                height, width = (side * step for step in layer.kernel_size)
                return layer.in_channels, height, width
    return None


def _places(model: PatchModel, pictures: Tensor) -> str | None:
    """The parameter whose gradient is, position by position, that of what the layer puts out, summed over the batch."""
    labels = torch.zeros(len(pictures), dtype=torch.int64)
    made = zip(model.embedded(model.patches(pictures)), labels, strict=True)
    sums = torch.stack([model.slopes(one, label, {})[0] for one, label in made]).mean(0)
    for name, value in model.update(pictures, labels).items():
        rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value[None]
        last = rows[-model.positions :]
        if last.shape == sums.shape and last.allclose(sums, rtol=1e-6, atol=0):
            return name
    return None


def _unread(got: str) -> InputError:
    return InputError(
        "The network does not read pictures in patches.",
        needs="a convolution whose stride is its kernel's size, before anything else",
        got=got,
        hint="--input-shape 3,32,32 for the shape of one picture",
    )
