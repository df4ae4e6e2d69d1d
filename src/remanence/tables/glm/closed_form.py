"""The missing record of a generalised linear model in closed form (Balle et al. 2022, Theorem 1)."""

from __future__ import annotations

from abc import abstractmethod
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
from remanence.core.references import BALLE_2022, REMANENCE
from remanence.core.releases import Release, Weights
from remanence.tables.glm.model import GLM, balanced_weights, class_counts, in_standard_units, slopes_alone

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
    counts: Tensor | None  # (., classes)

    @classmethod
    def all_of(cls, known: Records, mechanism: GLM) -> KnownRecords:
        """The same known records in every trial, read in chunks."""
        parts = list(known.split(_ROWS_SUMMED))
        classes = mechanism.family.classes
        centre = parts[0].flat.double().median(0).values
        total, squares = centre.new_zeros(2, 1, len(centre))
        counts = centre.new_zeros(1, classes).long() if classes else None
        for part in parts:
            offsets = part.flat.double() - centre
            total, squares = total + offsets.sum(0), squares + offsets.square().sum(0)
            if counts is not None:
                counts = counts + class_counts(part.labels, classes)
        return cls(len(known), centre, total, squares, counts)

    def without_each(self, records: Records) -> KnownRecords:
        """In trial i all but the i-th of these."""
        offsets, counts = records.flat.double() - self.centre, self.counts
        if counts is not None:
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

    @property
    def whole(self) -> Tensor:
        """The sum of each feature, `(., features)`."""
        return self.total + self.records * self.centre


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
    mechanism: GLM,
    release: Release,
    known: KnownRecords,
    gradient_of_known: GradientOfKnown,
    *,
    features: Tensor | None = None,
) -> Reconstruction:
    """Solve for the record, or for its label alone where the `features` (trials, features) are given.

    Balanced class weights depend on the missing label, so each label is tried in turn and the one
    that explains its own gradient best is kept.
    """
    if mechanism.class_weights != "balanced":
        weights = mechanism.fixed_class_weights(release["coefficient"].device)
        gradient = gradient_of_known(weights)
        return _solve_at(mechanism, release, known, gradient, weights, features).reconstruction
    assert known.counts is not None
    attempts: list[_Attempt] = []
    for label in range(mechanism.family.classes):
        counts = known.counts.clone()
        counts[..., label] += 1
        impossible = (counts == 0).any(-1)  # all classes were there when the model was trained
        weights = balanced_weights(counts.clamp(min=1))
        attempt = _solve_at(mechanism, release, known, gradient_of_known(weights), weights, features)
        # A solution that contradicts the label it was solved for does not count.
        wrong = (attempt.reconstruction.records.labels[:, 0] != label) | impossible
        attempts.append(_Attempt(attempt.reconstruction, attempt.doubt.masked_fill(wrong, torch.inf)))
    best = torch.stack([attempt.doubt for attempt in attempts]).argmin(0)
    return _choose([attempt.reconstruction for attempt in attempts], best)


@dataclass(frozen=True)
class _Attempt:
    reconstruction: Reconstruction
    doubt: Tensor  # (trials,), the smaller, the likelier the label


def _solve_at(
    mechanism: GLM,
    release: Release,
    known: KnownRecords,
    gradient: Tensor,
    class_weights: Tensor | None,
    features: Tensor | None,
) -> _Attempt:
    left_over = gradient + mechanism.penalty_gradient(release)  # −w r (1, x): (trials, outputs, 1 + features)
    features_given, strength = features is not None, torch.empty(0)
    if features is not None:
        residual = _residual_along(features, left_over, known, mechanism, release)
    else:
        # Every output has its own −w r_k (1, x). Their best common x under equal noise is the leading
        # right singular vector; the leading left one says how to add them up.
        standard = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
        mixing = torch.linalg.eigh(standard @ standard.mT).eigenvectors[..., -1]  # (trials, outputs)
        mixed = torch.einsum("tk,tko->to", mixing, left_over)
        features, strength = mixed[:, 1:] / mixed[:, :1], mixed[:, 0].abs()
        residual = -left_over[..., 0]
    guess = Records(features.unsqueeze(1), torch.zeros_like(features[:, :1]))
    predictor = mechanism.predictor(guess, release)  # (trials, outputs, 1)

    def explained_by(labels: Tensor) -> Tensor:
        own = mechanism.family.residual(predictor, labels)[..., 0]
        if class_weights is None:
            return own
        return own * class_weights.expand(len(labels), -1).gather(1, labels.long())

    if features_given and mechanism.family.classes:
        # Given x, each label predicts the whole residual; the best fit is more reliable than a small one's sign.
        options = [torch.full_like(guess.labels, label) for label in range(mechanism.family.classes)]
        misfits = torch.stack([(explained_by(option) - residual).norm(dim=1) for option in options])
        labels = misfits.argmin(0).unsqueeze(1).to(features.dtype)
    else:
        labels = mechanism.family.label(predictor, residual.unsqueeze(-1))
    misfit = (explained_by(labels) - residual).norm(dim=1)
    sensitivity = None
    if not features_given:
        size = ((features - known.mean) / known.scale).norm(dim=1)
        sensitivity = (1 + size.square()).sqrt() / (strength * size)
    diagnostics = {"residual": residual.norm(dim=1), "misfit": misfit}
    records = Records(guess.features, labels)
    return _Attempt(Reconstruction(records, sensitivity, diagnostics), misfit)


def _residual_along(
    features: Tensor, left_over: Tensor, known: KnownRecords, mechanism: GLM, release: Release
) -> Tensor:
    """The residual by least squares in standard units, given x."""
    if mechanism.fit_intercept:
        left_over = in_standard_units(left_over, known.mean.unsqueeze(1), known.scale.unsqueeze(1))
        standard = (features - known.mean) / known.scale
        along = torch.cat([torch.ones_like(features[:, :1]), standard], dim=1)
    else:
        left_over = slopes_alone(left_over, release) / known.scale.unsqueeze(1)
        along = (features - release.tensors.get("mean", torch.zeros_like(features))) / known.scale
    return -torch.einsum("tko,to->tk", left_over, along) / along.square().sum(1, keepdim=True)


def _choose(options: list[Reconstruction], best: Tensor) -> Reconstruction:
    """Trial by trial, the option of the given index."""
    rows = torch.arange(len(best), device=best.device)

    def pick(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors)[best, rows]

    records = [option.records for option in options]
    sensitivities = [option.sensitivity for option in options if option.sensitivity is not None]
    return Reconstruction(
        Records(pick([part.features for part in records]), pick([part.labels for part in records])),
        pick(sensitivities) if sensitivities else None,
        {name: pick([option.diagnostics[name] for option in options]) for name in options[0].diagnostics},
    )


_INSTEAD = "retrain-and-compare, if there is a shortlist of candidates"


@dataclass(frozen=True)
class _Solves(ExposesInParts[GLM], Attack[Weights]):
    """Solves for the one record that is missing from the known ones."""

    @abstractmethod
    def check(self, knowledge: Knowledge) -> tuple[GLM, Records]:
        """The mechanism and the known records, where they can be solved with."""

    def features(self, release: Release, known: KnownRecords) -> Tensor | None:
        """The record's features, `(trials, features)`, where the release and the known records tell them."""
        return None

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Weights], Reconstruction]:
        """Nothing to prepare: the release is enough."""
        mechanism, known = self.check(knowledge)
        view = KnownRecords.all_of(known, mechanism)
        return lambda release: solve(
            mechanism,
            release,
            view,
            lambda weights: mechanism.known_gradient(known, release, weights),
            features=self.features(release, view),
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
                features = self.features(release, others)
                found.append(solve(mechanism, release, others, theirs, features=features))
            return found[0] if len(found) == 1 else joined(found)

        return find


@final
@dataclass(frozen=True)
class ClosedForm(_Solves):
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
                needs="an intercept: without one, the record is known only up to a factor",
                got=f"{mechanism.family.name} without an intercept",
                hint=_INSTEAD,
            )
        return mechanism, known


@final
@dataclass(frozen=True)
class ScalerMean(_Solves):
    """Subtract the known records from n times the scaler's mean; the model's tolerance does not matter.

    With x known, the label follows from the part of the left-over gradient along (1, x).
    """

    info: ClassVar[AttackInfo] = AttackInfo(
        "scaler-mean",
        "Subtracts the known records from n times a published mean.",
        "a GLM behind a StandardScaler; all other training records",
        "weights",
        REMANENCE,
    )

    def check(self, knowledge: Knowledge) -> tuple[GLM, Records]:
        """A GLM with a scaler, and all other records."""
        mechanism, known = knowledge.mechanism, knowledge.known_data
        if isinstance(mechanism, GLM) and mechanism.scaler == "mean" and known is not None:
            return mechanism, known
        raise self.refusal(got=knowledge, hint="closed-form, which needs no scaler")

    def features(self, release: Release, known: KnownRecords) -> Tensor:
        """n times the mean minus the sum of the known records."""
        return (known.records + 1) * release["mean"] - known.whole
