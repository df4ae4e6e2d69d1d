"""Words that the equations of a linear model leave open, decided together: which row explains what is left of them?

Solved one feature at a time, equations that hold only roughly (a default tolerance) give rough numbers. But most of a
row is often known better: a scaler gives its numbers exactly. Then only the words and the label are open, and each of
them is tried: the row with it goes through the pipeline, and its gradient is held against what the others leave over,
in units of what records usually pull. Where a solver stopped early, the few likeliest rows are trained on, each with
the others: only the true one makes the solver stop at the very same place. For row i, only the other rows are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from remanence.core.records import Records
from remanence.scale.progress import track
from remanence.tables.clues import matrix_of
from remanence.tables.equations import Equations
from remanence.tables.fitted import FittedModel
from remanence.tables.left_over import LeftOver
from remanence.tables.parts import Part, parts_of
from remanence.tables.rows import RowColumn
from remanence.tables.second_fit import refit

_SWEEPS = 2  # over the open columns: each is decided with the others as they stand
_WORDS = 100  # of a column that are tried; more are texts or names
_COMBINATIONS = 2000  # of one row's open words, that are ranked
_SAME_FIT = 1e-6  # of the largest coefficient: no other row stops there
_MODELS = 3  # whose equations are held together
_TIE = 1e-12  # for each row that has a word: the commoner one is tried first


def explained(
    mechanism: FittedModel, whole: Part, guess: Records, sure: np.ndarray, plans: list, only: np.ndarray
) -> Records:
    """The guess with its open words and labels decided together, for `only` these rows.

    `sure` says which columns are known otherwise, `(rows, columns)`.
    """
    models = list(_models(mechanism, whole, plans))
    features, codes = guess.flat.numpy().copy(), guess.labels.numpy().copy()
    numbers = np.array([not column.categories for column in mechanism.rows.columns])
    rows = only[
        sure[only][:, numbers].all(1)
    ]  # with rough numbers beside them, words are better read off one by one
    if not models:
        return guess
    search = _Search(mechanism, models, mechanism.rows.encode(whole.features), sure)
    if len(rows):
        features[rows], labels = search.likeliest(rows, features[rows])
        if mechanism.classes:
            codes[rows] = labels
            if models[0].plan.rough:
                features[rows], codes[rows] = search.retrained(rows, features[rows], codes[rows])
    if mechanism.public is not None and models[0].plan.rough:
        features[only], codes[only] = search.among(mechanism.public, only, features[only], codes[only])
    return Records(torch.from_numpy(features), torch.from_numpy(codes))


def _models(mechanism: FittedModel, whole: Part, plans: list) -> Iterator[LeftOver]:
    wanted = {path: plan for path, plan in plans if isinstance(plan, Equations)}
    every = parts_of(mechanism.estimator, whole.features, whole.labels, whole.weights)
    parts = (part for part in every if part.path in wanted and part.rows is None)
    for part, _ in zip(parts, range(_MODELS), strict=False):
        found = LeftOver.of(wanted[part.path], part)
        # One model of several for a class each sees other labels.
        if found is not None and np.array_equal(found.labels, mechanism.codes(np.asarray(whole.labels))):
            yield found


@dataclass(frozen=True)
class _Search:
    """Rows that explain what is left of the equations, the best first."""

    mechanism: FittedModel
    models: list[LeftOver]
    own: np.ndarray  # (rows, features), the table: whether a word is others' too
    sure: np.ndarray  # (rows, columns)

    @property
    def answers(self) -> list[int | None]:
        """The labels to try; none where the label is a number."""
        return list(range(len(self.mechanism.classes))) or [None]

    def likeliest(self, rows: np.ndarray, guesses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The guesses with one open column after the other decided, and the label, for all rows at once."""
        kept, places = guesses.copy(), np.arange(len(rows))
        kept[:, self._words] = np.nan_to_num(kept[:, self._words])  # something to begin with
        labels = self._scores(kept[None], rows)[0].argmin(0)  # where no word is open, that is all
        for _ in range(_SWEEPS):
            for column, open_ in self._open(rows):
                options = np.stack([_with(kept, column, word, open_) for word in _tried(column)])
                scores = self._scores(options, rows) + self._doubts(options, rows, kept)[:, None]
                best = scores.reshape(-1, len(rows)).argmin(0)
                kept, labels = options[best // len(self.answers), places], best % len(self.answers)
        return kept, labels.astype(np.float64)

    def ranked(self, row: int, guess: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every combination of one row's open words and labels, the likeliest first; none if there are too many."""
        columns = [column for column, open_ in self._open(np.array([row])) if open_[0]]
        if math.prod(len(_tried(column)) for column in columns) > _COMBINATIONS:
            return guess[None][:0], np.zeros(0)
        options = guess[None].copy()
        for column in columns:
            every = np.ones(len(options), dtype=bool)
            options = np.concatenate([_with(options, column, word, every) for word in _tried(column)])
        doubts = self._doubts(options[:, None], np.array([row]), guess[None])
        scores = (self._scores(options[:, None], np.array([row])) + doubts[:, None])[:, :, 0]
        order = scores.ravel().argsort()
        order = order[np.isfinite(scores.ravel()[order])]
        return options[order // len(self.answers)], (order % len(self.answers)).astype(np.float64)

    @property
    def _words(self) -> list[int]:
        return [column.start for column in self.mechanism.rows.columns if column.categories]

    def _open(self, rows: np.ndarray) -> Iterator[tuple[RowColumn, np.ndarray]]:
        """Columns of words, and for which rows each is open."""
        for place, column in enumerate(self.mechanism.rows.columns):
            if 0 < len(column.categories) <= _WORDS and not self.sure[rows, place].all():
                yield column, ~self.sure[rows, place]

    def _doubts(self, options: np.ndarray, rows: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        """Infinite for a word that no other row has, unless it was read off the object; the commoner the less."""
        total = np.zeros(options.shape[:2])
        for column in self.mechanism.rows.columns:
            if column.categories:
                place, words = column.start, options[..., column.start].astype(int)
                held = np.bincount(self.own[:, place].astype(int), minlength=len(column.categories))
                others = held[words] - (self.own[rows, place] == words)
                total -= _TIE * others
                total[(others == 0) & (words != guesses[:, place])] = np.inf
        return total

    def _scores(self, options: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """How far each option with each label is from explaining what is left, `(options, labels, rows)`."""
        behind = self._behind(options)
        total = np.zeros((len(options), len(self.answers), len(rows)))
        for model in self.models:
            for place, answer in enumerate(self.answers):
                found = model.distances(behind.get(model.part.path), np.tile(rows, len(options)), answer)
                total[:, place] += found.reshape(len(options), len(rows))
        return total

    def _behind(self, options: np.ndarray) -> dict[str, Any]:
        """The options as each estimator within the pipeline sees them."""
        table = self.mechanism.rows.decode(options.reshape(-1, options.shape[-1]))
        return {part.path: part.features for part in parts_of(self.mechanism.estimator, table, None)}

    def retrained(
        self, rows: np.ndarray, guesses: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The guesses, or what gives the released coefficients more nearly when it is trained on with the others."""
        found, answers, fits = guesses.copy(), labels.copy(), self.models[0].affordable
        open_ = []
        for number, row in enumerate(rows.tolist()):
            if fits <= 0:
                break
            fits -= 1
            if not self._stops_there(row, guesses[number : number + 1], labels[number : number + 1])[1]:
                open_.append((number, row))
        each = fits // max(1, len(open_))
        for number, row in track(open_, total=len(open_), what="training with each candidate"):
            options, tried = (values[:each] for values in self.ranked(row, guesses[number]))
            if len(options):
                best, _ = self._stops_there(row, options, tried)
                found[number], answers[number] = options[best], tried[best]
        return found, answers

    def among(
        self, public: Records, rows: np.ndarray, guesses: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The guesses, or the public row with which training stops where the released model stands."""
        found, answers, model = guesses.copy(), labels.copy(), self.models[0]
        told = public.labels.double().numpy()
        asked = self.answers if np.isnan(told).all() else [None]
        options = np.tile(public.flat.numpy(), (len(asked), 1))
        tried = np.concatenate(
            [told if answer is None else np.full(len(told), float(answer)) for answer in asked]
        )
        given = [
            column.start for column in self.mechanism.rows.columns if column.name in self.mechanism.given
        ]
        behind = matrix_of(self._behind(options)[model.part.path])
        for number, row in track(
            list(enumerate(rows.tolist())), total=len(rows), what="training with public rows"
        ):
            off = np.full(len(options), np.inf)
            for answer in self.answers:
                own = np.flatnonzero(tried == answer if answer is not None else ~np.isnan(tried))
                if len(own) and behind is not None:
                    off[own] = model.distances(behind[own], np.full(len(own), row), answer)
            off[(options[:, given] != guesses[number, given]).any(1)] = np.inf
            order = off.argsort()[: max(1, model.affordable // len(rows))]
            order = order[np.isfinite(off[order])]
            if len(order):
                best, there = self._stops_there(row, options[order], tried[order])
                if there:
                    found[number], answers[number] = options[order[best]], tried[order[best]]
        return found, answers

    def _stops_there(self, row: int, options: np.ndarray, labels: np.ndarray) -> tuple[int, bool]:
        """Which option, trained on with the other rows, stops nearest to the released model, and whether there."""
        part = self.models[0].part
        released, seen = _coefficients(part.estimator), matrix_of(self._behind(options)[part.path])
        table, answers = matrix_of(part.features), np.array(part.labels)
        assert table is not None
        assert seen is not None
        nearest, best = np.inf, 0
        for option, (values, label) in enumerate(zip(seen, labels, strict=True)):
            classes = np.asarray(part.estimator.classes_) if self.mechanism.classes else None
            table[row], answers[row] = values, label if classes is None else classes[int(label)]
            fitted = refit(replace(part, features=table, labels=answers))
            off = np.inf if fitted is None else float(np.abs(_coefficients(fitted) - released).max())
            if off < nearest:
                nearest, best = off, option
            if nearest <= _SAME_FIT * float(np.abs(released).max()):
                return best, True
        return best, False


def _tried(column: RowColumn) -> list[int]:
    """The codes of a column's words, and −1 for a gap where it has any."""
    return [*range(len(column.categories)), *([-1] if column.gaps else [])]


def _with(rows: np.ndarray, column: RowColumn, word: int, where: np.ndarray) -> np.ndarray:
    """These rows with another word in a column."""
    changed = rows.copy()
    changed[where, column.start] = max(word, 0)
    if column.gaps:
        changed[where, column.start + 1] = float(word < 0)
    return changed


def _coefficients(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])
