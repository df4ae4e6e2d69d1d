"""Does the head protect the pictures, or the backbone? The same game with the true embeddings in place of heads."""

from __future__ import annotations

from dataclasses import replace

from remanence.core.exceptions import InputError
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.given_embeddings import GivenEmbeddings
from remanence.heads.linear_reader import LinearReader
from remanence.results.result import AuditResult

GIVEN = "linear-reader, given the true features"  # its name among the companions of a result


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


def what_the_head_withholds(result: AuditResult) -> str:
    """Does the head protect, or the backbone? In a sentence, by the linear reader where it played.

    A share is given only where the reader certainly does better on these heads than on heads of strangers.
    """
    given = next(each for each in result.companions if each.attack == GIVEN).main
    told = (
        f"Given the true features, the linear reader matches a picture {1000 * given.rate:.0f} times in 1000"
    )
    found = next((each for each in result.evidence if each.attack == LinearReader.info.name), None)
    if found is None:
        return f"{told}. It did not play against heads, so nothing is known about what the heads withhold."
    from_heads = f"{told}, and from heads made like this in {found.main}."
    if not found.tells or not given.rate:
        return f"{from_heads} That is not certainly more than without your pictures, so it gives no share."
    share = min(1.0, found.main.rate / given.rate)
    return f"{from_heads} By that attack, the head gives away {share:.0%} of what the backbone leaves of the pictures."
