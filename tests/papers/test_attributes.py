"""Attribute inference: what the model adds to what the other columns say anyway."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

from remanence import (
    GLM,
    AuditResult,
    Gaussian,
    InputError,
    Policy,
    Reconstructor,
    Records,
    Verdict,
    Weights,
    audit,
    looped,
)
from remanence.core.records import concatenate
from remanence.report.words import not_covered
from remanence_papers.attribute_tables import Table
from remanence_papers.attributes import (
    Attributes,
    Disclosed,
    SplitTable,
    _compare,
    infer_attributes,
    regressed,
)

QUICK = Reconstructor(shadows=400, steps=200, batch=64, width=64)


def people(count=700, seed=0):
    """Income follows age; the blood group and the lucky number follow nothing."""
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 10, count)
    return {
        "age": age,
        "income": 1000 * age,
        "blood": draw.choice(["A", "B", "0"], count),
        "luck": draw.normal(0, 3, count),
        "ill": draw.integers(0, 2, count),
    }


def inferred(train, hidden):
    table, records = Table.read(people(), label="ill")
    known, public, targets = records[:50], records[50:550], records[550:]
    game = Attributes(looped(train, releases=Weights), SplitTable(table, known, public, targets), hidden)
    return {attribute.name: attribute for attribute in infer_attributes(game, QUICK)}


def test_a_model_that_shows_its_sums_gives_columns_away_that_nothing_else_does():
    found = inferred(lambda records, seed: {"sum": records.features.sum(0)}, ["blood", "luck"])
    for attribute in found.values():  # 150 targets
        assert attribute.inferred.lower > 0.8
        assert attribute.inferred.lower > max(attribute.imputed.upper, attribute.guessed.upper)
        assert attribute.p_value < 1e-6
    assert found["blood"].imputed.upper < 0.6  # one of three groups
    assert found["luck"].guessed.upper < 0.4  # within a quarter of a standard deviation: 0.2


def test_what_the_other_columns_say_anyway_is_not_held_against_the_model():
    found = inferred(lambda records, seed: {"sum": records.features[:, :1].sum(0)}, ["income", "blood"])
    assert found["income"].inferred.lower > 0.9
    assert found["income"].imputed.lower > 0.9
    assert min(attribute.p_value for attribute in found.values()) > 0.001
    assert "imputed without it" in repr(found["income"])


def test_the_sign_test_is_exact():
    wrong, mixed = torch.zeros(4, dtype=torch.bool), torch.tensor([True, True, True, False])

    def p_value(inferred, *imputed):
        return _compare("a", inferred, imputed, wrong).p_value  # no constant is right

    assert p_value(mixed, wrong) == pytest.approx(1 / 8)
    assert p_value(wrong, mixed) == 1
    assert p_value(wrong, wrong) == 1
    assert p_value(mixed, wrong, mixed) == 1  # the better imputation counts


def sums(records, seed):
    return {"sum": records.features.sum(0)}


def test_an_audit_of_attributes_is_exposed_by_a_column_that_nothing_else_tells():
    table, records = Table.read(people(), label="ill")
    data = SplitTable(table, records[:50], records[50:550], records[550:])
    result = audit(
        Attributes(looped(sums, releases=Weights), data, ["income", "luck"]), [QUICK], policy=Policy(0.5)
    )
    (evidence,) = result.evidence
    told = {part.name: part for part in evidence.findings[0].parts}
    assert result.verdict is Verdict.EXPOSED
    assert [part.name for part in evidence.findings[0].telling] == ["luck"]
    assert told["income"].main.lower > 0.8  # found, and so it is without the model
    assert told["income"].guess > 0.9
    assert AuditResult.from_json(result.to_json(), named(evidence)).verdict is result.verdict
    assert "attribute inference" not in not_covered(result)


def test_an_audit_of_attributes_is_not_exposed_by_what_the_other_columns_say():
    table, records = Table.read(people(), label="ill")
    data = SplitTable(table, records[:50], records[50:550], records[550:])
    ages = looped(lambda records, seed: {"sum": records.features[:, :1].sum(0)}, releases=Weights)
    game = Attributes(ages, data, ["income", "blood"])
    result = audit(game, [QUICK], policy=Policy(game.baseline().lower + 0.01))
    income, blood = result.evidence[0].findings[0].parts
    assert income.main.lower > 0.9  # above the limit
    assert income.guess > 0.9
    assert blood.main.upper < 0.6  # one of three groups
    assert result.verdict is Verdict.UNPROVEN


def named(evidence):
    return {f"{evidence.attack}.{name}": values for name, values in evidence.arrays.items()}


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


def test_a_data_frame_and_a_mapping_give_the_same_records():
    columns = people(20)
    frame = pd.DataFrame(columns)
    frame["blood"] = frame["blood"].astype("category")
    (table, records), (again, same) = Table.read(columns, label="ill"), Table.read(frame, label="ill")
    assert torch.equal(records.features, same.features)
    assert torch.equal(records.labels, same.labels)
    assert table == again
    assert table.column("blood").categories == ("0", "A", "B")
    assert table.places(["blood", "luck"]) == (2, 3, 4, 5)
    assert float(records.features[:, 0].mean()) == pytest.approx(0, abs=1e-6)
    assert float(records.features[:, 0].std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_numbers_are_off_in_standard_units_and_categories_right_or_wrong():
    table, records = Table.read(
        {"age": [20.0, 40.0], "sex": [1, 2], "y": [0, 1]}, label="y", categorical=["sex"]
    )
    error = table.error(["age", "sex"])
    guess = Records(torch.tensor([[-0.9, 0.6, 0.4], [1.0, 0.6, 0.4]]), records.labels)
    assert error(records, guess).tolist() == pytest.approx([0.1, 1.0])
    assert table.error(["age"])(records, guess).tolist() == pytest.approx([0.1, 0.0])


GAPS = {
    "age": [1.0, float("nan")],
    "name": ["a", None],
    "day": [1, pd.NA],
    "many": list(map(str, range(2))),
}


@pytest.mark.parametrize("name", ["age", "name", "day"])
def test_gaps_are_named(name):
    frame = pd.DataFrame({name: pd.Series(GAPS[name], dtype=object), "other": [1, 2], "y": [0, 1]})
    with pytest.raises(InputError, match=f"{name}.* has gaps"):
        Table.read(frame, label="y")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"a": [1, 2]}, "y"), "column is missing"),
        (({"a": [1, 2], "y": [1]}, "y"), "cannot be read"),
        (([1, 2], "y"), "cannot be read"),
        (({"a": list(map(str, range(200))), "y": [0] * 200}, "y"), "too many categories"),
        (({"a": [0] * 200, "y": list(map(str, range(200)))}, "y"), "too many classes"),
        ((pd.DataFrame([[1, 2, 0], [3, 4, 1]], columns=[1, "1", "y"]), "y"), "same name"),
    ],
    ids=["label", "lengths", "list", "categories", "classes", "names"],
)
def test_tables_that_cannot_be_used_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Table.read(arguments[0], label=arguments[1])


def test_columns_that_are_not_there_are_refused():
    table, records = Table.read(people(20), label="ill")
    with pytest.raises(InputError, match="no column 'ill'"):
        table.error(["ill"])
    for hidden in ([], ["age", "income", "blood", "luck"]):
        with pytest.raises(InputError, match="nothing to infer"):
            Attributes(
                Disclosed(None, (0,)), SplitTable(table, records[:5], records[5:9], records[9:]), hidden
            )


def test_a_table_without_rows_is_refused():
    with pytest.raises(InputError, match="is empty"):
        Table.read({"a": [], "y": []}, label="y")


@pytest.mark.parametrize(
    "labels", [[0.5 * i for i in range(4)], range(1000, 1150)], ids=["fractions", "many"]
)
def test_the_numbers_of_a_regression_stay_numbers(labels):
    table, records = Table.read({"a": np.arange(len(labels)), "y": labels}, label="y")
    assert table.classes == ()
    assert records.labels.tolist() == list(labels)
    assert table.encode({"a": [1], "y": [3.25]}).labels.tolist() == [3.25]
    with pytest.raises(InputError, match="'y' has no numbers"):
        table.encode({"a": [1], "y": ["high"]})


def test_a_few_whole_numbers_are_classes_and_so_are_others_that_are_named():
    table, records = Table.read({"a": [1, 2, 3], "y": [4.0, 9.0, 4.0]}, label="y")
    assert (table.classes, records.labels.tolist()) == ((4.0, 9.0), [0, 1, 0])
    table, records = Table.read({"a": [1, 2, 3], "y": [0.5, 1.5, 0.5]}, label="y", categorical=["y"])
    assert (table.classes, records.labels.tolist()) == ((0.5, 1.5), [0, 1, 0])


def test_names_may_be_numbers():
    frame = pd.DataFrame([[1.0, 5, 0], [2.0, 6, 1]])
    table, records = Table.read(frame, label=2, categorical=[1])
    assert [column.name for column in table.columns] == ["0", "1"]
    assert table.places([1]) == table.places(["1"]) == (1, 2)
    assert table.error([0, 1])(records, records).tolist() == [0, 0]
    with pytest.raises(InputError, match="no column 7"):
        table.column(7)


def test_a_second_table_is_read_in_the_units_and_categories_of_the_first():
    frame = pd.DataFrame(people(60)).astype({"blood": "category"})
    table, records = Table.read(frame, label="ill")
    rest = frame[40:].sample(frac=1.0, axis=1, random_state=0)  # columns in another order
    again = table.encode(rest)
    assert torch.equal(again.features, records.features[40:])
    assert torch.equal(again.labels, records.labels[40:])
    of_one_group = table.encode(frame[frame["blood"] == "A"])
    assert of_one_group.features.shape[1] == 6
    assert of_one_group.features[:, 3].min() == 1  # after 0 in the alphabet


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blood": ["A", "AB"]}, "'blood' has categories that the first table has not(.|\n)*got:   AB"),
        ({"ill": [0, 2]}, "'ill' has categories that the first table has not(.|\n)*got:   2"),
        ({"age": ["old", "young"]}, "'age' has no numbers"),
        ({"shoe": [40, 41]}, "other columns(.|\n)*unknown: shoe"),
        ({"luck": None}, "other columns(.|\n)*missing: luck"),
        ({"luck": [1.0, float("nan")]}, "'luck' has gaps"),
    ],
)
def test_a_second_table_that_does_not_fit_the_first_is_refused(change, message):
    table, _ = Table.read(people(60), label="ill")
    columns = {**{name: values[:2] for name, values in people(60).items()}, **change}
    with pytest.raises(InputError, match=message):
        table.encode({name: values for name, values in columns.items() if values is not None})


def test_a_regression_of_numbers_gives_columns_away():
    frame = load_diabetes(scaled=False, as_frame=True).frame.sample(frac=1.0, random_state=0)
    table, held = Table.read(frame[:300], label="target", categorical=["sex"])
    data = SplitTable(table, held[:60], held[60:], table.encode(frame[300:]))
    game = Attributes(GLM(Gaussian()), data, ["sex"])
    (sex,) = infer_attributes(game, Reconstructor(shadows=500, steps=300))
    assert sex.inferred.trials == 142
    assert sex.p_value < 0.01


def test_a_number_as_label_imputes_what_depends_on_it():
    generator = torch.Generator().manual_seed(0)
    given, labels = torch.randn(300, 1, generator=generator), 50 + 9 * torch.randn(300, generator=generator)
    records = Records(torch.cat([given, given + (labels[:, None] - 50) / 9], 1), labels.double())
    found = regressed(records[:200], records[200:], [0])
    torch.testing.assert_close(found, records[200:].flat, atol=0.1, rtol=0)


def asked(hidden=("age",), **changes):
    table, records = Table.read(people(60), label="ill")
    parts = {"known_data": records[:20], "public": records[20:40], "targets": records[40:]}
    return Attributes(Disclosed(None, (0,)), SplitTable(table, **{**parts, **changes}), hidden)


@pytest.mark.parametrize("name", ["known_data", "public", "targets"])
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        pd.DataFrame(people(20)),
        Records(torch.zeros(3, 2), torch.zeros(3)),
        Records(torch.zeros(0, 6), torch.zeros(0)),
    ],
    ids=["none", "frame", "width", "empty"],
)
def test_what_are_no_records_of_the_table_is_refused(name, wrong):
    with pytest.raises(InputError, match=f"The {name} cannot be used"):
        asked(**{name: wrong})


@pytest.mark.parametrize("hidden", ["age", None])
def test_hidden_columns_come_as_a_list(hidden):
    with pytest.raises(InputError, match="nothing to infer"):
        asked(hidden=hidden)


@pytest.mark.parametrize("name", ["known_data", "public"])
def test_targets_that_the_adversary_holds_are_refused(name):
    _, records = Table.read(people(60), label="ill")
    with pytest.raises(InputError, match=f"also in {name}(.|\n)*1 of 20 targets"):
        asked(**{name: records[20:41]})
    twin = Records(records.features[39:41], 1 - records.labels[39:41])
    hasty = Reconstructor(shadows=20, steps=1, batch=4, width=8)
    (found,) = infer_attributes(asked(**{name: concatenate([records[:20], twin])}), hasty)
    assert found.inferred.trials == 20  # the same columns with another label are somebody else
