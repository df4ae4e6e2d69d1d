"""One result for each verdict, on data whose numbers can be searched for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from conftest import shortlist_game, synthetic
from remanence import (
    GLM,
    AuditResult,
    Bound,
    Criterion,
    LeaveOneOut,
    Logistic,
    Policy,
    Records,
    Verdict,
    audit,
)
from remanence.bounds import gaussian
from remanence.references import HAYES_2023

DATA: Records = synthetic(40, classes=2, seed=3)


@cache
def result(verdict: Verdict) -> AuditResult:
    if verdict is Verdict.EXPOSED:
        game = LeaveOneOut(GLM(Logistic(), penalty=1.0), DATA, Criterion(label_scale=1.0))
        return audit(game, target="a logistic regression", policy=Policy(0.2))
    game = shortlist_game(distance=1.0, candidates=4)  # guessing finds 250 in 1000
    if verdict is Verdict.PROTECTED:  # the target moves the sum by at most √½
        game = replace(game, bounds=(gaussian(1 / 4, noise_multiplier=2**0.5),))
    if verdict is Verdict.CONTRADICTED:
        game = replace(game, bounds=(Bound("a wrong claim", math.log(0.251), ("nothing",), HAYES_2023),))
    limit = 0.6 if verdict is Verdict.PROTECTED else 0.55
    return audit(game, target="a noisy sum", policy=Policy(limit), trials=300)
