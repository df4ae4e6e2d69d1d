"""Whole batches from the rank and the sparsity of the first layer's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import LOW_RANK, AttackInfo
from remanence.attacks.gradients.exclusive_neurons import as_reconstruction, whole_gradient_head
from remanence.attacks.gradients.sparse_directions import reconstruct_low_rank
from remanence.data.releases import Gradient


@final
@dataclass(frozen=True)
class LowRank(Attack[Gradient]):
    """Find the sparse directions of the gradient's column space, one per sample; no neuron need be exclusive.

    The batch must be smaller than the first layer's width and its inputs independent. `starts` bounds the
    search; at most `slots` samples are returned.
    """

    slots: int = 64
    starts: int = 4096
    info: ClassVar[AttackInfo] = LOW_RANK

    def check(self, knowledge: Knowledge) -> None:
        """A fully connected ReLU network and the gradient of one step."""
        whole_gradient_head(knowledge, self.info)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """Nothing is to be learnt; one seed serves every release, so that trials stay independent."""
        mechanism, head = whole_gradient_head(knowledge, self.info)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            own = head.to(next(iter(release.tensors.values())).device)
            found = reconstruct_low_rank(
                own,
                own.layers_of(release.tensors),
                precision=mechanism.precision,
                seed=seed,
                slots=self.slots,
                starts=self.starts,
            )
            return as_reconstruction(found, mechanism)

        return attack
