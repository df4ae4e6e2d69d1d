"""Samples of a batch, exactly, from its average gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import EXCLUSIVE_NEURONS, AttackInfo
from remanence.attacks.gradients.dense_layers import DenseHead, dense_head
from remanence.attacks.gradients.exact import Recovered, reconstruct
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import IncompatibleGameError, InputError
from remanence.mechanisms.shared_gradient import SharedGradient


@final
@dataclass(frozen=True)
class ExclusiveNeurons(Attack[Gradient]):
    """Read samples off the neurons that they alone activate, subtract them, and look again.

    Pan et al. 2022, §5, with first-layer neurons that prove themselves one by one, so that no condition on the
    whole batch is needed; `peel=False` stops after the first look. At most `slots` samples are returned.
    """

    slots: int = 64
    peel: bool = True
    info: ClassVar[AttackInfo] = EXCLUSIVE_NEURONS

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
            found = reconstruct(
                own,
                own.layers_of(release.tensors),
                precision=mechanism.precision,
                slots=self.slots,
                peel=self.peel,
            )
            return as_reconstruction(found, mechanism)

        return attack


def whole_gradient_head(knowledge: Knowledge, info: AttackInfo) -> tuple[SharedGradient, DenseHead]:
    """The mechanism and its dense layers, where a gradient of one step can be taken apart exactly."""
    mechanism = knowledge.mechanism
    reason = f"{mechanism.name} releasing {mechanism.releases.sees}"
    if isinstance(mechanism, SharedGradient):
        try:
            head = dense_head(mechanism.module, _example(mechanism))
            head.require_readable()
        except InputError as error:
            reason = error.got
        else:
            if head.is_whole_network and mechanism.local_steps == 1:
                return mechanism, head
            reason = (
                "features made by earlier layers" if mechanism.local_steps == 1 else "several local steps"
            )
    raise IncompatibleGameError(
        f"The attack {info.name} cannot play this game.",
        needs=info.needs,
        got=reason,
        hint="inverting-gradients, which takes any network and any number of local steps",
    )


def as_reconstruction(found: Recovered, mechanism: SharedGradient) -> Reconstruction:
    """Samples as records; an empty slot is a zero with an unknown label."""
    labels = found.labels.double().masked_fill(~found.found, torch.nan)
    records = Records(found.inputs.unflatten(-1, mechanism.example_shape), labels)
    return Reconstruction(
        records,
        diagnostics={
            "inferred_batch_size": found.batch_size,
            "recovered": found.found.sum(1),
            "unexplained": found.unexplained[:, 0],
        },
    )


def _example(mechanism: SharedGradient) -> torch.Tensor:
    parameter = next(mechanism.module.parameters())
    generator = torch.Generator(device=parameter.device).manual_seed(0)
    shape = (2, *mechanism.example_shape)
    return torch.randn(shape, generator=generator, dtype=parameter.dtype, device=parameter.device)
