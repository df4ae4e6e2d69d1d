"""Does the head protect the pictures, or the backbone? The same game with the true embeddings in place of heads."""

from __future__ import annotations

from dataclasses import replace

from remanence.adversary.stratified import StratifiedPrior
from remanence.attacks.linear_reader import LinearReader
from remanence.exceptions import InputError
from remanence.game import Game, play
from remanence.mechanisms.heads.given_embeddings import GivenEmbeddings
from remanence.results.evidence import Evidence
from remanence.results.result import AuditResult

_GIVEN, _SHARE = "given_the_true_features", "share_of_that"


def with_embeddings_given(game: Game, *, mixed: bool = False) -> Game:
    """The game of an adversary who is handed the true embedding of the first picture of each class in a set.

    What an attack achieves there is what the backbone leaves of the pictures. `mixed`, they are handed the mean of the
    class's embeddings instead, which is about what a row of a linear head shows.
    """
    if not isinstance(game.prior, StratifiedPrior):
        raise InputError(
            "There are no classes to hand embeddings over for.",
            needs="a game of heads: a StratifiedPrior of embedded pictures",
            got=game.prior.describe(),
            hint="head_game(...).heads",
        )
    prior = game.prior
    if isinstance(game.targets, StratifiedPrior):  # whoever is given embeddings knows how many there are
        prior = replace(prior, counts=game.targets.counts)
    rows = prior.places if mixed else prior.places[:, :1]
    places = tuple(tuple(dict.fromkeys(row)) for row in rows.tolist())
    return replace(game, mechanism=GivenEmbeddings(places), prior=prior, bounds=())


def beside_the_embeddings(result: AuditResult, game: Game, *, trials: int, seed: int = 0) -> AuditResult:
    """The result, with every attack as a share of what the linear reader draws from the true embeddings."""
    given = play(with_embeddings_given(game), LinearReader(), trials=trials, seed=seed).main

    def told(evidence: Evidence) -> Evidence:
        share = min(1.0, evidence.main.rate / given.rate) if given.rate else 1.0
        return replace(evidence, findings={**evidence.findings, _GIVEN: given.rate, _SHARE: share})

    return replace(result, evidence=tuple(told(each) for each in result.evidence))


def what_the_head_withholds(result: AuditResult) -> str:
    """Does the head protect, or the backbone? In a sentence."""
    best = result.strongest
    given, share = best.findings[_GIVEN], best.findings[_SHARE]
    return (
        f"Given the true features, the linear reader meets a picture {1000 * given:.0f} times in 1000; from heads made "
        f"like this {best.attack} does in {best.main}. The head gives away {share:.0%} of what the backbone leaves of "
        "the pictures."
    )
