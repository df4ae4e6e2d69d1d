"""Audit a language model with the texts that it was fine-tuned on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remanence.auditing import AuditResult, audit
from remanence.games.texts.canaries import TextCanaries
from remanence.games.texts.game import Texts
from remanence.games.texts.secrets import Finder, read_records, read_texts
from remanence.mechanisms.language_model import LanguageModel, Secret
from remanence.results.verdict import Policy

Source = str | Path | Sequence[Any]  # a file of JSON lines, or records as they would stand there


def text_game(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    find: Finder | None = None,
    prefix_tokens: int | None = None,
    tries: int = 100,
    candidates: float | None = None,
) -> Texts:
    """The game behind `audit_text`, for `audit` with attacks, bounds and a run of one's own.

    Canaries bring their control along, those that were left out, and the exact value of a guess.
    """
    if isinstance(texts, TextCanaries):
        unseen = texts.left_out if unseen is None else unseen
        candidates = texts.candidates if candidates is None else candidates
        texts = texts.inserted

    def read(source: Source) -> list[Secret]:
        reader = read_texts if isinstance(source, str | Path) else read_records
        return reader(source, model, find=find, prefix_tokens=prefix_tokens)  # pyright: ignore[reportArgumentType]

    others = () if unseen is None else tuple(read(unseen))
    return Texts(model, tuple(read(texts)), base, others, tries, candidates)


def audit_text(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    find: Finder | None = None,
    prefix_tokens: int | None = None,
    tries: int = 100,
    policy: Policy | None = None,
) -> AuditResult:
    """Which secrets of its texts come out of a fine-tuned model, within so many tries and beyond what the base says.

    `texts` and `unseen` (of the same kind, not trained on) are files with a JSON record per line or lists of such
    records, and `texts` may be canaries; `find` is a rule (`Numbers`, `Names`, `Windows`) for plain texts.

    >>> from remanence.games.texts.tiny import tiny_pair
    >>> base, model, mine, unseen = tiny_pair()
    >>> audit_text(model, mine, base=base, unseen=unseen).verdict
    <Verdict.EXPOSED: 'EXPOSED'>
    """
    options = {"base": base, "unseen": unseen, "find": find, "prefix_tokens": prefix_tokens, "tries": tries}
    return audit(text_game(model, texts, **options), policy=policy, target=model.name)
