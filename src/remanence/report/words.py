"""What an audit says, in sentences; every view uses the same ones."""

from __future__ import annotations

from remanence.auditing import AuditResult
from remanence.bounds.bound import NOT_MET, Bound
from remanence.core.baseline import Baseline
from remanence.core.rates import SuccessRate
from remanence.core.references import bibliography
from remanence.core.roc import TruePositiveRate
from remanence.report import frequencies
from remanence.report.tables import thousandths
from remanence.results.caveats import Caveat
from remanence.results.evidence import Evidence
from remanence.results.recount import contradictions
from remanence.results.verdict import Verdict, decide

SUBJECTS = {
    "release": "the model's numbers",
    "data": "the training data",
    "known_data": "the training data that the adversary knows",
    "prior": "the data that the adversary holds",
    "targets": "the targets",
    "strangers": "the records of the control",
}

REPEAT = "Audit again after more training, with new data, for another release, or when there is a new attack."

DECISION = (
    "This is evidence about one threat model, held against one limit. "
    "Whether that limit is right for these data is for the controller to decide."
)

MEANINGS = {verdict: verdict.meaning for verdict in Verdict}


def not_covered(result: AuditResult) -> str:
    """What the result says nothing about."""
    model = result.threat_model
    kinds = {
        "membership inference": model["game"] == "Membership",
        "attribute inference": model["mechanism"].get("known_attributes") is not None,
    }
    rest = [name for name, tested in kinds.items() if not tested]
    rest += [
        "other checkpoints, later fine-tuning or other releases of the same data",
        "adversaries who see or know more than this one",
        "attacks that were not run, unless a proof covers them",
    ]
    return f"It says nothing about {'; '.join(rest)}."


def identity(result: AuditResult) -> str:
    """A short name for this report: the same result has the same one."""
    return result.digest()[:12]


def drawn(result: AuditResult) -> str:
    """What the trials are, where they are not records of one training set."""
    said = result.threat_model.get("said", {}).get("many", "trials")
    if said != "trials":
        return f"The rates above are about {said}. Nothing more is stored about single ones."
    return (
        "Each trial drew a new target, so the rates above are averages over targets. A ceiling, where there is one, "
        "says whether it holds for every record."
    )


def headline(result: AuditResult) -> str:
    """What was found, in numbers of its own kind: 442 of 442 records."""
    told = f"The best attack {result.done(result.strongest)}."
    pictures = result.strongest.pictures
    if not pictures:
        return told
    back = sum(picture.came_back for picture in pictures)
    return f"From this very head, a picture of {back} of its {len(pictures)} classes came back. {told}"


def checked(result: AuditResult) -> str:
    """Whether the numbers follow from one another: counted and computed again, here and now."""
    wrong = [told for entry in result.evidence for told in contradictions(entry.to_json(), entry.arrays)]
    if decide(result.evidence, result.bounds, result.policy) is not result.verdict:
        wrong.append(f"the verdict {result.verdict} does not follow from the evidence and the ceilings")
    if wrong:
        return f"This result contradicts itself, so do not rely on it: {'; '.join(wrong[:3])}."
    counted = sum("succeeded" in entry.arrays for entry in result.evidence)
    return (
        f"Verified when this page was made: {counted} of {len(result.evidence)} attacks were counted again from their "
        "trials, every interval was computed again, and the verdict follows from them. Not verified here: the model "
        "and the data. `remanence verify RUN --target TARGET` compares their hashes and plays a part again."
    )


def tightest(result: AuditResult) -> Bound | None:
    """The lowest ceiling that somebody has proven for every record."""
    every = (bound for bound in result.bounds if not bound.on_average)
    return min(every, key=lambda bound: bound.success, default=None)


def average(result: AuditResult) -> Bound | None:
    """The lowest ceiling that holds on average over records, and so proves nothing about these."""
    over = (bound for bound in result.bounds if bound.on_average)
    return min(over, key=lambda bound: bound.success, default=None)


def guessing(baseline: Baseline) -> str:
    """What guessing achieves out of 1000; a range where its upper value is loose."""
    top = thousandths(baseline.value)
    return f"{thousandths(baseline.lower)} to {top}" if baseline.loose else top


def found(result: AuditResult) -> str:
    """The numbers behind the verdict, out of 1000."""
    best = result.strongest
    guess = guessing(best.baseline)
    if best.baseline.loose:
        guess = f"between {guess.replace(' to ', ' and ')}"
    facts = ""
    if best.proven:
        proof = result.threat_model.get("said", {}).get("proof", "the release can be recomputed from them")
        which = "All" if best.of_unknown_many else f"{best.proven}"
        facts = f" {which} of them {'is' if which == '1' else 'are'} proven: {proof}."
    facts += single_columns(best, decides=_by_columns(result, best))
    ends = f"between {thousandths(best.main.lower)} and {thousandths(best.main.upper)}"
    rate = "" if best.of_unknown_many else f": {thousandths(best.main.rate)} in 1000 ({ends})"
    words = (
        f"The strongest attack, {best.attack}, {result.done(best)}{rate}.{facts} "
        f"A guess achieves {guess}; {limit(result)}."
    )
    ceilings = [proven(ceiling) for ceiling in (tightest(result), average(result)) if ceiling is not None]
    return " ".join([*claim(best), words, *_idle(result, best), *ceilings])


def _by_columns(result: AuditResult, best: Evidence) -> bool:
    """Whether it is single columns, and not whole records, that an attack certainly gets."""
    return not best.proven and not (best.tells and best.main.lower > result.policy.max_success)


def _idle(result: AuditResult, best: Evidence) -> list[str]:
    """Why an attack that met more targets does not decide."""
    more = [entry.attack for entry in result.evidence if entry.main.rate > best.main.rate and not entry.tells]
    if not more or not best.tells:
        return []
    return [f"{', '.join(more)} met more, but not certainly more than without the release."]


def single_columns(evidence: Evidence, *, decides: bool, most: int = 4) -> str:
    """The columns that came back more often than whole rows did, in a sentence; nothing where there are none."""
    alone = [part for part in evidence.telling_parts if part.main.successes > evidence.main.successes]
    if not alone:
        return ""
    shown = ", ".join(
        f"{part.name} of {part.main.successes} (a guess: {thousandths(part.guess)} in 1000)"
        for part in alone[:most]
    )
    more = f" and of {len(alone) - most} more columns" * (len(alone) > most)
    begins = "It is single columns that came back" if decides else "Single columns came back more often"
    return f" {begins}: {shown}{more}."


def limit(result: AuditResult) -> str:
    """The limit, and whose it is."""
    number = thousandths(result.policy.max_success)
    if result.policy.set_by == "user":
        return f"your limit is {number}"
    return f"the limit is {number}, a default that nobody set"


def claim(evidence: Evidence) -> list[str]:
    """What a test of the training's claim says, the worst first; nothing where there is no such test."""
    numbers = evidence.findings
    if "p_value_of_the_claim" not in numbers:
        return []
    p_value, seen = (
        numbers["p_value_of_the_claim"],
        [c.seen for c in evidence.caveats if c.contradicts and c.seen],
    )
    word = "suspicious, record again" if p_value <= 0.05 else "consistent"
    if "claimed_noise_multiplier" not in numbers:  # canaries alone, and no recording
        word = "not refuted, which proves nothing" if p_value > numbers["accused_at"] else "refuted"
        told = f"ε claimed {numbers['claimed_epsilon']:.3g}, at least {numbers['epsilon_at_least']:.3g}"
        return [f"The claim: {word} (p = {p_value:.2g}); {told} by canaries, at δ = {numbers['delta']:g}."]
    word = "refuted" if seen or evidence.rejects_the_claim else word
    noise = [numbers[f"measured_noise_multiplier{end}"] for end in ("", "_from", "_to")]
    claimed = numbers["claimed_noise_multiplier"]
    measured = f"noise claimed {claimed:.2f}, measured {noise[0]:.2f} ({noise[1]:.2f} to {noise[2]:.2f})."
    return [*seen, f"The claim: {word} (p = {p_value:.2g}); {measured}"]


def proven(ceiling: Bound) -> str:
    """What a ceiling says in a sentence; where an assumption is known not to hold, that it says nothing."""
    missing = [each.removeprefix(NOT_MET) for each in ceiling.assumptions if each.startswith(NOT_MET)]
    if missing:
        return f"Nothing is proven: {missing[0]}."
    if ceiling.success >= 1:
        return "Nothing is proven: the ceiling is 1000 in 1000."
    return f"Proven: no attack exceeds {frequencies.ceiling(ceiling)} for {of_whom(ceiling)}."


def of_whom(ceiling: Bound) -> str:
    """Whose ceiling it is, and whether it is an average."""
    average = " on average over records" if ceiling.on_average and ceiling.whose == "one record" else ""
    return f"{ceiling.whose}{average}"


def scope(result: AuditResult) -> str:
    """Against whom the numbers hold."""
    model = result.threat_model
    return f"The adversary sees {model['sees']} and knows {'; '.join(model['knows'])}."


def counts(result: AuditResult) -> str:
    """When a record counts as recovered."""
    criterion = result.threat_model["criterion"]
    if criterion["error"] == "mismatch":
        said = result.threat_model.get("said", {}).get("many", "")
        return (
            "A canary counts if the guess, in or out, is right."
            if said == "canaries"
            else "Only the very record counts."
        )
    if result.threat_model["game"] == "CapturedTexts":
        return "Only what the whole update can be computed again from counts."
    if result.threat_model["game"] == "CapturedPatches":
        return (
            "Only what the whole update can be computed again from counts; of one picture, the layer that reads its "
            "patches is enough."
        )
    if result.threat_model["game"] == "Texts":
        tries = f"{criterion['threshold']:,.0f} tries"
        compared = "base_log_probability" in result.strongest.arrays
        return (
            f"A secret counts if it comes out within {tries}{', and not out of the base model' * compared}."
        )
    words = f"A record counts as recovered if its {criterion['error']} is at most {criterion['threshold']:g}"
    return words + ("." if criterion["label_scale"] is None else " and its label is right.")


def hidden(result: AuditResult) -> str:
    """The records that the optimiser's tolerance hides, a few by their numbers."""
    records = sorted({record for evidence in result.evidence for record in evidence.unresolved})
    more = len(records) - 12
    return ", ".join(map(str, records[:12])) + (f" and {more} more" if more > 0 else "")


def concerned(result: AuditResult, names: list[str]) -> str:
    """The attacks that a caveat concerns, by name; all of several are called that."""
    return "all attacks" if len(names) == len(result.evidence) > 2 else ", ".join(names)


def caveats(result: AuditResult) -> dict[Caveat, list[str]]:
    """Each caveat once, with the attacks that it concerns."""
    concerned: dict[Caveat, list[str]] = {}
    for evidence in result.evidence:
        for caveat in evidence.caveats:
            concerned.setdefault(caveat, []).append(evidence.attack)
    return concerned


def findings(evidence: Evidence) -> list[str]:
    """The further numbers that an evidence proves, each with its name."""
    return [f"{name.replace('_', ' ')} {value:.4g}" for name, value in evidence.findings.items()]


def interval(rate: SuccessRate | TruePositiveRate) -> str:
    """A rate in 1000 with its interval.

    >>> interval(SuccessRate(9, 10))
    '900 (555 to 997)'
    """
    return f"{thousandths(rate.rate)} ({thousandths(rate.lower)} to {thousandths(rate.upper)})"


def true_positives(rate: TruePositiveRate | None) -> str:
    """The share in 1000 that is found at a given rate of false positives, where there are controls enough to tell.

    >>> true_positives(None)
    'too few controls to tell'
    """
    return "too few controls to tell" if rate is None else interval(rate)


def literature(result: AuditResult) -> list[str]:
    """The publications behind exactly what ran."""
    shorts = [evidence.reference for evidence in result.evidence]
    return bibliography([*shorts, *(bound.reference.short for bound in result.bounds)])
