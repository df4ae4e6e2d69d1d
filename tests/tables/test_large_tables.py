"""A table as large as memory allows: it is read in parts, and not copied."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from conftest import Playing
from remanence import ClosedForm, audit
from remanence.core import records as data_records
from remanence.core.attack import ExposesInParts, Reconstruction
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.tables import game as game_module
from remanence.tables.glm import closed_form as optimality
from remanence.tables.glm import model as glm_model
from remanence.tables.sklearn import leave_one_out

GROWTH = """
import sys
import numpy as np
from sklearn.linear_model import Ridge
from remanence import audit
from remanence.tables.sklearn import leave_one_out

def memory(line):
    with open("/proc/self/status") as status:
        return next(int(each.split()[1]) * 1024 for each in status if each.startswith(line))

draw = np.random.default_rng(0)
table = draw.standard_normal((100_000, 50))
labels = table @ np.ones(50) + draw.standard_normal(100_000)
model = Ridge().fit(table, labels)
audit(leave_one_out(Ridge().fit(table[:300], labels[:300]), table[:300], labels[:300]))  # what a first audit loads
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")
before = memory("VmRSS")
result = audit(leave_one_out(model, table, labels))
print((memory("VmHWM") - before) / table.nbytes, result.strongest.main.trials)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_table_is_not_copied():
    """Held whole, the attack's twenty tensors of the table's size took 16 times its memory."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # every thread has room of its own
    found = subprocess.run(  # noqa: S603
        [sys.executable, "-c", GROWTH], env=alone, capture_output=True, text=True, check=True, timeout=300
    )
    growth, trials = map(float, found.stdout.split())
    assert trials == 100_000
    # Of 40 MB, so that the parts, which have a size of their own, count: 4 to 5.4 times, and 1.4 for a million rows.
    assert growth < 8


@pytest.fixture(params=["ridge", "balanced", "without an intercept"])
def game(request):
    draw = np.random.default_rng(0)
    table = draw.normal(3, 2, (120, 4))
    numbers = table @ np.arange(4) + draw.normal(size=120)
    classes = (numbers > numbers.mean()).astype(int)
    if request.param == "ridge":
        return leave_one_out(Ridge().fit(table, numbers), table, numbers)
    balanced = request.param == "balanced"
    settings = {"class_weight": "balanced"} if balanced else {"fit_intercept": False}
    model = LogisticRegression(tol=1e-12, max_iter=10_000, **settings)
    return leave_one_out(model.fit(table, classes), table, classes)


def test_in_parts_the_same_is_found_as_at_once(game, monkeypatch):
    whole = audit(game)
    for module, name in (
        (optimality, "_ROWS_SUMMED"),
        (optimality, "NUMBERS_AT_ONCE"),
        (glm_model, "_ROWS_AT_ONCE"),
        (data_records, "_ROWS_AT_ONCE"),
    ):
        monkeypatch.setattr(module, name, 7)
    monkeypatch.setattr(game_module, "NUMBERS_AT_ONCE", 4 * 11)  # parts of 11 records
    assert len(game.data) <= game_module._COPIED * game._rows
    monkeypatch.setattr(game_module, "_COPIED", 2)  # and now the table is too large to be copied
    parts = audit(game)
    assert parts.subject == whole.subject
    for one, other in zip(whole.evidence, parts.evidence, strict=True):
        assert (one.main, one.control) == (other.main, other.control)
        assert one.arrays.keys() == other.arrays.keys()
        found = one.arrays["succeeded"][:, 0]
        assert found.sum() > 60
        assert torch.equal(found, other.arrays["succeeded"][:, 0])
        assert torch.allclose(one.arrays["error"][found], other.arrays["error"][found], atol=1e-5)


@dataclass(frozen=True)
class Peeking(ExposesInParts, Playing):
    """Finds the record that it looks at."""

    made: Callable = ClosedForm().prepare

    def exposer(self, mechanism, data, release):
        return lambda places: Reconstruction(data.take(places)[:, None])


@pytest.mark.parametrize("game", ["ridge"], indirect=True)
def test_an_attack_on_a_large_table_may_not_look_at_the_record_in_question(game, monkeypatch):
    monkeypatch.setattr(game_module, "NUMBERS_AT_ONCE", 4 * 11)
    monkeypatch.setattr(game_module, "_COPIED", 2)
    assert audit(game, [ClosedForm()]).strongest.main.rate > 0.9
    with pytest.raises(InputError, match="only while it looks at it"):
        audit(game, [Peeking()])


def test_the_hash_of_records_does_not_depend_on_how_they_are_read(monkeypatch):
    records = Records(torch.arange(60.0).view(20, 3), torch.arange(20))
    columns = Records(torch.arange(60.0).view(20, 3).T.contiguous().T, torch.arange(20))
    before = records.sha256()
    assert columns.sha256() == before
    monkeypatch.setattr(data_records, "_ROWS_AT_ONCE", 7)
    assert records.sha256() == before
    assert before == "c172bca862f4aa055aafcffd5691eb8823ca04cd40073f80684ad74aeb1c72f0"
