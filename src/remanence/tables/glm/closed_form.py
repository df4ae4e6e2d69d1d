"""The missing record of a generalised linear model in closed form."""

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
_NUMBERS_AT_ONCE = 2**19  # of the gradients that are solved for at once: some twenty tensors of this size

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
    counts: Tensor  # (., classes), none for numbers

    @classmethod
    def all_of(cls, known: Records, mechanism: GLM) -> KnownRecords:
        """The same known records in every trial, read in chunks."""
        parts = list(known.split(_ROWS_SUMMED))
        centre = parts[0].flat.double().median(0).values
        total, squares = centre.new_zeros(2, 1, len(centre))
        counts = centre.new_zeros(1, mechanism.family.classes).long()
        for part in parts:
            offsets = part.flat.double() - centre
            total, squares = total + offsets.sum(0), squares + offsets.square().sum(0)
            if mechanism.family.classes:
                counts = counts + class_counts(part.labels, mechanism.family.classes)
        return cls(len(known), centre, total, squares, counts)

    def without_each(self, records: Records) -> KnownRecords:
        """In trial i all but the i-th of these."""
        offsets, counts = records.flat.double() - self.centre, self.counts
        if counts.shape[-1]:
            counts = counts - one_hot(records.labels.long(), counts.shape[-1])
        total, squares = self.total - offsets, self.squares - offsets.square()
        return KnownRecords(self.records - 1, self.centre, total, squares, counts)

    @cached_property
    def mean(self) -> Tensor:
        """Of each feature, `(., features)`."""
        return self.total / self.records + self.centre

    @cached_property
    def scale(self) -> Tensor:
        """The standard deviation of each feature; 1 where it is constant."""
        variance = (self.squares / self.records - (self.total / self.records).square()).clamp(min=0)
        return variance.sqrt().where(variance > 1e-24 * self.centre.square(), 1.0)


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
    attempts, doubts = [], []
    for label in range(mechanism.family.classes):
        counts = known.counts.clone()
        counts[..., label] += 1
        impossible = (counts == 0).any(-1)  # all classes were there when the model was trained
        weights = balanced_weights(counts.clamp(min=1))
        attempt = _solve_at(mechanism, release, known, gradient_of_known(weights), weights)
        # A solution that contradicts the label it was solved for does not count.
        wrong = (attempt.records.labels[:, 0] != label) | impossible
        attempts.append(attempt)
        doubts.append(attempt.diagnostics["misfit"].masked_fill(wrong, torch.inf))
    return _choose(attempts, torch.stack(doubts).argmin(0))


def _solve_at(
    mechanism: GLM, release: Release, known: KnownRecords, gradient: Tensor, class_weights: Tensor | None
) -> Reconstruction:
    left_over = gradient + mechanism.penalty_gradient(release)  # −w r (1, x): (trials, outputs, 1 + features)
    # Every output has its own −w r_k (1, x). Their best common x under equal noise is the leading
    # right singular vector; the leading left one says how to add them up.
    standard = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
    mixing = torch.linalg.eigh(standard @ standard.mT).eigenvectors[..., -1]  # (trials, outputs)
    mixed = torch.einsum("tk,tko->to", mixing, left_over)
    features, strength = mixed[:, 1:] / mixed[:, :1], mixed[:, 0].abs()
    residual = -left_over[..., 0]
    guess = Records(features.unsqueeze(1), torch.zeros_like(features[:, :1]))
    predictor = mechanism.predictor(guess, release)  # (trials, outputs, 1)
    labels = mechanism.family.label(predictor, residual.unsqueeze(-1))
    explained = mechanism.family.residual(predictor, labels)[..., 0]
    if class_weights is not None:
        explained = explained * class_weights.expand(len(labels), -1).gather(1, labels.long())
    size = ((features - known.mean) / known.scale).norm(dim=1)
    sensitivity = (1 + size.square()).sqrt() / (strength * size)
    diagnostics = {"residual": residual.norm(dim=1), "misfit": (explained - residual).norm(dim=1)}
    return Reconstruction(Records(guess.features, labels), sensitivity, diagnostics)


def _choose(options: list[Reconstruction], best: Tensor) -> Reconstruction:
    """Trial by trial, the option of the given index."""
    rows = torch.arange(len(best), device=best.device)

    def pick(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors)[best, rows]

    records = [option.records for option in options]
    return Reconstruction(
        Records(pick([part.features for part in records]), pick([part.labels for part in records])),
        pick([option.sensitivity for option in options if option.sensitivity is not None]),
        {name: pick([option.diagnostics[name] for option in options]) for name in options[0].diagnostics},
    )


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
        """A GLM with an intercept, and all other records."""
        mechanism, known = knowledge.mechanism, knowledge.known_data
        if not isinstance(mechanism, GLM) or known is None:
            raise self.refusal(got=knowledge, hint=_INSTEAD)
        mechanism.check_weights(known)
        if not mechanism.fit_intercept:
            raise self.refusal(
                needs="an intercept: without one, x is known up to a factor",
                got=f"{mechanism.family.name} without an intercept",
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
        rows = max(1, _NUMBERS_AT_ONCE // each)

        def find(places: Tensor) -> Reconstruction:
            found = []
            for some in places.split(rows):
                part = data.take(some.to(data.labels.device))
                others, theirs = everyone.without_each(part), partial(_of_others, by_class, own(part), part)
                found.append(solve(mechanism, release, others, theirs))
            return found[0] if len(found) == 1 else joined(found)

        return find
