"""`audit_head(released=...)`: the very head that somebody is about to publish."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conftest import pictures
from remanence import (
    HeadAudit,
    InputError,
    LinearReader,
    Reconstructor,
    StratifiedPrior,
    TransferHead,
    Verdict,
    audit_head,
    exposed_pictures,
)
from remanence.auditing import AuditResult
from remanence.core.rates import SuccessRate
from remanence.heads.game import what_the_head_withholds
from remanence.heads.reading import read_head
from remanence.heads.this_head import PictureExposure, ThisHead

RECIPE = TransferHead(classes=3, epochs=15, learning_rate=0.05)
QUICK = Reconstructor(steps=250, batch=64, width=48)
OWN, PUBLIC = pictures(3, seed=5), pictures(240)


def state(recipe=RECIPE, own=OWN):
    """A head as PyTorch would hold it, trained on our own pictures."""
    generator = torch.Generator().manual_seed(8)
    sizes = tuple(torch.unique(own.labels, return_counts=True)[1].tolist())
    release = recipe.release(None, StratifiedPrior(own, sizes).sample(1, generator), generator)
    return {name: tensor[0] for name, tensor in release.tensors.items()}


def audited(released, recipe=RECIPE, prior=PUBLIC, **options):
    settings = HeadAudit(**{"attacks": [QUICK], "trials": 10, "threshold": 0.3, **options})
    return audit_head(
        OWN.embedding, OWN.features, OWN.labels, recipe, prior=prior, released=released, settings=settings
    )


def test_every_class_names_a_picture_of_its_own_that_is_closer_than_most_public_ones(tmp_path):
    result = audited(state())
    rows = exposed_pictures(result)
    assert sorted(row.label for row in rows) == [0, 1, 2]
    assert all(int(OWN.labels[row.picture]) == row.label for row in rows)
    assert [row.error for row in rows] == sorted(row.error for row in rows)
    # Twenty public pictures of a class are kept aside; by chance half of them would be closer than ours.
    assert sum(row.as_close.rate for row in rows) / 3 < 0.15
    assert {row.as_close.trials for row in rows} == {20}
    # 1 of 21 is a chance of 0.048: enough for all three classes together, and not for one or two of them.
    first = sum(row.as_close.successes == 0 for row in rows)
    assert {row.public_needed for row in rows} == {math.ceil(60 / first) - 1}
    assert sum(row.came_back for row in rows) + sum(row.undecided for row in rows) == first > 0
    (head,) = result.strongest.findings
    assert head.back == sum(row.came_back for row in rows)

    again = AuditResult.load(result.save(tmp_path))
    assert exposed_pictures(again) == rows
    assert all(values.ndim < 3 for values in again.strongest.arrays.values())  # and no pixel


def test_what_enough_public_pictures_tell_from_chance_came_back():
    result = audited(state(), prior=pictures(900))
    rows = exposed_pictures(result)
    assert {row.as_close.trials for row in rows} == {75}
    back = sum(row.came_back for row in rows)
    assert back > 0
    assert result.verdict is Verdict.EXPOSED
    assert f"From this very head, a picture of {back} of its 3 classes came back" in str(result)


def test_a_head_is_read_from_a_module_and_from_files_alike(tmp_path):
    from safetensors.torch import save_file

    layer = nn.Linear(OWN.embedding.shape[-1], 3)
    whole = nn.Sequential(nn.Linear(5, OWN.embedding.shape[-1]), nn.ReLU(), layer)
    torch.save(whole.state_dict(), tmp_path / "head.pt")
    save_file(dict(layer.state_dict()), tmp_path / "head.safetensors")
    for source in (whole, tmp_path / "head.pt", str(tmp_path / "head.safetensors")):
        read = read_head(source, RECIPE, OWN.embedding.shape[-1])
        torch.testing.assert_close(read["weight"][0], layer.weight.data)


@pytest.mark.parametrize(("closer", "public", "own"), [(0, 43, 8), (3, 20, 1), (5, 5, 2)])
def test_a_chance_resemblance_is_that_of_the_closest_of_all_your_pictures(closer, public, own):
    exposure = PictureExposure(0, 0, 0.1, True, SuccessRate(closer, public), own)
    order = torch.rand(200_000, public + own, generator=torch.Generator().manual_seed(0)).argsort(1)
    first = (order < own).int().argmax(1)  # how many public pictures come before the first of yours
    chance = float((first <= closer).double().mean())
    assert exposure.by_chance == pytest.approx(chance, abs=5 * (0.25 / 200_000) ** 0.5)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


NUMBERS = {"weight": torch.zeros(3, 24), "bias": torch.zeros(3)}
WRONG = {
    "a checkpoint": ({"state_dict": NUMBERS}, "not the weights"),
    "whole numbers": ({name: values.to(torch.int8) for name, values in NUMBERS.items()}, "torch.int8"),
    "other features": ({**NUMBERS, "weight": torch.zeros(3, 2)}, "do not fit"),
    "NaN": ({**NUMBERS, "bias": torch.full((3,), torch.nan)}, "do not fit"),
    "code": ({"weight": Evil()}, "not the weights"),
    "a list": ([torch.zeros(3, 24)], "released cannot be used"),
    "a tensor": (torch.zeros(3, 24), "released cannot be used"),
    "no layer": (nn.ReLU(), "do not fit"),
    "a lazy layer": (nn.LazyLinear(3), "not the weights"),
    "numbers elsewhere": ({name: values.to("meta") for name, values in NUMBERS.items()}, "not the weights"),
    "sparse numbers": ({name: values.to_sparse() for name, values in NUMBERS.items()}, "to_dense"),
    "more classes": (nn.Linear(24, 4), "as many classes as it has rows"),
    "no path": ("a\0b", "cannot be read"),
    "no file": ("missing.safetensors", "cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_head_is_refused_before_anything_is_learned(name, tmp_path, monkeypatch, capsys):
    """Nothing in a file is executed."""
    monkeypatch.setattr(Reconstructor, "learn", lambda *_: pytest.fail("it learned"))
    wrong, said = WRONG[name]
    with pytest.raises(InputError, match=said):
        audited(wrong)
    torch.save(wrong, tmp_path / "head.pt")
    with pytest.raises(InputError, match=rf"{said}|not the weights|cannot be read"):
        audited(tmp_path / "head.pt")
    assert "executed" not in capsys.readouterr().out


def test_a_damaged_file_is_refused(tmp_path):
    torch.save(state(), tmp_path / "head.pt", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "head.pt").read_bytes()
    for keep in range(1, len(whole), 7):
        (tmp_path / "part.pt").write_bytes(whole[:keep])
        with pytest.raises(InputError, match=r"cannot be read|not the weights|do not fit"):
            read_head(tmp_path / "part.pt", RECIPE, OWN.embedding.shape[-1])


def exposures(chosen, classes, threshold=2.0):
    """Of so many classes some have (public pictures that come closer, public pictures, own ones); all others fail."""
    rows = [*chosen, *[(20, 20, 1)] * (classes - len(chosen))]
    table = [[n, n + 8, (n + 1) / 10, *row] for n, row in enumerate(rows)]
    return ThisHead(torch.tensor(table).double(), torch.tensor(threshold), torch.tensor(0.5)).pictures()


def exposure(closer, public, *, own=1, classes=1, succeeded=True):
    return exposures([(closer, public, own)], classes, 0.15 if succeeded else 0.05)[0]


def test_finds_beyond_the_threshold_do_not_vouch_for_what_is_within():
    # Ten within the threshold have a chance of 0.03, too much at 0.025; ten beyond it come first of hundreds.
    rows = exposures([(2, 100, 1)] * 10 + [(0, 500, 1)] * 10, 20, threshold=1.05)
    assert [picture.succeeded for picture in rows] == [True] * 10 + [False] * 10
    assert not any(picture.came_back for picture in rows)


def test_many_that_come_first_support_each_other():
    # One in 24 is a chance of 0.042: enough for ten of ten, at 0.05, and not for seven of them, at 0.035.
    ten, seven, enough = (exposures([(0, public, 1)] * n, 10) for public, n in ((23, 10), (23, 7), (28, 7)))
    assert all(picture.came_back for picture in ten)
    assert [picture.undecided for picture in seven] == [True] * 7 + [False] * 3
    assert {picture.public_needed for picture in seven} == {28}  # 1 / 29 ≤ 0.05 · 7 / 10
    assert [picture.came_back for picture in enough] == [True] * 7 + [False] * 3


@pytest.mark.parametrize(("classes", "own", "needed"), [(1, 1, 19), (10, 1, 199), (10, 3, 597), (7, 2, 278)])
def test_as_many_public_pictures_as_needed_can_tell_and_one_less_cannot(classes, own, needed):
    enough, fewer = (exposure(0, public, own=own, classes=classes) for public in (needed, needed - 1))
    assert enough.public_needed == needed
    assert (enough.came_back, enough.undecided) == (True, False)
    assert (fewer.came_back, fewer.undecided) == (False, True)
    assert "too few to tell" in str(fewer)
    assert f": {needed} are needed" in str(fewer)


def test_what_public_pictures_resemble_as_much_did_not_come_back():
    assert "picture 8 came back, error 0.1; 0 of 199 public" in str(exposure(0, 199, classes=10))
    for closer, public in ((60, 199), (1, 199), (7, 23)):
        many = exposure(closer, public, classes=10)
        assert (many.came_back, many.undecided) == (False, False)
        close = f"{closer} of {public} public pictures come as close"
        assert f"is within the threshold, error 0.1, but {close}" in str(many)
    far = exposure(0, 199, classes=10, succeeded=False)
    assert not far.came_back
    assert "did not come back" in str(far)


def test_what_draws_no_picture_of_each_class_is_refused_before_anything_is_learned(monkeypatch):
    monkeypatch.setattr(Reconstructor, "learn", lambda *_: pytest.fail("it learned"))
    with pytest.raises(InputError, match="not draw a picture of each class"):
        audited(state(), attacks=[replace(QUICK, conditional=False)])


@pytest.mark.parametrize(("within", "told"), [(0, True), (3, True), (4, False), (6, False)])
def test_a_head_that_gives_back_fewer_pictures_than_heads_made_like_it_is_told(within, told):
    made_like_it = torch.arange(10) < torch.tensor([3] + [4] * 5 + [6] * 54)[:, None]  # of ten classes
    table = [[n, n, 0.1 if n < within else 0.9, n, 20, 1] for n in range(10)]
    head = ThisHead(torch.tensor(table), torch.tensor(0.5), torch.tensor(1.0))
    found = head.caveats(SimpleNamespace(main=SimpleNamespace(succeeded=made_like_it)))
    # 4 of ten: 7 of 61 heads are so few.
    seen = [(caveat.id, caveat.seen) for caveat in found]
    assert seen == [("this-head-gives-less", f"{within} within the threshold, and usually 6.")] * told


def test_what_a_head_gives_away_is_told_only_where_it_gives_more_than_its_control():
    result = audited(state(), attacks=[LinearReader(60)], trials=5)
    (found,), (given,) = result.evidence, result.companions
    given = replace(given, main=SuccessRate(748, 1000))
    for met, by_the_control, share in ((598, 672, False), (598, 100, True), (0, 0, False)):
        rates = {"main": SuccessRate(met, 1000), "control": SuccessRate(by_the_control, 1000)}
        changed = replace(found, **rates, baseline=replace(found.baseline, value=0.05))
        words = what_the_head_withholds(replace(result, evidence=(changed,), companions=(given,)))
        assert ("the head gives away 80%" in words, "gives no share" in words) == (share, not share)
