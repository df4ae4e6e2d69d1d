"""The result of an audit: the document from which every view is computed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path

import torch

from remanence.bounds.bound import Bound
from remanence.core.errors import Reduction
from remanence.core.plain_text import plain
from remanence.core.references import Reference
from remanence.results import storage
from remanence.results.evidence import Evidence, contradictions
from remanence.results.findings import Finding, Json, Words
from remanence.results.verdict import Policy, Verdict, decide, decisive

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit. `audit.json` holds all of it; every view is computed from it."""

    target: str
    seed: int
    verdict: Verdict
    policy: Policy
    threat_model: Json
    subject: Json
    evidence: tuple[Evidence, ...]
    bounds: tuple[Bound, ...]
    environment: Json
    companions: tuple[Evidence, ...] = ()  # games played for comparison; they do not affect the verdict
    # Title, owner, purpose and data, in the owner's words.
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def strongest(self) -> Evidence:
        """The attack that the verdict rests on."""
        return decisive(self.evidence, self.bounds, self.policy)[0]

    @property
    def reason(self) -> Finding:
        """The finding that the verdict rests on."""
        return decisive(self.evidence, self.bounds, self.policy)[1]

    @property
    def words(self) -> Words:
        """The vocabulary of its game."""
        return Words(**self.threat_model["said"])

    @property
    def meaning(self) -> str:
        """The meaning of this verdict, in one sentence."""
        return self.reason.meaning if self.verdict is Verdict.EXPOSED else self.verdict.meaning

    def done(self, evidence: Evidence) -> str:
        """An attack's success, in the words of its game: recovered 442 of 442 records."""
        return achieved(evidence, self.words, self.threat_model["criterion"]["reduction"])

    @property
    def gallery(self) -> Mapping[str, torch.Tensor] | None:
        """Targets, reconstructions, controls and `succeeded` of the strongest attack, if they were kept."""
        return self.strongest.gallery

    def to_json(self) -> Json:
        """The document that `audit.schema.json` describes."""
        return {
            "schema_version": SCHEMA_VERSION,
            "version": self.environment["packages"]["remanence"],
            "target": self.target,
            "seed": self.seed,
            "verdict": str(self.verdict),
            "policy": asdict(self.policy),
            "threat_model": self.threat_model,
            "subject": self.subject,
            "evidence": [evidence.to_json(self.policy) for evidence in self.evidence],
            **({"about": dict(self.about)} if self.about else {}),
            "companions": [evidence.to_json(self.policy) for evidence in self.companions],
            "bounds": [
                {
                    "name": bound.name,
                    "success": float(bound.success),
                    "log_success": float(bound.log_success),
                    "assumptions": list(bound.assumptions),
                    "reference": bound.reference.short,
                    **({"on_average": True} if bound.on_average else {}),
                    "whose": bound.whose,
                    **({} if bound.log_baseline is None else {"log_baseline": float(bound.log_baseline)}),
                    **({} if bound.recipe is None else {"recipe": bound.recipe}),
                }
                for bound in self.bounds
            ],
            "environment": self.environment,
        }

    @classmethod
    def from_json(cls, document: Json, arrays: Mapping[str, torch.Tensor]) -> AuditResult:
        """Read a document that has been validated."""
        wrong, bounds = list[str](), list(map(_read_bound, document["bounds"]))
        threshold = document["threat_model"]["criterion"]["threshold"]

        def read(entry: Json) -> Evidence:
            prefix = f"{entry['attack']}."
            own = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
            wrong.extend(contradictions(entry, own))
            found = Evidence.from_json(entry, own)
            wrong.extend(told for each in found.findings for told in each.contradictions(own, threshold))
            return found

        evidence, companions = (list(map(read, document[part])) for part in ("evidence", "companions"))
        there = tuple(plain(f"{found.attack}.") for found in (*evidence, *companions))
        wrong += [
            f"the attack behind {n!r} is left out" for n in sorted(arrays) if not plain(n).startswith(there)
        ]
        policy, verdict = Policy(**document["policy"]), Verdict(document["verdict"])
        if wrong:
            raise ValueError("; ".join(wrong[:3]))
        if verdict is not decide(evidence, bounds, policy):
            raise ValueError(f"the verdict {verdict} does not follow from the evidence and the bounds")
        return cls(
            target=document["target"],
            seed=document["seed"],
            verdict=verdict,
            policy=policy,
            threat_model=document["threat_model"],
            subject=document["subject"],
            evidence=tuple(evidence),
            bounds=tuple(bounds),
            environment=document["environment"],
            companions=tuple(companions),
            about=document.get("about", {}),
        )

    def sealed(self) -> tuple[Json, bytes]:
        """The document as it is stored, with the hash of its arrays, and those arrays packed."""
        arrays = {
            f"{evidence.attack}.{name}": values
            for evidence in (*self.evidence, *self.companions)
            for name, values in evidence.arrays.items()
        }
        return storage.seal(self.to_json(), arrays)

    def digest(self) -> str:
        """The hash of all results, excluding the environment of the run and the owner's description."""
        apart = ("environment", "about")
        document = {name: part for name, part in self.to_json().items() if name not in apart}
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path | str, *, gallery: bool = False) -> Path:
        """Write audit.json and its arrays to one folder, completely or not at all.

        With `gallery`, some targets and reconstructions, which are training data, go into a separate file that only
        its owner can read.
        """
        return storage.write(*self.sealed(), Path(folder), gallery=self.gallery if gallery else None)

    @classmethod
    def load(cls, path: Path | str) -> AuditResult:
        """Read a stored result; refuse one that does not validate, with the reason."""
        path = Path(path)
        document, arrays = storage.read(path)
        try:
            result = cls.from_json(document, arrays)
        except ValueError as error:
            raise storage.unreadable(path, str(error)) from None
        shown, best = storage.read_gallery(path), result.strongest
        evidence = (replace(each, gallery=shown) if each is best else each for each in result.evidence)
        return replace(result, evidence=tuple(evidence))

    # Results may not import views, so these two are looked up by name.

    def _repr_html_(self) -> str:
        return import_module("remanence.report.html").card(self)

    def __str__(self) -> str:
        return import_module("remanence.report.terminal").as_text(self)


def achieved(evidence: Evidence, said: Words, reduction: str) -> str:
    """An attack's success, in the words of its game; `reduction` says what counts where a trial has several targets."""
    rate = evidence.main
    if evidence.of_unknown_many:
        return f"{said.done} {evidence.proven} {said.many}, of an unknown number"
    if evidence.proven and evidence.proven_of:
        return f"{said.done} {evidence.proven} of {evidence.proven_of} {said.many}"
    counted = f"{rate.successes} of {rate.trials}"
    if rate.clusters is None or said.many != Words.many:
        return f"{said.done} {counted} {said.many}"
    if reduction == Reduction.CLASS:
        return f"matched a target with {counted} reconstructions in {rate.clusters} trials"
    return f"recovered {counted} targets in {rate.clusters} trials"


def _read_bound(stored: Json) -> Bound:
    success = min(1.0, math.exp(stored["log_success"]))
    if not math.isclose(stored["success"], success, rel_tol=1e-9, abs_tol=1e-300):
        told = f"is {stored['success']:.6g}, and its logarithm says {success:.6g}"
        raise ValueError(f"the bound {stored['name']!r} {told}")
    names = ("name", "log_success", "log_baseline", "on_average", "whose", "recipe")
    cited = Reference(stored["reference"], stored["reference"])
    given = {name: stored[name] for name in names if name in stored}
    return Bound(assumptions=tuple(stored["assumptions"]), reference=cited, **given)
