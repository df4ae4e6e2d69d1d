"""Does every parameter move as the recorded gradient and the optimizer's own rule say, and nothing else?"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

_OFF = 1e-3  # of an update, above what rounding explains

Note = Callable[..., None]  # what, worst=, where=


@final
class Updates:
    """Watches the weights of a model: a second optimizer, with a memory of its own, repeats every step beside it.

    The second one is given the recorded gradient, divided by the batch size that was expected when recording
    began. Where the model then stands elsewhere, something else has reached the weights. Everything that the
    optimizer does not train must stay as it is.
    """

    def __init__(self, optimizer: DPOptimizer, module: nn.Module, note: Note) -> None:
        self._optimizer, self._module, self._note = optimizer, module, note
        self._names = {id(p): name for name, p in module.named_parameters()}
        self._divisor = getattr(optimizer, "expected_batch_size", None)
        self._expected: list[Tensor] | None = None
        self._started: list[Tensor] = []
        self._changed: set[str] = set()  # of what the optimizer does not hold
        self._moved = [False] * len(optimizer.params)
        self._others = {name: checksum(tensor) for name, tensor in self._outside()}
        try:
            shadow = copy.deepcopy(optimizer.original_optimizer)
            for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
                getattr(shadow, hooks).clear()
            self._shadow: torch.optim.Optimizer | None = shadow
        except Exception as error:  # noqa: BLE001  an optimizer of somebody's own may hold anything
            self._shadow = None
            note("updates-unchecked", where=f"{type(error).__name__}: {str(error)[:120]}")

    def names(self) -> list[str]:
        """What the optimizer's parameters are called."""
        return [
            self._names.get(id(p), f"parameter {place}") for place, p in enumerate(self._optimizer.params)
        ]

    @torch.no_grad()
    def foresee(self, noised: Sequence[Tensor], iterations: int, workers: int) -> None:
        """Where the step that is about to be taken must lead, given the noised sum of its clipped gradients."""
        optimizer = self._optimizer
        self._started = [p.detach().clone() for p in optimizer.params]
        if self._shadow is None:
            return
        scale = 1.0
        if optimizer.loss_reduction == "mean":
            scale = float(self._divisor or 1) * iterations * workers
        twins = [p for group in self._shadow.param_groups for p in group["params"]]
        for group, real in zip(
            self._shadow.param_groups, optimizer.original_optimizer.param_groups, strict=True
        ):
            group.update({name: value for name, value in real.items() if name != "params"})
        trained = [p for group in self._shadow.param_groups for p in group["params"] if p.requires_grad]
        for twin, start, gradient in zip(trained, self._started, noised, strict=True):
            twin.copy_(start)
            twin.grad = (gradient.view_as(start) / scale).to(start.dtype)
        type(self._shadow).step(self._shadow)
        self._expected = [p.detach() for p in trained]
        for twin in twins:
            twin.grad = None

    @torch.no_grad()
    def check(self, batch: int) -> None:
        """Hold the model as it is now against what was foreseen."""
        for place, (p, name) in enumerate(zip(self._optimizer.params, self.names(), strict=True)):
            if self._expected is None:
                break
            expected, start = self._expected[place], self._started[place]
            step_size = float((expected - start).float().norm())
            self._moved[place] |= step_size > 0
            rounding = 4 * torch.finfo(p.dtype).eps * float(expected.float().norm())
            off = float((p.detach() - expected).float().norm())
            if not off <= _OFF * step_size + rounding:
                self._name(p.detach(), expected, start, name, off / max(step_size, 1e-30), batch)
        for name, tensor in self._outside():
            now = checksum(tensor)
            if now != self._others.get(name, now):
                kind = "trained-outside" if isinstance(tensor, nn.Parameter) else "buffers-changed"
                self._note(kind, where=name)
                self._changed.add(name)
            self._others[name] = now

    def _name(self, now: Tensor, expected: Tensor, start: Tensor, name: str, off: float, batch: int) -> None:
        """Division by the batch that came instead of the one that was expected has a name of its own."""
        moved, wanted = (now - start).flatten().double(), (expected - start).flatten().double()
        ratio = float(moved @ wanted / (wanted @ wanted).clamp(min=1e-300))
        along = float((moved - ratio * wanted).norm()) <= 10 * _OFF * float(moved.norm())
        real = float(self._divisor or 0) / max(batch, 1)
        if along and batch and abs(ratio - real) <= 1e-2 * real:
            self._note("divided-by-the-real-batch", worst=ratio, where=name)
        else:
            self._note("update-not-from-gradient", worst=off, where=name)

    def finish(self, batch: int) -> None:
        """The last look: where the last step led, and what never moved."""
        self.check(batch)
        still = [name for name, moved in zip(self.names(), self._moved, strict=True) if not moved]
        own = {id(p) for p in self._optimizer.params}
        outside = [n for n, p in self._module.named_parameters() if p.requires_grad and id(p) not in own]
        still += [name for name in outside if name not in self._changed]
        if still and self._expected is not None:
            self._note("never-updated", where=", ".join(still[:3]), count=len(still))

    def _outside(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter that the optimizer does not train, and every buffer but counters."""
        own = {id(p) for p in self._optimizer.params}
        yield from ((name, p) for name, p in self._module.named_parameters() if id(p) not in own)
        for name, buffer in self._module.named_buffers():
            if buffer.ndim or buffer.is_floating_point():
                yield name, buffer


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensor: Tensor) -> tuple[Any, ...]:
    """Changes with any bit of the tensor, in all likelihood, and needs no copy of it."""
    flat = tensor.detach().contiguous().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    bits = flat.view(_BITS[flat.element_size()])
    return tuple(tensor.shape), int(bits.sum(dtype=torch.int64))
