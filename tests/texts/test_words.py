"""The picture of an audit of texts."""

from dataclasses import replace

import torch

from audit_results import result
from remanence import Verdict
from remanence.texts.words import curve_picture


def texts():
    found = result(Verdict.EXPOSED)
    arrays = {
        "log_probability": torch.linspace(-12, -0.1, 20),
        "base_log_probability": torch.full((20,), -14.0),
    }
    model = {
        **found.threat_model,
        "criterion": {**found.threat_model["criterion"], "threshold": 100.0},
    }
    best = replace(found.strongest, arrays=arrays)
    return replace(found, threat_model=model, evidence=(best,))


def test_the_curve_over_queries_is_labelled_with_the_numbers_that_it_shows():
    drawn = curve_picture(texts())
    assert "of 40 secrets come out" in drawn
    assert "100 tries" in drawn
