"""Whole batches from the rank and the sparsity of the first layer's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.dense_layers import DenseHead
from remanence.attacks.gradients.exclusive_neurons import (
    dense_mechanism,
    recovered_records,
    whole_gradient_head,
)
from remanence.attacks.gradients.sparse_directions import reconstruct_low_rank, unmixed
from remanence.data.releases import Gradient
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.references import DIMITROV_2024


@final
@dataclass(frozen=True)
class LowRank(Attack[Gradient]):
    """Find the sparse directions of the gradient's column space, one per sample; no neuron need be exclusive.

    The batch must be smaller than the first layer's width and its inputs independent. `starts` bounds the
    search; at most `slots` samples are returned.
    """

    slots: int = 64
    starts: int = 4096
    info: ClassVar[AttackInfo] = AttackInfo(
        "low-rank",
        "Finds the sparse directions of the first layer's gradient, one per sample of the batch.",
        "the gradient of one step on a fully connected ReLU network",
        "one gradient",
        DIMITROV_2024.at("by ℓ₁ minimisation"),
    )

    def check(self, knowledge: Knowledge) -> None:
        """A fully connected ReLU network."""
        self._subject(knowledge)

    def _subject(self, knowledge: Knowledge) -> tuple[SharedGradient, DenseHead]:
        mechanism, head = dense_mechanism(knowledge, self.info)
        return (mechanism, head) if mechanism.local_steps > 1 else whole_gradient_head(knowledge, self.info)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """Nothing is to be learnt; one seed serves every release, so that trials stay independent."""
        mechanism, head = self._subject(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        search = reconstruct_low_rank if mechanism.local_steps == 1 else unmixed

        def attack(release: Gradient) -> Reconstruction:
            own = head.to(next(iter(release.tensors.values())).device)
            layers = own.layers_of(release.tensors)
            found = search(
                own, layers, precision=mechanism.precision, seed=seed, slots=self.slots, starts=self.starts
            )
            return recovered_records(found, mechanism)

        return attack
