"""Train on every candidate and compare: exact for deterministic training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction, training_failed
from remanence.core.catalogue import AttackInfo
from remanence.core.checks import whole
from remanence.core.knowledge import Knowledge
from remanence.core.priors import FinitePrior
from remanence.core.records import Records
from remanence.core.references import BALLE_2022
from remanence.core.releases import Release, Transcript
from remanence.scale.progress import track


@final
@dataclass(frozen=True)
class RetrainAndCompare(Attack[Release]):
    """Pick the candidate whose release is closest to the published one.

    Balle et al. 2022, §II-D and §IV-A: exact if training is deterministic. If it is random,
    each candidate is trained on `repeats` times, and the likeliest candidate is picked as if every
    released number were normal around its mean, with the standard deviation over the repeats.
    """

    repeats: int = 32  # at least 2, to estimate a spread
    info: ClassVar[AttackInfo] = AttackInfo(
        "retrain-and-compare",
        "Trains on every candidate and picks the one whose release is closest.",
        "a shortlist of candidates; all other training records",
        "weights, answers or one gradient",
        BALLE_2022.at("§II-D and §IV-A"),
    )

    def __post_init__(self) -> None:
        whole("repeats", self.repeats, least=2, hint="32")

    def check(self, knowledge: Knowledge) -> FinitePrior:
        """Require a shortlist, all other records, and a release that is comparable between runs."""
        steps, prior = knowledge.mechanism.releases is Transcript, knowledge.prior
        if isinstance(prior, FinitePrior) and not steps and knowledge.known_data is not None:
            return prior
        hint = "a FinitePrior of the records that the target could be; prior-aware for transcripts"
        raise self.refusal(got=knowledge, hint=hint)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train on each candidate."""
        prior = self.check(knowledge)
        candidates = prior.candidates[:, None]
        chunk = knowledge.mechanism.trials_at_once(candidates)

        def train(some: Records) -> Tensor:
            parts = [some[start : start + chunk] for start in range(0, len(some), chunk)]
            return torch.cat([knowledge.release(part, generator).flat() for part in parts])

        first = train(candidates)  # (candidates, numbers)
        if torch.equal(train(candidates[:1]).nan_to_num(), train(candidates[:1]).nan_to_num()):
            return lambda release: Reconstruction(
                prior.candidates[_distances(release, first).argmin(1)[:, None]]
            )
        rest = [
            train(candidates)
            for _ in track(range(self.repeats - 1), total=self.repeats - 1, what="retraining")
        ]
        shadows = torch.stack([first, *rest])
        centres, spread = _centres(shadows)
        spread = spread.clamp(min=1e-9 * float(spread.max()))  # a constant number would decide alone
        centres, log_weights = centres / spread, prior.weights.log()

        def reconstruct(release: Release) -> Reconstruction:
            squares = _distances(release, centres, spread).square()
            return Reconstruction(prior.candidates[(log_weights - squares / 2).argmax(1)[:, None]])

        return reconstruct


def _centres(shadows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each candidate's shadows, and the pooled standard deviation.

    Shadows whose training diverged are left out; a candidate without any other is never the closest.
    """
    finite = shadows.isfinite().all(2)  # (repeats, candidates)
    if finite.all():
        return shadows.mean(0), shadows.var(0).mean(0).sqrt()
    kept = shadows.where(finite.unsqueeze(2), torch.nan)
    centres, count = kept.nanmean(0), finite.sum(0).unsqueeze(1)
    variances = (kept - centres).square().nansum(0) / (count - 1).clamp(min=1)
    several = count.squeeze(1) > 1
    if not several.any():
        raise training_failed(~finite.flatten())
    return centres, variances[several].mean(0).sqrt()


def _distances(release: Release, centres: Tensor, unit: Tensor | float = 1.0) -> Tensor:
    """The distance of each release to each centre, `(trials, candidates)`; infinite for a missing centre."""
    # Explicit differences: the fast expansion of the square loses small ones to cancellation.
    found = torch.cdist(release.flat() / unit, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return found.nan_to_num(nan=torch.inf, posinf=torch.inf)
