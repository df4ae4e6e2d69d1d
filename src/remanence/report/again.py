"""How to run an audit again: the command that made it, or the call."""

from __future__ import annotations

import shlex
from importlib import import_module

from remanence.auditing import AuditResult
from remanence.core.catalogue import catalogue, load_attack
from remanence.results.evidence import Evidence


def command(result: AuditResult) -> str:
    """The command line that gives the same verdict; empty where there is none, or none that is known.

    A stored command is shown only if it is one of ours and hides nothing from a shell.
    """
    stored = str(result.environment.get("command", ""))
    if stored:
        try:
            words = shlex.split(stored)
        except ValueError:
            return ""
        return stored if words[:1] == ["remanence"] and shlex.join(words) == stored else ""
    # Targets come after views in the order of imports. Defaults are all that the command line can set.
    known = result.target in import_module("remanence.targets").TARGETS or ".py:" in result.target
    if not known or not all(map(_is_default, result.evidence)):
        return ""
    line = f"remanence audit {shlex.quote(result.target)} --seed {result.seed} --trials {_trials(result)}"
    line += f" --max-success {result.policy.max_success:g}"
    return line + "".join(f" --attack {shlex.quote(entry.attack)}" for entry in result.evidence)


def python(result: AuditResult) -> str:
    """The call that plays the same game again."""
    limit, made = f"policy=Policy({result.policy.max_success:g})", list(map(_made, result.evidence))
    if result.words.python:
        return result.words.python.replace("...", limit)
    attacks = "attacks" if None in made else f"[{', '.join(filter(None, made))}]"
    return f"audit(game, {attacks}, {limit}, trials={_trials(result)}, seed={result.seed})"


def _trials(result: AuditResult) -> int:
    rate = result.evidence[0].main
    return rate.clusters or rate.trials


def _made(evidence: Evidence) -> str | None:
    """The attack as it was made, with the settings that are not its defaults."""
    if evidence.attack not in catalogue():
        return None
    attack = load_attack(evidence.attack)
    usual = attack.settings()
    own = {name: value for name, value in evidence.settings.items() if usual.get(name) != value}
    return f"{type(attack).__name__}({', '.join(f'{key}={value!r}' for key, value in own.items())})"


def _is_default(evidence: Evidence) -> bool:
    return (_made(evidence) or "").endswith("()")
