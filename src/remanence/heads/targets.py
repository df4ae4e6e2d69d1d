"""Built-in heads on a small backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remanence.core.examples import example

if TYPE_CHECKING:
    from torch import Tensor, nn

    from remanence.core.records import Records
    from remanence.core.stratified import StratifiedPrior
    from remanence.game import Game
    from remanence.heads.transfer_head import TransferHead


def digits_heads() -> Game[TransferHead, StratifiedPrior]:
    """Heads for the digits 5 to 9 on a backbone that learned 0 to 4; one picture per class, a weak adversary."""
    from remanence.core.distances import nearest_neighbour_errors
    from remanence.core.errors import Criterion, Reduction, mean_squared_error
    from remanence.core.stratified import StratifiedPrior
    from remanence.game import Game
    from remanence.heads.transfer_head import TransferHead

    public, private = digits_transfer()
    threshold = float(nearest_neighbour_errors(private, public).mean())
    criterion = Criterion(mean_squared_error, threshold, Reduction.CLASS)
    head = TransferHead(classes=5, epochs=32, learning_rate=0.05, weight_decay=1e-5)
    return Game(head, StratifiedPrior(public), None, criterion, targets=StratifiedPrior(private))


def digits_transfer() -> tuple[Records, Records]:
    """The digits 5 to 9 as classes 0 to 4, embedded by a network that learned the digits 0 to 4 in four turns.

    The first part is public: what the adversary holds. The second is what heads are trained on.
    """
    from remanence.core.records import Records
    from remanence.heads.pictures import embed

    backbone, pictures, labels, order = digits_backbone()
    new = labels >= 5
    embedded = embed(Records(pictures[new], labels[new] - 5)[order], backbone)
    return embedded[:600], embedded[600:]


def digits_backbone() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The network, all digits with their labels, and the order in which those from 5 up are handed out."""
    import torch
    from torch import nn

    digits = example("digits", scale=8.0)
    pictures, labels = digits.features.float().unflatten(1, (8, 8)) - 1, digits.labels
    old, turns = labels < 5, 4
    seen = torch.cat([torch.rot90(pictures[old], k, (1, 2)) for k in range(turns)])
    answers = torch.cat([labels[old] * turns + k for k in range(turns)])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 5 * turns)
        network = nn.Sequential(nn.Flatten(), *layers)
        optimizer = torch.optim.AdamW(network.parameters(), 3e-3, weight_decay=1e-2)
        for _ in range(600):
            batch = torch.randint(len(seen), (256,))
            loss = nn.functional.cross_entropy(network(seen[batch]), answers[batch], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        order = torch.randperm(int((~old).sum()))
    return network[:-1], pictures, labels, order
