"""Check an update before it is sent: report it or withhold it.

A guard fails closed: it withholds any update that it cannot read completely as declared, and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from remanence.core.exceptions import InputError, RemanenceError
from remanence.updates.declared import Declared
from remanence.updates.dense.reader import DenseReader
from remanence.updates.inspection import open_update, read, recognised


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
    declaration or cannot be read is withheld, and so is one that moves frozen weights. Unless you `allow_untested`
    ones, so is an update of a network for which the declaration cannot be tested (GELU, SiLU or tanh, patches, texts),
    and one that moves buffers, such as batch normalisation's. An update with the declared noise passes.
    """
    try:
        model.load_state_dict(dict(before))
        model.eval()
        own = {id(value): name for name, value in model.named_parameters() if value.requires_grad}
        every = model.named_parameters(remove_duplicate=False)  # a tied weight has several names
        trained = {name: after[own[id(value)]] for name, value in every if id(value) in own}
        free = dict(model.named_buffers()).keys() if allow_untested else ()
        for name, value in after.items():
            due = trained[name] if name in trained else before[name]
            if value is not due and name not in free and not torch.equal(value, due.to(value)):
                return f"{name} changed, which is not trained and not read"
        if all(torch.equal(value, before[name].to(value)) for name, value in trained.items()):
            return None
        subject = open_update(model, {name: after[name] for name in own.values()}, declared, is_after=True)
        if subject.is_noised:
            return None
        (proof,) = read(subject)
    except KeyError as error:
        return f"{error} is missing, or is not the network's"
    except Exception as error:  # noqa: BLE001  # whatever it is, the update was not read
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
class GradientGuard:
    """Holds back gradients that give records away, in a training loop of your own.

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 5))
    >>> guard = GradientGuard(model)
    >>> nn.functional.cross_entropy(model(torch.randn(2, 20)), torch.tensor([0, 1])).backward()
    >>> guard.withhold(), model[0].weight.grad
    (True, None)
    >>> guard.report()
    '1 of 1 gradients withheld, from which 2 records were proven'

    After `backward` it runs every stage of the exact attack on the gradient, accumulated or not, and counts the proven
    records; a gradient that it cannot read is withheld too. Silence is not protection: only noise has a proof.
    `example` is a batch of inputs, for networks with convolutions or patches.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        self._declared = Declared(input_shape=None if example is None else tuple(example.shape[1:]))
        recognised(model, self._declared.input_shape)  # a network that can never be read is refused now
        self.model = model
        self.gradients = self.withheld = self.proven = 0

    def allows(self) -> bool:
        """Whether the gradient may be sent; counts it for the report."""
        named = {name: p.grad for name, p in self.model.named_parameters() if p.requires_grad}
        gradient = {name: grad.detach() for name, grad in named.items() if grad is not None}
        if len(gradient) < len(named):
            raise InputError(
                "There is no gradient to check.",
                needs="loss.backward() before the check",
                got=f"{len(named) - len(gradient)} parameters without one",
                hint="freeze parameters that the loss does not depend on",
            )
        proven = self._proven(gradient)
        self.gradients += 1
        self.withheld += proven != 0
        self.proven += proven or 0
        return proven == 0

    def _proven(self, gradient: dict[str, Tensor]) -> int | None:
        """How many records the gradient proves; None if it cannot be read."""
        try:
            return sum(proof.count for proof in read(open_update(self.model, gradient, self._declared)))
        except (RemanenceError, RuntimeError):
            return None

    def withhold(self) -> bool:
        """Drop all gradients if they must not be sent; returns whether it did."""
        if self.allows():
            return False
        self.model.zero_grad(set_to_none=True)
        return True

    def report(self) -> str:
        """A summary so far."""
        many = f"{self.withheld} of {self.gradients} gradients withheld"
        return f"{many}, from which {self.proven} records were proven"
