"""What `remanence verify` says to a stored result that somebody changed: `python benchmarks/tamperings.py`.

A forger may change every word of audit.json, keep it consistent with itself as far as they can, and cannot train again.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remanence import Policy, audit
from remanence.core.catalogue import load_attack
from remanence.core.exceptions import RemanenceError
from remanence.core.rates import SuccessRate
from remanence.results.result import AuditResult
from remanence.results.storage import DOCUMENT
from remanence.results.verdict import Verdict
from remanence.results.verification import verified
from remanence.targets import TARGETS

Change = Callable[[dict[str, Any]], object]


def lowered(document: dict[str, Any], share: float, **more: Any) -> None:
    document["bounds"][0] |= {"success": share, "log_success": math.log(share), **more}


def counted(document: dict[str, Any], which: str, successes: int) -> None:
    for entry in document["evidence"]:
        old = entry[which]
        rate = SuccessRate(successes, old["trials"], old["confidence"], old["clusters"])
        entry[which] = old | {
            "successes": successes,
            "rate": rate.rate,
            "lower": rate.lower,
            "upper": rate.upper,
        }


def in_recipe(document: dict[str, Any], **arguments: Any) -> None:
    own = document["bounds"][0]["recipe"]["arguments"]
    target = own["schedule"][0] if "schedule" in own else own
    target |= arguments


def stronger(document: dict[str, Any]) -> None:
    """More noise in the recipe, and the lower ceiling that it gives."""
    from remanence.bounds import recompute

    in_recipe(document, noise_multiplier=4.0)
    again = recompute(document["bounds"][0]["recipe"])
    lowered(document, float(again.success), log_success=float(again.log_success))


def without(document: dict[str, Any], caveat: str) -> None:
    for entry in document["evidence"]:
        entry["caveats"] = [each for each in entry["caveats"] if each["id"] != caveat]


PROTECTED: dict[str, Change] = {
    "a lower ceiling": lambda d: lowered(d, 0.0101),
    "a lower ceiling by another name": lambda d: lowered(d, 0.0101, name="another proof"),
    "a lower ceiling without its recipe": lambda d: (lowered(d, 0.0101), d["bounds"][0].pop("recipe")),
    "a ceiling without its recipe": lambda d: d["bounds"][0].pop("recipe"),
    "a recipe with more noise": stronger,
    "a recipe that cannot be followed": lambda d: d["bounds"][0].update(
        recipe={"function": "magic", "arguments": {}}
    ),
    "a recipe for a smaller guess": lambda d: in_recipe(d, baseline=1e-6),
    "a ceiling for other people": lambda d: d["bounds"][0].update(whose="ten people"),
    "a ceiling that was on average": lambda d: d["bounds"][0].update(on_average=True),
    "a ceiling of another name": lambda d: d["bounds"][0].update(name="another proof"),
    "an assumption left out": lambda d: d["bounds"][0].update(assumptions=[]),
    "a success that is not its logarithm": lambda d: d["bounds"][0].update(success=0.01),
    "a second ceiling made up": lambda d: d["bounds"].append(
        {k: v for k, v in d["bounds"][0].items() if k != "recipe"}
        | {"success": 0.001, "log_success": math.log(0.001)}
    ),
    "no noise in the settings": lambda d: d["threat_model"]["mechanism"].pop("noise_multiplier"),
    "other noise in the settings": lambda d: d["threat_model"]["mechanism"].update(noise_multiplier=3.0),
    "a lower limit": lambda d: d["policy"].update(max_success=0.02),
    "a larger guess": lambda d: d["evidence"][0]["baseline"].update(value=0.5),
    "EXPOSED instead": lambda d: d.update(verdict="EXPOSED"),
}
_NOTHING = "no-better-than-control", "no-better-than-guessing"  # what follows where nothing was found
EXPOSED: dict[str, Change] = {
    "nothing was found": lambda d: (counted(d, "main", 0), d.update(verdict="UNPROVEN")),
    "nothing was found, by another attack": lambda d: (
        counted(d, "main", 0),
        d["evidence"][0].update(
            attack="another", caveats=[{"id": i, "means": "", "do": ""} for i in _NOTHING]
        ),
        d.update(verdict="UNPROVEN"),
    ),
    "half was found": lambda d: counted(d, "main", 20),
    "the control found as much": lambda d: (
        counted(d, "control", d["evidence"][0]["main"]["successes"]),
        d.update(verdict="UNPROVEN"),
    ),
    "UNPROVEN instead": lambda d: d.update(verdict="UNPROVEN"),
    "PROTECTED instead": lambda d: d.update(verdict="PROTECTED"),
    "a higher limit": lambda d: d["policy"].update(max_success=0.999),
    "a narrower interval": lambda d: d["evidence"][0]["main"].update(lower=0.99999),
    "another confidence": lambda d: d["evidence"][0]["main"].update(confidence=0.5),
    "more trials": lambda d: d["evidence"][0]["main"].update(trials=10**6),
    "a smaller threshold": lambda d: d["threat_model"]["criterion"].update(threshold=1e-30),
    "another worst error": lambda d: d["evidence"][0]["error"].update(worst=1.0),
    "columns that were not found": lambda d: (
        [each["main"].update(successes=0, rate=0.0) for each in d["evidence"][0]["findings"][0]["columns"]]
        if d["evidence"][0]["findings"]
        else d["evidence"][0]["main"].update(rate=0.0)
    ),
    "other arrays": lambda d: d["arrays"].update(sha256="0" * 64),
}
COLUMNS: dict[str, Change] = {
    "columns left out": lambda d: d["evidence"][0].update(findings=[]),
    "one column left out": lambda d: d["evidence"][0]["findings"][0]["columns"].pop(0),
}
UNPROVEN: dict[str, Change] = {
    "no better than guessing, left out": lambda d: without(d, "no-better-than-guessing"),
    "no better than its control, left out": lambda d: without(d, "no-better-than-control"),
    "too few trials, left out": lambda d: without(d, "too-few-trials"),
}


def results() -> dict[str, tuple[AuditResult, dict[str, Change]]]:
    """A result of each verdict, with what a forger does to it."""
    noisy, ridge, wine = (TARGETS[name]() for name in ("digits-noisy-sum", "diabetes-ridge", "wine-pipeline"))
    scaler = [load_attack("published-statistics")]
    return {
        "PROTECTED": (audit(noisy, trials=60, policy=Policy(0.1)), PROTECTED),
        "EXPOSED": (audit(ridge, trials=40, policy=Policy(0.2)), EXPOSED),
        "EXPOSED, columns": (audit(wine, scaler, policy=Policy(0.2)), COLUMNS),
        "UNPROVEN": (audit(noisy, trials=4, policy=Policy(0.02)), UNPROVEN),
    }


def said(result: AuditResult, change: Change) -> str:
    """What is said to a changed result; empty where it passes."""
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder))
        path = Path(folder) / DOCUMENT
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
        try:
            read = AuditResult.load(path)
        except RemanenceError as error:
            return str(getattr(error, "got", error)).partition(": ")[2] or str(error)
        found = verified(read)
        if found.wrong:
            return found.wrong[0]
        return found.open[-1] if found.open and read.verdict is Verdict.PROTECTED else ""


def main() -> None:
    passed = 0
    print("| result | what was changed | what is said |\n|---|---|---|")
    for name, (result, changes) in results().items():
        assert str(result.verdict) == name.partition(",")[0], result.verdict
        for what, change in changes.items():
            told = said(result, change)
            passed += not told
            print(f"| {name} | {what} | {told or 'PASSES'} |")
    print(f"\n{passed} pass.")
    sys.exit(bool(passed))


if __name__ == "__main__":
    main()
