"""Models that hold their rows are found by looking: all of them, and none of the others."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn.cluster import DBSCAN
from sklearn.datasets import load_breast_cancer
from sklearn.impute import KNNImputer
from sklearn.naive_bayes import GaussianNB

from remanence.tables.parts import Part
from remanence.tables.stored import stored_rows

place = Path(__file__).parents[2] / "benchmarks" / "tables.py"
spec = importlib.util.spec_from_file_location("table_benchmark", place)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

X, Y = load_breast_cancer(return_X_y=True)
X, Y = X[:150], Y[:150] + 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", benchmark.HOLDERS, ids=lambda m: repr(m)[:30])
def test_a_model_that_holds_rows_is_named_with_its_attribute(model):
    found = benchmark.held_by(model, X, Y)
    assert found
    assert all(each.path.startswith("model.") and each.count >= 2 for each in found)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", benchmark.OTHERS, ids=lambda m: repr(m)[:30])
def test_a_model_that_holds_none_is_not_named(model):
    assert not benchmark.held_by(model, X, Y)


def test_rows_are_found_in_objects_that_nobody_listed():
    assert [found.path for found in stored_rows(Part("model", KNNImputer().fit(X), X, None))] == [
        "model._fit_X"
    ]
    clusters = DBSCAN(eps=200).fit(X)
    (found,) = stored_rows(Part("model", clusters, X, None))
    assert found.path == "model.components_"
    assert found.count == len(clusters.components_)


def test_a_table_of_few_patterns_is_not_found_in_every_array_of_bits():
    bits = (np.random.default_rng(0).random((200, 2)) < 0.5).astype(float)
    assert not stored_rows(Part("model", GaussianNB().fit(bits, bits[:, 0]), bits, bits[:, 0]))
