"""What it costs the adversary that nobody told them the recipe: the same heads read with it, and without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from remanence.auditing import compatible_attacks
from remanence.core.attack import Attack
from remanence.core.rates import SuccessRate
from remanence.heads.fit import LEVEL, recipe_words
from remanence.heads.inferring_reader import P_VALUE, RECIPE, InferringReader, plausible
from remanence.heads.linear_reader import LinearReader
from remanence.heads.transfer_head import TransferHead
from remanence.protocol import AnyGame
from remanence.results.evidence import Evidence
from remanence.results.result import AuditResult

_LOST = "lost_without_the_recipe"


def and_without_the_recipe(game: AnyGame, attacks: Sequence[Attack] | None) -> list[Attack]:
    """These attacks, or all that fit, and the reader of an adversary who infers the recipe."""
    told = [*(compatible_attacks(game) if attacks is None else attacks)]
    there = any(isinstance(attack, InferringReader) for attack in told)
    return told if there else [*told, InferringReader()]


def beside_the_recipe(result: AuditResult) -> AuditResult:
    """The result, with what the linear reader loses where it infers the recipe instead of being told, as a finding.

    Both read the same heads. The interval takes each head for one observation, and holds whatever the laws are.
    """
    told, inferred = _both(result)
    if told is None or inferred is None:
        return result
    lost = told.arrays["succeeded"].int() - inferred.arrays["succeeded"].int()  # (heads, classes)
    confidence = told.main.confidence
    share = SuccessRate(int((1 + lost).sum()), 2 * lost.numel(), confidence, clusters=len(lost))
    ends = {"": share.rate, "_at_least": share.lower, "_at_most": share.upper}
    findings = {**inferred.findings, **{_LOST + end: 2 * value - 1 for end, value in ends.items()}}
    entries = (replace(each, findings=findings) if each is inferred else each for each in result.evidence)
    return replace(result, evidence=tuple(entries))


def what_the_recipe_is_worth(result: AuditResult, recipe: TransferHead) -> str:
    """What the adversary took heads made like this for, and what not having been told costs them; "" if not played."""
    _, inferred = _both(result)
    if inferred is None or _LOST not in inferred.findings:
        return ""
    tried = list(plausible(recipe))
    found, p_values = inferred.arrays[RECIPE].tolist(), inferred.arrays[P_VALUE]
    place, often = Counter(found).most_common(1)[0]
    lost, least, most = (
        round(1000 * inferred.findings[_LOST + end]) for end in ("", "_at_least", "_at_most")
    )
    unlike = int((p_values <= LEVEL).sum())
    return (
        f"Not told how the head was trained, the adversary tries {len(tried)} recipes. They take {often} of "
        f"{len(found)} heads for {recipe_words(tried[place])}; {unlike} are like those of no recipe tried, and are "
        f"taken for the likeliest. The linear reader then meets a picture in {inferred.main}: not being told the "
        f"recipe costs it {lost} in 1000 ({least} to {most})."
    )


def _both(result: AuditResult) -> tuple[Evidence | None, Evidence | None]:
    """What the reader found that was told the recipe, and the one that was not."""
    names = {each.attack: each for each in result.evidence}
    return names.get(LinearReader.info.name), names.get(InferringReader.info.name)
