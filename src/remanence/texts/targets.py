"""Built-in language models."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remanence.texts.game import Texts


def tiny_text() -> Texts:
    """A tiny language model fine-tuned on 60 made-up names with codes of four digits, and its base."""
    from remanence.texts.game import text_game
    from remanence.texts.tiny import tiny_pair

    base, model, mine, unseen = tiny_pair()
    return text_game(model, mine, base=base, unseen=unseen, candidates=10**4)
