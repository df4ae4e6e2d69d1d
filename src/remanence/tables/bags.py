"""Texts as a vectorizer sees them: which words, how often, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.pipeline import Pipeline

from remanence.tables.members import members_of, places_of
from remanence.tables.rows import column_values, is_gap

_REPEATED = 5  # times that a text's commonest word is there, at most, where only proportions are known
_OFF = 0.25  # from a whole number of times


def vectorizers(estimator: Any, features: Any) -> dict[int, CountVectorizer]:
    """The columns that are read as single words, in any order, and what counts these."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[0][1]
    if isinstance(estimator, CountVectorizer):
        single = estimator.analyzer == "word" and tuple(estimator.ngram_range) == (1, 1)
        return {0: estimator} if single and features.shape[1] == 1 else {}
    found: dict[int, CountVectorizer] = {}
    if estimator is None or isinstance(estimator, str):
        return found
    for member in members_of(estimator, features, None, None) or []:
        places = places_of(features, member.columns)
        found |= {
            int(places[place]): held
            for place, held in vectorizers(member.estimator, member.sees(features)).items()
        }
    return found


def as_bags(table: Any, read: dict[int, CountVectorizer]) -> Any:
    """The table with the words of these columns in their order of the alphabet: what was counted is the same."""
    table = table.copy()
    for place, vectorizer in read.items():
        words, split = vectorizer.vocabulary_, vectorizer.build_analyzer()
        bags = np.array(
            [
                text if is_gap(text) else " ".join(sorted(word for word in split(text) if word in words))
                for text in column_values(table, place).tolist()
            ]
            + [None],
            dtype=object,
        )[:-1]
        if hasattr(table, "iloc"):
            table[table.columns[place]] = bags
        else:
            table[:, place] = bags
    return table


def text_of_counts(vectorizer: CountVectorizer, numbers: np.ndarray) -> str | None:
    """The words behind a row of counts, or of weighted and scaled ones; None where it is no such row."""
    if np.isnan(numbers).any():
        return None
    if isinstance(vectorizer, TfidfVectorizer):
        if vectorizer.sublinear_tf:
            return None
        numbers = numbers / vectorizer.idf_ if vectorizer.use_idf else numbers
        if vectorizer.norm is not None and (most := float(numbers.max(initial=0.0))) > 0:
            tried = [numbers * times / most for times in range(1, _REPEATED + 1)]
            fits = [each for each in tried if np.abs(each - np.round(each)).max() <= _OFF]
            numbers = (fits or tried)[0]
    times = np.round(numbers).clip(0).astype(int)
    words = vectorizer.get_feature_names_out()
    return " ".join(sorted(np.repeat(words, times).tolist()))
