"""Look at a batch before its gradient leaves: report, withhold or draw another one."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError
from remanence.core.rates import SuccessRate
from remanence.updates.dense_layers import dense_head
from remanence.updates.reading import read_update
from remanence.updates.rounding import Rounding


@final
class ExclusivityGuard:
    """Watches the first dense layer during the forward pass that training makes anyway.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])), model[0].bias.zero_()
    >>> with ExclusivityGuard(model) as guard:
    ...     loss = nn.functional.cross_entropy(model(torch.eye(2)), torch.tensor([0, 1]))
    ...     loss.backward()
    ...     withheld = guard.withhold()
    >>> guard.exposed.tolist(), withheld, model[0].weight.grad
    ([True, True], True, None)

    It counts exclusive neurons, which give a sample away at once, and costs next to nothing. That is no protection: a
    batch smaller than the layer can be recovered whole without any (`is_low_rank`). With `thorough` it lets every
    exact attack read the gradient, once it is there, and counts what they prove: call `allows` after `backward`. Even
    then only noise has a proof. `allowed` is how many exposed samples a batch may have.
    """

    def __init__(
        self, model: nn.Module, example: Tensor | None = None, *, allowed: int = 0, thorough: bool = False
    ) -> None:
        head = dense_head(model, example)
        if not thorough:
            head.require_relu()
        self.model, self.allowed, self.thorough, self._example = model, allowed, thorough, example
        self.layer = head.names[0]
        self.smaller_side = min(head.independent_rows, head.weights[0].shape[1])
        self.batches = self.batches_exposed = self.samples = self.samples_exposed = 0
        self._exposed: Tensor | None = None
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def __enter__(self) -> Self:
        self._handle = self.model.get_submodule(self.layer).register_forward_hook(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._handle is not None
        self._handle.remove()

    def _look(self, layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        active = output.detach() > 0  # (samples, neurons)
        alone = active.sum(0, dtype=torch.int16) == 1
        self._exposed = (active & alone).any(1)

    @property
    def exposed(self) -> Tensor:
        """The samples of the last batch that have an exclusive neuron, `(samples,)`."""
        if self._exposed is None:
            raise InputError(
                "The guard has seen no batch.",
                needs="a forward pass inside `with ExclusivityGuard(model) as guard:`",
                got="none yet",
                hint="call the model first",
            )
        return self._exposed

    @property
    def is_low_rank(self) -> bool:
        """Whether the last batch is small enough for the low-rank attack, which needs no exclusive neuron."""
        return len(self.exposed) < self.smaller_side

    def allows(self) -> bool:
        """Whether the last batch may leave; counts it for the report. Call it once per batch."""
        count = self._proven() if self.thorough else int(self.exposed.sum())
        fine = count <= self.allowed
        self.batches, self.samples = self.batches + 1, self.samples + len(self.exposed)
        self.batches_exposed, self.samples_exposed = (
            self.batches_exposed + (not fine),
            self.samples_exposed + count,
        )
        return fine

    def _proven(self) -> int:
        """How many samples the exact attacks prove from the gradient that is about to leave."""
        named = {name: p.grad for name, p in self.model.named_parameters() if p.requires_grad}
        gradient = {name: grad.detach()[None] for name, grad in named.items() if grad is not None}
        if len(gradient) < len(named):
            raise InputError(
                "There is no gradient to look at.",
                needs="loss.backward() before a thorough guard is asked",
                got=f"{len(named) - len(gradient)} parameters without one",
                hint="thorough=False looks at the forward pass alone",
            )
        seen = self._exposed
        head = dense_head(self.model, self._example)  # at the weights as they are now; it runs the model too
        self._exposed = seen
        rounding = Rounding.of(value.dtype for value in gradient.values())
        return read_update(head, head.layers_of(gradient), rounding).proof.count

    def withhold(self) -> bool:
        """Drop all gradients if the last batch may not leave; says whether it did."""
        if self.allows():
            return False
        self.model.zero_grad(set_to_none=True)
        return True

    def resample(
        self, draw: Callable[[], tuple[Tensor, Tensor]], *, attempts: int = 20
    ) -> tuple[Tensor, Tensor]:
        """Draw batches until one may leave; each costs a forward pass."""
        for _ in range(attempts):
            inputs, labels = draw()
            with torch.no_grad():
                self.model(inputs)
            if self.allows():
                return inputs, labels
        raise InputError(
            f"No batch could be drawn that leaves nobody exposed ({attempts} attempts).",
            needs=f"at most {self.allowed} exposed samples in a batch",
            got=f"{self.samples_exposed / self.samples:.0%} of the samples drawn so far have an exclusive neuron",
            hint="larger batches, or a narrower first layer",
        )

    def report(self) -> str:
        """What was seen so far, with an interval that allows for batches standing or falling together."""
        if not self.batches:
            return "no batch seen"
        rate = SuccessRate(self.samples_exposed, self.samples, clusters=self.batches)
        return (
            f"layer {self.layer!r}: {rate} of the samples in {self.batches} batches "
            f"{'were proven by an exact attack' if self.thorough else 'had an exclusive neuron'}; "
            f"{self.batches_exposed} batches may not leave"
        )
