"""Trainings that come to nothing are counted and named; they neither disable an attack nor pass for safety."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from conftest import shortlist_game
from remanence import InputError, Mechanism, Membership, Policy, RetrainAndCompare, Weights, audit, play
from remanence.results.caveats import DIVERGED


@dataclass(frozen=True)
class SometimesNothing(Mechanism):
    """A noisy sum, of which some releases are NaN."""

    share: float
    noise: float = 0.01
    name: ClassVar[str] = "a sum that diverges at times"
    releases = Weights

    def release(self, known_data, targets, generator):
        sums = targets.flat.sum(1) + known_data.flat.sum(0)
        sums = sums + self.noise * torch.randn(sums.shape, generator=generator, dtype=sums.dtype)
        lost = torch.rand(len(targets), generator=generator) < self.share
        return Weights({"sum": sums.masked_fill(lost[:, None], torch.nan)})

    def settings(self):
        return {"share": self.share}


def game(share, candidates=8):
    return replace(shortlist_game(candidates=candidates), mechanism=SometimesNothing(share))


def test_a_few_diverged_shadows_do_not_disable_the_attack():
    evidence = play(game(0.005), RetrainAndCompare(), trials=400, seed=3)
    lost = evidence.numbers["diverged_trainings"]
    assert 1 <= lost <= 10  # 2 are expected of 400
    assert evidence.main.successes == 400 - lost  # nothing else goes wrong at this noise
    assert DIVERGED in evidence.caveats
    assert DIVERGED not in play(game(0.0), RetrainAndCompare(), trials=50).caveats


def test_diverged_trainings_count_as_failures_and_are_named_in_the_result():
    result = audit(game(0.3), [RetrainAndCompare()], trials=200, policy=Policy(0.5))
    lost = result.strongest.numbers["diverged_trainings"]
    assert result.strongest.main.successes == 200 - lost
    assert abs(lost - 60) < 4 * (200 * 0.3 * 0.7) ** 0.5
    assert "diverged_trainings" in result.to_json()["evidence"][0]["numbers"]


def test_where_most_trainings_fail_nothing_is_concluded():
    with pytest.raises(InputError, match="Training diverged"):
        play(game(0.9), RetrainAndCompare(), trials=50)


def test_a_membership_game_names_them_too():
    evidence = play(Membership(game(0.2)), RetrainAndCompare(), trials=200)
    assert DIVERGED in evidence.caveats


def test_the_control_of_membership_is_a_coin_whatever_the_prior():
    uneven = game(0.0, candidates=2)
    prior = replace(uneven.prior, weights=torch.tensor([0.97, 0.03]))
    evidence = play(Membership(replace(uneven, prior=prior)), RetrainAndCompare(), trials=1000)
    assert abs(evidence.control.rate - 0.5) < 4 * 0.5 / 1000**0.5
    assert evidence.main.rate == 1
