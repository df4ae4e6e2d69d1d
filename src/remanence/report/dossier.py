"""The same facts, criterion by criterion, as auditors ask for them. No legal conclusion is drawn."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.report import words
from remanence.report.frequencies import ceiling
from remanence.report.markdown import plain, table
from remanence.report.remedies import DELTA

_NOT_TESTED = "Not tested in this audit."
_QUERIES = ("answer", "continuation")  # what somebody sees who may only ask


def dossier(result: AuditResult) -> str:
    """Every criterion with what was shown, or that it was not tested, as Markdown."""
    hashes = result.subject.get("sha256", {}).items()
    held = [
        f"- SHA-256 of {plain(words.SUBJECTS.get(str(name), str(name)))}: {plain(value)}"
        for name, value in hashes
    ]
    parts = [
        f"# Dossier: {plain(result.target)}",
        f"**{result.verdict}**: {plain(words.headline(result))} {result.meaning} {plain(words.found(result))}",
        f"{plain(words.scope(result))} {plain(words.counts(result))}",
        f"Report {words.identity(result)}, {plain(str(result.environment.get('started', ''))[:10])}, "
        f"remanence {plain(result.environment['packages']['remanence'])}.",
        "\n".join(held),
        "Each row says what was shown, or that nothing was. None is a legal conclusion: that is for the controller and "
        "the authority.",
        table(("criterion", "asks", "what was shown"), criteria(result)),
        f"{words.not_covered(result)} {words.DECISION}",
        plain(words.checked(result)),
    ]
    return "\n\n".join(parts) + "\n"


def criteria(result: AuditResult) -> list[tuple[str, str, str]]:
    """Who asks, what they ask of a model in their own words, and what this audit has to say."""
    extraction, membership = _extraction(result), _membership(result)
    return [
        (
            "EDPB Opinion 28/2024, §43",
            "Is the likelihood of extracting personal data from the model insignificant?",
            extraction,
        ),
        (
            "EDPB Opinion 28/2024, §43",
            "Is the likelihood of obtaining such data from queries insignificant?",
            extraction if any(word in result.threat_model["sees"] for word in _QUERIES) else _NOT_TESTED,
        ),
        ("EDPB Opinion 28/2024, §55: membership inference", "Was it tested?", membership),
        ("EDPB Opinion 28/2024, §55: attribute inference", "Was it tested?", _attributes(result)),
        (
            "ICO, motivated intruder",
            "Is identification sufficiently remote for somebody competent, with access to public resources?",
            f"{words.scope(result)} This adversary knows at least as much as a motivated intruder "
            f"where they know training records. {extraction}",
        ),
        (
            "CNIL, status of an AI model",
            "Do attacks on the model itself recover personal data?",
            extraction,
        ),
        (
            "NIST SP 800-226",
            "What is the unit of privacy, what is ε, and was the implementation checked?",
            _differential_privacy(result),
        ),
        (
            "ISO/IEC 27559",
            "Context, adversary and re-identification risk.",
            f"{words.scope(result)} {extraction}",
        ),
        (
            "OWASP AISVS 1.0, 11.2.4",
            "Is sensitive data trained on with differentially private optimisation?",
            _differential_privacy(result),
        ),
        (
            "OWASP AISVS 1.0, 11.2.5",
            "Do simulated membership attacks stay at the level of guessing?",
            membership,
        ),
        (
            "AI Act, Article 15(5)",
            "Was resilience against attacks on confidentiality examined?",
            f"{len(result.evidence)} attack(s) were run: {', '.join(e.attack for e in result.evidence)}. "
            f"{extraction}",
        ),
    ]


def _extraction(result: AuditResult) -> str:
    best, proven = result.strongest, words.tightest(result)
    found = f"{best.attack} {result.done(best)}, {words.interval(best.main)} in 1000; control "
    found += f"{words.interval(best.control)}; guess {words.guessing(best.baseline)}."
    if proven is None or proven.success >= 1:
        return f"{found} Nothing is proven about other attacks."
    return f"{found} Proven for every attack: at most {ceiling(proven)} for {proven.whose}."


def _membership(result: AuditResult) -> str:
    best = result.strongest
    if "membership inference" not in result.words.tests:
        return _NOT_TESTED
    if "surest_guesses" in best.numbers:
        told, of = (best.numbers[f"surest_guesses{end}"] for end in ("_correct", ""))
        return f"By canaries: of {of:.0f} guesses by their loss, in or out, {told:.0f} were right; a coin gives half."
    side = "above" if best.tells else "not certainly above"
    return f"{best.attack}: {words.interval(best.main)} in 1000, where guessing gives 500; {side} guessing."


def _attributes(result: AuditResult) -> str:
    tested = "attribute inference" in result.words.tests
    return _extraction(result) if tested else _NOT_TESTED


def _differential_privacy(result: AuditResult) -> str:
    settings, proven = result.threat_model["mechanism"], words.tightest(result)
    numbers = result.strongest.numbers
    if proven is None and "epsilon_at_least" in numbers:
        least = (
            f"Canaries show that ε is at least {numbers['epsilon_at_least']:.3g} at δ {numbers['delta']:g}."
        )
        return " ".join(
            [*words.claim(result.strongest), least, "No differential privacy is proven for this training."]
        )
    if proven is None:
        return "No differential privacy is claimed for this training, or none that a proof covers."
    noise = settings.get("noise_multiplier")
    facts = [
        f"Unit: {proven.whose}. {proven.name}" + ("" if noise is None else f", noise multiplier {noise:g}")
    ]
    if "claimed_epsilon" in numbers:
        facts.append(f"claimed ε {numbers['claimed_epsilon']:.3g} at δ {numbers.get('delta', DELTA):g}")
    if "p_value_of_the_claim" in numbers:
        facts.append(f"the run was tested against its claim: p = {numbers['p_value_of_the_claim']:.2g}")
    return "; ".join(facts) + f". No attack exceeds {ceiling(proven)} for {proven.whose}."
