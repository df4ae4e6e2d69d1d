"""Does the head protect the pictures, or the backbone? The same game with the true embeddings in place of heads."""

from __future__ import annotations

from dataclasses import replace

from remanence.adversary.stratified import StratifiedPrior
from remanence.attacks.attack import Attack
from remanence.exceptions import InputError
from remanence.game import Game, play
from remanence.mechanisms.heads.given_embeddings import GivenEmbeddings


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
    rows = game.prior.places if mixed else game.prior.places[:, :1]
    places = tuple(tuple(dict.fromkeys(row)) for row in rows.tolist())
    return replace(game, mechanism=GivenEmbeddings(places), bounds=())


def what_the_head_withholds(game: Game, attack: Attack, *, trials: int, seed: int = 0) -> str:
    """The same attack on heads and on the true embeddings, in a sentence: does the head protect, or the backbone?"""
    games = game, with_embeddings_given(game)
    heads, given = (play(each, attack, trials=trials, seed=seed).main for each in games)
    share = min(1.0, heads.rate / given.rate) if given.rate else 1.0
    return (
        f"Given the true features, the {attack.info.name} meets a picture in {given}; from heads made like this in "
        f"{heads}. The head gives away {share:.0%} of what the backbone leaves of the pictures."
    )
