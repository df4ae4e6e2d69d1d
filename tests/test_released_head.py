"""`audit_head(released=...)`: the very head that somebody is about to publish."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import (
    InputError,
    Reconstructor,
    StratifiedPrior,
    TransferHead,
    audit_head,
    exposed_pictures,
)
from remanence.auditing import AuditResult
from remanence.released_head import PictureExposure, read_head
from remanence.statistics import SuccessRate

RECIPE = TransferHead(classes=3, epochs=15, learning_rate=0.05)
QUICK = Reconstructor(steps=250, batch=64, width=48)
OWN, PUBLIC = pictures(3, seed=5), pictures(240)


def state(recipe=RECIPE, own=OWN):
    """A head as PyTorch would hold it, trained on our own pictures."""
    generator = torch.Generator().manual_seed(7)
    sizes = tuple(torch.unique(own.labels, return_counts=True)[1].tolist())
    release = recipe.release(None, StratifiedPrior(own, sizes).sample(1, generator), generator)
    return {name: tensor[0] for name, tensor in release.tensors.items()}


def audited(released, **options):
    return audit_head(
        OWN.embedding,
        OWN.features,
        OWN.labels,
        RECIPE,
        prior=PUBLIC,
        released=released,
        attacks=[QUICK],
        trials=10,
        **options,
    )


@pytest.fixture(scope="module")
def result():
    return audited(state())


def test_every_class_names_a_picture_of_its_own_that_is_closer_than_most_public_ones(result):
    rows = exposed_pictures(result)
    assert sorted(row.label for row in rows) == [0, 1, 2]
    assert all(int(OWN.labels[row.picture]) == row.label for row in rows)
    assert [row.error for row in rows] == sorted(row.error for row in rows)
    # Twenty public pictures of a class are kept aside; by chance half of them would be closer than ours.
    assert sum(row.as_close.rate for row in rows) / 3 < 0.15
    assert {row.as_close.trials for row in rows} == {20}
    assert f"picture {rows[0].picture} " in str(rows[0])


def test_a_head_of_this_recipe_is_as_far_from_its_siblings_as_they_are_and_another_is_not(result):
    name = "released_distance_from_the_recipe"
    assert result.strongest.findings[name] == pytest.approx(1, abs=0.5)
    longer = audited(state(replace(RECIPE, epochs=150)))
    assert longer.strongest.findings[name] > 3


def test_what_came_back_is_stored_and_read_back_without_a_pixel(result, tmp_path):
    again = AuditResult.load(result.save(tmp_path))
    assert exposed_pictures(again) == exposed_pictures(result)
    assert all(values.ndim < 3 for values in again.strongest.arrays.values())


def test_a_head_is_read_from_a_module_and_from_files_alike(tmp_path):
    from safetensors.torch import save_file

    layer = nn.Linear(OWN.embedding.shape[-1], 3)
    whole = nn.Sequential(nn.Linear(5, OWN.embedding.shape[-1]), nn.ReLU(), layer)
    torch.save(whole.state_dict(), tmp_path / "head.pt")
    save_file(dict(layer.state_dict()), tmp_path / "head.safetensors")
    for source in (whole, tmp_path / "head.pt", str(tmp_path / "head.safetensors")):
        torch.testing.assert_close(
            read_head(source, RECIPE, OWN.embedding.shape[-1])["weight"][0], layer.weight.data
        )


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def test_what_is_no_such_head_is_refused_and_nothing_in_a_file_is_executed(tmp_path, capsys):
    with pytest.raises(InputError, match="not the weights"):
        audited({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)})
    with pytest.raises(InputError, match="not the weights"):
        audited({**state(), "bias": torch.full((3,), torch.nan)})
    torch.save({"weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="cannot be read"):
        audited(tmp_path / "evil.pt")
    assert "executed" not in capsys.readouterr().out
    with pytest.raises(InputError, match="cannot be read"):
        audited(tmp_path / "missing.safetensors")
    with pytest.raises(InputError, match="all of your pictures"):
        audited(state(), per_class=1)


def test_an_adversary_who_does_not_know_the_sizes_reads_them_off_the_head():
    result = audited(state(), sizes_known=False)
    arrays = result.strongest.arrays
    assert float(arrays["error"].mean()) < 0.5 * float(arrays["control_error"].mean())
    assert len(exposed_pictures(result)) == 3


@pytest.mark.parametrize(("closer", "public", "own"), [(0, 43, 8), (3, 20, 1), (5, 5, 2)])
def test_a_chance_resemblance_is_that_of_the_closest_of_all_your_pictures(closer, public, own):
    exposure = PictureExposure(0, 0, 0.1, True, SuccessRate(closer, public), own)
    order = torch.rand(200_000, public + own, generator=torch.Generator().manual_seed(0)).argsort(1)
    first = (order < own).int().argmax(1)  # how many public pictures come before the first of yours
    chance = float((first <= closer).double().mean())
    assert exposure.by_chance == pytest.approx(chance, abs=5 * (0.25 / 200_000) ** 0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"state_dict": {"weight": torch.zeros(3, 24)}},
        {"weight": torch.zeros(3, 24, dtype=torch.int8), "bias": torch.zeros(3, dtype=torch.int8)},
        [torch.zeros(3, 24)],
    ],
)
def test_what_is_no_head_is_refused(wrong, tmp_path):
    torch.save(wrong, tmp_path / "head.pt")
    with pytest.raises(InputError, match="not the weights"):
        read_head(tmp_path / "head.pt", TransferHead(3, 1), 24)
