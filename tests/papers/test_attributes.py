"""Attribute inference: what the model adds to what the other columns say anyway."""

import numpy as np
import pytest
import torch

from remanence import Reconstructor, Records, Weights, looped
from remanence_papers.balle_attributes import Held, compared, infer, read_table, regressed

QUICK = Reconstructor(shadows=400, steps=200, batch=64, width=64)


def inferred(train, hidden):
    """Income follows age; the blood group and the lucky number follow nothing."""
    draw, count = np.random.default_rng(0), 700
    age = draw.normal(50, 10, count)
    people = {"age": age, "income": 1000 * age, "blood": draw.choice(["A", "B", "0"], count)}
    people["luck"] = draw.normal(0, 3, count)
    columns, records = read_table(people, draw.integers(0, 2, count), ["blood"])
    held = Held(records[:50], records[50:550], records[550:])
    return infer(looped(train, releases=Weights), held, columns, hidden, QUICK)


def test_a_model_that_shows_its_sums_gives_columns_away_that_nothing_else_does():
    found = inferred(lambda records, seed: {"sum": records.features.sum(0)}, ["blood", "luck"])
    for cells in found.values():  # 150 targets
        assert cells["inferred"]["lower"] > 0.8
        assert cells["inferred"]["lower"] > max(cells["imputed"]["upper"], cells["guessed"]["upper"])
        assert cells["p"] < 1e-6
    assert found["blood"]["imputed"]["upper"] < 0.6  # one of three groups
    assert found["luck"]["guessed"]["upper"] < 0.4  # within a quarter of a standard deviation: 0.2


def test_columns_that_follow_from_the_others_are_imputed_as_well():
    found = inferred(lambda records, seed: {"sum": records.features[:, :1].sum(0)}, ["income", "blood"])
    assert found["income"]["inferred"]["lower"] > 0.9
    assert found["income"]["imputed"]["lower"] > 0.9
    assert min(cells["p"] for cells in found.values()) > 0.001


def test_the_sign_test_is_exact():
    wrong, mixed = torch.zeros(4, dtype=torch.bool), torch.tensor([True, True, True, False])
    assert compared(mixed, [wrong])["p"] == pytest.approx(1 / 8)
    assert compared(wrong, [mixed])["p"] == 1
    assert compared(wrong, [wrong])["p"] == 1
    assert compared(mixed, [mixed, wrong])["p"] == 1  # the better imputation counts


def test_a_regression_imputes_what_is_linear_in_the_other_columns_and_the_label():
    generator = torch.Generator().manual_seed(0)
    given, labels = torch.randn(300, 2, generator=generator), torch.arange(300) % 3
    hidden = given @ torch.tensor([[1.0], [-2.0]]) + 2 * (labels[:, None] == 1).float()
    records = Records(torch.cat([given, hidden], 1), labels)
    found = regressed(records[:200], records[200:], [0, 1])
    torch.testing.assert_close(found, records[200:].flat, atol=0.1, rtol=0)
    blind = Records(records.flat, torch.zeros(300, dtype=torch.int64))
    for less in (regressed(records[:200], records[200:], [0]), regressed(blind[:200], blind[200:], [0, 1])):
        assert not torch.allclose(less, records[200:].flat, atol=0.1)
