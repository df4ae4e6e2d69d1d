"""The attack on updates: records out of the span of a layer's gradient, stage by stage.

What a network reads decides about the stages (`reading.recognise`):

- *Dense layers*. Samples that neurons have to themselves are read off and subtracted (Pan et al. 2022); rows that are
  multiples of one another give samples after any number of steps; whole batches are solved for within the span of the
  first layer's gradient; and its sparse directions give those that no neuron has to itself (Dimitrov et al. 2024). Each
  stage is tried where those before it left something unexplained.
- *Patches*. Pictures within the span of the layer that reads them.
- *Tokens*. Every token against the span of the first attention layer, texts in that of the second (Petrov et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.references import REMANENCE
from remanence.core.releases import Gradient
from remanence.updates.shared_gradient import Effort, SharedGradient


@final
@dataclass(frozen=True)
class Exact(Attack[Gradient]):
    """Solve for the records behind an update, in stages that end where nothing but rounding is left.

    `longest` is how many tokens a text may have.
    """

    longest: int = 64
    info: ClassVar[AttackInfo] = AttackInfo(
        "exact",
        "Solves for the records behind an update within the span of a layer's gradient, and names no others.",
        "an update of a network that ends in dense layers, or reads patches of pictures, or tokens of texts",
        "one gradient",
        REMANENCE.at("after Pan et al. 2022, Dimitrov et al. 2024, Petrov et al. 2024"),
    )

    def check(self, knowledge: Knowledge) -> SharedGradient:
        """A network that can be read, and an update that tells something."""
        mechanism = knowledge.mechanism
        if not isinstance(mechanism, SharedGradient):
            raise self.refusal(got=knowledge, hint="a game whose mechanism is SharedGradient")
        try:
            mechanism.reader.check(mechanism)
        except InputError as error:
            raise self.refusal(got=error.got, hint=error.hint) from None
        return mechanism

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The network is recognised once; one seed serves every release, so that trials stay independent."""
        mechanism = self.check(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        effort = Effort(seed, self.longest)

        def attack(release: Gradient) -> Reconstruction:
            return mechanism.reader.reconstruct(release, mechanism, effort)

        return attack
