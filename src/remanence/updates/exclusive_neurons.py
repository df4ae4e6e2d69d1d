"""Samples of a batch, exactly, from its average gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import IncompatibleGameError, InputError
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import PAN_2022
from remanence.core.releases import Gradient
from remanence.updates.dense_layers import DenseHead, dense_head
from remanence.updates.exact import Recovered, reconstruct, reconstruct_at_any_scale
from remanence.updates.shared_gradient import SharedGradient


@final
@dataclass(frozen=True)
class ExclusiveNeurons(Attack[Gradient]):
    """Read samples off the neurons that they alone activate, subtract them, and look again.

    Pan et al. 2022, §5, with first-layer neurons that prove themselves one by one, so that no condition on the
    whole batch is needed; `peel=False` stops after the first look. At most `slots` samples are returned.
    """

    slots: int = 64
    peel: bool = True
    info: ClassVar[AttackInfo] = AttackInfo(
        "exclusive-neurons",
        "Reads samples off the neurons that they alone activate, subtracts them from the gradient, and looks again.",
        "the gradient of one step on a fully connected ReLU network",
        "one gradient",
        PAN_2022.at("§5, with corrections"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """A fully connected ReLU network and the gradient of one step."""
        whole_gradient_head(knowledge, self.info)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """Nothing is to be learnt: the weights are public."""
        mechanism, head = whole_gradient_head(knowledge, self.info)

        def attack(release: Gradient) -> Reconstruction:
            own = head.to(next(iter(release.tensors.values())).device)
            layers, precision = own.layers_of(release.tensors), mechanism.precision
            if self.peel:
                found = reconstruct_at_any_scale(own, layers, precision=precision, slots=self.slots)
            else:
                found = reconstruct(own, layers, precision=precision, slots=self.slots, peel=False)
            return recovered_records(found, mechanism)

        return attack


def whole_gradient_head(knowledge: Knowledge, info: AttackInfo) -> tuple[SharedGradient, DenseHead]:
    """The mechanism and its dense layers, where a gradient of one step can be taken apart exactly."""
    mechanism, head = dense_mechanism(knowledge, info)
    refuse_steps(mechanism, info)
    try:
        head.require_readable()
    except InputError as error:
        raise _cannot_play(info, error.got) from None
    return mechanism, head


def refuse_steps(mechanism: SharedGradient, info: AttackInfo) -> None:
    """One step only."""
    if mechanism.local_steps > 1:
        raise _cannot_play(
            info, "several local steps", "parallel-rows, which takes any number of local steps"
        )


def dense_mechanism(knowledge: Knowledge, info: AttackInfo) -> tuple[SharedGradient, DenseHead]:
    """The mechanism and its dense layers, where they are all of the network."""
    mechanism = knowledge.mechanism
    if not isinstance(mechanism, SharedGradient):
        raise _cannot_play(info, f"{mechanism.name} releasing {mechanism.releases.sees}")
    try:
        head = dense_head(mechanism.module, _example(mechanism)).double(only_first=True)
    except InputError as error:
        raise _cannot_play(info, error.got) from None
    if not head.is_whole_network:
        raise _cannot_play(info, "features made by earlier layers")
    return mechanism, head


def _cannot_play(info: AttackInfo, got: str, hint: str | None = None) -> IncompatibleGameError:
    return IncompatibleGameError(
        f"The attack {info.name} cannot play this game.",
        needs=info.needs,
        got=got,
        hint=hint or "InvertingGradients of remanence_papers.gradients.matching, which takes any network",
    )


def recovered_records(found: Recovered, mechanism: SharedGradient) -> Reconstruction:
    """What an exact attack found, as records."""
    return as_reconstruction(found.inputs, found.labels, found.shares, mechanism, found.unexplained)


def as_reconstruction(
    inputs: Tensor,
    labels: Tensor,
    shares: Tensor,
    mechanism: SharedGradient,
    unexplained: Tensor | None = None,
) -> Reconstruction:
    """Samples as records whose weights are their shares; an empty slot is a zero with an unknown label."""
    known = labels.double().masked_fill(labels < 0, torch.nan)
    records = Records(inputs.unflatten(-1, mechanism.example_shape), known, shares)
    numbers = {"proposed": (labels >= 0).sum(1)}
    return Reconstruction(
        records, diagnostics=numbers if unexplained is None else {**numbers, "unexplained": unexplained[:, 0]}
    )


def _example(mechanism: SharedGradient) -> torch.Tensor:
    parameter = next(mechanism.module.parameters())
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    shape = (2, *mechanism.example_shape)
    return torch.randn(shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
