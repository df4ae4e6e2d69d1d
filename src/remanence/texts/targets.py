"""Built-in language models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remanence.texts.game import Texts


def tiny_text() -> Texts:
    """A tiny language model fine-tuned on 60 made-up names with codes of four digits, and its base."""
    from remanence.texts.canaries import Planted
    from remanence.texts.game import text_game
    from remanence.texts.tiny import tiny_pair

    base, model, mine, unseen = tiny_pair()
    return replace(text_game(model, mine, base=base, unseen=unseen), planted=Planted(10**4))
