"""A new attack in one file outside the package: believe what you read."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from remanence import Attack, AttackInfo, Reconstruction, Records
from remanence.core.references import REMANENCE


@dataclass(frozen=True)
class Believe(Attack):
    """Take every answer for the truth, or for a lie."""

    contrary: bool = False
    info: ClassVar[AttackInfo] = AttackInfo(
        "believe", "Takes answers for the truth.", "answers", "answers", REMANENCE
    )

    def check(self, knowledge):
        """Any game with answers."""

    def prepare(self, knowledge, generator):
        def reconstruct(release):
            answers = release["answers"]
            believed = 1 - answers if self.contrary else answers
            return Reconstruction(Records(believed[:, :, None], torch.zeros(answers.shape)))

        return reconstruct
