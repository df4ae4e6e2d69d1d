"""`remanence verify`: a result and its run, computed again."""

import json
from dataclasses import replace

import pytest

from audit_results import result
from remanence import AuditResult, Policy, Verdict, audit
from remanence.report.html import report
from remanence.results.storage import DOCUMENT
from remanence.targets import digits_dpsgd_poisson, digits_noisy_sum

TARGET = """
from pathlib import Path
import torch
from remanence import Criterion, FinitePrior, Game, Records, looped, mismatch
people = Records(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(12))
def train(records, seed):
    noise = torch.randn(3, generator=torch.Generator().manual_seed(seed))
    return {"mean": records.features.mean(0) + float(Path(".".join(["scale", "txt"])).read_text()) * noise}
def game():
    return Game(looped(train), FinitePrior(people[:4]), people[4:], Criterion(mismatch, 0.5))
"""


@pytest.mark.parametrize("target", [digits_noisy_sum, digits_dpsgd_poisson])
def test_a_result_is_computed_again_and_a_changed_one_refused(tmp_path, run, target):
    found = audit(target(), trials=60, policy=Policy(0.1))
    found.save(tmp_path)
    code, told, _ = run("verify", tmp_path)
    assert code == 0
    assert f"1 of 1 ceilings too, and {found.verdict} follows from them." in told
    document = json.loads((tmp_path / DOCUMENT).read_text())
    document["evidence"][0]["main"]["upper"] -= 0.01
    (tmp_path / DOCUMENT).write_text(json.dumps(document))
    code, _, told = run("verify", tmp_path)
    assert code == 2
    assert "the counts give" in told


def test_protected_by_a_ceiling_that_cannot_be_computed_again_is_not_verified(tmp_path, run):
    found = result(Verdict.PROTECTED)  # its training states no noise that the ceiling could be about
    found.save(tmp_path)
    code, _, told = run("verify", tmp_path)
    assert (code, "PROTECTED was not verified" in told) == (2, True)
    assert "PROTECTED rests on a ceiling that was not computed again" in report(found)


def test_protected_beside_a_finding_that_cannot_be_computed_again_is_shown_and_not_verified(tmp_path, run):
    audit(digits_noisy_sum(), trials=60, policy=Policy(0.1)).save(tmp_path)
    document = json.loads((tmp_path / DOCUMENT).read_text())
    document["evidence"][0]["findings"].append({"kind": "from-elsewhere", "exposes": False})
    (tmp_path / DOCUMENT).write_text(json.dumps(document))
    assert run("show", tmp_path)[1].startswith("PROTECTED")
    code, _, told = run("verify", tmp_path)
    assert (code, "the finding 'from-elsewhere'" in told) == (2, True)
    code, _, told = run("verify", tmp_path, "--target", "digits-noisy-sum")  # a target cannot vouch for it
    assert (code, "the finding 'from-elsewhere'" in told) == (2, True)


def test_a_run_is_played_again_with_the_data_at_hand(tmp_path, run):
    (tmp_path / "mine.py").write_text(TARGET)
    (tmp_path / "scale.txt").write_text("0.05")
    options = "--attack retrain-and-compare --trials 20 --unit-trials 5 --max-success 0.9 --out run"
    assert run("audit", "mine.py:game", *options.split())[0] in (1, 3)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    code, told, _ = run("verify", "run", "--target", "mine.py:game")
    assert code == 0
    assert "4 counted again, one of them played again, the same" in told
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    (tmp_path / "scale.txt").write_text("5")  # a file that training reads, and no fingerprint knows
    code, _, told = run("verify", "run", "--target", "mine.py:game")
    assert code == 2
    assert "gives another result now" in told
    (tmp_path / "mine.py").write_text(TARGET.replace("manual_seed(0)), torch", "manual_seed(1)), torch"))
    code, _, told = run("verify", "run", "--target", "mine.py:game")
    assert code == 2
    assert "made from other data" in told


def test_an_attack_that_a_stored_result_names_by_a_file_is_not_executed(tmp_path, run):
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    run("audit", "digits-noisy-sum", "--trials", 20, "--out", "run")
    found = AuditResult.load(tmp_path / "run")
    replace(found, evidence=(replace(found.strongest, attack="evil.py:Evil"),)).save(tmp_path / "run")
    code, told, err = run("verify", "run", "--target", "digits-noisy-sum")
    assert (code, told, "evil.py:Evil, which is not a name" in err) == (2, "", True)
    assert not (tmp_path / "ran").exists()


def test_a_target_proves_the_ceilings_of_its_result(tmp_path, run):
    target = "from dataclasses import replace\nfrom remanence import bounds, targets\n"
    honest = target + "def game():\n    return targets.digits_noisy_sum()\n"
    (tmp_path / "mine.py").write_text(honest)
    code, _, _ = run("audit", "mine.py:game", "--trials", 20, "--max-success", 0.9, "--out", "run")
    assert code in (0, 3)
    code, told, err = run("verify", "run", "--target", "mine.py:game")
    assert (code, "Data: the same" in told) == (0, True), err
    (tmp_path / "mine.py").write_text(
        honest.replace("targets.digits_noisy_sum()", "replace(targets.digits_noisy_sum(), bounds=())")
    )
    code, _, told = run("verify", "run", "--target", "mine.py:game")
    assert (code, "proves other ceilings" in told) == (2, True)
