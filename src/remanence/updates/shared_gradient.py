"""The message of a participant in collaborative training: the gradient of a batch, or an update of several steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from remanence.core.attack import Reconstruction
from remanence.core.checks import goes_with, number, whole
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.updates.declared import LocalTraining, Parameters
from remanence.updates.rounding import Rounding

if TYPE_CHECKING:
    from remanence.updates.dense.proofs import Proof

_BYTES = 2**28


@final
@dataclass(frozen=True)
class Sent:
    """Declared or known facts about existing updates."""

    rounding: Rounding  # of their numbers; the coarsest counts
    training: LocalTraining = field(default_factory=LocalTraining)
    scale_is_known: bool = True  # they are mean gradients, without an unknown factor
    sign_is_known: bool = False  # they point along the gradient
    can_be_judged: bool = True  # records can be proven by recomputing

    @property
    def is_difference(self) -> bool:
        """Whether they are differences of weights, and rounded on their scale."""
        return bool(self.rounding.tensors)


@final
@dataclass(frozen=True)
class SharedGradient(Mechanism[Gradient]):
    """The average gradient of cross-entropy over a batch, at public weights.

    With several `local_steps` (FedAvg) it is the sum of the gradients along the way, the difference of the
    weights over the learning rate. Three defences may be applied before it leaves: each record's gradient is
    clipped to `max_grad_norm` and N(0, (noise_multiplier · max_grad_norm)²) is added to the sum (one step of
    DP-SGD); only the largest share `keep` of each tensor's entries is sent; or only their signs are.
    """

    module: nn.Module
    example_shape: tuple[int, ...]
    local_steps: int = 1
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    noise_multiplier: float = 0.0
    keep: float = 1.0
    signs: bool = False
    captured: Sent | None = None  # about existing updates; if omitted, they are made here
    name: ClassVar[str] = "shared gradient"

    def __post_init__(self) -> None:
        noise = self.noise_multiplier or None
        goes_with("noise_multiplier", noise, "max_grad_norm", self.max_grad_norm, "max_grad_norm=1.0")
        number("keep", self.keep, above=0, most=1)
        whole("local_steps", self.local_steps)
        number("learning_rate", self.learning_rate, above=0)
        number("weight_decay", self.weight_decay, least=0)

    @property
    def releases(self) -> type[Gradient]:
        """One gradient."""
        return Gradient

    @property
    def parameters(self) -> Parameters:
        """The weights at which the gradient is taken."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    @property
    def sent(self) -> Sent:
        """The facts about the updates; everything is known about those made here."""
        if self.captured is not None:
            return self.captured
        eps = torch.finfo(next(self.module.parameters()).dtype).eps
        rate = self.learning_rate if self.local_steps > 1 else None
        training = LocalTraining(self.local_steps, rate, self.momentum, self.weight_decay)
        return Sent(Rounding(eps), training, sign_is_known=True)

    @cached_property
    def reader(self) -> Reader:
        """How the network is read; it is recognised once."""
        from remanence.updates.opening import recognise

        return recognise(self.module, self.example_shape)

    def read_as(self, reader: Reader) -> SharedGradient:
        """The same with a given reader."""
        vars(self)["reader"] = reader
        return self

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the update: only the declared settings."""
        known = self.sent.training
        told: dict[str, Setting] = {
            "network": " ".join(repr(self.module).split())[:200],
            "parameters": sum(parameter.numel() for parameter in self.module.parameters()),
        }
        if known != LocalTraining():
            told |= {"local_steps": known.steps, "optimizer": known.optimizer}
        named = {
            "learning_rate": known.learning_rate,
            "momentum": known.momentum,
            "weight_decay": known.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "noise_multiplier": self.noise_multiplier,
            "keep": self.keep if self.keep < 1 else None,
            "signs": self.signs,
        }
        return told | {name: value for name, value in named.items() if value}

    def trials_at_once(self, targets: Records) -> int:
        """Gradients are as large as the network, and an attack holds a few copies in double precision."""
        numbers = sum(parameter.numel() for parameter in self.module.parameters())
        records = targets.batch_shape[1] if self.max_grad_norm is not None else 1
        return max(1, min(64, _BYTES // (8 * numbers * records)))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Gradient:
        """One update per trial, on the known part of the batch and that trial's targets."""
        device = targets.features.device
        parameters = {name: value.to(device) for name, value in self.parameters.items()}
        dtype = next(iter(parameters.values())).dtype
        features, labels = targets.features.to(dtype), targets.labels.long()
        if known_data is not None:
            trials = len(targets)
            shared = Records(known_data.features.to(dtype), known_data.labels.long())
            features, labels = (
                torch.cat([part.expand(trials, *part.shape), own], 1)
                for part, own in ((shared.features, features), (shared.labels, labels))
            )
        update = vmap(self.update, in_dims=(None, 0, 0))(parameters, features, labels)
        if self.noise_multiplier:
            assert self.max_grad_norm is not None
            scale = self.noise_multiplier * self.max_grad_norm / labels.shape[1]
            for name, value in update.items():
                noise = torch.randn(value.shape, generator=generator, device=generator.device, dtype=dtype)
                update[name] = value + scale * noise.to(device)
        return Gradient({name: self._compress(value) for name, value in update.items()})

    def update(self, start: Parameters, features: Tensor, labels: Tensor) -> Parameters:
        """The sum of a batch's gradients over all steps, before noise and compression; differentiable."""
        now, velocity = start, {name: torch.zeros_like(value) for name, value in start.items()}
        for _ in range(self.local_steps):
            step = self._gradient(now, features, labels)
            if self.weight_decay:
                step = {name: value + self.weight_decay * now[name] for name, value in step.items()}
            if self.local_steps == 1:
                return step
            velocity = {name: self.momentum * velocity[name] + step[name] for name in step}
            now = {name: now[name] - self.learning_rate * velocity[name] for name in step}
        return {name: (start[name] - now[name]) / self.learning_rate for name in start}

    def loss(self, parameters: Parameters, features: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy; labels are classes, or probabilities of classes."""
        return cross_entropy(functional_call(self.module, parameters, (features,)), labels)

    def _gradient(self, parameters: Parameters, features: Tensor, labels: Tensor) -> Parameters:
        if self.max_grad_norm is None:
            return grad(self.loss)(parameters, features, labels)
        each = vmap(grad(self.loss), in_dims=(None, 0, 0))(
            parameters, features.unsqueeze(1), labels.unsqueeze(1)
        )
        norms = torch.stack([value.flatten(1).square().sum(1) for value in each.values()]).sum(0).sqrt()
        factors = (self.max_grad_norm / norms).clamp(max=1)
        return {
            name: (value * factors.view(-1, *[1] * (value.ndim - 1))).mean(0) for name, value in each.items()
        }

    def _compress(self, values: Tensor) -> Tensor:
        """Keep the largest entries of each trial's tensor; then, if asked for, only their signs."""
        if self.keep < 1:
            flat = values.flatten(1)
            kept = max(1, round(self.keep * flat.shape[1]))
            floor = flat.abs().topk(kept, dim=1).values[:, -1:]
            values = flat.where(flat.abs() >= floor, 0.0).view_as(values)
        return values.sign() if self.signs else values


@dataclass(frozen=True, kw_only=True)
class ProvenTogether:
    """Records that are proven together by recomputing the whole update, or not at all."""

    named: int = 0  # proven or not
    unexplained: float = 1.0  # the relative residual of the worst tensor
    explains_all: bool = False
    is_ordered: bool = True  # whether no other order of a record's parts explains the update as well
    similarity: float = 0.0  # the cosine between the update and theirs

    @property
    def count(self) -> int:
        """How many are proven."""
        return self.named if self.explains_all else 0

    @property
    def batch_size(self) -> int | None:
        """The batch size, if that is proven too."""
        return self.named if self.explains_all else None

    def numbers(self) -> dict[str, float]:
        """Further numbers to store about them."""
        names = ("unexplained", "named", "similarity", "is_ordered")
        return {name: float(getattr(self, name)) for name in names}


Proven: TypeAlias = "Proof | ProvenTogether"  # the proof for the records proposed for one update


class Reader(ABC):
    """A recognised network, and how records are read off its updates."""

    many: ClassVar[str]  # what its records are called
    counts: ClassVar[str] = "Records count only if the whole update can be recomputed from them."
    counts_records: ClassVar[bool] = False  # whether records are proven one by one, so that each is a trial
    slots: ClassVar[int] = 64  # the least number of records returned: those of all units have one shape

    def fits(self, gradients: Gradient, mechanism: SharedGradient) -> None:  # noqa: B027  # only recomputation decides
        """Raise `MisfitError` if an update was not made from these weights."""

    @abstractmethod
    def caveats(self, gradients: Gradient, mechanism: SharedGradient) -> Iterable[Caveat]:
        """Caveats that could explain a missing proof."""

    @abstractmethod
    def check(self, training: LocalTraining, shape: tuple[int, ...]) -> None:
        """Raise `InputError` if nothing can be read off updates that were trained like this, of inputs of a shape."""

    @abstractmethod
    def propose(
        self, one: Mapping[str, Tensor], mechanism: SharedGradient, *, seed: int, longest: int
    ) -> tuple[Records, dict[str, int]]:
        """The records that the stages propose for one update, and numbers; `longest` is the most tokens of a text."""

    @abstractmethod
    def prove(self, records: Records, one: Mapping[str, Tensor], sent: Sent, sign: int) -> Proven:
        """The proof of proposed records; with a `sign` of −1 the update goes against the gradient."""

    def reconstruct(
        self, release: Gradient, mechanism: SharedGradient, *, seed: int, longest: int
    ) -> Reconstruction:
        """The proposals for every update; a label of NaN marks a slot without a record."""
        found = [self.propose(one, mechanism, seed=seed, longest=longest) for one in each(release)]
        slots = max(self.slots, *(len(records) for records, _ in found))

        def stacked(parts: Iterable[Tensor], fill: float) -> Tensor:
            filled = ((one, one.new_full((slots - len(one), *one.shape[1:]), fill)) for one in parts)
            return torch.stack([torch.cat(pair) for pair in filled])

        features = stacked((one.features for one, _ in found), 0)
        labels = stacked((one.labels.double() for one, _ in found), torch.nan)
        shares = [one.weights for one, _ in found if one.weights is not None]
        numbers = {name: torch.tensor([told[name] for _, told in found]) for name in found[0][1]}
        return Reconstruction(
            Records(features, labels, stacked(shares, 0) if shares else None), diagnostics=numbers
        )

    def proofs(
        self, guess: Reconstruction, gradients: Gradient, mechanism: SharedGradient, *, claims: bool
    ) -> list[Proven]:
        """Proofs of the proposed records; without `claims` nothing is proven."""
        signs = guess.diagnostics.get("sign", torch.ones(len(gradients)))
        found = []
        for index, one in enumerate(each(gradients)):
            records = guess.records[index]
            records = records[~records.labels.isnan() & claims]
            found.append(self.prove(records, one, mechanism.sent, -1 if signs[index] < 0 else 1))
        return found


def each(gradients: Gradient) -> Iterator[Parameters]:
    """One update after another."""
    for index in range(len(gradients)):
        yield {name: values[index] for name, values in gradients.tensors.items()}
