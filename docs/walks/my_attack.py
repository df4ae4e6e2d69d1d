"""An attack of your own, in one file: pick the candidate that points the same way as what is left of the sum."""

from dataclasses import dataclass
from typing import ClassVar

from remanence import Attack, AttackInfo, Reconstruction
from remanence.core.references import REMANENCE


@dataclass(frozen=True)
class Correlate(Attack):
    info: ClassVar[AttackInfo] = AttackInfo(
        "correlate", "Picks by inner product.", "a shortlist", "weights", REMANENCE
    )

    def check(self, knowledge):
        pass  # refuse games that the attack cannot play, with IncompatibleGameError

    def prepare(self, knowledge, generator):
        candidates, known = knowledge.prior.candidates, knowledge.known_data.flat.sum(0)

        def reconstruct(release):
            scores = (release["sum"] - known) @ candidates.flat.T  # (trials, candidates)
            return Reconstruction(candidates[scores.argmax(1)[:, None]])

        return reconstruct
