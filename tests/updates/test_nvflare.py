"""The filters' own work, on stand-ins for NVFLARE's classes; `make test-nvflare` runs them in its simulator."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from test_flower import one_step

import networks
from conftest import relu_network
from remanence import InputError


class Kept(dict):
    """A context that keeps what filters put into it."""

    def set_prop(self, key, value, *, private, sticky):
        assert private, "weights stay where they are"
        assert sticky, "and are there when the result is filtered"
        self[key] = value

    def get_prop(self, key):
        return self.get(key)


class Filter:
    """As NVFLARE's: it is told which kinds of data it looks at, and can log."""

    def __init__(self, supported_data_kinds, data_kinds_to_filter):
        self.kinds, self.said = data_kinds_to_filter, []

    def log_info(self, context, text):
        self.said.append(text)

    log_warning = log_info


@pytest.fixture
def filters(monkeypatch):
    kinds = ModuleType("nvflare.apis.dxo")
    kinds.DataKind = SimpleNamespace(WEIGHTS="WEIGHTS", WEIGHT_DIFF="WEIGHT_DIFF")
    base = ModuleType("nvflare.apis.dxo_filter")
    base.DXOFilter = Filter
    for module in (ModuleType("nvflare"), ModuleType("nvflare.apis"), kinds, base):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "remanence.updates.nvflare", raising=False)
    from remanence.updates import nvflare

    yield nvflare
    sys.modules.pop("remanence.updates.nvflare", None)


@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_the_guard_counts_what_an_update_gives_away_and_withholds_it_if_asked(filters, kind):
    before, after = one_step(relu_network(40, 150, 7, seed=0), 6)
    sent = after if kind == "WEIGHTS" else {name: after[name] - before[name] for name in before}
    context, model = Kept(), f"{networks.__file__}:plain"
    guard = filters.ExposureGuard(model, 0.1, local_steps=1)
    result, received = (
        SimpleNamespace(data_kind=kind, data={name: value.numpy() for name, value in state.items()})
        for state in (sent, before)
    )
    guard.process_dxo(result, None, context)
    assert "KeepModel" in guard.said[-1], "without the weights that came in, nothing can be said"
    filters.KeepModel().process_dxo(received, None, context)
    assert guard.process_dxo(result, None, context) is None, "an update is never changed"
    assert "6 samples can be read off it" in guard.said[-1]
    with pytest.raises(InputError, match="withheld"):
        filters.ExposureGuard(model, 0.1, local_steps=1, withhold=True).process_dxo(result, None, context)
