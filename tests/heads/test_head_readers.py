"""How a reconstructor reads a head: embeddings solved for, and each class from its own row."""

from dataclasses import replace

import torch

from conftest import heads_game
from remanence.heads.readers import HeadReader, estimate_embeddings


def test_embeddings_are_solved_for_where_a_row_alone_shows_them_up_to_what_all_share():
    game = heads_game(initialisation=1e-4, epochs=30, learning_rate=0.002)
    targets = game.targets.sample(50, torch.Generator().manual_seed(0))
    release = game.mechanism.release(None, targets, torch.Generator().manual_seed(1))
    pool = game.prior.records
    means = torch.stack([pool.embedding[pool.labels == c].mean(0) for c in range(3)])

    def unexplained(estimate):
        """The share of the embeddings' variance that the best line through the estimate misses."""
        x, y = estimate - estimate.mean(0), targets.embedding - targets.embedding.mean(0)
        slope = (x * y).sum(0) / x.square().sum(0).clamp(min=1e-12)
        return float((y - slope * x).square().sum() / y.square().sum())

    solved = estimate_embeddings(game.mechanism, release["weight"], means, nonnegative=True)
    free = estimate_embeddings(game.mechanism, release["weight"], means, nonnegative=False)
    # Three classes lose a third of the variance with their common part; that none is negative gives some back.
    assert unexplained(release["weight"]) > 0.29
    assert unexplained(free) > 0.29
    assert unexplained(solved) < 0.25


def test_the_first_class_that_is_asked_for_is_read_from_its_own_row():
    game = heads_game()
    prior = replace(game.prior, counts=(0, 1, 1))
    targets = prior.sample(50, torch.Generator().manual_seed(0))
    tensors = game.mechanism.release(None, targets, torch.Generator().manual_seed(1)).tensors
    reader = HeadReader(tensors, game.mechanism, prior)
    read = reader(reader.prepare(tensors), torch.zeros(50, dtype=torch.int64))
    bias = tensors["bias"][:, 1]  # class 1 is the first that these sets have
    torch.testing.assert_close(read[:, -4], (bias - bias.mean()) / bias.std(), rtol=1e-3, atol=1e-3)
    assert read[:, -3:].mean(0).tolist() == [0, 1, 0]
