"""How a reconstructor reads a head: embeddings solved for, and each class from its own row."""

from dataclasses import replace

import torch

from conftest import heads_game
from remanence.heads.linear_reader import read
from remanence.heads.readers import HeadReader, HiddenReader, estimate_embeddings


def released(game, targets):
    return game.mechanism.release(None, targets, torch.Generator().manual_seed(1)).tensors


def test_the_order_of_hidden_units_means_nothing_to_either_reader():
    game = heads_game(hidden=4, initialisation="he")
    tensors = released(game, game.targets.sample(30, torch.Generator().manual_seed(0)))
    mixed, order = dict(tensors), torch.tensor([2, 0, 3, 1])
    mixed |= {name: tensors[name][:, order] for name in ("weight", "bias")}
    mixed["out_weight"] = tensors["out_weight"][..., order]
    reader, asked = HiddenReader(tensors, classes=3), torch.zeros(30, dtype=torch.int64)
    for seen in (
        lambda each: reader(reader.prepare(each), asked),
        lambda each: read(each, torch.tensor([1])),
    ):
        torch.testing.assert_close(seen(tensors), seen(mixed), rtol=1e-4, atol=1e-4)


def test_a_row_is_read_with_its_bias_less_what_all_rows_share():
    weight, bias, rows = torch.randn(4, 3, 5), torch.randn(4, 3), torch.tensor([2, 0])
    both = torch.cat([weight, bias.unsqueeze(2)], 2)
    found = read({"weight": weight, "bias": bias}, rows)
    torch.testing.assert_close(found, (both - both.mean(1, True))[:, rows])


def test_embeddings_are_solved_for_where_a_row_alone_shows_them_up_to_what_all_share():
    game = heads_game(initialisation=1e-4, epochs=30, learning_rate=0.002)
    targets = game.targets.sample(50, torch.Generator().manual_seed(0))
    weight = released(game, targets)["weight"]
    pool = game.prior.records
    means = torch.stack([pool.embedding[pool.labels == c].mean(0) for c in range(3)])

    def unexplained(estimate):
        """The share of the embeddings' variance that the best line through the estimate misses."""
        x, y = estimate - estimate.mean(0), targets.embedding - targets.embedding.mean(0)
        slope = (x * y).sum(0) / x.square().sum(0).clamp(min=1e-12)
        return float((y - slope * x).square().sum() / y.square().sum())

    solved = estimate_embeddings(game.mechanism, weight, means, nonnegative=True)
    free = estimate_embeddings(game.mechanism, weight, means, nonnegative=False)
    # Three classes lose a third of the variance with their common part; that none is negative gives some back.
    assert unexplained(weight) > 0.29
    assert unexplained(free) > 0.29
    assert unexplained(solved) < 0.25


def test_the_first_class_that_is_asked_for_is_read_from_its_own_row():
    game = heads_game()
    prior = replace(game.prior, counts=(0, 1, 1))
    targets = prior.sample(50, torch.Generator().manual_seed(0))
    tensors = released(game, targets)
    reader = HeadReader(tensors, game.mechanism, prior)
    found = reader(reader.prepare(tensors), torch.zeros(50, dtype=torch.int64))
    bias = tensors["bias"][:, 1]  # class 1 is the first that these sets have
    torch.testing.assert_close(found[:, -4], (bias - bias.mean()) / bias.std(), rtol=1e-3, atol=1e-3)
    assert found[:, -3:].mean(0).tolist() == [0, 1, 0]
