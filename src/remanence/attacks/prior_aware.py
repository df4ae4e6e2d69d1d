"""Which candidate was trained on? Read off the privatised gradients of a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from remanence.adversary import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import PRIOR_AWARE, AttackInfo
from remanence.exceptions import IncompatibleGameError
from remanence.mechanisms.dpsgd import DPSGD
from remanence.priors import FinitePrior
from remanence.releases import Transcript


@final
@dataclass(frozen=True)
class PriorAware(Attack[Transcript]):
    """Pick the candidate that explains the privatised gradients best, the known ones subtracted.

    What is left of a step is the candidate's clipped gradient g, if it was sampled, plus noise. Scores:

    - `likelihood` (default): Σ log(1 − q + q·exp((⟨ḡ, g⟩ − ‖g‖²/2) / (σC)²)) + log prior, the likelihood
      itself and so the best possible; Hayes et al. 2023, Appendix G, with the sign and the prior's place
      corrected.
    - `sum`: Σ ⟨ḡ, g⟩ (Algorithm 2).
    - `top`: the largest qT of the products (Algorithm 3).
    """

    score: Literal["likelihood", "sum", "top"] = "likelihood"
    subtract_known: bool = True
    info: ClassVar[AttackInfo] = PRIOR_AWARE

    def check(self, knowledge: Knowledge) -> None:
        """DP-SGD's transcript and a shortlist."""
        mechanism = knowledge.mechanism
        fits = isinstance(mechanism, DPSGD) and not mechanism.final_only
        if not fits or not isinstance(knowledge.prior, FinitePrior):
            raise IncompatibleGameError(
                "PriorAware cannot attack this game.",
                needs=PRIOR_AWARE.needs,
                got=f"{mechanism.name} releasing {mechanism.releases.sees}; {knowledge.prior.describe()}",
                hint="retrain-and-compare, if there is a shortlist but no transcript",
            )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Transcript], Reconstruction]:
        """Nothing is to be learnt: the transcript holds the parameters of every step."""
        self.check(knowledge)
        mechanism, prior = knowledge.mechanism, knowledge.prior
        assert isinstance(mechanism, DPSGD)
        assert isinstance(prior, FinitePrior)

        def reconstruct(release: Transcript) -> Reconstruction:
            scores = self._scores(mechanism, prior, release)
            return Reconstruction(prior.candidates[scores.argmax(1)[:, None]])

        return reconstruct

    def _scores(self, mechanism: DPSGD, prior: FinitePrior, release: Transcript) -> Tensor:
        products, squares = [], []
        for step in range(mechanism.steps):
            left = release["gradients"][:, step]
            if self.subtract_known:
                left = left - release["known"][:, step]
            inner, norms = mechanism.network.projections(
                release["parameters"][:, step], left, prior.candidates[None], max_norm=mechanism.max_grad_norm
            )
            products.append(inner)
            squares.append(norms.square())
        inner, square = torch.stack(products, 2), torch.stack(squares, 2)  # (trials, candidates, steps)
        rate = mechanism.sample_rate
        if self.score == "sum":
            return inner.sum(2)
        if self.score == "top":
            return inner.topk(max(1, round(rate * mechanism.steps)), dim=2).values.sum(2)
        scale = max(mechanism.noise_multiplier * mechanism.max_grad_norm, 1e-9) ** 2
        exponent = (inner - square / 2).double() / scale
        absent = math.log1p(-rate) if rate < 1 else -math.inf
        likelihood = torch.logaddexp(torch.tensor(absent, device=exponent.device), exponent + math.log(rate))
        return likelihood.sum(2) + prior.weights.log()
