"""The missing record of a generalised linear model in closed form.

Without an intercept the left-over gradient −w r ⊗ x is known only as a product. For each label the
scale τ with −w r = τ u and x = v / τ must satisfy the family's own r = r(θ·x, y): one equation in
one unknown. Only the label's own entry of −w r is positive, so from three classes on the label is
known beforehand. For two classes (x, 1) and (−x, 0) explain the release equally well; and the
equation can have two solutions. Among those, one that completes the known records to a mean of zero is
certain (data are often centred before training); otherwise the one closest to the known records of its
class is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from remanence.core.attack import Attack, ExposesInParts, Reconstruction, joined
from remanence.core.catalogue import AttackInfo
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import BALLE_2022
from remanence.core.releases import Release, Weights
from remanence.tables.glm.model import GLM, balanced_weights, class_counts, in_standard_units

_ROWS_SUMMED = 2**14  # records that are added up at once
NUMBERS_AT_ONCE = 2**19  # in the largest tensor of a chunk, of which an attack has some twenty
_GRID = 256  # scales that are tried for each record without an intercept
_BISECTIONS = 60
_ROOTS = 3  # the equation has one or two in all cases seen
_ACCEPTED_MISFIT = 1e-3
_CENTRED = 1e-6  # per record, in standard units

GradientOfKnown = Callable[[Tensor | None], Tensor]  # class weights → (trials, outputs, 1 + features)


@dataclass(frozen=True)
class KnownRecords:
    """What the solution needs of the known records beyond their gradients, `(1 or trials, ...)`.

    `total` and `squares` are sums of offsets from a centre, any fixed point near the data: it keeps the squares small.
    """

    records: int
    centre: Tensor  # (features,)
    total: Tensor  # (., features)
    squares: Tensor  # (., features)
    counts: Tensor  # (., classes)
    class_sums: Tensor  # (., classes, features)

    @classmethod
    def all_of(cls, known: Records, mechanism: GLM) -> KnownRecords:
        """The same known records in every trial, read in chunks."""
        parts = list(known.split(_ROWS_SUMMED))
        classes = mechanism.family.classes
        centre = parts[0].flat.double().median(0).values
        total, squares = centre.new_zeros(2, 1, len(centre))
        counts, sums = centre.new_zeros(1, classes).long(), centre.new_zeros(1, classes, len(centre))
        for part in parts:
            flat, labels = part.flat.double(), part.labels.long()
            offsets = flat - centre
            total, squares = total + offsets.sum(0), squares + offsets.square().sum(0)
            if classes:
                counts = counts + class_counts(labels, classes)
                sums = sums.index_add(1, labels, flat[None])
        return cls(len(known), centre, total, squares, counts, sums)

    def without_each(self, records: Records) -> KnownRecords:
        """In trial i all but the i-th of these."""
        flat = records.flat.double()
        offsets = flat - self.centre
        counts, sums = self.counts, self.class_sums
        if classes := counts.shape[-1]:
            own = one_hot(records.labels.long(), classes)
            counts, sums = counts - own, sums - own.unsqueeze(-1) * flat.unsqueeze(1)
        total, squares = self.total - offsets, self.squares - offsets.square()
        return KnownRecords(self.records - 1, self.centre, total, squares, counts, sums)

    @cached_property
    def mean(self) -> Tensor:
        """Of each feature, `(., features)`."""
        return self.total / self.records + self.centre

    @cached_property
    def scale(self) -> Tensor:
        """The standard deviation of each feature; 1 where it is constant."""
        variance = (self.squares / self.records - (self.total / self.records).square()).clamp(min=0)
        return variance.sqrt().where(variance > 1e-24 * self.centre.square(), 1.0)

    def distance(self, features: Tensor, labels: Tensor) -> Tensor:
        """How far records are from their class; −1 where they complete the data to a mean of zero, `(trials,)`."""
        means = (self.class_sums / self.counts.clamp(min=1).unsqueeze(-1)).expand(len(labels), -1, -1)
        own = means[torch.arange(len(labels), device=labels.device), labels]
        whole = self.total + self.records * self.centre + features
        completes = (whole / self.scale).norm(dim=1) < _CENTRED * (self.records + 1)
        return ((features - own) / self.scale).norm(dim=1).masked_fill(completes, -1.0)


def _own_gradients(mechanism: GLM, release: Release, records: Records) -> Tensor:
    return mechanism.record_gradients(records[None], release, weights=records[None].weights)[0]


def _by_class(mechanism: GLM, own: Tensor, labels: Tensor) -> Tensor:
    """The sum of gradients, `(classes, outputs, 1 + features)`; one for all where classes weigh alike."""
    if mechanism.class_weights is None:
        return own.sum(0, keepdim=True)
    return own.new_zeros(mechanism.family.classes, *own.shape[1:]).index_add(0, labels, own)


def _of_others(by_class: Tensor, own: Tensor, records: Records, class_weights: Tensor | None) -> Tensor:
    """The sum over all, less the record's own term."""
    if class_weights is None:
        return by_class - own
    weights = class_weights.expand(len(own), -1)  # of each trial's training set
    mine = weights.gather(1, records.labels.long()[:, None])[..., None] * own
    return torch.einsum("tc,cko->tko", weights, by_class) - mine


def solve(
    mechanism: GLM, release: Release, known: KnownRecords, gradient_of_known: GradientOfKnown
) -> Reconstruction:
    """Solve for the record and its label.

    Balanced class weights depend on the missing label, so each label is tried in turn and the one
    that explains its own gradient best is kept.
    """
    if mechanism.class_weights != "balanced":
        weights = mechanism.fixed_class_weights(release["coefficient"].device)
        return _solve_at(mechanism, release, known, gradient_of_known(weights), weights)
    attempts, misfits = [], []
    for label in range(mechanism.family.classes):
        counts = known.counts.clone()
        counts[..., label] += 1
        impossible = (counts == 0).any(-1)  # all classes were there when the model was trained
        weights = balanced_weights(counts.clamp(min=1))
        attempt = _solve_at(mechanism, release, known, gradient_of_known(weights), weights)
        # A solution that contradicts the label it was solved for does not count.
        wrong = (attempt.records.labels[:, 0] != label) | impossible
        attempts.append(attempt)
        misfits.append(attempt.diagnostics["misfit"].masked_fill(wrong, torch.inf))
    best = torch.stack(misfits).argmin(0)
    return joined(attempts).take(best * len(best) + torch.arange(len(best), device=best.device))


def _solve_at(
    mechanism: GLM, release: Release, known: KnownRecords, gradient: Tensor, class_weights: Tensor | None
) -> Reconstruction:
    left_over = gradient + mechanism.penalty_gradient(release)  # −w r (1, x): (trials, outputs, 1 + features)
    if mechanism.fit_intercept:
        # Every output has its own −w r_k (1, x). Their best common x under equal noise is the leading
        # right singular vector; the leading left one says how to add them up.
        standard = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
        mixing = torch.linalg.eigh(standard @ standard.mT).eigenvectors[..., -1]  # (trials, outputs)
        mixed = torch.einsum("tk,tko->to", mixing, left_over)
        features, strength = mixed[:, 1:] / mixed[:, :1], mixed[:, 0].abs()
        residual = -left_over[..., 0]
    else:
        features, residual = _without_intercept(mechanism, release, left_over[..., 1:], known)
        strength = residual.norm(dim=1)
    guess = Records(features.unsqueeze(1), torch.zeros_like(features[:, :1]))
    predictor = mechanism.predictor(guess, release)  # (trials, outputs, 1)
    labels = mechanism.family.label(predictor, residual.unsqueeze(-1))
    explained = mechanism.family.residual(predictor, labels)[..., 0]
    if class_weights is not None:
        explained = explained * class_weights.expand(len(labels), -1).gather(1, labels.long())
    misfit = (explained - residual).norm(dim=1)
    size = ((features - known.mean) / known.scale).norm(dim=1)
    sensitivity = (1 + size.square()).sqrt() / (strength * size)
    diagnostics = {"residual": residual.norm(dim=1), "misfit": misfit}
    return Reconstruction(Records(guess.features, labels), sensitivity, diagnostics)


def _without_intercept(
    mechanism: GLM, release: Release, left_over: Tensor, known: KnownRecords
) -> tuple[Tensor, Tensor]:
    """Features `(trials, features)` and residuals `(trials, outputs)` of the missing record."""
    trials, outputs, _ = left_over.shape
    left, sizes, right = torch.linalg.svd(left_over, full_matrices=False)
    direction, mixing = right[:, 0] * sizes[:, :1], left[..., 0]
    if outputs > 1:
        # One entry of −w r is positive and the others are negative: turn `mixing` to look like that.
        flip = (mixing > 0).sum(1, keepdim=True) > 1
        direction, mixing = direction.where(~flip, -direction), mixing.where(~flip, -mixing)
        hypotheses = [(mixing.argmax(1), torch.ones_like(mixing[:, 0]))]
    else:
        signs = mixing[:, 0].sign()
        zeros = torch.zeros_like(signs, dtype=torch.int64)
        hypotheses = [(zeros, -signs), (zeros + 1, signs)]

    best_distance = left_over.new_full((trials,), torch.inf)
    best_tau = torch.ones_like(best_distance)
    for labels, sign in hypotheses:
        residual = partial(_residual, mechanism, release, direction, labels)
        gap = partial(_gap, residual, mixing)
        magnitudes = torch.logspace(-7, 0.2, _GRID, dtype=torch.float64, device=left_over.device)
        grid = magnitudes * sign.unsqueeze(1)
        values = gap(grid)
        crossing = values[:, 1:].sign() != values[:, :-1].sign()
        rank = crossing.cumsum(1)
        for root in range(1, _ROOTS + 1):
            here = crossing & (rank == root)
            exists, column = here.any(1), here.int().argmax(1, keepdim=True)
            if not exists.any():
                break
            tau = _bisect(gap, *(t.gather(1, column) for t in (grid[:, :-1], grid[:, 1:], values)))
            found, wanted = residual(tau)[..., 0], -tau * mixing
            misfit = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
            distance = known.distance(direction / tau, labels)
            usable = exists & (misfit < _ACCEPTED_MISFIT) & (distance < best_distance)
            best_distance = distance.where(usable, best_distance)
            best_tau = tau[:, 0].where(usable, best_tau)
    return direction / best_tau.unsqueeze(1), -best_tau.unsqueeze(1) * mixing


def _residual(mechanism: GLM, release: Release, direction: Tensor, labels: Tensor, tau: Tensor) -> Tensor:
    """What the records direction / τ with these labels leave in the gradient, `(trials, outputs, points)`."""
    guesses = Records(direction.unsqueeze(1) / tau.unsqueeze(-1), labels[:, None].expand_as(tau))
    return mechanism.family.residual(mechanism.predictor(guesses, release), guesses.labels)


def _gap(residual: Callable[[Tensor], Tensor], mixing: Tensor, tau: Tensor) -> Tensor:
    """Zero where τ is consistent with the model, `(trials, points)`."""
    return torch.einsum("tk,tkp->tp", mixing, residual(tau)) + tau


def _bisect(gap: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, at_low: Tensor) -> Tensor:
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        same = gap(middle).sign() == at_low.sign()
        low, high = middle.where(same, low), high.where(same, middle)
    return (low + high) / 2


_INSTEAD = "retrain-and-compare, if there is a shortlist of candidates"


@final
@dataclass(frozen=True)
class ClosedForm(ExposesInParts[GLM], Attack[Weights]):
    """Solve the optimality condition for the one record that is missing from it."""

    info: ClassVar[AttackInfo] = AttackInfo(
        "closed-form",
        "Solves the optimality condition of a generalised linear model for the missing record and its label.",
        "a GLM at its optimum; all other training records",
        "weights",
        BALLE_2022.at("Theorem 1"),
    )

    def check(self, knowledge: Knowledge) -> tuple[GLM, Records]:
        """A GLM, all other records, and an intercept or a label with few values."""
        mechanism, known = knowledge.mechanism, knowledge.known_data
        if not isinstance(mechanism, GLM) or known is None:
            raise self.refusal(got=knowledge, hint=_INSTEAD)
        mechanism.check_weights(known)
        weighted = known.weights is not None or mechanism.class_weights is not None
        if not mechanism.fit_intercept and (not mechanism.family.classes or weighted):
            raise self.refusal(
                needs="an intercept, or classes and no weights: without one, x is known up to a "
                "scale that depends on the label and the weight",
                got=f"{mechanism.family.name} without an intercept" + (", with weights" if weighted else ""),
                hint=_INSTEAD,
            )
        return mechanism, known

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Weights], Reconstruction]:
        """Nothing to prepare: the release is enough."""
        mechanism, known = self.check(knowledge)
        view = KnownRecords.all_of(known, mechanism)
        return lambda release: solve(
            mechanism, release, view, lambda weights: mechanism.known_gradient(known, release, weights)
        )

    def exposer(self, mechanism: GLM, data: Records, release: Release) -> Callable[[Tensor], Reconstruction]:
        """Any record in turn, from the one release.

        One pass sums over all records; the sum over the others is that sum minus the record's own term.
        """
        everyone = KnownRecords.all_of(data, mechanism)
        own, by_class = partial(_own_gradients, mechanism, release), torch.zeros(())
        for part in data.split(_ROWS_SUMMED):
            by_class = by_class + _by_class(mechanism, own(part), part.labels.long())
        each = mechanism.family.outputs * (1 + data.flat.shape[-1])
        rows = max(1, NUMBERS_AT_ONCE // (each if mechanism.fit_intercept else each * _GRID))

        def find(places: Tensor) -> Reconstruction:
            found = []
            for some in places.split(rows):
                part = data.take(some.to(data.labels.device))
                others, theirs = everyone.without_each(part), partial(_of_others, by_class, own(part), part)
                found.append(solve(mechanism, release, others, theirs))
            return joined(found)

        return find
