"""The same facts by auditors' criteria. No legal conclusion is drawn."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.report import words
from remanence.report.frequencies import ceiling, upwards
from remanence.report.markdown import plain, table
from remanence.report.remedies import DELTA, epsilon
from remanence.results.findings import WholeRecords

RULES = (
    "Each row says what was shown, or that nothing was. The questions are in our words; the documents' own text "
    "decides. No row is a legal conclusion: that is for the controller and the authority."
)
_NOT_TESTED = "Not tested in this audit."
_QUERIES = ("answer", "continuation")  # what a query-only adversary sees


def dossier(result: AuditResult) -> str:
    """Every criterion and its finding, or that it was not tested, as Markdown."""
    held = [f"- SHA-256 of {plain(name)}: {plain(value)}" for name, value in words.hashes(result).items()]
    parts = [
        f"# Dossier: {plain(result.target)}",
        f"**{result.verdict}**: {plain(words.headline(result))} {result.meaning} {plain(words.found(result))}",
        f"{plain(words.scope(result))} {plain(words.counts(result))}",
        f"Report {words.identity(result)}, {plain(str(result.environment.get('started', ''))[:10])}, "
        f"remanence {plain(result.environment['packages']['remanence'])}.",
        "\n".join(held),
        RULES,
        table(("criterion", "asks", "what was shown"), criteria(result)),
        f"{words.not_covered(result)} {words.DECISION}",
        plain(words.checked(result)),
    ]
    return "\n\n".join(parts) + "\n"


def criteria(result: AuditResult) -> list[tuple[str, str, str]]:
    """Source, question and this audit's answer for each criterion: an answer in full once, then by reference."""
    attacks = ", ".join(evidence.attack for evidence in result.evidence)
    asked = any(word in result.threat_model["sees"] for word in _QUERIES)
    answers = {
        "extraction": _extraction(result),
        "queries": "extraction" if asked else _NOT_TESTED,
        "embeddings": "extraction" if "embedding" in result.threat_model["sees"] else _NOT_TESTED,
        "membership": _membership(result),
        "attributes": _attributes(result),
        "privacy": _differential_privacy(result),
        "adversary": words.scope(result),
        "attacks": f"Attacks that were run: {attacks}.",
    }
    rows, said = [], dict[str, str]()
    for who, told in _CRITERIA.items():
        names, _, asks = told.partition(": ")
        parts = []
        for name in names.split():
            key = answers[name] if answers[name] in answers else name
            if key in said:
                parts.append(f"As under {said[key]}.")
            else:
                parts.append(answers[key])
                said |= {key: who} if answers[key] != _NOT_TESTED else {}
        rows.append((who, asks, " ".join(dict.fromkeys(parts))))
    return rows


# From the document to the names of what answers its question, a colon, and the question.
_CRITERIA = {
    "EDPB Opinion 28/2024, §43": (
        "extraction: Is the likelihood of extracting personal data from the model insignificant?"
    ),
    "EDPB Opinion 28/2024, §43: queries": (
        "queries: Is the likelihood of obtaining such data from queries insignificant?"
    ),
    "EDPB Opinion 28/2024, §55: membership inference": "membership: Was it tested?",
    "EDPB Opinion 28/2024, §55: attribute inference": "attributes: Was it tested?",
    "ICO, motivated intruder": (
        "adversary extraction: Is identification sufficiently remote for a competent person with access to "
        "public resources?"
    ),
    "CNIL, status of an AI model": "extraction: Do attacks on the model itself recover personal data?",
    "NIST SP 800-226": "privacy: What is the unit of privacy, what is ε, and was the implementation checked?",
    "NIST AI RMF, MEASURE 2.10": (
        "attacks extraction: Is the privacy risk of the system examined and documented?"
    ),
    "ISO/IEC 27559": "adversary extraction: Context, adversary and re-identification risk.",
    "ISO/IEC 42001, A.5.3 and A.5.4": (
        "attacks extraction: Are potential impacts on individuals assessed, and is the assessment documented?"
    ),
    "OWASP Top 10 for LLM applications, LLM08: vector and embedding weaknesses": (
        "embeddings: Can stored embeddings be inverted to the data that they were made from?"
    ),
    "OWASP AISVS, 8.4 in the drafts of 1.0 (not in the published 1.0)": (
        "embeddings: Is resistance to embedding inversion measured?"
    ),
    "OWASP AISVS 1.0, C11.2: model inversion": (
        "extraction: Is private training data kept from reconstruction?"
    ),
    "OWASP AISVS 1.0, 11.2.4": (
        "privacy: Is sensitive data trained on with differentially private optimisation?"
    ),
    "OWASP AISVS 1.0, 11.2.5": "membership: Do simulated membership attacks stay at the level of guessing?",
    "AI Act, Article 15(5): high-risk systems, from 2 December 2027 (Annex III) or 2 August 2028 (Annex I)": (
        "attacks extraction: Was resilience against attacks on confidentiality examined?"
    ),
    "prEN 18282, draft: cybersecurity of AI systems": (
        "attacks extraction: Was the system tested against attacks on confidentiality, by a stated criterion?"
    ),
}


def _extraction(result: AuditResult) -> str:
    best, proven = result.strongest, words.tightest(result)
    found = f"{result.reason.headline(result.words)} The attack is called {best.attack}."
    if isinstance(result.reason, WholeRecords) or result.reason.contradicts:
        found = f"{best.attack} {result.done(best)}, {words.interval(best.main)} in 1000; control "
        found += f"{words.interval(best.control)}; guess {words.guessing(best.baseline)}."
    if proven is None or proven.success >= 1:
        return f"{found} Nothing is proven about other attacks."
    return f"{found} Proven for every attack: at most {ceiling(proven)} for {proven.whose}."


def _membership(result: AuditResult) -> str:
    best = result.strongest
    if "membership inference" not in result.words.tests:
        return _NOT_TESTED
    if answers := _answers(result, "membership inference"):
        return " ".join(answers)
    side = "above" if best.tells else "not certainly above"
    return f"{best.attack}: {words.interval(best.main)} in 1000, where guessing gives 500; {side} guessing."


def _attributes(result: AuditResult) -> str:
    if "attribute inference" not in result.words.tests:
        return _NOT_TESTED
    columns = [each.headline(result.words) for each in result.strongest.findings]
    return " ".join(columns) or "extraction"


def _differential_privacy(result: AuditResult) -> str:
    settings, proven = result.threat_model["mechanism"], words.tightest(result)
    shown = [*words.claim(result.strongest), *_answers(result, "differential privacy")]
    if proven is None and shown:
        return " ".join([*shown, "No differential privacy is proven for this training."])
    if proven is None:
        return "No differential privacy is claimed for this training, or none that a proof covers."
    noise, budget = settings.get("noise_multiplier"), epsilon(result, proven)
    told = f"Unit: {proven.whose}. {proven.name}"
    told += "" if noise is None else f", noise multiplier {noise:g}"
    told += "" if budget is None else f"; ε {upwards(budget)} at δ {DELTA:g}"
    return " ".join([f"{told}. No attack exceeds {ceiling(proven)} for {proven.whose}.", *shown])


def _answers(result: AuditResult, topic: str) -> list[str]:
    """What the findings of the strongest attack answer."""
    answers = [each.answers().get(topic, "") for each in result.strongest.findings]
    return list(filter(None, answers))
