"""What an audit says, in sentences; every view uses the same ones."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.bounds.bound import NOT_MET, Bound
from remanence.core.baseline import Baseline
from remanence.core.doors import doors, load
from remanence.core.rates import SuccessRate
from remanence.core.references import bibliography
from remanence.core.roc import TruePositiveRate
from remanence.report import frequencies
from remanence.report.frequencies import ends, thousandths
from remanence.results.caveats import Caveat
from remanence.results.evidence import Evidence
from remanence.results.findings import Row, Section, WholeRecords
from remanence.results.verdict import Policy, Verdict
from remanence.results.verification import Verified, verified

_HASHED = {
    "release": "the model's numbers",
    "data": "the training data",
    "known_data": "the training data that the adversary knows",
    "prior": "the data that the adversary holds",
    "targets": "the targets",
    "strangers": "the records of the control",
}

# The terms of a report; docs/glossary.md has the same.
GLOSSARY = {
    "adversary": "anyone who tries to recover a record, with all that they see and know",
    "attack": "what the adversary does with the release. It is measured, so the true risk may be higher",
    "baseline κ": "how often a guess succeeds without the release",
    "ceiling γ": "the most that any attack can achieve, known or unknown. It is proven, if its assumptions hold",
    "control": "the same attack on records that were not trained on: what luck alone achieves",
    "interval": "the range that holds the true rate, at 95 % for all attacks of an audit together",
    "limit": "the most success that you accept. You decide it",
    "noise multiplier σ": "the noise of a training step, divided by the clipping norm",
    "recovered": "the error ρ between target and reconstruction is at most the threshold η",
    "release": "what the adversary sees: weights, gradients or answers",
    "sample rate q, steps T": "the chance that a record is in a batch, and the number of batches",
    "TPR at 1 % FPR": "the share of targets found when 1 in 100 other records is mistaken for a target",
    "relative": "the error, divided by that of the closest 5 % of public records of the same class",
}

REPEAT = "Audit again after more training, with new data, for another release, or when there is a new attack."

DECISION = (
    "This is evidence about one threat model, compared with one limit. "
    "Whether that limit is right for these data is for the controller to decide."
)


def not_covered(result: AuditResult) -> str:
    """The risks that the result does not cover."""
    kinds = {
        "membership inference": "whether a person was in the data (membership inference)",
        "attribute inference": "single attributes of a person (attribute inference)",
    }
    rest = [
        *(told for kind, told in kinds.items() if kind not in result.words.tests),
        "other checkpoints, later fine-tuning or other releases of the same data",
        "adversaries who see or know more than this one",
        "attacks that were not run, unless a proof covers them",
    ]
    return f"This audit says nothing about {'; '.join(rest)}."


_ABOUT = {"title": "title", "owner": "owner", "purpose": "purpose", "data": "data, number of people"}


def about(result: AuditResult) -> dict[str, str]:
    """The title, owner, purpose and data of a page to sign; missing entries are blank, to be filled in by hand."""
    return {"audit": result.target, **{label: result.about.get(name, "") for name, label in _ABOUT.items()}}


def hashes(result: AuditResult) -> dict[str, str]:
    """The hashes of what was audited, each with the name of its object."""
    names = _HASHED | {name: text for door in doors() for name, text in door.hashed.items()}
    found = result.subject.get("sha256", {}).items()
    return {names.get(name, name): digest for name, digest in found if isinstance(name, str)}


def identity(result: AuditResult) -> str:
    """A short name for this report: the same result has the same one."""
    return result.digest()[:12]


def about_trials(result: AuditResult) -> str:
    """What the trials are, where they are not records of one training set."""
    many = result.words.many
    if many != "trials":
        return f"The rates above are about {many}. Nothing is stored about individual ones."
    return (
        "Each trial drew a new target, so the rates above are averages over targets. A ceiling, where there is one, "
        "says whether it holds for every record."
    )


def headline(result: AuditResult) -> str:
    """The basis of the verdict, with its number: 442 of 442 records."""
    best, reason = result.strongest, result.reason
    if result.verdict is Verdict.CONTRADICTED and (told := claim(best)):
        return told[0]
    if result.verdict is Verdict.PROTECTED and (ceiling := tightest(result)):
        return proven(ceiling)
    if isinstance(reason, WholeRecords):
        return f"The best attack {result.done(best)}."
    return reason.headline(result.words)


def checked(result: AuditResult) -> str:
    """Whether the numbers are consistent: they are recounted and recomputed here."""
    again = verified(result)
    if again.wrong:
        return f"This result contradicts itself, so do not rely on it: {'; '.join(again.wrong[:3])}."
    return f"Verified when this page was made: {recounted(result, again)} {unchecked(result)}"


def recounted(result: AuditResult, again: Verified) -> str:
    """What was computed again, and what was not."""
    left = f" Not computed again: {'; '.join(again.open)}." if again.open else ""
    ceilings = f", {again.ceilings} of {len(result.bounds)} ceilings too" if result.bounds else ""
    return (
        f"{again.counted} of {len(result.evidence)} attacks were counted again from their trials, every interval was "
        f"computed again{ceilings}, and {result.verdict} follows from them.{left}"
    )


def unchecked(result: AuditResult) -> str:
    """What a stored result cannot show about itself, and the command that checks it."""
    called = str(result.environment.get("command", "")).split()
    again = "Auditing them again with the same seed gives the same numbers."
    # Not for a file of settings, which may be another door's.
    if called[1:2] == ["audit"] and result.target in called:
        command = f"remanence verify RUN --target {result.target}"
        again = f"`{command}` compares their hashes and re-runs a sample of the attack."
    return f"Not verified: the model and the data. {again}"


def tightest(result: AuditResult, *, on_average: bool = False) -> Bound | None:
    """The lowest ceiling for every record; or on average over records, which proves nothing about a particular one."""
    found = (bound for bound in result.bounds if bound.on_average == on_average)
    return min(found, key=lambda bound: bound.success, default=None)


def guessing(baseline: Baseline) -> str:
    """What guessing achieves out of 1000; a range where its upper value is loose."""
    top = thousandths(baseline.value)
    return f"{thousandths(baseline.lower)} to {top}" if baseline.loose else top


def found(result: AuditResult) -> str:
    """The numbers behind the verdict, out of 1000, and why they decide as they do."""
    best, reason = result.strongest, result.reason
    told = [*claim(best)]
    lowest = tightest(result), tightest(result, on_average=True)
    ceilings = [proven(ceiling) for ceiling in lowest if ceiling is not None]
    if result.verdict is Verdict.PROTECTED:  # the headline is the ceiling
        told += [f"The best attack {result.done(best)}."]
        ceilings = ceilings[1:]
    if isinstance(reason, WholeRecords) or reason.contradicts:
        told += [_rate(result, best), *_undecided(result, best), *_idle(result, best)]
        told += [each.headline(result.words) for each in best.findings if each.tells]
    else:
        told += [f"The attack is called {best.attack}; {limit(result)}."]
    return " ".join([*told, *ceilings])


def _rate(result: AuditResult, best: Evidence) -> str:
    """The rate of the attack that decides, with its control and a guess."""
    guess = guessing(best.baseline)
    if best.baseline.loose:
        guess = f"between {guess.replace(' to ', ' and ')}"
    between = " and ".join(ends(best.main.lower, best.main.upper))
    rate = f"The rate is {thousandths(best.main.rate)} in 1000 (between {between}), by {best.attack}. "
    if best.of_unknown_many:
        rate = ""
    elif best.main.clusters == 1:
        rate = f"All of them share one training run, so {best.attack} gives no rate. "
    return (
        f"{rate}On records that were not trained on, the same attack achieves {thousandths(best.control.rate)}, and a "
        f"guess {guess}; {limit(result)}."
    )


def _undecided(result: AuditResult, best: Evidence) -> list[str]:
    """Why a rate above the limit does not make it EXPOSED."""
    if result.verdict is not Verdict.UNPROVEN or best.main.lower <= result.policy.max_success or best.tells:
        return []
    other, same, than = best.baseline.seen, "A guess does as well", "a guess achieves"
    if best.main.lower <= best.control.upper:
        other, same, than = best.control.rate, "It does as well without the records", "without the records"
    if best.main.rate > other:
        return [f"That is not certainly more than {than}, so it shows nothing certain about the release."]
    return [f"{same}, so this rate shows nothing about the release."]


def _idle(result: AuditResult, best: Evidence) -> list[str]:
    """Why an attack that recovered more targets does not decide."""
    more = [entry.attack for entry in result.evidence if entry.main.rate > best.main.rate and not entry.tells]
    if not more or not best.tells:
        return []
    return [f"{', '.join(more)} recovered more, but not certainly more than without the release."]


def others(result: AuditResult) -> str:
    """The attacks that did not decide, in one line."""
    rest = len(result.evidence) - 1
    if not rest:
        return ""
    many = "One other attack" if rest == 1 else f"{rest} other attacks"
    return f"{many} found {'no more' if result.verdict is Verdict.EXPOSED else 'nothing conclusive'}."


def notes(result: AuditResult) -> list[str]:
    """Caveats on this verdict: a sentence each, about the attack that decides."""
    said = {"no-better-than-control", "no-better-than-guessing", "one-release"}  # the numbers say so already
    if result.verdict in (Verdict.EXPOSED, Verdict.PROTECTED):
        said |= {"too-few-trials", "loose-baseline"}  # about rates, which are high enough or do not decide
    raised = [caveat for caveat in result.strongest.caveats if caveat.id not in said]
    raised.sort(key=lambda caveat: not (caveat.voids or caveat.contradicts))
    return [f"{caveat.means.split('. ')[0].rstrip('.')}." for caveat in raised[:2]]


def limit(result: AuditResult) -> str:
    """The limit, and who set it."""
    number = thousandths(result.policy.max_success)
    if result.policy.set_by == "user":
        return f"your limit is {number} in 1000"
    how = "" if result.policy.max_success == Policy.max_success else ", a tenth above what a guess achieves"
    own = "--max-success" if result.environment.get("command") else "policy=Policy(...)"
    return f"the limit is {number} in 1000 (the default{how}; set yours with {own})"


def claim(evidence: Evidence) -> list[str]:
    """The result of a test of the training's claim, the worst first; empty if there was no such test."""
    seen = [caveat.seen for caveat in evidence.caveats if caveat.contradicts and caveat.seen]
    tested = [each.claim(refuted=evidence.rejects_the_claim) for each in evidence.findings]
    return [*seen, *filter(None, tested)]


def proven(ceiling: Bound) -> str:
    """A ceiling in a sentence; if one of its assumptions is known to fail, that nothing is proven."""
    missing = [each.removeprefix(NOT_MET) for each in ceiling.assumptions if each.startswith(NOT_MET)]
    if missing:
        return f"Nothing is proven: {missing[0]}."
    if ceiling.success >= 1:
        return "Nothing is proven: the ceiling is 1000 in 1000."
    return f"Proven: no attack exceeds {frequencies.ceiling(ceiling)} for {of_whom(ceiling)}."


def of_whom(ceiling: Bound) -> str:
    """The unit that the ceiling covers, and whether it is an average."""
    average = " on average over records" if ceiling.on_average and ceiling.whose == "one record" else ""
    return f"{ceiling.whose}{average}"


def scope(result: AuditResult) -> str:
    """The adversary that the numbers hold for."""
    model = result.threat_model
    return f"The adversary sees {model['sees']}, and knows {'; '.join(model['knows'])}."


def counts(result: AuditResult) -> str:
    """When a record counts as recovered."""
    criterion = result.threat_model["criterion"]
    if result.words.counts:
        return result.words.counts
    if criterion["error"] == "mismatch":
        return "Only an exact match counts."
    label = "" if criterion["label_scale"] is None else ", and its label too"
    if criterion["error"].startswith("relative error"):
        close = f"{100 * criterion['threshold']:.2g} %"
        return f"A record counts as recovered if its numbers are right to within {close}{label}."
    close = "is close enough to the original"
    return f"A record counts as recovered if it {close}{label}. The report's settings say how close."


def hidden(result: AuditResult) -> str:
    """The records that the optimiser's tolerance hides, a few by their numbers."""
    records = sorted({record for evidence in result.evidence for record in evidence.unresolved})
    more = len(records) - 12
    return ", ".join(map(str, records[:12])) + (f" and {more} more" if more > 0 else "")


def concerned(result: AuditResult, names: list[str]) -> str:
    """The attacks that a caveat concerns, by name; "all attacks" if that is what they are."""
    return "all attacks" if len(names) == len(result.evidence) > 2 else ", ".join(names)


def caveats(result: AuditResult) -> dict[Caveat, list[str]]:
    """Each caveat once, with the attacks that it concerns."""
    concerned: dict[Caveat, list[str]] = {}
    for evidence in result.evidence:
        for caveat in evidence.caveats:
            concerned.setdefault(caveat, []).append(evidence.attack)
    return concerned


def numbers(evidence: Evidence) -> list[str]:
    """The further numbers of an evidence, each with its name."""
    return [f"{name.replace('_', ' ')} {value:.4g}" for name, value in evidence.numbers.items()]


def sections(result: AuditResult) -> list[Section]:
    """The sections that the strongest attack's findings and the game's door add to the annex."""
    own = [section for each in result.strongest.findings if (section := each.section())]
    homes = [door.sections for door in doors() if door.name == result.threat_model["door"] and door.sections]
    return [*own, *(section for home in homes for section in load(home)(result))]


def interval(rate: SuccessRate | TruePositiveRate) -> str:
    """A rate in 1000 with its interval.

    >>> interval(SuccessRate(9, 10))
    '900 (555 to 997)'
    """
    return f"{thousandths(rate.rate)} ({' to '.join(ends(rate.lower, rate.upper))})"


def shown(row: Row) -> str:
    """The numbers of a row of the picture, in 1000."""
    if row.lower == row.upper:
        return thousandths(row.share)
    span = " to ".join(ends(row.lower, row.upper))
    return span if row.role == "guess" else f"{thousandths(row.share)} ({span})"


def decided(result: AuditResult, role: str = "attack") -> str:
    """The attack's or a guess's numbers behind the verdict; those of whole records where there are none."""
    rows = [row for row in [*result.reason.rows(), *result.strongest.whole.rows()] if row.role == role]
    return shown(rows[0]) if rows else interval(result.strongest.main)


def measured(result: AuditResult) -> dict[str, float]:
    """The shares behind the verdict, for other tools: those of whole records unless another finding decided."""
    best, reason = result.strongest, result.reason
    told = {"rate": best.main.rate, "lower": best.main.lower, "upper": best.main.upper}
    told |= {"control": best.control.rate, "baseline": best.baseline.value}
    for row in [] if isinstance(reason, WholeRecords) else reason.rows():
        if row.role == "attack":
            told |= {"rate": row.share, "lower": row.lower, "upper": row.upper}
        else:
            told["control" if row.role == "control" else "baseline"] = row.share
    return told


def literature(result: AuditResult) -> list[str]:
    """The publications behind the attacks and bounds that ran."""
    shorts = [evidence.reference for evidence in result.evidence]
    return bibliography([*shorts, *(bound.reference.short for bound in result.bounds)])
