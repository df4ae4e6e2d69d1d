"""Attribute inference: which columns of a record a model gives away to somebody who knows the others.

Balle et al. 2022, §II-C. What the others give away by themselves is no leak of the model, so that every rate stands
beside the one of imputation without the model.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import EmpiricalPrior
from remanence.attacks.attack import Attack
from remanence.attacks.reconstructor.attack import Reconstructor
from remanence.data.records import Records, concatenate
from remanence.data.releases import Release
from remanence.exceptions import InputError
from remanence.games.tables import MOST_CATEGORIES, Column, Table
from remanence.mechanisms.known_attributes import Disclosed
from remanence.mechanisms.mechanism import Mechanism
from remanence.scale.seeds import stream
from remanence.scoring.rates import SuccessRate


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
    mechanism: Mechanism[Release],
    table: Table,
    *,
    known_data: Records,
    public: Records,
    targets: Records,
    hidden: Sequence[Hashable],
    tolerance: float = 0.25,
    attack: Attack | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Attribute]:
    """Train on the known data and each target in turn, and find the hidden columns from the release and the others.

    The adversary knows the training, `known_data`, records like the targets (`public`), and all columns of the target
    but the hidden ones; a target among the records that they hold is refused. All records are those of one table
    (`Table.read`, `Table.encode`). A number counts as found within `tolerance` standard deviations, a category if it is
    right.
    """
    _check_records(table, {"known_data": known_data, "public": public, "targets": targets})
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise InputError(
            "There is nothing to infer.",
            needs="a list of names of columns",
            got=f"hidden={hidden!r}"[:200],
            hint="hidden=['age']",
        )
    columns = [table.column(name) for name in hidden]
    given = table.places([column.name for column in table.columns if column not in columns])
    if not columns or not given or not 0 < tolerance < 1:
        raise InputError(
            "There is nothing to infer, or nothing to infer it from.",
            needs="at least one hidden column, at least one that is given, and a tolerance above 0 and below 1 "
            "(from 1 on every category is right)",
            got=f"{len(columns)} hidden, {len(table.columns) - len(columns)} given, tolerance {tolerance}",
            hint="hidden=['age']",
        )
    _check_strangers(targets, {"known_data": known_data, "public": public})
    attack = Reconstructor(shadows=2000, steps=1000) if attack is None else attack
    known_data, public, targets = (records.to(device) for records in (known_data, public, targets))
    guesses = []
    for training in (mechanism, None):
        disclosed = Disclosed(training, given)
        knowledge = Knowledge(disclosed, EmpiricalPrior(public), known_data)
        attack.check(knowledge)
        reconstruct = attack.prepare(knowledge, stream(seed, "attack", device))
        generator, chunk = stream(seed, "training", device), disclosed.trials_at_once(targets[:1, None])
        parts = [
            reconstruct(disclosed.release(known_data, targets[start : start + chunk, None], generator))
            for start in range(0, len(targets), chunk)
        ]
        guesses.append(torch.cat([part.records.flat[:, 0] for part in parts]))
    guesses.append(_regressed(concatenate([public, known_data]), targets, list(given)))
    return [_compare(column, targets.flat, guesses, public.flat, tolerance) for column in columns]


def _check_records(table: Table, records: Mapping[str, Records]) -> None:
    """Refuse what are not the table's records, before any time is spent."""
    for name, each in records.items():
        if not isinstance(each, Records) or len(each.batch_shape) != 1 or len(each) == 0:
            got = f"{len(each)} of them" if isinstance(each, Records) else type(each).__name__
        elif each.flat.shape[1] != table.width:
            got = f"records of {each.flat.shape[1]} features"
        else:
            continue
        raise InputError(
            f"The {name} cannot be used.",
            needs=f"Records of the table's {table.width} features, at least one",
            got=got,
            hint="table, records = Table.read(frame, label=...), and table.encode(other) for another frame",
        )


def _check_strangers(targets: Records, held: Mapping[str, Records]) -> None:
    """Refuse targets that the adversary holds already: finding those would be no leak."""
    asked = _rows(targets)
    for name, records in held.items():
        known = set(_rows(records))
        shared = sum(row in known for row in asked)
        if shared:
            raise InputError(
                f"Some targets are also in {name}.",
                needs="targets that the adversary does not hold",
                got=f"{shared} of {len(asked)} targets with the same features and label there",
                hint="split the records: records[:100], records[100:350], records[350:]",
            )


def _rows(records: Records) -> list[tuple[float, ...]]:
    values = torch.cat([records.flat.double(), records.labels.double()[:, None]], 1)
    return [tuple(row) for row in values.tolist()]


def _compare(
    column: Column, targets: Tensor, guesses: Sequence[Tensor], public: Tensor, tolerance: float
) -> Attribute:
    """The first guesses are inferred, the others imputed."""
    constant = _best_guess(column, public, tolerance).expand_as(targets)
    inferred, *imputed = (column.errors(targets, guess) <= tolerance for guess in guesses)
    guessed = column.errors(targets, constant) <= tolerance
    best = max([*imputed, guessed], key=lambda hits: int(hits.sum()))  # in hindsight: in favour of the model
    helped, misled = int((inferred & ~best).sum()), int((best & ~inferred).sum())
    p_value = float(binom.sf(helped - 1, helped + misled, 0.5))  # 1 where nothing differs
    rates = [SuccessRate(int(hits.sum()), len(targets)) for hits in (inferred, best, guessed)]
    return Attribute(column.name, rates[0], rates[1], rates[2], p_value)


def _regressed(held: Records, targets: Records, given: list[int]) -> Tensor:
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


def _best_guess(column: Column, public: Tensor, tolerance: float) -> Tensor:
    """The public record whose value of this column is met by most others."""
    errors = torch.stack([column.errors(public, row) for row in public])
    return public[(errors <= tolerance).sum(1).argmax()]
