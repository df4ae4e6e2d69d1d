"""Contracts that every attack and every mechanism must keep; run them on your own.

from remanence.testing import check_attack
def test_my_attack():
    check_attack(MyAttack(), my_small_game())
"""

from __future__ import annotations

import dataclasses

import torch

from remanence.core.attack import Attack
from remanence.core.mechanism import Mechanism
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.game import Game
from remanence.protocol import AnyGame
from remanence.scale.seeds import stream

_TRIALS = 6


class ContractError(AssertionError):
    """A promise that an attack or a mechanism does not keep."""


def check_attack(attack: Attack, game: AnyGame) -> None:
    """Verify that an attack is frozen, repeatable, batched, and blind to what it must not see.

    A game may bring a contract of its own: a method `contract(attack)`.
    """
    require(
        dataclasses.is_dataclass(attack) and type(attack).__dataclass_params__.frozen,  # pyright: ignore
        "an attack is a frozen dataclass of settings",
    )
    info = attack.info
    require(bool(info.name and info.needs and info.sees), "an attack states what it needs and sees")
    attack.check(game.knowledge)
    known = game.knowledge.known_data
    before = None if known is None else known.sha256()
    _check_promises(attack, game)
    require(known is None or known.sha256() == before, "an attack leaves the known records as they are")


def _check_promises(attack: Attack, game: AnyGame) -> None:
    if (own := getattr(game, "contract", None)) is not None:
        own(attack)
        return
    assert isinstance(game, Game), f"{type(game).__name__} brings no contract"
    source = game.prior if game.targets is None else game.targets
    targets = source.sample(_TRIALS, stream(0, "targets", "cpu"))
    release = game.mechanism.release(game.known_data, targets, stream(0, "training", "cpu"))
    reconstruct = attack.prepare(game.knowledge, stream(0, "attack", "cpu"))
    guess = reconstruct(release)
    check_reconstruction(guess.records, _TRIALS, targets)
    again = attack.prepare(game.knowledge, stream(0, "attack", "cpu"))(release)
    require(_same(guess.records, again.records), "the same seed gives the same reconstruction")
    parts = [reconstruct(release.take(slice(i, i + 1))).records for i in range(_TRIALS)]
    require(
        close(guess.records, concatenate(parts)),
        "a trial's reconstruction does not depend on the other trials",
    )


def check_mechanism(mechanism: Mechanism[Release], known_data: Records | None, targets: Records) -> None:
    """Verify that a mechanism is batched over trials, repeatable, and describes itself."""
    require(dataclasses.is_dataclass(mechanism), "a mechanism is a dataclass of settings")
    release = mechanism.release(known_data, targets, stream(0, "training", "cpu"))
    require(isinstance(release, mechanism.releases), "a release is of the type that the mechanism announces")
    require(
        all(tensor.shape[0] == len(targets) for tensor in release.tensors.values()),
        "every tensor of a release has the trials first",
    )
    require(bool(release.flat().isfinite().all()), "a release is finite")
    again = mechanism.release(known_data, targets, stream(0, "training", "cpu"))
    require(torch.equal(release.flat(), again.flat()), "the same seed gives the same release")
    require(
        all(isinstance(value, str | int | float | bool | None) for value in mechanism.settings().values()),
        "settings are plain values that JSON can hold",
    )
    gradient = mechanism.remaining_gradient(known_data, targets, release)
    require(gradient is None or gradient.shape == (len(targets),), "the remaining gradient is one per trial")


def check_reconstruction(guess: Records, trials: int, targets: Records) -> None:
    """Verify that there is one reconstruction per release, of the shape of a record."""
    require(guess.batch_shape[0] == trials, "one reconstruction per release")
    require(guess.example_shape == targets.example_shape, "a reconstruction has the shape of a record")


def _same(first: Records, second: Records) -> bool:
    return torch.equal(first.features, second.features) and torch.equal(
        first.labels.nan_to_num(), second.labels.nan_to_num()
    )


def close(first: Records, second: Records) -> bool:
    """Equal up to the order of summation, which differs between a batch and a single trial; NaN equals NaN."""
    allowed = max(1e-6, 32 * torch.finfo(second.features.dtype).eps) * second.features.nan_to_num().norm()
    unclaimed = first.features.isnan() & second.features.isnan()
    off = (first.features - second.features).masked_fill(unclaimed, 0.0)
    return bool(off.norm() <= allowed) and torch.allclose(
        first.labels.double(), second.labels.double(), rtol=1e-6, equal_nan=True
    )


def require(kept: bool, promise: str) -> None:
    """Raise `ContractError` where a promise is not kept."""
    if not kept:
        raise ContractError(f"Broken promise: {promise}.")
