"""Attribute inference: which columns of a record a model gives away to somebody who knows the others.

Balle et al. 2022, §II-C. What the others give away by themselves is no leak of the model, so that every rate stands
beside the one of imputation without the model.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, final

import torch
from scipy.stats import binom
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Error
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.priors import EmpiricalPrior
from remanence.core.rates import SuccessRate
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release, Weights
from remanence.game import play
from remanence.protocol import AnyGame, Prepared, Unit, Work
from remanence.reconstructor.attack import Reconstructor
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.tables.single_columns import columns_of, part_errors, part_numbers
from remanence_papers.attribute_tables import MOST_CATEGORIES, Column, Table


@final
@dataclass(frozen=True)
class Disclosed(Mechanism[Release]):
    """Another mechanism's release, together with the given columns of the targets' features.

    Hold reconstructions against the others with `Criterion(on_columns(error, hidden), ...)`. Baseline and control do
    not know the given columns: what can be imputed from them counts as recovered. `Disclosed(None, columns)` trains
    nothing and shows the columns alone: the same attack on it imputes, which is the control of the game `Attributes`.
    """

    mechanism: Mechanism[Release] | None
    columns: tuple[int, ...]  # of the flattened features
    name: ClassVar[str] = "training, with some attributes of the record known"
    gives_attributes: ClassVar[bool] = True

    @property
    def releases(self) -> type[Release]:
        """What the training releases."""
        return Weights if self.mechanism is None else self.mechanism.releases

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        if self.mechanism is None:
            return {"training": "none", "known_attributes": len(self.columns)}
        training = {"training": self.mechanism.name, **self.mechanism.settings()}
        return {**training, "known_attributes": len(self.columns)}

    def trials_at_once(self, targets: Records) -> int:
        """As many as the training takes."""
        return (
            super().trials_at_once(targets)
            if self.mechanism is None
            else self.mechanism.trials_at_once(targets)
        )

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train, and show the given columns."""
        width = targets.flat.shape[-1]
        if not self.columns or not all(0 <= column < width for column in self.columns):
            raise InputError(
                "There is no such attribute.",
                needs=f"columns from 0 to {width - 1}",
                got=str(self.columns)[:80],
                hint="count the columns of the flattened features",
            )
        given = targets.flat[..., list(self.columns)].float()
        if self.mechanism is None:
            return Weights({"given": given})
        release = self.mechanism.release(known_data, targets, generator)
        return type(release)({**release.tensors, "given": given})


@final
@dataclass(frozen=True)
class SplitTable:
    """Records of one table: those that the adversary knows, others like them, and the people who are asked about.

    All are made by `Table.read` and `Table.encode`. A target among the records that the adversary holds is refused:
    finding those would be no leak.
    """

    table: Table
    known_data: Records  # trained on together with each target in turn
    public: Records  # of the same population
    targets: Records  # whose hidden columns are looked for

    def __post_init__(self) -> None:
        held = {"known_data": self.known_data, "public": self.public}
        for name, each in {**held, "targets": self.targets}.items():
            _check_records(self.table, name, each)
        asked = _rows(self.targets)
        for name, records in held.items():
            known = set(_rows(records))
            if shared := sum(row in known for row in asked):
                raise InputError(
                    f"Some targets are also in {name}.",
                    needs="targets that the adversary does not hold",
                    got=f"{shared} of {len(asked)} targets with the same features and label there",
                    hint="split the records: records[:100], records[100:350], records[350:]",
                )


@final
@dataclass(frozen=True)
class Attributes(AnyGame[Disclosed]):
    """Train on the known data and each target in turn; the adversary finds the hidden columns from the others.

    They know the training, `known_data`, records like the targets (`public`), and all columns of the target but the
    hidden ones. A number counts as found within `tolerance` standard deviations, a category if it is right. The control
    is the same attack on the given columns alone. The guess is the better of a constant and a ridge regression from the
    given columns and the label, fitted on all records that the adversary holds.
    """

    door: ClassVar[str] = "tables"

    training: Mechanism[Release]
    data: SplitTable
    hidden: Sequence[Hashable]
    tolerance: float = 0.25
    mechanism: Disclosed = field(init=False, repr=False)
    criterion: Criterion = field(init=False, repr=False)
    bounds: tuple[Bound, ...] = field(init=False, repr=False, default=())
    default_trials: int = field(init=False, repr=False)  # every target

    def __post_init__(self) -> None:
        table, hidden = self.data.table, self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence):
            raise InputError(
                "There is nothing to infer.",
                needs="a list of names of columns",
                got=f"hidden={hidden!r}"[:200],
                hint="hidden=['age']",
            )
        columns = [table.column(name) for name in hidden]
        given = table.places([column.name for column in table.columns if column not in columns])
        if not columns or not given or not 0 < self.tolerance < 1:
            raise InputError(
                "There is nothing to infer, or nothing to infer it from.",
                needs="at least one hidden column, at least one that is given, and a tolerance above 0 and below 1 "
                "(from 1 on every category is right)",
                got=f"{len(columns)} hidden, {len(table.columns) - len(columns)} given, tolerance {self.tolerance}",
                hint="hidden=['age']",
            )
        for name, value in (
            ("hidden", tuple(column.name for column in columns)),
            ("mechanism", Disclosed(self.training, given)),
            ("criterion", Criterion(table.error(hidden), self.tolerance)),
            ("default_trials", len(self.data.targets)),
        ):
            object.__setattr__(self, name, value)

    @property
    def knowledge(self) -> Knowledge:
        """The training, the known data, and people of the same kind."""
        return Knowledge(self.mechanism, EmpiricalPrior(self.data.public), self.data.known_data)

    def baseline(self, chances: int = 1) -> Baseline:
        """What the best guess without the model achieves for all hidden columns together."""
        return self._guess(self.criterion.error)

    @property
    def tests_more(self) -> bool:
        """Columns are counted by themselves, too."""
        return True

    @property
    def words(self) -> Words:
        """People, some of whose columns are hidden."""
        less = "Release less. Answers instead of weights, or fewer columns, leave them less to work with."
        return Words("found all hidden columns of", "people", less=less, tests=("attribute inference",))

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """Single columns, beside the best guess without the model."""
        guesses = {part.name: self._guess(part).seen for part in self.criterion.error.parts}
        return columns_of(outcome, guesses, self.criterion.threshold, confidence)

    def _guess(self, error: Error) -> Baseline:
        met = {name: self.meets(error, guess) for name, guess in self.imputed.items()}
        name = max(met, key=lambda each: int(met[each].sum()))
        rate = float(met[name].double().mean())
        return Baseline(rate, rate, f"{name}, measured on the targets")

    def meets(self, error: Error, guesses: Records) -> Tensor:
        """Whether a guess for each target is close enough, `(targets,)`."""
        return error(self.data.targets, guesses) <= self.tolerance

    @cached_property
    def imputed(self) -> dict[str, Records]:
        """What is guessed for each target without the model and without an attack."""
        data = self.data
        constant = data.targets.flat.clone()
        for column in (data.table.column(name) for name in self.hidden):
            own = slice(column.places.start, column.places.stop)
            constant[:, own] = best_constant(column, data.public.flat, self.tolerance)[own]
        held = concatenate([data.public, data.known_data])
        fitted = regressed(held, data.targets, list(self.mechanism.columns))
        found = {"the best constant": constant, "a ridge regression": fitted}
        return {name: Records(features, data.targets.labels) for name, features in found.items()}

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All targets, or as many of them, drawn at random, as there are trials."""
        total = min(trials, len(self.data.targets))
        return Work(total, self.mechanism.trials_at_once(self.data.targets[:1, None]), (replace(self), total))

    def records(self, trials: int, draws: Draws) -> Tensor:
        """The targets that are asked about."""
        order = torch.randperm(
            len(self.data.targets), generator=replace(draws, device="cpu").stream("targets")
        )
        return order[:trials].sort().values

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> tuple[Prepared, Prepared]:
        """The attack on the model, and the same attack without it."""
        knowledge = self.knowledge
        blind = replace(knowledge, mechanism=replace(self.mechanism, mechanism=None))
        return Prepared.of(attack, knowledge, draws, run), Prepared.of(attack, blind, draws, run)

    def trials(self, prepared: tuple[Prepared, Prepared], draws: Draws, unit: Unit) -> Outcome:
        """Hold what is found with the model and what is imputed without it against the hidden columns."""
        assert unit.records is not None
        targets = self.data.targets[unit.records.to(self.data.targets.labels.device)[:, None]]
        shown = (
            each.release(self.data.known_data, targets, draws.stream("training", unit.number))
            for each in (self.mechanism, replace(self.mechanism, mechanism=None))
        )
        found, imputed = (
            each.for_unit(draws, unit)(release) for each, release in zip(prepared, shown, strict=True)
        )
        both = (targets, found.records), (targets, imputed.records)
        return Outcome(
            main=self.criterion.compare(*both[0]),
            control=self.criterion.compare(*both[1]),
            numbers=found.numbers() | part_numbers(self.criterion.error.parts, *both),
            claims_labels=False,
        )

    def held(self) -> dict[str, Records]:
        """The data by the names that a report has words for."""
        return {"known_data": self.data.known_data, "prior": self.data.public, "targets": self.data.targets}

    def to(self, device: torch.device | str) -> Attributes:
        """The same game on another device."""
        data = self.data
        moved = (each.to(device) for each in (data.known_data, data.public, data.targets))
        return replace(self, data=SplitTable(data.table, *moved))


@dataclass(frozen=True)
class Attribute:
    """How often one column was found: with the model, without it, and by the best constant guess.

    Without the model it is imputed from the other columns by the same attack, by a ridge regression (which is given the
    label and the known data too) and by that guess; the one that turned out best counts.
    """

    name: str
    inferred: SuccessRate
    imputed: SuccessRate
    guessed: SuccessRate
    p_value: float  # that the model helps no more often than it misleads (exact sign test over the trials)

    def __repr__(self) -> str:
        return (
            f"{self.name}: {self.inferred} with the model; {self.imputed.rate:.3f} imputed without it, "
            f"{self.guessed.rate:.3f} by a guess (p = {self.p_value:.2g})"
        )


def infer_attributes(
    game: Attributes,
    attack: Attack | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Attribute]:
    """Each hidden column with what imputation achieves beside it, and a test of whether the model helps."""
    attack = Reconstructor(shadows=2000, steps=1000) if attack is None else attack
    numbers = play(game, attack, seed=seed, device=device).arrays
    found = []
    for part in game.criterion.error.parts:
        inferred, blind = (errors <= game.tolerance for errors in part_errors(part.name, numbers))
        guessed, fitted = (game.meets(part, guess).cpu() for guess in game.imputed.values())
        found.append(_compare(part.name, inferred, [blind, fitted], guessed))
    return found


def _check_records(table: Table, name: str, each: object) -> None:
    """Refuse what are not the table's records, before any time is spent."""
    got = type(each).__name__
    if isinstance(each, Records):
        if len(each.batch_shape) == 1 and len(each) > 0 and each.flat.shape[1] == table.width:
            return
        of_width = len(each.batch_shape) == 1 and len(each) > 0
        got = f"records of {each.flat.shape[1]} features" if of_width else f"{len(each)} of them"
    raise InputError(
        f"The {name} cannot be used.",
        needs=f"Records of the table's {table.width} features, at least one",
        got=got,
        hint="table, records = Table.read(frame, label=...), and table.encode(other) for another frame",
    )


def _rows(records: Records) -> list[tuple[float, ...]]:
    values = torch.cat([records.flat.double(), records.labels.double()[:, None]], 1)
    return [tuple(row) for row in values.tolist()]


def _compare(name: str, inferred: Tensor, imputed: Sequence[Tensor], guessed: Tensor) -> Attribute:
    """Whether each target was met with the model, in ways without it, and by the best constant."""
    best = max([*imputed, guessed], key=lambda hits: int(hits.sum()))  # in hindsight: in favour of the model
    helped, misled = int((inferred & ~best).sum()), int((best & ~inferred).sum())
    p_value = float(binom.sf(helped - 1, helped + misled, 0.5))  # 1 where nothing differs
    rates = [SuccessRate(int(hits.sum()), len(hits)) for hits in (inferred, best, guessed)]
    return Attribute(name, rates[0], rates[1], rates[2], p_value)


def regressed(held: Records, targets: Records, given: list[int]) -> Tensor:
    """All columns from the given ones and the label, by a ridge regression on all records that the adversary holds."""
    known, asked = (
        torch.cat([each.flat[:, given].double(), _label_columns(held.labels, each.labels)], 1)
        for each in (held, targets)
    )
    penalty = torch.eye(known.shape[1], dtype=known.dtype, device=known.device)
    solved = torch.linalg.solve(known.T @ known + penalty, known.T @ held.flat.double())
    return (asked @ solved).to(targets.flat.dtype)


def _label_columns(held: Tensor, labels: Tensor) -> Tensor:
    """A column for each class, or a constant where there are too many to be classes; numbers themselves beside it."""
    classes = torch.unique(held)
    few = len(classes) <= MOST_CATEGORIES
    columns = (labels[:, None] == classes if few else torch.ones_like(labels)[:, None]).double()
    if not held.is_floating_point():
        return columns
    number = (labels.double() - held.double().mean()) / held.double().std(correction=0).clamp(min=1e-30)
    return torch.cat([columns, number[:, None]], 1)


def best_constant(column: Column, public: Tensor, tolerance: float) -> Tensor:
    """The public record whose value of this column is met by most others."""
    errors = torch.stack([column.errors(public, row) for row in public])
    return public[(errors <= tolerance).sum(1).argmax()]
