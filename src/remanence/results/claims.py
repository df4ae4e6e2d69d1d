"""What canaries show about a training's ε, and whether they refute its claim: a finding that several doors share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, final

from remanence.core.checks import is_number
from remanence.core.rates import CONFIDENCE
from remanence.results.findings import Finding, Json, Section, Words
from remanence.results.verdict import Policy

_SUSPICIOUS = 0.05  # a p-value at which a recording should be repeated


@final
@dataclass(frozen=True)
class PrivacyTest(Finding):
    """The number of canaries guessed right, the ε that it proves, and the test of the claim if one was made.

    All canaries share one training, so there is no rate: `remanence.bounds.one_run` has the theorem. The noise is
    known where a recording measured it.
    """

    surest_guesses: float
    surest_guesses_correct: float
    epsilon_at_least: float
    delta: float
    claimed_epsilon: float | None = None
    p_value_of_the_claim: float | None = None
    accused_at: float | None = None  # the largest p-value that refutes the claim
    claimed_noise_multiplier: float | None = None
    measured_noise_multiplier: float | None = None
    measured_noise_multiplier_from: float | None = None
    measured_noise_multiplier_to: float | None = None
    kind: ClassVar[str] = "privacy-test"
    meaning: ClassVar[str] = "Canaries refute the claim of the training."

    @property
    def contradicts(self) -> bool:
        """Whether the claimed training would hardly ever make canaries so easy to guess."""
        level = 1 - CONFIDENCE if self.accused_at is None else self.accused_at
        return self.p_value_of_the_claim is not None and self.p_value_of_the_claim <= level

    @property
    def suspicious(self) -> bool:
        """Whether the test should be repeated: it does not refute the claim, but nearly."""
        p_value = self.p_value_of_the_claim
        return p_value is not None and p_value <= _SUSPICIOUS and not self.contradicts

    def exposes(self, policy: Policy) -> bool:
        """Never: canaries are not people's records."""
        return False

    def headline(self, said: Words) -> str:
        """The claim, or without one the ε."""
        return self.claim(refuted=self.contradicts) or self.answers()["differential privacy"]

    def claim(self, *, refuted: bool) -> str:
        """The result of the test in words; empty if nothing was claimed."""
        p_value = self.p_value_of_the_claim
        if p_value is None:
            return ""
        tested = f"(p = {p_value:.2g})"
        if self.claimed_noise_multiplier is None:
            word = "refuted" if refuted else "not refuted, which proves nothing"
            told = f"ε claimed {self.claimed_epsilon:.3g}, at least {self.epsilon_at_least:.3g}"
            return f"The claim: {word} {tested}; {told} by canaries, at δ = {self.delta:g}."
        word = "refuted by what was measured" if refuted else "consistent with the recording"
        if self.contradicts:
            word = f"refuted {tested}"
        elif self.suspicious and not refuted:
            word = f"suspicious, record again {tested}"
        ends = f"{self.measured_noise_multiplier_from:.2f} to {self.measured_noise_multiplier_to:.2f}"
        measured = f"measured {self.measured_noise_multiplier:.2f} ({ends})"
        return f"The claim: {word}; noise claimed {self.claimed_noise_multiplier:.2f}, {measured}."

    def answers(self) -> dict[str, str]:
        """How many guesses were right, and the ε that they prove."""
        right = (
            f"of {self.surest_guesses:.0f} guesses, in or out, {self.surest_guesses_correct:.0f} were right"
        )
        least = f"ε is at least {self.epsilon_at_least:.3g} at δ {self.delta:g}"
        return {
            "membership inference": f"By canaries: {right}; a coin gives half.",
            "differential privacy": f"Canaries show that {least}.",
        }

    def section(self) -> Section:
        """All numbers, by name."""
        rows = tuple((name.replace("_", " "), f"{value:.4g}") for name, value in self.to_json().items())
        return Section("What canaries show", headings=("number", "value"), rows=rows)

    def to_json(self) -> Json:
        """The numbers that there are."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Read an entry back."""
        given = {each.name: entry[each.name] for each in fields(cls) if each.name in entry}
        wrong = [name for name, value in given.items() if not is_number(value)]
        if wrong:
            raise ValueError(f"the test of the claim has no number for {wrong[0]}")
        try:
            found = cls(**given)
            found.claim(refuted=False)  # which needs several of the numbers together
        except TypeError:
            raise ValueError(f"the test of the claim is not complete: {', '.join(given)}") from None
        return found


def split(numbers: Mapping[str, float]) -> tuple[PrivacyTest | None, dict[str, float]]:
    """The test among these numbers, and the other numbers. Files of older versions hold both together."""
    own = {each.name for each in fields(PrivacyTest)}
    test = PrivacyTest.from_json(numbers) if "surest_guesses" in numbers else None
    return test, {name: value for name, value in numbers.items() if name not in own}
