"""Check a batch or an update before it is sent: report it or withhold it.

A guard fails closed: it withholds any update that it cannot read completely as declared, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self, final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError, RemanenceError
from remanence.core.rates import SuccessRate
from remanence.updates.caveats import UPDATE_NOISED
from remanence.updates.declared import Declared
from remanence.updates.dense.reader import DenseReader
from remanence.updates.inspection import open_update, read
from remanence.updates.opening import recognise


def reason_to_withhold(
    model: nn.Module,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    declared: Declared,
    *,
    allow_untested: bool = False,
) -> str | None:
    """Why a client's new weights must not be sent or used; None if they were read completely and expose no one.

    `before` are the weights that the client received, `declared` its declared training. An update that contradicts the
    declaration or cannot be read is withheld. So is an update of a network for which the declaration cannot be tested
    (GELU, SiLU or tanh, patches, texts), unless you `allow_untested` ones. An update with the declared noise passes.
    """
    try:
        model.load_state_dict(dict(before))
        model.eval()
        trained = {name: after[name] for name, value in model.named_parameters() if value.requires_grad}
        if all(torch.equal(value, before[name].to(value)) for name, value in trained.items()):
            return None
        subject = open_update(model, trained, declared, is_after=True)
        if subject.disturbed is not None:
            is_declared = subject.disturbed.id == UPDATE_NOISED.id
            return None if is_declared else f"{subject.disturbed.id}: {subject.disturbed.seen}"
        (proof,) = read(subject)
    except KeyError as error:
        return f"it lacks {error}"
    except (RemanenceError, RuntimeError) as error:
        return (str(error).splitlines() or ["it cannot be read"])[0]
    reader = subject.reader
    if proof.count:
        return f"{proof.count} {reader.many} can be read off it"
    balances = (
        isinstance(reader, DenseReader) and reader.head.activation.is_kinked and len(reader.head.weights) > 1
    )
    is_tested = balances and declared.training.is_plain
    return None if is_tested or allow_untested else "its declared training cannot be tested"


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

    It counts exclusive neurons, which give a sample away at once, and costs next to nothing. This is not protection: a
    batch smaller than the layer can be recovered whole without any. With `thorough` it runs every stage of the exact
    attack on the gradient and counts the proven records: call `allows` after `backward`. It then also takes networks
    that read patches or tokens, and withholds a gradient that it cannot read. Even then only noise has a proof.

    All forward passes with gradients since the last decision count together, as when gradients are accumulated.
    Passes under `torch.no_grad()`, as in validation, do not count.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None, *, thorough: bool = False) -> None:
        shape = None if example is None else tuple(example.shape[1:])
        reader = recognise(model, shape)
        self._head = reader.head if isinstance(reader, DenseReader) else None
        if not thorough:
            if self._head is None:
                raise InputError(
                    "No neuron of this network belongs to one sample.",
                    needs="a network that ends in dense layers with ReLU",
                    got=f"a network that reads {reader.many}",
                    hint="thorough=True",
                )
            self._head.require_relu()
        self.model, self.thorough, self._shape = model, thorough, shape
        self.layer = "" if self._head is None else self._head.names[0]
        self.batches = self.batches_exposed = self.samples = self.samples_exposed = 0
        self._seen: list[Tensor] = []  # of each pass since the last decision: samples with such a neuron
        self._decided: Tensor | None = None
        self._handle: torch.utils.hooks.RemovableHandle | None = None

    def __enter__(self) -> Self:
        self._handle = self.model.get_submodule(self.layer).register_forward_hook(self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.remove()

    def _look(self, layer: nn.Module, arguments: tuple[object, ...], output: object) -> None:
        if not torch.is_grad_enabled():
            return
        if self._head is None or not isinstance(output, Tensor):
            given = next((one for one in arguments if isinstance(one, Tensor)), torch.zeros(0))
            self._seen.append(torch.zeros(len(given), dtype=torch.bool))
            return
        active = output.detach() > 0  # (samples, neurons)
        alone = active.sum(0, dtype=torch.int16) == 1
        self._seen.append((active & alone).any(1))

    @property
    def exposed(self) -> Tensor:
        """The samples since the last decision, or of that decision, that have an exclusive neuron, `(samples,)`."""
        if self._seen:
            return torch.cat(self._seen)
        if self._decided is None:
            raise InputError(
                "The guard has seen no batch.",
                needs="a forward pass inside `with ExclusivityGuard(model) as guard:`",
                got="none yet",
                hint="call the model first",
            )
        return self._decided

    def allows(self) -> bool:
        """Whether the gradient since the last decision may be sent; counts it for the report."""
        exposed = self.exposed
        count = self._proven() if self.thorough else int(exposed.sum())
        fine = count == 0
        self.batches, self.samples = self.batches + 1, self.samples + len(exposed)
        self.batches_exposed += not fine
        self.samples_exposed += len(exposed) if count is None else min(count, len(exposed))
        self._decided, self._seen = exposed, []
        return fine

    def _proven(self) -> int | None:
        """How many samples the gradient proves; None if it cannot be read."""
        named = {name: p.grad for name, p in self.model.named_parameters() if p.requires_grad}
        gradient = {name: grad.detach() for name, grad in named.items() if grad is not None}
        if len(gradient) < len(named):
            raise InputError(
                "There is no gradient to check.",
                needs="loss.backward() before the thorough check",
                got=f"{len(named) - len(gradient)} parameters without one",
                hint="thorough=False checks only the forward pass",
            )
        try:
            subject = open_update(self.model, gradient, Declared(input_shape=self._shape))
        except RemanenceError:
            return None
        return None if subject.disturbed is not None else sum(proof.count for proof in read(subject))

    def withhold(self) -> bool:
        """Drop all gradients if the last batch must not be sent; returns whether it did."""
        if self.allows():
            return False
        self.model.zero_grad(set_to_none=True)
        return True

    def report(self) -> str:
        """A summary so far, with an interval that treats each batch as a cluster."""
        if not self.batches:
            return "no batch seen"
        rate = SuccessRate(self.samples_exposed, self.samples, clusters=self.batches)
        return (
            f"layer {self.layer!r}: {rate} of the samples in {self.batches} batches "
            f"{'were proven by an exact attack' if self.thorough else 'had an exclusive neuron'}; "
            f"{self.batches_exposed} batches may not leave"
        )
