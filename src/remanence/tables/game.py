"""Per-record exposure: every record of a training set plays the target in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack, ExposesAll, ExposesInParts, Reconstruction, blindly
from remanence.core.baseline import Baseline
from remanence.core.checks import whole
from remanence.core.errors import Comparison, Criterion, Error, Reduction
from remanence.core.exceptions import InputError, MisfitError
from remanence.core.knowledge import Given, Knowledge
from remanence.core.priors import Uninformed
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.protocol import AnyGame, MechanismT, Unit, Work
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Gallery, Outcome, gather
from remanence.scale.progress import track
from remanence.scale.run import Run
from remanence.scale.seeds import Draws, stream
from remanence.tables.attacks import FromObject
from remanence.tables.glm.closed_form import NUMBERS_AT_ONCE
from remanence.tables.mechanism import FittedModel, Fitting
from remanence.tables.single_columns import Columns, part_numbers, part_rates

_SHOWN = 30  # reconstructions in a gallery
_AT_ONCE = 32  # records in a unit, where each is attacked on its own
_COPIED = 32  # times as many numbers as are held at once may be copied
_LOOKED_AT = 8  # records of a pass over all that are attacked on their own too
_FEW = 30  # records, at most, with which the model is trained again: no interval decides on so few
_SAME_MODEL = 1e-3  # of the change that another record in its place makes


@final
@dataclass(frozen=True)
class _Model:
    """The release whose records are attacked, its distance from its optimum, and the attack."""

    attack: Attack
    release: Release
    remaining_gradient: Tensor | None


@final
@dataclass(frozen=True)
class LeaveOneOut(AnyGame[MechanismT]):
    """One model, and every record of its training set plays the target in turn.

    The adversary of each trial is informed: they know all the other records. This audits a model
    that exists, `release`; if it is omitted, the mechanism trains one.
    The control compares each finding with another record, and findings in a model that never saw the record with
    that record. An attack that exposes all records in one pass is checked instead: it must find some of them
    without access to the record itself.
    """

    door: ClassVar[str] = "tables"

    mechanism: MechanismT  # the training that is audited
    data: Records  # the training set; each record in turn is the target
    criterion: Criterion = Criterion()  # when a reconstruction counts
    release: Release | None = None  # the model; if omitted, the mechanism trains one
    known_caveats: tuple[Caveat, ...] = ()  # caveats known beforehand
    bounds: tuple[Bound, ...] = ()  # ceilings that are proven for this game
    given: Given | None = None  # what the adversary knows of the missing record itself
    others_known: bool = True  # whether the adversary knows the other records
    columns: tuple[str, ...] = ()  # names of the features, for the private page
    fitting: Fitting | None = field(
        default=None, compare=False, repr=False
    )  # whether the model is this table's
    default_trials: int = field(init=False, repr=False)  # every record

    def __post_init__(self) -> None:
        whole("number of records", len(self.data), least=2, hint="more data: one record is left out")
        self.data.require_finite("data")
        object.__setattr__(self, "default_trials", len(self.data))

    @property
    def words(self) -> Words:
        """Trials are records of the table, by their positions."""
        less = "Release less. Answers instead of weights, or fewer columns, give an attack less to work with."
        counts, tests = "", ()
        if self.tests_more:
            number = f"a number to within {self.criterion.threshold:.2g} standard deviations"
            column = f"A column counts if it is right: {number}, a category exactly."
            counts = f"{column} A record counts if all of its columns do."
            tests = ("attribute inference",)
        because = self.mechanism.held_because
        if self._trains_again:
            because += ", or training with them gives the model again"
        return Words("recovered", "records", because, counts=counts, less=less, tests=tests, by_record=True)

    @property
    def tests_more(self) -> bool:
        """Columns are also counted separately."""
        return bool(self.criterion.error.parts)

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """Single columns, next to a guess from the other records."""
        guesses, threshold = self._guesses, self.criterion.threshold
        return (Columns(part_rates(outcome.numbers, guesses, threshold, confidence)),) if guesses else ()

    def fits(self) -> None:
        """The model has finite numbers, and was fitted on these data."""
        if self.release is None:
            return
        if self.release.not_finite().any():
            raise MisfitError(
                "The model is not a trained one.",
                needs="finite numbers in all its parameters",
                got="NaN or infinite ones",
                hint="train it again, with scaled features or a smaller rate",
            )
        if self.fitting is not None:
            self.fitting.check()

    @property
    def knowledge(self) -> Knowledge:
        """What the adversary has when the first record is the target."""
        return self._knowledge_of(self.data, 0, self.data[1:])

    def _knowledge_of(self, data: Records, index: int, others: Records) -> Knowledge:
        given = self.given
        if given is not None:
            given = replace(given, record=given.kept(data[index : index + 1], others[:1]))
        return Knowledge(self.mechanism, Uninformed(), others if self.others_known else None, given, index)

    def contract(self, attack: Attack) -> None:
        """Verify that `expose` and `prepare` on the other records agree, whatever the record is."""
        from remanence.testing import check_reconstruction, close, require

        first = self.data[:1][None]
        release = self.release or self.mechanism.release(self.data[1:], first, stream(0, "training", "cpu"))
        exposes = attack.expose if isinstance(attack, ExposesAll) else None
        everyone = None if exposes is None else exposes(self.mechanism, self.data, release).records
        for index in range(0, len(self.data), max(1, len(self.data) // 6)):
            knowledge = replace(self.knowledge, known_data=self.data.without(index))
            alone = attack.prepare(knowledge, stream(0, "attack", "cpu"))(release).records
            check_reconstruction(alone, 1, first)
            if exposes is None or everyone is None:
                continue
            chosen = slice(index, index + 1)
            require(close(everyone[chosen], alone), f"record {index}: exposing all agrees with exposing one")
            swapped = torch.arange(len(self.data))
            swapped[index] = (index + 1) % len(self.data)
            blind = exposes(self.mechanism, self.data[swapped], release).records
            require(close(blind[chosen], alone), f"record {index} has no influence on its own reconstruction")

    def baseline(self, chances: int = 1) -> Baseline:
        """The success of the best guess from the other records, measured."""
        return self._guess([self.criterion])[0]

    @cached_property
    def _guesses(self) -> dict[str, float]:
        """The guess for each column: the same for every attack."""
        parts = self.criterion.error.parts
        criteria = [replace(self.criterion, error=part, label_scale=None) for part in parts]
        return {part.name: guess.seen for part, guess in zip(parts, self._guess(criteria), strict=True)}

    def _guess(self, criteria: Sequence[Criterion]) -> list[Baseline]:
        # If the others are unknown too, this overstates the guess, so no attack looks better for it.
        given = None if self.given is None else self.given.error
        return guesses_from_others(self.data, criteria, given)

    def caveats(self) -> tuple[Caveat, ...]:
        """The trials share one release."""
        fitted = () if self.fitting is None else self.fitting.caveats()
        return (ONE_RELEASE, *self.known_caveats, *fitted)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the data, and of the model where one was handed in."""
        if self.release is None:
            return super().fingerprints()
        return {**super().fingerprints(), "release": self.release.sha256()}

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All records, or as many of them, drawn at random, as there are trials; one unit where one pass does all."""
        total = min(trials, len(self.data))
        at_once = total if isinstance(attack, ExposesAll) else _AT_ONCE
        own = replace(self, bounds=(), known_caveats=())
        return Work(total, at_once, (own, total))  # which records are drawn depends on how many

    def records(self, trials: int, draws: Draws) -> Tensor:
        """The records that play the target."""
        count = len(self.data)
        if trials >= count:
            return torch.arange(count)
        order = torch.randperm(count, generator=replace(draws, device="cpu").stream("targets"))
        return order[:trials].sort().values

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> _Model:
        """The model, trained where none was handed in. Each trial has an adversary of its own."""
        known, first = self.data[1:], self.data[:1][None]
        release = self.release or self.mechanism.release(known, first, draws.stream("training"))
        return _Model(attack, release, self.mechanism.remaining_gradient(known, first, release))

    def trials(self, prepared: _Model, draws: Draws, unit: Unit) -> Outcome:
        """Compare the attack's finding for each record with that record, and with another one."""
        count, chosen, attack = len(self.data), unit.records, prepared.attack
        assert chosen is not None
        shift = int(torch.randint(1, count, (), generator=replace(draws, device="cpu").stream("control")))
        if not isinstance(attack, ExposesAll):
            outcome = self._one_by_one(prepared, chosen, (chosen + shift) % count, draws, shows=unit.shows)
        else:
            whole_table = self.mechanism, self.data, prepared.release
            in_parts = isinstance(attack, ExposesInParts)
            find = attack.exposer(*whole_table) if in_parts else attack.expose(*whole_table).take
            parts = chosen.split(self._rows)  # a reconstruction is as large as the record
            found = (
                self._held_against(prepared, p, (p + shift) % count, find(p), shows=unit.shows).tensors()
                for p in track(parts, total=len(parts), what=f"playing {attack.info.name}")
            )
            outcome = Outcome.of(gather(found, len(chosen)))
            self._require_blind(prepared, chosen, outcome.main, draws)
        held, model, read = self.mechanism.held_rows(self.data), self.mechanism, None
        if held is None:
            return outcome
        met = outcome.main.succeeded[:, 0].cpu()  # rows that the object holds are facts
        if isinstance(attack, FromObject) and isinstance(model, FittedModel):
            read = attack.read_off(model, self.data)
        if read is not None:
            met = met | self.criterion.compare(self.data[chosen[:, None]], read[chosen]).succeeded[:, 0]
        proven = held[chosen] & met
        return replace(outcome, proven=proven if outcome.proven is None else proven | outcome.proven)

    def _held_against(
        self,
        prepared: _Model,
        chosen: Tensor,
        others: Tensor,
        guess: Reconstruction,
        without: Records | None = None,
        *,
        shows: bool,
    ) -> Outcome:
        targets, strangers = self.data[chosen[:, None]], self.data[others[:, None]]
        main = self.criterion.compare(targets, guess.records)
        control = self.criterion.compare(strangers, guess.records)
        if without is not None:  # a success of either is a success
            alone = self.criterion.compare(targets, without)
            control = Comparison(
                errors=torch.minimum(control.errors, alone.errors),
                labels_agree=control.labels_agree | alone.labels_agree,
                succeeded=control.succeeded | alone.succeeded,
            )
        left, numbers = prepared.remaining_gradient, guess.numbers()
        both = (targets, guess.records), (strangers, guess.records)
        numbers |= part_numbers(self.criterion.error.parts, *both)
        shown = (records.features[:_SHOWN, 0] for records in (targets, guess.records, strangers))
        return Outcome(
            main=main,
            control=control,
            numbers=numbers if left is None else {**numbers, "remaining_gradient": left.expand(len(chosen))},
            proven=self._proven_by_training(main, chosen, others, guess) if self._trains_again else None,
            gallery=Gallery(*shown, succeeded=main.succeeded[:_SHOWN, 0]) if shows else None,
            claims_labels=not bool(guess.records.labels.isnan().all()),
        )

    @property
    def _trains_again(self) -> bool:
        """Whether the records are few enough to train the model again with each of them."""
        return self.fitting is not None and len(self.data) <= _FEW and self.data.weights is None

    def _proven_by_training(
        self, main: Comparison, chosen: Tensor, others: Tensor, guess: Reconstruction
    ) -> Tensor:
        """Which recovered records give the same model when it is trained with them, where a stranger does not.

        Reconstructions are not exact to the last bit, so a thousandth of what the stranger changes is allowed.
        """
        proven = torch.zeros(len(chosen), dtype=torch.bool)
        for trial in main.succeeded[:, 0].nonzero()[:, 0].tolist():
            place, found = int(chosen[trial]), guess.records[trial, :1]
            own = self.data.labels[place].to(found.labels.dtype)  # of an attack that claims no label
            found = replace(found, labels=found.labels.where(~found.labels.isnan(), own))
            stranger = self.data[others[trial : trial + 1]]
            with_found, with_stranger = (self._off(place, record) for record in (found, stranger))
            proven[trial] = 0 < with_stranger < torch.inf and with_found <= _SAME_MODEL * with_stranger
        return proven

    def _off(self, place: int, record: Records) -> float:
        """How far the model is from the one that training with another record in that place gives."""
        assert self.release is not None
        data = concatenate([self.data[:place], record, self.data[place + 1 :]])
        try:
            again = self.mechanism.release(data[:-1], data[-1:][None], torch.Generator())
            apart = [(values - again[name]).norm() for name, values in self.release.tensors.items()]
            return float(torch.stack(apart).norm())
        except Exception:  # noqa: BLE001 - training that fails, or gives another size, explains nothing
            return torch.inf

    def _one_by_one(
        self, model: _Model, chosen: Tensor, others: Tensor, draws: Draws, *, shows: bool
    ) -> Outcome:
        """Compare what is found for each record, and what is found in a model that never saw it.

        The others alone may give a record away (all appear twice, or sum to zero), which is not a leak of
        the model. The attack gets both releases together, in an order that a coin decides.
        """
        coins, trainings = draws.stream("coins"), draws.stream("control")
        found, without = [], []
        pairs = zip(chosen.tolist(), others.tolist(), strict=True)
        for index, other in track(pairs, total=len(chosen), what=f"playing {model.attack.info.name}"):
            known = self.data.without(index)
            decoy = self.mechanism.release(known, self.data[other : other + 1][None], trainings)
            knowledge = self._knowledge_of(self.data, index, known)
            reconstruct = model.attack.prepare(knowledge, draws.stream("attack"))
            guess, nothing = blindly(reconstruct, model.release, decoy, coins)
            found.append(guess.records)
            without.append(nothing.records)
        guess = Reconstruction(concatenate(found))
        return self._held_against(model, chosen, others, guess, concatenate(without), shows=shows)

    def _require_blind(self, model: _Model, chosen: Tensor, main: Comparison, draws: Draws) -> None:
        """Some records found in one pass must also be found without access to the record itself.

        A table that is too large to be copied without a record is looked at in part. The model was not fitted on that
        part, so the records found there are meaningless; they must be the same with the record shown and without.
        """
        fixed, data = replace(draws, device="cpu").stream("coins"), self.data
        hits = main.succeeded[:, 0].cpu().nonzero()[:, 0]
        if not self.others_known:
            return  # only the release is read
        places = chosen[hits[torch.randperm(len(hits), generator=fixed)[:_LOOKED_AT]]]
        wanted, names = data, places.tolist()
        if isinstance(model.attack, ExposesInParts) and len(data) > _COPIED * self._rows:
            some = torch.arange(self._rows)
            data = data[torch.cat([places, some[~torch.isin(some, places)]])]
            places = torch.arange(len(places))
            wanted = model.attack.expose(self.mechanism, data, model.release).records[:, places.new_zeros(())]
        for name, index in zip(names, places.tolist(), strict=True):
            knowledge = self._knowledge_of(data, index, data.without(index))
            alone = model.attack.prepare(knowledge, draws.stream("attack"))(model.release).records
            comparison = self.criterion.compare(wanted[index : index + 1][None], alone)
            if not bool(
                comparison.succeeded.all() | (comparison.errors <= 10 * self.criterion.threshold).all()
            ):
                raise InputError(
                    f"The attack {model.attack.info.name} finds record {name} only while it looks at it.",
                    needs="`expose` and `prepare` on the other records to agree for each record",
                    got=f"an error of {float(comparison.errors.max()):.3g} without it",
                    hint="remanence.testing.check_attack tells what an attack may look at",
                )

    @property
    def _rows(self) -> int:
        """Records to attack at once, if the attack can work on a part of them."""
        return max(1, NUMBERS_AT_ONCE // self.data.flat.shape[-1])


_GUESSED = 500  # records that play the target, and that serve as guesses
_PAIRS = 2**25  # numbers of all pairs of these


def guesses_from_others(
    data: Records, criteria: Sequence[Criterion], given: Error | None = None
) -> list[Baseline]:
    """How often the best of a few guesses is right by each criterion, measured on the records themselves.

    The guesses are the record that meets most of the others, the record nearest to their mean, and that mean. Where
    some columns of the missing record are `given`, the other record that is nearest in these is a guess as well.

    >>> yes_or_no = Records(torch.tensor([[1.0]] * 9 + [[0.0]]), torch.zeros(10))
    >>> guesses_from_others(yes_or_no, [Criterion(threshold=0.1)])[0].value
    0.9
    """
    count, width = len(data), data.flat.shape[-1]
    most = min(count, _GUESSED, max(2, int((_PAIRS / width) ** 0.5)))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values
    asked, flat = data[chosen], data.flat.double()
    means = (flat.sum(0) - asked.flat.double()) / (count - 1)
    own = torch.eye(len(asked), dtype=torch.bool, device=flat.device)
    spread = flat.std(0, correction=0).clamp(min=1e-300)
    distance = torch.cdist(means / spread, asked.flat.double() / spread).masked_fill(own, torch.inf)
    shared = {"the record nearest to the others' mean": asked[distance.argmin(1)]}
    if given is not None:
        apart = torch.stack([part(asked[:, None], asked[None]) for part in given.parts]).sum(0)
        shared["the record nearest in the given columns"] = asked[apart.masked_fill(own, torch.inf).argmin(1)]
    share = "all" if len(asked) == count else f"{len(asked)} of the"
    found = []
    for criterion in criteria:
        each = replace(criterion, reduction=Reduction.EACH)
        right = _meets(each, asked)  # (asked, guessed)
        common = asked[(right.sum(0) - right.int()).masked_fill(own, -1).argmax(1)]
        mean = replace(common, features=means.view_as(asked.features).to(asked.features.dtype))
        guesses = {"the commonest other record": common, "the others' mean": mean, **shared}
        rates = {
            name: float(each.compare(asked[:, None], guess[:, None]).succeeded.double().mean())
            for name, guess in guesses.items()
        }
        best = max(rates, key=rates.__getitem__)
        note = f"measured on {share} {count} records: {best}, from the known records alone"
        found.append(Baseline(rates[best], rates[best], note))
    return found


def _meets(criterion: Criterion, records: Records) -> Tensor:
    """Which record (column) would be a right guess for which (row)."""
    rows = max(1, NUMBERS_AT_ONCE // (len(records) * records.flat.shape[-1]))
    return torch.cat([criterion.meets(part, records) for part in records.split(rows)])
