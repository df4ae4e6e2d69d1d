"""Contracts that every attack and every mechanism must keep; run them on your own.

from remanence.testing import check_attack
def test_my_attack():
    check_attack(MyAttack(), my_small_game())
"""

from __future__ import annotations

import dataclasses

import torch

from remanence.core.attack import Attack, ExposesAll
from remanence.core.mechanism import Mechanism
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.game import Game
from remanence.scale.seeds import stream
from remanence.tables.leave_one_out import LeaveOneOut

_TRIALS = 6


class ContractError(AssertionError):
    """A promise that an attack or a mechanism does not keep."""


def check_attack(attack: Attack, game: Game | LeaveOneOut) -> None:
    """Verify that an attack is frozen, repeatable, batched, and blind to what it must not see."""
    _require(
        dataclasses.is_dataclass(attack) and type(attack).__dataclass_params__.frozen,  # pyright: ignore
        "an attack is a frozen dataclass of settings",
    )
    info = attack.info
    _require(bool(info.name and info.needs and info.sees), "an attack states what it needs and sees")
    attack.check(game.knowledge)
    if isinstance(game, LeaveOneOut):
        _check_leave_one_out(attack, game)
        return
    source = game.prior if game.targets is None else game.targets
    targets = source.sample(_TRIALS, stream(0, "targets", "cpu"))
    release = game.mechanism.release(game.known_data, targets, stream(0, "training", "cpu"))
    reconstruct = attack.prepare(game.knowledge, stream(0, "attack", "cpu"))
    guess = reconstruct(release)
    _check_reconstruction(guess.records, _TRIALS, targets)
    again = attack.prepare(game.knowledge, stream(0, "attack", "cpu"))(release)
    _require(_same(guess.records, again.records), "the same seed gives the same reconstruction")
    parts = [reconstruct(release.take(slice(i, i + 1))).records for i in range(_TRIALS)]
    _require(
        _close(guess.records, concatenate(parts)),
        "a trial's reconstruction does not depend on the other trials",
    )


def check_mechanism(mechanism: Mechanism[Release], known_data: Records | None, targets: Records) -> None:
    """Verify that a mechanism is batched over trials, repeatable, and describes itself."""
    _require(dataclasses.is_dataclass(mechanism), "a mechanism is a dataclass of settings")
    release = mechanism.release(known_data, targets, stream(0, "training", "cpu"))
    _require(isinstance(release, mechanism.releases), "a release is of the type that the mechanism announces")
    _require(
        all(tensor.shape[0] == len(targets) for tensor in release.tensors.values()),
        "every tensor of a release has the trials first",
    )
    _require(bool(release.flat().isfinite().all()), "a release is finite")
    again = mechanism.release(known_data, targets, stream(0, "training", "cpu"))
    _require(torch.equal(release.flat(), again.flat()), "the same seed gives the same release")
    _require(
        all(isinstance(value, str | int | float | bool | None) for value in mechanism.settings().values()),
        "settings are plain values that JSON can hold",
    )
    gradient = mechanism.remaining_gradient(known_data, targets, release)
    _require(gradient is None or gradient.shape == (len(targets),), "the remaining gradient is one per trial")


def _check_leave_one_out(attack: Attack, game: LeaveOneOut) -> None:
    """What `expose` says about a record is what `prepare` on the others says, whatever the record is."""
    first = game.data[:1][None]
    release = game.release or game.mechanism.release(game.data[1:], first, stream(0, "training", "cpu"))
    indices = range(0, len(game.data), max(1, len(game.data) // _TRIALS))
    everyone = (
        attack.expose(game.mechanism, game.data, release).records if isinstance(attack, ExposesAll) else None
    )
    for index in indices:
        knowledge = dataclasses.replace(game.knowledge, known_data=game.data.without(index))
        alone = attack.prepare(knowledge, stream(0, "attack", "cpu"))(release).records
        _check_reconstruction(alone, 1, first)
        if everyone is None:
            continue
        chosen = slice(index, index + 1)
        _require(_close(everyone[chosen], alone), f"record {index}: exposing all agrees with exposing one")
        other = (index + 1) % len(game.data)
        swapped = torch.arange(len(game.data))
        swapped[index] = other
        blind = attack.expose(game.mechanism, game.data[swapped], release).records  # pyright: ignore
        _require(_close(blind[chosen], alone), f"record {index} has no influence on its own reconstruction")


def _check_reconstruction(guess: Records, trials: int, targets: Records) -> None:
    _require(guess.batch_shape[0] == trials, "one reconstruction per release")
    _require(guess.example_shape == targets.example_shape, "a reconstruction has the shape of a record")


def _same(first: Records, second: Records) -> bool:
    return torch.equal(first.features, second.features) and torch.equal(
        first.labels.nan_to_num(), second.labels.nan_to_num()
    )


def _close(first: Records, second: Records) -> bool:
    """Equal up to the order of summation, which differs between a batch and a single trial."""
    allowed = max(1e-6, 32 * torch.finfo(second.features.dtype).eps) * second.features.norm()
    return bool((first.features - second.features).norm() <= allowed) and torch.allclose(
        first.labels.double(), second.labels.double(), rtol=1e-6, equal_nan=True
    )


def _require(kept: bool, promise: str) -> None:
    if not kept:
        raise ContractError(f"Broken promise: {promise}.")
