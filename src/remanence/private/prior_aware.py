"""Which candidate was trained on? Read off the privatised gradients of a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.errors import Criterion
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.priors import FinitePrior
from remanence.core.references import HAYES_2023
from remanence.core.releases import Transcript
from remanence.training.dpsgd import DPSGD

_CPU_NUMBERS = 2**20  # gradients held at once, few enough for a CPU's cache
_GPU_NUMBERS = 2**27


@final
@dataclass(frozen=True)
class PriorAware(Attack[Transcript]):
    """Pick the candidate that explains the privatised gradients best, the known ones subtracted.

    What is left of a step is the candidate's clipped gradient g, if it was sampled, plus noise. Scores:

    - `likelihood` (default): Σ log(1 − q + q·exp((⟨ḡ, g⟩ − ‖g‖²/2) / (σC)²)) + log prior, the posterior
      itself and so the best possible; Hayes et al. 2023, Appendix G, with the sign and the prior's place
      corrected.
    - `sum`: Σ ⟨ḡ, g⟩ (Algorithm 2).
    - `top`: the largest qT of the products (Algorithm 3).

    `within` is the criterion of a game in which close is enough. The best guess is then not the likeliest
    candidate but the one with the greatest posterior mass within the threshold around it (R* of Balle et al.
    2022, with the candidates as centres). It needs the likelihood. `subtract="nothing"` is a weaker adversary, who
    leaves the known records' gradients where they are.
    """

    score: Literal["likelihood", "sum", "top"] = "likelihood"
    subtract: Literal["known", "nothing"] = "known"
    within: Criterion | None = None
    info: ClassVar[AttackInfo] = AttackInfo(
        "prior-aware",
        "Picks the candidate whose gradients best explain the privatised ones of a whole run.",
        "DP-SGD's transcript; a shortlist of candidates; all other training records",
        "transcript",
        HAYES_2023.at("Algorithms 2 and 3, Appendix G corrected"),
    )

    def check(self, knowledge: Knowledge) -> tuple[DPSGD, FinitePrior]:
        """DP-SGD's transcript and a shortlist."""
        mechanism, prior = knowledge.mechanism, knowledge.prior
        if self.within is not None and self.score != "likelihood":
            raise InputError(
                "Posterior mass around a candidate needs a likelihood.",
                needs="score='likelihood' together with `within`",
                got=f"score={self.score!r}",
                hint="PriorAware(within=game.criterion)",
            )
        if isinstance(mechanism, DPSGD) and not mechanism.final_only and isinstance(prior, FinitePrior):
            return mechanism, prior
        raise self.refusal(got=knowledge, hint="retrain-and-compare, for a shortlist without a transcript")

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Transcript], Reconstruction]:
        """Nothing is to be learnt: the transcript holds the parameters of every step."""
        mechanism, prior = self.check(knowledge)
        near = None if self.within is None else _neighbours(prior, self.within)

        def reconstruct(release: Transcript) -> Reconstruction:
            scores = self._scores(mechanism, prior, release)
            if near is not None:
                scores = scores.softmax(1) @ near
            return Reconstruction(prior.candidates[scores.argmax(1)[:, None]])

        return reconstruct

    def _scores(self, mechanism: DPSGD, prior: FinitePrior, release: Transcript) -> Tensor:
        products, sizes = [], []
        trials = len(release)
        on_gpu = release["gradients"].device.type == "cuda"
        together = max(1, (_GPU_NUMBERS if on_gpu else _CPU_NUMBERS) // (trials * mechanism.network.numbers))
        for start in range(0, mechanism.steps, together):  # many steps at once, as if they were trials
            steps = slice(start, start + together)
            left = release["gradients"][:, steps]
            left = left - release["known"][:, steps] if self.subtract == "known" else left
            found = mechanism.network.projections(
                release["parameters"][:, steps].flatten(0, 1),
                left.flatten(0, 1),
                prior.candidates[None],
                max_norm=mechanism.max_grad_norm,
            )
            for part, into in zip(found, (products, sizes), strict=True):
                into.append(part.unflatten(0, (trials, -1)).mT)
        inner, norms = torch.cat(products, 2), torch.cat(sizes, 2)  # (trials, candidates, steps)
        if self.score == "sum":
            return inner.sum(2)
        if self.score == "top":
            return inner.topk(max(1, round(mechanism.sample_rate * mechanism.steps)), dim=2).values.sum(2)
        return log_likelihood(mechanism, inner, norms).sum(2) + prior.weights.log()


def log_likelihood(mechanism: DPSGD, inner: Tensor, norms: Tensor) -> Tensor:
    """The log-likelihood of what is left of each step, relative to the target's absence.

    log(1 − q + q·exp((⟨ḡ, g⟩ − ‖g‖²/2) / (σC)²)) for a record with clipped gradient g, given the inner
    products and norms (Hayes et al. 2023, Appendix G, with the sign corrected).
    """
    scale = max(mechanism.noise_multiplier * mechanism.max_grad_norm, 1e-9) ** 2
    exponent = (inner - norms.square() / 2).double() / scale
    rate = mechanism.sample_rate
    if rate == 1:
        return exponent
    absent = torch.tensor(math.log1p(-rate), device=exponent.device, dtype=exponent.dtype)
    return torch.logaddexp(absent, exponent + math.log(rate))


def _neighbours(prior: FinitePrior, criterion: Criterion) -> Tensor:
    """Which candidates (rows) a guess of another (columns) would meet, as zeros and ones."""
    every = prior.candidates
    return torch.cat([criterion.meets(every[k : k + 1], every) for k in range(len(every))]).double()
