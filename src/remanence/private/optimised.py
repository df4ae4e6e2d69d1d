"""What record explains the privatised gradients of a whole run? Found by optimisation, without a shortlist."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.priors import FinitePrior
from remanence.core.records import Records, concatenate
from remanence.core.references import HAYES_2023
from remanence.core.releases import Transcript
from remanence.private.prior_aware import log_likelihood
from remanence.scale.progress import track
from remanence.training.dpsgd import DPSGD
from remanence.training.perceptron import Network

_CPU_NUMBERS = 2**25  # records, or their gradients, written out for every step at once
_GPU_NUMBERS = 2**28
_PATIENCE = 25  # iterations between two looks at the loss
_RIDGE = 1e-3  # on the diagonal of a covariance, as a share of the squared range: 0.004 for pixels in [−1, 1]


@final
@dataclass(frozen=True)
class ClassGaussians:
    """Minus the log-density of records under a Gaussian of their class, for starts of given classes."""

    means: Tensor  # (starts, numbers)
    precisions: Tensor  # (starts, numbers, numbers)
    constants: Tensor  # (starts,): half the log-determinants less the logarithms of the classes' shares

    @classmethod
    def of(cls, collected: Records, labels: Tensor) -> ClassGaussians:
        """Fitted to the adversary's records, class by class; a class without records uses all of them."""
        flat = collected.flat.double()
        ridge = (
            _RIDGE * float(flat.max() - flat.min()) ** 2 * torch.eye(flat.shape[1], dtype=flat.dtype).to(flat)
        )
        fitted = {}
        for label in labels.unique().tolist():
            own = flat[collected.labels == label]
            seen = own if len(own) > 1 else flat
            covariance = seen.mT.cov(correction=0) + ridge
            share = (len(own) + 1) / (len(flat) + 1)
            constant = covariance.logdet() / 2 - math.log(share)
            fitted[label] = seen.mean(0), torch.linalg.inv(covariance), constant
        means, precisions, constants = zip(*(fitted[label] for label in labels.tolist()), strict=True)
        return cls(torch.stack(means).float(), torch.stack(precisions).float(), torch.stack(constants))

    def __call__(self, places: Tensor) -> Tensor:
        """Of every start of every trial, `(trials, starts)`."""
        away = places.flatten(2) - self.means
        return torch.einsum("tsn,snm,tsm->ts", away, self.precisions, away).double() / 2 + self.constants


@final
@dataclass(frozen=True)
class GradientBased(Attack[Transcript]):
    """Search for the record whose clipped gradients fit the residual of every step after subtracting the known ones.

    The loss is minus the log-likelihood (default: the noise is Gaussian, so no other loss makes better use
    of it), or Hayes et al. 2023, Equation 1: Σ −⟨g, ḡ⟩ + ‖g − ḡ‖₁. Several starts, uniform in the range of
    the known records, descend at once by Adam. A trial's rate is quartered whenever its loss has stopped
    falling, and the trial is done when the rate is a 256th of the first. The start with the least loss counts.

    `labels` are the classes that the target may have: `(3,)` where the adversary knows that it is a three,
    None for all, each tried. `matched` returns the nearest candidate of a shortlist (Appendix D).
    An adversary who collected records of the same kind (`EmpiricalPrior`) also uses what a class looks like: a Gaussian
    with the mean and the covariance of its records. The record found is then the likeliest one, given the transcript.
    """

    loss: Literal["likelihood", "equation-1"] = "likelihood"
    labels: tuple[int, ...] | None = None
    matched: bool = False
    starts: int = 5
    learning_rate: float = 0.05  # as a share of the known records' range
    most_iterations: int = 4000
    info: ClassVar[AttackInfo] = AttackInfo(
        "gradient-based",
        "Searches by optimisation for the record whose gradients fit the privatised ones of a whole run.",
        "DP-SGD's transcript; all other training records; no shortlist",
        "transcript",
        HAYES_2023.at("Equation 1 and Appendix D"),
    )

    def check(self, knowledge: Knowledge) -> tuple[DPSGD, Records]:
        """DP-SGD's transcript and known records; a shortlist if and only if it is used."""
        mechanism, known, prior = knowledge.mechanism, knowledge.known_data, knowledge.prior
        wanted = isinstance(prior, FinitePrior) == self.matched
        if wanted and isinstance(mechanism, DPSGD) and not mechanism.final_only and known is not None:
            return mechanism, known
        raise self.refusal(
            needs=self.info.needs + (", and a shortlist to match" if self.matched else ""),
            got=f"{mechanism.name} releasing {mechanism.releases.sees}; {prior.describe()}",
            hint="prior-aware, which is stronger where there is a shortlist, or GradientBased(matched=True)",
        )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Transcript], Reconstruction]:
        """Draw the starts, the same for every trial."""
        (mechanism, known), prior = self.check(knowledge), knowledge.prior
        starts = self._starts(mechanism.network, known, generator)
        box = known.features.min(), known.features.max()
        # The printed loss is not in nats, so that a log-density cannot be added to it.
        collected = None if self.matched or self.loss == "equation-1" else prior.samples
        unlikely = None if collected is None else ClassGaussians.of(collected, starts.labels)

        def reconstruct(release: Transcript) -> Reconstruction:
            room = _GPU_NUMBERS if starts.features.device.type == "cuda" else _CPU_NUMBERS
            written = mechanism.network.numbers if self.loss == "equation-1" else starts.flat.shape[1]
            chunk = max(1, room // (mechanism.steps * len(starts) * written))
            parts = [
                self._search(mechanism, release.take(slice(start, start + chunk)), starts, box, unlikely)
                for start in range(0, len(release), chunk)
            ]
            searched, losses, iterations = zip(*parts, strict=True)
            found = concatenate(searched)
            if isinstance(prior, FinitePrior):
                distances = torch.cdist(found.flat[:, 0].double(), prior.candidates.flat.double())
                found = prior.candidates[distances.argmin(1, keepdim=True)]
            diagnostics = {"loss": torch.cat(losses), "iterations": torch.cat(iterations)}
            return Reconstruction(found, diagnostics=diagnostics)

        return reconstruct

    def _starts(self, network: Network, known: Records, generator: torch.Generator) -> Records:
        """Every label with every start, `(labels · starts,)`."""
        features = known.features.float()
        if self.labels is None:
            parameters = network.initial(1, torch.Generator()).to(features.device)
            labels = tuple(range(network.classify(parameters, known[None, :1]).shape[-1]))
        else:
            labels = self.labels
        shape = self.starts, *known.example_shape
        uniform = torch.rand(shape, generator=generator, device=generator.device).to(features.device)
        first = features.min() + uniform * (features.max() - features.min())
        every = torch.tensor(labels, device=features.device).repeat_interleave(self.starts)
        return Records(first.repeat(len(labels), *(1 for _ in known.example_shape)), every)

    def _search(
        self,
        mechanism: DPSGD,
        release: Transcript,
        starts: Records,
        box: tuple[Tensor, Tensor],
        unlikely: ClassGaussians | None,
    ) -> tuple[Records, Tensor, Tensor]:
        """Descend from all starts of all trials; the best record, its loss and the iterations, per trial."""
        trials, device = len(release), starts.features.device
        parameters = release["parameters"]
        left = (release["gradients"] - release["known"]).float()  # (trials, steps, numbers)
        places = starts.features.expand(trials, *starts.features.shape)
        first, second = torch.zeros_like(places), torch.zeros_like(places)
        best, least = places, torch.full(places.shape[:2], torch.inf, dtype=torch.float64, device=device)
        full_rate = self.learning_rate * float(box[1] - box[0])
        rate, seen = torch.full((trials,), full_rate, device=device), least.amin(1)
        unit = 1.0 if self.loss == "likelihood" else mechanism.max_grad_norm**2  # a nat; one clean product
        going = torch.arange(trials, device=device)
        found, lowest, iterations = best.clone(), least.clone(), torch.zeros(trials, device=device)
        for iteration in track(
            range(1, self.most_iterations + 1), total=self.most_iterations, what="searching"
        ):
            here = places.detach().requires_grad_()
            losses = self._losses(mechanism, parameters, left, here, starts.labels)  # (trials, starts)
            losses = losses if unlikely is None else losses + unlikely(here)
            (slope,) = torch.autograd.grad(losses.sum(), here)
            here, losses = here.detach(), losses.detach()
            better = losses < least
            least, best = torch.where(better, losses, least), torch.where(_like(better, here), here, best)
            first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
            spread = (second / (1 - 0.999**iteration)).sqrt() + 1e-12
            places = (here - _like(rate, here) * first / (1 - 0.9**iteration) / spread).clamp(*box)
            if iteration % _PATIENCE and iteration < self.most_iterations:
                continue
            found[going], lowest[going], iterations[going] = best, least, float(iteration)
            falls = seen - least.amin(1) > unit * 1e-3 + least.amin(1).abs() * 1e-6
            rate, seen = torch.where(falls, rate, rate / 4), least.amin(1)
            on = rate > full_rate / 256
            if not on.any():
                break
            if not on.all():  # what is done is left out
                going, parameters, left, places, first, second, best, least, rate, seen = (
                    tensor[on]
                    for tensor in (going, parameters, left, places, first, second, best, least, rate, seen)
                )
        chosen = lowest.argmin(1, keepdim=True)
        row = torch.arange(trials, device=device)[:, None]
        return Records(found[row, chosen], starts.labels[chosen]), lowest.amin(1), iterations

    def _losses(
        self, mechanism: DPSGD, parameters: Tensor, left: Tensor, places: Tensor, labels: Tensor
    ) -> Tensor:
        """The loss of every start of every trial: all steps are trials of their own, all starts their records."""
        trials, steps, numbers = parameters.shape
        written = places.unsqueeze(1).expand(-1, steps, *places.shape[1:]).flatten(0, 1)
        records = Records(written, labels.expand(trials * steps, -1))
        flat, norm = parameters.reshape(-1, numbers), mechanism.max_grad_norm
        inner, norms = mechanism.network.projections(flat, left.reshape(-1, numbers), records, max_norm=norm)
        if self.loss == "likelihood":
            return -log_likelihood(mechanism, inner, norms).unflatten(0, (trials, steps)).sum(1)
        count = places.shape[1]
        own = mechanism.network.clipped_sum(
            flat.repeat_interleave(count, 0),
            Records(records.features.flatten(0, 1)[:, None], records.labels.flatten()[:, None]),
            max_norm=norm,
        ).unflatten(0, (-1, count))
        target = left.reshape(-1, 1, numbers)
        # Less ‖ḡ‖₁, which is constant and so large that single precision would lose the rest.
        distances = ((own - target).abs() - target.abs()).sum(2)
        return (distances - inner).unflatten(0, (trials, steps)).sum(1).double()


def _like(values: Tensor, other: Tensor) -> Tensor:
    """The values with as many dimensions as the other tensor."""
    return values.reshape(*values.shape, *(1 for _ in range(other.ndim - values.ndim)))
