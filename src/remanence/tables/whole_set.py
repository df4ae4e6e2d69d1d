"""A whole training set at once: the adversary knows no record, and proposes as many as there were."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.errors import Criterion, Error
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.priors import Prior, Uninformed
from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.protocol import AnyGame, Prepared, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.outcome import Outcome
from remanence.results.parts import part_numbers
from remanence.scale.seeds import Draws
from remanence.tables.fitted import FittedModel
from remanence.tables.leave_one_out import LeaveOneOut

_TABLES = 20  # that are drawn to see what luck finds


@final
@dataclass(frozen=True)
class WholeSet(AnyGame):
    """One model, and all its training records are looked for at once.

    What is proposed has no order, so that it is paired with the true records as well as possible. The control pairs it
    as well with people who were not trained on: as many, drawn column by column from the same table. A guess is such a
    draw instead of what is proposed.
    """

    said: ClassVar[tuple[str, str]] = ("recovered", "records")

    mechanism: Mechanism[Release]  # the training that is audited
    data: Records  # the training set
    criterion: Criterion  # when a proposed record counts
    release: Release  # the model
    known_caveats: tuple[Caveat, ...] = ()
    columns: tuple[str, ...] = ()
    prior: Prior = field(default_factory=Uninformed)  # what the adversary believes about records
    default_trials: int = field(init=False, repr=False)  # every record

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.data))

    @classmethod
    def of(cls, game: LeaveOneOut[FittedModel]) -> WholeSet:
        """The same model and table for an adversary who knows no row, and looks for all."""
        assert game.release is not None
        criterion = replace(
            game.criterion, label_scale=1.0
        )  # rows that are paired are paired with their labels
        mechanism = replace(game.mechanism, others_known=False)
        caveats = game.known_caveats
        return cls(mechanism, game.data, criterion, game.release, caveats, game.columns, game.prior)

    @property
    def knowledge(self) -> Knowledge:
        """No record at all."""
        return Knowledge(self.mechanism, self.prior, None)

    @property
    def proof(self) -> str:
        """Why records that count as proven are facts."""
        return "no table without them gives this forest"

    def caveats(self) -> tuple[Caveat, ...]:
        """The trials share one release."""
        return (ONE_RELEASE, *self.known_caveats)

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """One search finds them all."""
        count = len(self.data)
        return Work(count, count, (replace(self, known_caveats=()),))

    def records(self, trials: int, draws: Draws) -> Tensor:
        """Every record."""
        return torch.arange(len(self.data))

    def trials(self, prepared: Prepared, draws: Draws, unit: Unit) -> Outcome:
        """Pair what was proposed with the true records, and with strangers."""
        found = prepared.for_unit(draws, unit)(self.release)
        strangers = self._drawn(draws.stream("control"))
        order, other = (self._paired(people, found.records[0]) for people in (self.data, strangers))
        truth, others = self.data[:, None], strangers[:, None]
        guess, control = found.records[0][order][:, None], found.records[0][other][:, None]
        numbers = part_numbers(self.criterion.error.parts, (truth, guess), (others, control))
        said = dict(found.diagnostics)
        claimed = said.pop("proven", None)
        numbers |= {name: values.expand(len(self.data)) for name, values in said.items()}
        main = self.criterion.compare(truth, guess)
        proven = None if claimed is None else claimed[0][order] & main.succeeded[:, 0]
        return Outcome(main, self.criterion.compare(others, control), numbers, proven)

    def _paired(self, people: Records, found: Records) -> Tensor:
        """What was found in the order of these people: as many whole records as possible, and then columns."""
        parts = self.criterion.error.parts
        off = [(part(people[:, None], found[None]) > self.criterion.threshold).double() for part in parts]
        wrong = torch.stack(off).sum(0)
        _, partners = linear_sum_assignment((wrong + len(parts) * len(people) * (wrong > 0)).numpy())
        return torch.from_numpy(partners)

    def _drawn(self, generator: torch.Generator) -> Records:
        """As many people who do not exist: each column of each is somebody's."""
        count, width = self.data.flat.shape
        places = torch.randint(count, (count, width + 1), generator=generator)
        features = self.data.flat.gather(0, places[:, :-1])
        return Records(features.view_as(self.data.features), self.data.labels[places[:, -1]])

    def baseline(self, chances: int = 1) -> Baseline:
        """What people find who are drawn without the model, measured."""
        return self._luck(self.criterion)

    def baseline_of(self, part: Error) -> Baseline:
        """The same for one column."""
        return self._luck(replace(self.criterion, error=part, label_scale=None))

    def _luck(self, criterion: Criterion) -> Baseline:
        generator, public = torch.Generator().manual_seed(0), self.prior.samples
        drawn = {"drawn column by column": self._drawn}
        if public is not None:
            drawn["drawn from the public table"] = lambda generator: public[
                torch.randint(len(public), (len(self.data),), generator=generator)
            ]
        found = {}
        for how, draw in drawn.items():
            tables = [draw(generator) for _ in range(_TABLES)]
            guesses = [table[self._paired(self.data, table)][:, None] for table in tables]
            rates = [
                criterion.compare(self.data[:, None], guess).succeeded.double().mean() for guess in guesses
            ]
            found[how] = torch.stack(rates)
        best = max(found, key=lambda how: float(found[how].mean()))
        note = f"measured on {_TABLES} tables that were {best}"
        return Baseline(float(found[best].max()), float(found[best].mean()), note)
