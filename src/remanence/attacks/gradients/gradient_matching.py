"""Batches by optimisation: the attacks that take any network, and that the exact ones are held against."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.matching import Matching, match_gradients
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import IncompatibleGameError
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.references import GEIPING_2020, ZHAO_2020, ZHU_2019


@dataclass(frozen=True)
class GradientMatching(Attack[Gradient]):
    """Search a batch of known size whose update, local steps included, is the one that was seen."""

    batch_size: int = 8
    restarts: int = 1
    steps: int = 300
    value_range: tuple[float, float] | None = None  # of the inputs, if the adversary knows it

    @property
    @abstractmethod
    def search(self) -> Matching:
        """How this attack searches."""

    def check(self, knowledge: Knowledge) -> None:
        """A shared gradient, of whatever network."""
        if not isinstance(knowledge.mechanism, SharedGradient):
            raise IncompatibleGameError(
                f"The attack {self.info.name} cannot play this game.",
                needs=self.info.needs,
                got=f"{knowledge.mechanism.name} releasing {knowledge.mechanism.releases.sees}",
                hint="a game whose mechanism is SharedGradient",
            )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The points to start from are drawn beforehand, the same for every release."""
        self.check(knowledge)
        mechanism = knowledge.mechanism
        assert isinstance(mechanism, SharedGradient)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            found = match_gradients(
                mechanism, release.tensors, batch_size=self.batch_size, settings=self.search, seed=seed
            )
            records = Records(found.inputs, found.labels.double())
            return Reconstruction(records, diagnostics={"unexplained": found.unexplained})

        return attack


@final
@dataclass(frozen=True)
class DLG(GradientMatching):
    """Squared distance of the gradients, inputs and soft labels together, by L-BFGS (Zhu et al. 2019)."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "dlg",
        "Searches inputs and soft labels whose gradient is the one that was seen, by L-BFGS.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        ZHU_2019,
        on_request=True,
    )

    @property
    def search(self) -> Matching:
        """L-BFGS at rate 1."""
        return Matching(
            "euclidean",
            "l-bfgs",
            "optimise",
            self.steps,
            self.restarts,
            learning_rate=1.0,
            value_range=self.value_range,
        )


@final
@dataclass(frozen=True)
class IDLG(GradientMatching):
    """The same with labels read off the last bias (Zhao et al. 2020, for one sample; by counts for more)."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "idlg",
        "The same, with labels read off the last bias first.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        ZHAO_2020,
        on_request=True,
    )

    @property
    def search(self) -> Matching:
        """L-BFGS at rate 1."""
        return Matching(
            "euclidean",
            "l-bfgs",
            "infer",
            self.steps,
            self.restarts,
            learning_rate=1.0,
            value_range=self.value_range,
        )


@final
@dataclass(frozen=True)
class InvertingGradients(GradientMatching):
    """The angle between the gradients and the pictures' total variation, by signed Adam (Geiping et al. 2020)."""

    steps: int = 4800
    total_variation: float = 0.01
    info: ClassVar[AttackInfo] = AttackInfo(
        "inverting-gradients",
        "Searches smooth pictures whose gradient has the direction of the one that was seen, by signed Adam.",
        "a shared gradient or update of any network; the batch size",
        "one gradient",
        GEIPING_2020,
        on_request=True,
    )

    @property
    def search(self) -> Matching:
        """Signed Adam at rate 0.1."""
        return Matching(
            "cosine",
            "signed-adam",
            "infer",
            self.steps,
            self.restarts,
            total_variation=self.total_variation,
            value_range=self.value_range,
        )
