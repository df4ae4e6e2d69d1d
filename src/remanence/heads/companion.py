"""Does the head protect the pictures, or the backbone? The same game with the true embeddings in place of heads."""

from __future__ import annotations

from dataclasses import replace

from remanence.core.exceptions import InputError
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game, play
from remanence.heads.given_embeddings import GivenEmbeddings
from remanence.heads.linear_reader import LinearReader
from remanence.results.evidence import Evidence
from remanence.results.result import AuditResult

_GIVEN, _SHARE = "linear_reader_given_the_true_features", "share_of_that"


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
    """The result, with what the linear reader draws from the true embeddings beside what it draws from heads.

    Like is held against like: no other attack gets a share of what this one achieves.
    """
    reader = LinearReader()
    given = play(with_embeddings_given(game), reader, trials=trials, seed=seed).main

    def told(evidence: Evidence) -> Evidence:
        findings = {**evidence.findings, _GIVEN: given.rate}
        if evidence.attack == reader.info.name:
            findings[_SHARE] = min(1.0, evidence.main.rate / given.rate) if given.rate else 1.0
        return replace(evidence, findings=findings)

    return replace(result, evidence=tuple(told(each) for each in result.evidence))


def what_the_head_withholds(result: AuditResult) -> str:
    """Does the head protect, or the backbone? In a sentence, by the linear reader where it played."""
    best = result.strongest
    found = next((each for each in result.evidence if _SHARE in each.findings), best)
    given = 1000 * found.findings[_GIVEN]
    told = f"Given the true features, the linear reader meets a picture {given:.0f} times in 1000"
    if _SHARE not in found.findings:
        return f"{told}. It did not play against heads, so that nothing is said about what those withhold."
    more = (
        "" if best is found else f" {best.attack} meets one in {best.main}, and was not given the features."
    )
    return (
        f"{told}, and from heads made like this in {found.main}. By that attack, the head gives away "
        f"{found.findings[_SHARE]:.0%} of what the backbone leaves of the pictures.{more}"
    )
