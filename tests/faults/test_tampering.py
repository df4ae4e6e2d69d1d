"""A stored result is counted again when it is read: what does not follow from its arrays is refused."""

import hashlib
import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from audit_results import result
from remanence import AuditResult, Verdict
from remanence.core.exceptions import UnreadableAuditError
from remanence.core.rates import SuccessRate
from remanence.results.evidence import rate_contradictions
from remanence.results.storage import ARRAYS, DOCUMENT

ROOT = Path(__file__).parents[2]


def edit(folder, change):
    path = folder / DOCUMENT
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def nothing_found(document):
    """What somebody would do who wants a failed audit to pass, down to the last digit of the intervals."""
    for entry in document["evidence"]:
        rate = SuccessRate(0, entry["main"]["trials"], entry["main"]["confidence"])
        entry["main"] |= {"successes": 0, "rate": 0.0, "lower": 0.0, "upper": rate.upper}
    document["verdict"] = "UNPROVEN"


@pytest.mark.parametrize(
    ("records", "clusters", "said"), [(1, None, 0), (1, 10, 1), (2, 10, 0), (2, None, 1)]
)
def test_records_of_one_trial_are_counted_as_standing_together(records, clusters, said):
    met = torch.arange(10 * records).reshape(10, records) > 3
    rate = SuccessRate(int(met.sum()), met.numel(), clusters=clusters)
    found = list(rate_contradictions("main", rate.to_json(), met))
    assert [each.endswith("trials that stand or fall together") for each in found] == [True] * said


def test_arrays_that_were_changed_too_do_not_help_without_the_hash(tmp_path):
    result(Verdict.EXPOSED).save(tmp_path)
    arrays = load_file(tmp_path / ARRAYS)
    arrays |= {name: values & False for name, values in arrays.items() if name.endswith("succeeded")}
    save_file(arrays, tmp_path / ARRAYS)
    edit(tmp_path, nothing_found)
    with pytest.raises(UnreadableAuditError, match="not the file"):
        AuditResult.load(tmp_path)
    forged = hashlib.sha256((tmp_path / ARRAYS).read_bytes()).hexdigest()
    edit(tmp_path, lambda document: document["arrays"].update(sha256=forged))
    assert AuditResult.load(tmp_path).verdict is Verdict.UNPROVEN, "a forgery of all of it needs a signature"


def test_a_million_hidden_records_are_a_number_in_the_document_and_a_list_in_the_arrays(tmp_path):
    found = result(Verdict.EXPOSED)
    best = found.evidence[0]
    hidden = torch.zeros(40, dtype=torch.bool)
    hidden[3:30] = True
    arrays = {**best.arrays, "unresolved": hidden}
    replace(found, evidence=(replace(best, arrays=arrays, unresolved=tuple(range(3, 30))),)).save(tmp_path)
    assert AuditResult.load(tmp_path).evidence[0].unresolved == tuple(range(3, 30))
    edit(tmp_path, lambda d: d["evidence"][0].update(unresolved=[], unresolved_count=0))
    with pytest.raises(UnreadableAuditError, match="27 records are unresolved"):
        AuditResult.load(tmp_path)


REASONS = {
    "nothing was found": "main: 0 of 40 in the document, 40 of 40 in the arrays",
    "nothing was found, by another attack": "is left out",
    "columns left out": "the finding about 'column x0' is left out",
    "a narrower interval": "and the counts give",
    "the control found as much": "control: 40 of 40 in the document",
    "a success that is not its logarithm": "its logarithm says",
    "another worst error": "the worst error 1 is",
    "EXPOSED instead": "does not follow",
}


def test_no_change_that_a_forger_can_make_to_the_document_alone_is_verified(monkeypatch):
    """The list is `benchmarks/tamperings.py`; each change must be answered with a reason."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    tamperings = importlib.import_module("tamperings")
    answers = {}
    for verdict, (found, changes) in tamperings.results().items():
        assert tamperings.said(found, lambda document: None) == "", f"{verdict} as it is"
        answers |= {what: tamperings.said(found, change) for what, change in changes.items()}
    assert [what for what, answer in answers.items() if not answer] == []
    assert {what: answers[what] for what, reason in REASONS.items() if reason not in answers[what]} == {}
