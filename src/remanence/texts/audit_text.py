"""Audit a language model with the texts that it was fine-tuned on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from remanence.auditing import AuditResult, audit
from remanence.core.exceptions import InputError
from remanence.results.verdict import Policy
from remanence.texts.claims import Claim, Planted, no_canaries
from remanence.texts.game import Texts
from remanence.texts.language_model import LanguageModel, Secret
from remanence.texts.planting import TextCanaries
from remanence.texts.secrets import Finder, read_records, read_texts

Source = str | Path | Sequence[Any]  # a file of JSON lines, or records as they would stand there


@final
@dataclass(frozen=True)
class Rule:
    """What a secret is, what is known of it, and when it counts as brought out."""

    find: Finder | None = None  # finds the secrets of plain texts
    prefix_tokens: int | None = None  # the adversary knows only so many tokens before a secret
    tries: int = 100  # it counts if it comes out within so many
    chance: float = 0.5  # with at least this chance


def text_game(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    rule: Rule = Rule(),  # noqa: B008
    planted: Planted = Planted(),  # noqa: B008
) -> Texts:
    """The game behind `audit_text`, for `audit` with attacks, bounds and a run of one's own.

    Canaries bring their control along, those that were left out, and the exact value of a guess.
    """

    def read(source: Source) -> tuple[Secret, ...]:
        reader = read_texts if isinstance(source, str | Path) else read_records
        return tuple(reader(source, model, find=rule.find, prefix_tokens=rule.prefix_tokens))  # pyright: ignore[reportArgumentType]

    if isinstance(texts, TextCanaries):
        if unseen is not None:
            raise InputError(
                "Canaries bring their control along.",
                needs="no other texts: those that were left out are the unseen ones",
                got="unseen texts beside canaries",
                hint="leave them out",
            )
        cuts, drawn = texts.cuts(model), texts.candidates
        planted = replace(planted, by_coin=True, candidates=None if drawn is None else drawn / cuts)
        texts, unseen = texts.inserted, texts.left_out
    secrets, others = read(texts), () if unseen is None else read(unseen)
    both = {(s.prompt, s.tokens) for s in secrets} & {(s.prompt, s.tokens) for s in others}
    if both:
        raise InputError(
            "Some unseen texts are training texts.",
            needs="texts that the model was not trained on: a control that leaks hides a leak",
            got=f"{len(both)} that are on both sides",
            hint="take them out of the unseen texts",
        )
    return Texts(model, secrets, base, others, rule.tries, rule.chance, planted)


def audit_text(
    model: LanguageModel,
    texts: Source | TextCanaries,
    *,
    base: LanguageModel | None = None,
    unseen: Source | None = None,
    rule: Rule = Rule(),  # noqa: B008
    claim: Claim | None = None,
    policy: Policy | None = None,
) -> AuditResult:
    """Which secrets of its texts come out of a fine-tuned model, within so many tries and beyond what the base says.

    `texts` and `unseen` (of the same kind, not trained on) are files with a JSON record per line or lists of such
    records, and `texts` may be canaries; `rule` says which parts of plain texts are secrets (`Numbers`, `Names`,
    `Windows`) and when one counts. Canaries limit ε from below, and refute a `claim` that cannot be true.

    >>> from remanence.texts.tiny import tiny_pair
    >>> base, model, mine, unseen = tiny_pair()
    >>> audit_text(model, mine, base=base, unseen=unseen).verdict
    <Verdict.EXPOSED: 'EXPOSED'>
    """
    if claim is not None and not isinstance(texts, TextCanaries):
        raise no_canaries("other texts")
    planted = Planted(by_coin=claim is not None, claim=claim)
    game = text_game(model, texts, base=base, unseen=unseen, rule=rule, planted=planted)
    return audit(game, policy=policy, target=model.name)
