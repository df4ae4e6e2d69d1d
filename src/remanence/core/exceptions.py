"""Errors that a user can fix: what was needed, what was given, what to try."""

from __future__ import annotations

from functools import partial

from remanence.core.plain_text import plain


class RemanenceError(Exception):
    """A problem with the user's input; the command line shows it without a traceback."""

    def __init__(self, summary: str, *, needs: str, got: str, hint: str) -> None:
        super().__init__(summary)
        self.summary = summary
        self.needs = needs
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        needs, got, hint = plain(self.needs), plain(self.got), plain(self.hint)
        return f"{plain(self.summary)}\n  needs: {needs}\n  got:   {got}\n  try:   {hint}"

    def __reduce__(self) -> tuple:
        # By default only the summary would be pickled, which fails when a worker process returns the error.
        return partial(type(self), needs=self.needs, got=self.got, hint=self.hint), (self.summary,)


class InputError(RemanenceError):
    """A value, a file or an option that cannot be used."""


class IncompatibleGameError(RemanenceError):
    """An attack that cannot play this game."""


class MisfitError(InputError):
    """An input that does not match its declaration, so that no verdict about it is possible."""


class UnreadableAuditError(RemanenceError):
    """A stored result that is missing, damaged or of another version."""
