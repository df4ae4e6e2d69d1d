"""`remanence reproduce`: the framework, on a reproduction that takes no time; and what each figure promises."""

import json
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm

from remanence import DPSGD, AnyModule, FinitePrior, Game, Records, SuccessRate
from remanence.core.doors import load
from remanence.core.references import HAYES_2023
from remanence_papers import hayes_full_batch, hayes_optimisation, printing, registry, views
from remanence_papers.datasets import handwriting
from remanence_papers.hayes_full_batch import optimum
from remanence_papers.hayes_games import EXACT
from remanence_papers.printing import print_pages
from remanence_papers.reproduction import Outcome, Panel, Reproduction, Settings, as_text, curve, interval


def tiny(settings: Settings) -> Outcome:
    rates = [interval(SuccessRate(k, settings.trials or 10)) for k in (1, 2)]
    rows = [{"epsilon": float(k), "attack": rate, "paper": None} for k, rate in enumerate(rates, 1)]
    pictures = Panel("faces", pictures=[[[[0.0, 1.0], [1.0, 0.0]]]], picture_rows=["one"])
    curves = Panel("rates", "ε", "success", [curve("attack", rows, "epsilon", "attack")])
    return Outcome("a stand-in", rows, [curves, pictures], {"steps": 3}, ["nothing was trained"])


@pytest.fixture
def tiny_entry(monkeypatch):
    entry = Reproduction("tiny", "Nothing", HAYES_2023.at("Figure 0"), f"{__name__}:tiny")
    monkeypatch.setitem(registry.REPRODUCTIONS, "tiny", entry)
    return entry


def test_a_run_writes_what_it_prints(tiny_entry, tmp_path, run):
    code, out, _ = run("reproduce", "tiny", "--out", tmp_path, "--trials", 20, "--seed", 7)
    assert code == 0
    document = json.loads((tmp_path / "tiny.json").read_text())
    assert document["rows"][1]["attack"]["rate"] == 0.1
    assert document["seed"] == 7
    assert "--seed 7 --trials 20" in (tmp_path / "tiny.md").read_text()
    page = (tmp_path / "tiny.md").read_text()
    for text in (as_text(document["rows"][0]["attack"]), "a stand-in", "nothing was trained"):
        assert text in out
        assert text in page
    assert "tiny.svg" in page
    assert (tmp_path / "tiny.svg").read_text().count("faces") == 1


def test_a_stored_result_draws_the_same_picture_again(tiny_entry, tmp_path, run):
    run("reproduce", "tiny", "--out", tmp_path / "first")
    run("reproduce", tmp_path / "first/tiny.json", "--out", tmp_path / "second")
    for file in ("tiny.svg", "tiny.md", "tiny.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_large_pictures_are_stored_small(tiny_entry, tmp_path):
    document = registry.run(tiny_entry, Settings())
    large = [[float(x // 56 == y // 56) for x in range(224)] for y in range(224)]
    panels = [{**panel, "pictures": [[large]]} for panel in document["panels"] if panel["pictures"]]
    views.save({**document, "panels": panels}, tmp_path)
    (stored,) = views.load(tmp_path / "tiny.json")["panels"][0]["pictures"][0]
    assert stored == [[float(x // 14 == y // 14) for x in range(56)] for y in range(56)]


def test_without_matplotlib_there_is_no_picture_and_a_sentence(tiny_entry, tmp_path, monkeypatch, run):
    monkeypatch.setattr(views, "find_spec", lambda name: None)
    code, _, err = run("reproduce", "tiny", "--out", tmp_path)
    assert code == 0
    assert "matplotlib" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.json", "tiny.md"]
    assert "tiny.svg" not in (tmp_path / "tiny.md").read_text()


def several(settings: Settings) -> Outcome:
    if settings.seed == _BROKEN[0]:
        raise RuntimeError("cut off")
    rate = interval(SuccessRate(settings.seed, 10))
    return Outcome("a stand-in", [{"k": 1, "error": 0.01 * settings.seed, "rate": rate, "paper": "falls"}])


_BROKEN = [-1]


@pytest.fixture
def several_entry(monkeypatch, tmp_path):
    (tmp_path / "mnist.npz").write_bytes(b"")
    place = HAYES_2023.at("Figure 0"), f"{__name__}:several"
    entry = Reproduction("several", "Three", *place, "trials", seeds=3)
    monkeypatch.setitem(registry.REPRODUCTIONS, "several", entry)
    return entry


def test_all_seeds_are_one_page_and_a_run_goes_on_where_it_was_cut_off(several_entry, tmp_path, monkeypatch):
    out, said = tmp_path / "out", []
    settings = Settings("paper", tmp_path)
    monkeypatch.setitem(globals(), "_BROKEN", [2])
    failed = print_pages([several_entry], settings, out, jobs=1, say=said.append)
    assert list(failed) == ["several"]
    assert "seeds" in json.loads((out / "several.json").read_text()), "of two, until the third is there"
    monkeypatch.setitem(globals(), "_BROKEN", [0])  # the first two are there and are not run again
    assert not print_pages([several_entry], settings, out, jobs=1, say=said.append)
    document = json.loads((out / "several.json").read_text())
    (row,) = document["rows"]
    assert row["error"] == {"rate": pytest.approx(0.01), "lower": 0.0, "upper": 0.02}
    assert row["rate"]["rate"] == pytest.approx(0.1)
    assert (row["rate"]["trials"], row["paper"], document["seeds"]) == (30, "falls", [0, 1, 2])
    assert "**Less than in the paper**: trials" in (out / "several.md").read_text()
    print_pages([several_entry], settings, out, jobs=1, say=said.append)
    assert said[-1] == "1 of 1 pages are there already."


def test_a_run_goes_on_from_the_page_of_one_seed_that_a_repository_has(several_entry, tmp_path, monkeypatch):
    out, settings = tmp_path / "out", Settings("paper", tmp_path)
    views.save(registry.run(several_entry, settings), out)
    monkeypatch.setitem(globals(), "_BROKEN", [0])  # so its first seed must not run again
    assert not print_pages([several_entry], settings, out, jobs=1, say=lambda _: None)
    assert json.loads((out / "several.json").read_text())["seeds"] == [0, 1, 2]


def test_a_page_of_fewer_trials_than_its_scale_has_says_so(several_entry, tmp_path):
    views.save(registry.run(several_entry, Settings("paper", tmp_path, trials=4)), tmp_path)
    assert "**Less than in the paper**: 4 trials, as `--trials` says" in (tmp_path / "several.md").read_text()


def test_a_page_whose_code_changed_while_it_was_printed_is_named(several_entry, tmp_path, monkeypatch):
    monkeypatch.setattr(printing, "is_fresh", lambda *_: False)
    said, settings = [], Settings("paper", tmp_path)
    failed = print_pages([several_entry], settings, tmp_path / "out", jobs=1, say=said.append)
    assert failed == {"several": "code or data changed while it was printed"}
    assert said[1].endswith("the same command goes on")


def test_a_page_whose_data_are_not_there_is_named_and_leaves_the_others(several_entry, tmp_path):
    (tmp_path / "mnist.npz").unlink()
    chosen = [registry.find("hayes-figure-3"), several_entry]
    failed = print_pages(chosen, Settings("paper", tmp_path), tmp_path / "out", jobs=1, say=lambda _: None)
    assert list(failed) == ["hayes-figure-3"]
    assert "mnist.npz" in failed["hayes-figure-3"]


def test_all_prints_those_that_are_named(tiny_entry, tmp_path, run):
    code, out, _ = run("reproduce", "tiny", "--all", "--out", tmp_path)
    assert code == 0
    assert "tiny, seed 0" in out
    assert (tmp_path / "tiny.md").exists()


WRONG = [
    (("no-such-figure",), "no reproduction named"),
    (("tiny", "--scale", "paper"), "needs the paper's data"),
    (("hayes-figure-3", "--scale", "paper", "--data", "nowhere"), "mnist.npz"),
    (("missing.json",), "cannot be read"),
    (("tiny", "--out", "/proc/nothing"), "cannot be written"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_cannot_run_is_refused_in_a_sentence_and_writes_nothing(
    arguments, message, tiny_entry, tmp_path, run
):
    code, _, err = run("reproduce", *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_without_a_name_every_reproduction_is_listed_and_each_is_where_the_registry_says(run):
    code, out, _ = run("reproduce")
    assert code == 0
    for name, entry in registry.REPRODUCTIONS.items():
        assert name in out
        assert callable(load(entry.home))


def test_the_simulated_optimum_is_exact_for_two_opposite_gradients():
    # One input with either label, at zero weights and without learning: the gradients are exactly opposite.
    module = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    inputs = torch.tensor([[1.0, -2.0, 0.5]])
    mechanism = DPSGD(AnyModule(module), 4.0, 9, max_grad_norm=0.2, learning_rate=0.0)
    prior = FinitePrior(Records(inputs.expand(2, -1), torch.tensor([0, 1])))
    game = Game(mechanism, prior, Records(torch.ones(2, 3), torch.tensor([0, 1])), EXACT)
    found, error = optimum(game, Settings(), runs=20)
    assert found == pytest.approx(norm.cdf(3 / 4), abs=5 * error)
    assert 0 < error < 0.01  # 40,000 draws


def test_the_share_of_shortlists_is_counted_and_not_drawn():
    # Of 5 others 3 are farther than the target: with two of them taken, C(3, 2) of C(5, 2) shortlists are won.
    assert hayes_optimisation._choose(3, 5, 2) == pytest.approx(3 / 10)
    assert hayes_optimisation._choose(1, 5, 2) == 0
    assert hayes_optimisation._choose(5, 5, 1) == pytest.approx(1)


def test_a_share_of_the_pixels_counts_within_32_of_255():
    target = torch.zeros(1, 4)
    off = torch.tensor([[31 / 255, -31 / 255, 33 / 255, 1.0]])
    for share, right in ((0.5, 1), (0.6, 0)):
        assert hayes_optimisation._share_right(target, off, share).successes == right


def test_the_norms_of_a_runs_own_target_are_recorded_after_clipping():
    data = handwriting(Settings())[0]
    mechanism = replace(hayes_full_batch.mechanism_of(data, epsilon=5.0), steps=3)
    game = hayes_full_batch.shortlist_game(data, mechanism, candidates=4, known=20)
    mean, own = hayes_full_batch.gradient_norms(game, Settings(), runs=5)
    assert own.shape == (5, 3)
    assert own[:, 0].tolist() == pytest.approx([0.1] * 5)  # before training all gradients are long
    assert 0.05 < mean < 0.1001


@pytest.mark.parametrize("name", ["hayes-figure-1", "hayes-figure-1-prior", "hayes-cifar", "hayes-figure-12"])
def test_pages_of_optimisation_show_what_a_search_returned(name, monkeypatch, tmp_path):
    def half_right(settings, epsilon, loss, count, kind="pictures"):
        targets = handwriting(settings)[0].flat[:count]
        return hayes_optimisation.Reconstructed(targets, targets / 2, 7.0)

    monkeypatch.setattr(hayes_optimisation, "reconstruct", half_right)
    monkeypatch.setattr(hayes_optimisation, "model_based", lambda *_: torch.ones(10))
    document = registry.run(registry.find(name), Settings(trials=20))
    assert views.save(document, tmp_path)
    errors = [row["likelihood"] for row in document["rows"] if "likelihood" in row]
    half = float((handwriting(Settings())[0].flat[:20] / 2).square().mean())
    assert errors == pytest.approx([half] * len(errors))


def runs(name: str, trials: int) -> list[dict]:
    return registry.run(registry.find(name), Settings(trials=trials))["rows"]


def check_rows(rows: list[dict]) -> None:
    """No attack on a correct mechanism is certain to be above its bound, and controls are not above a guess."""
    for row in rows:
        measured = {k: v for k, v in row.items() if isinstance(v, dict)}
        assert measured.keys() > {"control"}
        for name, rate in measured.items():  # a hundred rows: one in a million of them may be unlucky
            wide = SuccessRate(round(rate["rate"] * rate["trials"]), int(rate["trials"]), 1 - 1e-7)
            assert wide.lower <= row["guess" if name == "control" else "bound"]


def test_a_figure_of_the_paper_runs_and_stays_below_its_bounds():
    rows = runs("hayes-figure-5", trials=8)
    check_rows(rows)
    assert [row["sample rate"] for row in rows] == [0.01, 0.1, 0.5, 0.99]


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"hayes-figure-{k}" for k in (2, 3, 4, 7, 9, 10, 13, 14)])
def test_every_figure_with_a_shortlist_runs_and_stays_below_its_bounds(name):
    check_rows(runs(name, trials=12))


@pytest.mark.slow
def test_optimisation_recovers_pictures_where_there_is_little_noise_and_none_where_there_is_much():
    errors = {row["epsilon"]: row["likelihood"] for row in runs("hayes-figure-1", trials=10)}
    assert errors[10_000.0] < 0.005 < 0.1 < errors[10.0]
    loud = [row for row in runs("hayes-figure-12", trials=10) if row["epsilon"] == 10_000.0]
    assert all(row["noise"]["rate"] == 1 for row in loud if row["share of pixels"] < 1)
