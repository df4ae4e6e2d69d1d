"""Maciazek and Allison 2025: presets, what an adversary infers, and what a defence publishes."""

import math
from dataclasses import replace

import pytest
import torch

from conftest import heads_game, pictures
from remanence import InputError, Reconstructor, StratifiedPrior, TransferHead, play
from remanence_papers.class_sizes import infer_class_sizes
from remanence_papers.given_embeddings import with_embeddings_given
from remanence_papers.letters import letters_network, load_letters, store_letters
from remanence_papers.maciazek import Setup
from remanence_papers.maciazek_faces import OTHERS, person_places, trained
from remanence_papers.maciazek_factors import HOW_HEADS_ARE_TRAINED, WHAT_THE_ADVERSARY_HAS, Factor, run
from remanence_papers.maciazek_private import PublishedHead, as_the_code_ran, as_the_text_says, private
from remanence_papers.reproduction import Settings


def test_a_defence_adds_the_noise_that_was_asked_for_or_rounds_to_so_many_levels():
    plain = TransferHead(3, 10, 0.1)
    sets = StratifiedPrior(pictures(300)).sample(400, torch.Generator().manual_seed(0))
    heads = plain, PublishedHead(**vars(plain), release_noise=0.5), PublishedHead(**vars(plain), bits=3)
    exact, noisy, rounded = (
        head.release(None, sets, torch.Generator().manual_seed(1))["weight"] for head in heads
    )
    # The deviation of n normal numbers is within 5 / √(2n) of the truth but for one case in a million.
    assert float((noisy - exact).std()) == pytest.approx(0.5, rel=5 / math.sqrt(2 * exact.numel()))
    step = 2 * exact.abs().flatten(1).amax(1) / (2**3 - 1)
    levels = [len(torch.unique(one.div(s).mul(2).round())) for one, s in zip(rounded, step, strict=True)]
    assert max(levels) <= 2**3
    assert ((exact - rounded).abs().flatten(1).amax(1) <= step / 2 * (1 + 1e-4)).all()


def test_class_sizes_are_read_off_heads():
    pool, generator = pictures(300), torch.Generator().manual_seed(0)
    head = TransferHead(3, 20, 0.05)
    counts = (1, 5, 2)
    owners = StratifiedPrior(pictures(90, seed=1), counts).sample(100, generator)
    release = head.release(None, owners, generator)
    found = infer_class_sizes(release, head, pool, generator, largest=6).float()
    assert found.shape == (100, 3)
    # Guessing the middle of 1 to 6 is off by 1.7 on average here; the order of the classes must come out.
    assert (found - torch.tensor(counts)).abs().mean() < 1.0
    assert (found[:, 1] > found[:, 0]).float().mean() > 0.85  # 0.93


PUBLISHED = [  # σ → ε of the paper's code, for sampling as it ran
    (10, 32, 5, 1.82),
    (10, 32, 20, 0.85),
    (10, 32, 80, 0.435),
    (40, 50, 2, 5.21),
    (40, 50, 10, 1.75),
    (40, 50, 40, 0.79),
]


@pytest.mark.parametrize(("size", "epochs", "epsilon", "noise"), PUBLISHED)
def test_the_papers_noise_multipliers_come_out(size, epochs, epsilon, noise):
    head = private(TransferHead(10, epochs), size, epsilon, as_the_code_ran())
    assert head.steps == 2 * epochs
    assert head.noise_multiplier == pytest.approx(noise, rel=0.013)


def test_sampling_as_the_text_says_takes_one_step_per_epoch():
    head = private(TransferHead(10, 32), 10, 20.0, as_the_text_says(10))
    assert (head.steps, head.sample_rate) == (32, 0.9)
    assert private(TransferHead(10, 32), 10, math.inf, as_the_text_says(10)) == TransferHead(10, 32)


def small_setup():
    public, own = pictures(300), pictures(90, seed=1)
    head = TransferHead(3, 15, 0.05)
    return Setup("pictures", public, own, head, 0.3, (15, 0), elsewhere=lambda: pictures(200, seed=5))


def test_presets_run_and_a_wrong_belief_costs_the_adversary(monkeypatch):
    import remanence_papers.maciazek_factors as factors

    monkeypatch.setattr(factors, "_learning", lambda settings: (100, 64, 0.1))
    rows = {}
    for factor in (
        Factor("right", None),
        Factor("wrong", 9, victim=lambda head: replace(head, initialisation=1.0)),
        Factor("inferred", 9, per_class=2, believed=None),
    ):
        rows[factor.name] = run(small_setup(), factor, Settings(), 60)
    assert rows["right"]["TPR"]["lower"] > rows["wrong"]["TPR"]["upper"]
    assert rows["right"]["TPR at 1 %"]["rate"] > rows["right"]["FPR"]["rate"]
    assert "right for" in rows["inferred"]["factor"]


def test_every_point_of_section_3_2_has_a_preset_and_each_recipe_trains():
    factors = WHAT_THE_ADVERSARY_HAS + HOW_HEADS_ARE_TRAINED
    assert {factor.point for factor in factors} == {None, *range(1, 10)}
    reference = TransferHead(10, 32, 0.01, 1e-5)
    changed = [f for f in factors if f.head(reference) != reference or f.victim(reference) != reference]
    assert {f.point for f in changed} >= {4, 5, 6, 7, 9}
    binary = next(f for f in factors if f.point == 4).head(reference)
    assert (binary.hidden, binary.learning_rate, binary.weight_decay) == (8, 0.1, 1e-4)  # Table 6


def test_a_stored_backbone_is_the_same_backbone_and_a_damaged_one_is_refused(tmp_path):
    torch.manual_seed(0)
    backbone = torch.nn.Sequential(*list(letters_network(5, width=4))[:-1]).eval()
    store_letters(backbone, tmp_path / "b.safetensors")
    inputs = torch.rand(2, 1, 32, 32)
    again = load_letters(tmp_path / "b.safetensors")
    torch.testing.assert_close(again(inputs), backbone(inputs))
    (tmp_path / "b.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        load_letters(tmp_path / "b.safetensors")


def test_a_set_of_one_person_has_nobody_else_twice_over_and_strangers_are_other_people():
    pool = pictures(120)
    generator = torch.Generator().manual_seed(0)
    who, person = person_places(pool.labels, 2, 50, generator)
    names = pool.labels[who]
    assert who.shape == (50, 2 * OTHERS + 2)
    assert (names[:, 18:] == person[:, None]).all()
    assert (names[:, :18] != person[:, None]).all()
    assert all(len(set(row)) == 20 for row in who.tolist())
    _, others = person_places(pool.labels, 2, 50, generator, other_than=person)
    assert (others != person).all()
    heads = trained(TransferHead(2, 5, 0.1, hidden=2), pool, 2, 30, generator)
    torch.testing.assert_close(heads.own.features, pool.features[heads.places[:, -2:]])
    assert (pool.labels[heads.places[:, -2:]] == heads.person[:, None]).all()
    torch.testing.assert_close(heads.seen(given=True)["embedding"], pool.embedding[heads.places[:, -2:-1]])


def test_a_network_that_is_given_the_embeddings_draws_more_than_one_that_reads_heads():
    game, network = heads_game(), Reconstructor(steps=60, batch=32, width=16)
    oracle, attack = (play(each, network, trials=60) for each in (with_embeddings_given(game), game))
    assert oracle.main.lower > oracle.control.upper
    assert oracle.main.rate >= attack.main.rate
