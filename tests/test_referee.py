"""The referee's table, in few audits: what must not fool an audit, and toy mechanisms whose word is known."""

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from conftest import ROOT, network_game, synthetic
from remanence import (
    GLM,
    ClosedForm,
    Criterion,
    EmpiricalPrior,
    FinitePrior,
    Game,
    InputError,
    Knowledge,
    LeaveOneOut,
    Logistic,
    Membership,
    Reconstruction,
    Records,
    RetrainAndCompare,
    Verdict,
    audit,
    mismatch,
    play,
)
from remanence.private.noisy_sum import NoisySum
from remanence.results.caveats import SATURATED_CONTROL

sys.path.append(str(ROOT / "benchmarks"))

from referee import Line, Scripted, alone, known, lines, mode, most_by_chance, total, toys, twin

AUDITS = 8


@pytest.mark.parametrize("line", [*lines(), *toys()], ids=lambda line: f"{line.kind}: {line.case}")
def test_no_more_words_are_wrong_than_chance_allows(line: Line):
    words = line.words(AUDITS)
    assert words.total() == AUDITS
    assert line.wrong_words(words) <= most_by_chance(AUDITS), words


def test_every_kind_of_audit_is_refereed():
    assert {line.kind for line in lines()} >= {
        "game", "population", "membership", "leave one out", "heads", "captured",
    }  # fmt: skip


@pytest.mark.parametrize("weights", [(0.9, 0.1), (0.97, 0.03), (0.5, 0.5)])
def test_the_control_of_membership_is_a_coin_whatever_the_prior(weights):
    prior = FinitePrior(synthetic(2), torch.tensor(weights))
    game = Membership(Game(NoisySum(1e-3, 100.0), prior, synthetic(6, seed=4), Criterion(mismatch, 0.5)))
    found = play(game, RetrainAndCompare(repeats=2), trials=2000, confidence=1 - 1e-6)
    assert found.main.rate == 1
    assert found.control.lower <= 0.5 <= found.control.upper
    assert SATURATED_CONTROL not in found.caveats
    blind = play(game, Scripted(mode), trials=2000, confidence=1 - 1e-6)
    assert blind.main.lower <= 0.5 <= blind.main.upper


@pytest.mark.parametrize(("design", "strategy"), [("twice", twin), ("standardised", total)])
def test_what_the_other_records_give_away_is_found_in_a_model_that_never_saw_the_record(design, strategy):
    found = play(alone(0, design), Scripted(strategy))
    assert found.main.rate == 1
    assert found.control.rate == 1
    assert not found.tells


def reachable(*things: object) -> Iterator[torch.Tensor]:
    """Every tensor that somebody who holds these can get at: through attributes, containers and closures."""
    seen, left = set(), list(things)
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, type | str | bytes) or type(thing).__name__ == "module":
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            yield thing
        elif callable(thing) and hasattr(thing, "__closure__"):
            left += [cell.cell_contents for cell in thing.__closure__ or ()]
        else:
            left += [one for one in gc.get_referents(thing) if not isinstance(one, type)]


class TestPeeking:
    """An attack that knows the answer cannot be written: nothing that it is handed leads to the target."""

    def test_what_an_attack_is_handed_holds_no_target_even_in_the_memory_behind_it(self):
        handed = []

        @dataclass(frozen=True)
        class Looking(Scripted):
            info: ClassVar = Scripted.info

            def prepare(self, knowledge, generator):
                blind = super().prepare(knowledge, generator)

                def reconstruct(release):
                    handed.append((knowledge, generator, release))
                    return blind(release)

                return reconstruct

        game = network_game(epochs=1)  # whose known data, belief and targets are slices of one tensor
        assert isinstance(game.targets, EmpiricalPrior)
        play(game, Looking(mode), trials=5)
        targets = game.targets.records.flat
        found = list(reachable(*handed))
        assert len(found) >= 5  # known data and belief with their labels, and what was released
        memory = b"".join(bytes(tensor.untyped_storage()) for tensor in found)
        for target in targets[:20]:
            assert target.numpy().tobytes() not in memory

    def test_one_pass_over_all_records_may_not_look_at_the_one_in_question(self):
        @dataclass(frozen=True)
        class Copying(Scripted):
            def expose(self, mechanism, data, release):
                return Reconstruction(data[:, None])

        game = LeaveOneOut(GLM(Logistic(), penalty=1.0), synthetic(), Criterion(label_scale=1.0))
        with pytest.raises(InputError, match="only while it looks at it"):
            audit(game, [Copying(known)])
        assert audit(game, [ClosedForm()]).verdict is Verdict.EXPOSED

    def test_knowledge_apart_is_the_same_knowledge(self):
        game = network_game()
        known, apart = game.knowledge, game.knowledge.apart()
        assert isinstance(apart, Knowledge)
        assert torch.equal(known.known_data.features, apart.known_data.features)
        assert torch.equal(known.prior.samples.features, apart.prior.samples.features)
        whole = Records(torch.zeros(3, 2), torch.zeros(3))
        assert whole.apart().features is whole.features  # nothing behind it: no copy
