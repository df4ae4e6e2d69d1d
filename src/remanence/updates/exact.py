"""The attack on updates: records out of the span of a layer's gradient, stage by stage.

The network's input decides the stages (`opening.recognise`):

- *Dense layers*. Samples with exclusive neurons are read off and subtracted (Pan et al. 2022). Parallel rows give
  samples after any number of steps. Whole batches are solved for within the span of the first layer's gradient. Its
  sparse directions give samples without an exclusive neuron (Dimitrov et al. 2024). Each stage runs only if those
  before it left something unexplained.
- *Patches*. Pictures within the span of the layer that reads them.
- *Tokens*. Tokens within the span of the first attention layer, texts within that of the second (Petrov et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.checks import whole
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.references import REMANENCE
from remanence.core.releases import Gradient
from remanence.updates.shared_gradient import SharedGradient


@final
@dataclass(frozen=True)
class Exact(Attack[Gradient]):
    """Solve for the records behind an update, in stages, until only rounding errors remain.

    `longest` is the most tokens that a text may have.
    """

    longest: int = 64
    info: ClassVar[AttackInfo] = AttackInfo(
        "exact",
        "Solves for the records behind an update within the span of a layer's gradient, and proposes no others.",
        "an update of a network that ends in dense layers, or reads patches of pictures, or tokens of texts",
        "one gradient",
        REMANENCE.at("after Pan et al. 2022, Dimitrov et al. 2024, Petrov et al. 2024"),
    )

    def __post_init__(self) -> None:
        whole("longest", self.longest)

    def check(self, knowledge: Knowledge) -> SharedGradient:
        """A readable network, and an update that is informative."""
        mechanism = knowledge.mechanism
        if not isinstance(mechanism, SharedGradient):
            raise self.refusal(got=knowledge, hint="a game whose mechanism is SharedGradient")
        try:
            mechanism.reader.check(mechanism.sent.training, mechanism.example_shape)
        except InputError as error:
            raise self.refusal(got=error.got, hint=error.hint) from None
        return mechanism

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The network is recognised once; one seed serves every release, so that trials stay independent."""
        mechanism = self.check(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            return mechanism.reader.reconstruct(release, mechanism, seed=seed, longest=self.longest)

        return attack
