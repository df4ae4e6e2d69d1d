"""Private fine-tuning with LoRA: a run that is what it claims to be, and failures that people report."""

import pytest
import torch
from dp_lora import PADDING, VARIANTS, Setting, batch_loss, fine_tune, verdicts

from remanence.core.exceptions import InputError
from remanence.private.consistency import read_run
from remanence.results.verdict import Verdict
from remanence.texts.canaries import codes
from remanence.texts.transformers import text_loss


def findings(tmp_path, **options):
    fine_tune(tmp_path / "run", 0, Setting(steps=8, canaries=60, **options))
    run = read_run(tmp_path / "run")
    found = {caveat.id: caveat for caveat in run.deviations()}
    assert found.pop("seed-unknown").voids  # nobody said a word about seeds
    found.pop("counted-from-the-records", None)
    return found


@pytest.mark.parametrize("way", ["", "accumulate"])
def test_a_correct_run_has_no_finding_also_with_batches_in_several_parts(tmp_path, way):
    assert findings(tmp_path, fault=way) == {}


def test_base_weights_that_moved_and_a_loss_over_all_tokens_of_a_batch_are_named(tmp_path):
    moved = findings(tmp_path / "moved", fault="base moved")["update-not-replayed"]
    assert moved.voids
    assert "head.weight" in moved.seen
    assert findings(tmp_path / "loss", fault="normaliser", norm=2.0)["clipping-not-replayed"].voids


def test_a_text_weighs_the_same_beside_long_texts_and_short_ones():
    generator = torch.Generator().manual_seed(0)
    mine, short, long = (torch.randint(1, 9, (1, 12), generator=generator) for _ in range(3))
    short[:, 3:] = PADDING
    shares = {}
    for loss in (lambda logits, ids: text_loss(logits, ids, PADDING), batch_loss):
        gradients = []
        for other in (short, long):
            ids = torch.cat([mine, other])
            logits = torch.zeros(2, 12, 9, requires_grad=True)
            loss(logits, ids).backward()
            gradients.append(logits.grad[0].norm().item())
        shares[loss] = gradients[0] / gradients[1]
    alone, together = shares.values()
    assert alone == pytest.approx(1)
    assert together == pytest.approx((11 + 11) / (11 + 2))


def test_canaries_become_rows_with_the_same_coins():
    made = codes(50, seed=0)
    records, coins = made.as_tokens(lambda text: list(text.encode()), length=60, padding=0)
    assert (coins >= 0).tolist() == made.chosen.tolist()
    texts = [bytes(row[row > 0].tolist()).decode() for row in records.features[coins >= 0, 0]]
    assert texts == [record["prefix"] + record["secret"] for record in made.inserted]
    with pytest.raises(InputError, match="does not fit into a row"):
        made.as_tokens(lambda text: list(text.encode()), length=10, padding=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_correct_run_is_never_contradicted_and_less_noise_is(seed):
    found = {variant: verdicts(variant, seed) for variant in VARIANTS}
    assert Verdict.CONTRADICTED not in found["as claimed"]
    assert found["half the noise"][0] is found["noise forgotten"][0] is Verdict.CONTRADICTED
