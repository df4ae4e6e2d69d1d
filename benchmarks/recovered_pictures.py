"""Recovered pictures to look at: `python benchmarks/recovered_pictures.py FOLDER OUT.png`, minutes on two cores.

Two rows of pictures from heads that plain PyTorch loops trained: ten MNIST digits from one head, and ten Olivetti faces
from five heads on two people each, none of whom the adversary has a picture of. Above are the pictures that a head was
trained on, below what the linear reader drew from its weights, and at the bottom what it drew from a head of the same
recipe on other pictures: what comes without having been trained on. The pictures are drawn by lot, whatever comes back.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from remanence import Criterion, Game, LinearReader, Records, TransferHead, mean_squared_error
from remanence.core.errors import Reduction
from remanence.core.stratified import StratifiedPrior
from remanence.heads.pictures import embed, embedding_of
from remanence_papers.letters import pixels, train_letters

EPOCHS, RATE, SEED = 30, 0.05, 0


def trained(records: Records, classes: int) -> dict[str, Tensor]:
    """A head as people train it."""
    head = nn.Linear(embedding_of(records).shape[1], classes)
    optimizer = torch.optim.Adam(head.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(embedding_of(records)), records.labels).backward()
        optimizer.step()
    return {name: values.detach() for name, values in head.state_dict().items()}


def drawn(public: Records, sets: list[Records], classes: int) -> tuple[Tensor, float]:
    """What the linear reader draws from a head on each set, `(sets, classes, *picture)`, and its error."""
    recipe = TransferHead(
        classes, EPOCHS, RATE, optimizer="adam", initialisation="pytorch", two_outputs=classes == 2
    )
    prior = StratifiedPrior(public, 1)
    game = Game(recipe, prior, None, Criterion(mean_squared_error, 0.1, Reduction.CLASS), targets=prior)
    read = LinearReader().prepare(game.knowledge, torch.Generator().manual_seed(SEED))
    heads = [trained(each, classes) for each in sets]
    release = recipe.releases({name: torch.stack([head[name] for head in heads]) for name in heads[0]})
    found = read(release).records.features
    return found, float((found - torch.stack([each.features for each in sets])).square().mean())


def digits(data: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Ten digits, what came out of their head, and what came out of another."""
    letters, mnist = np.load(data / "cyrillic-letters.npz"), np.load(data / "mnist.npz")
    some = torch.from_numpy(letters["xtr"][:20000]), torch.from_numpy(letters["ytr"][:20000])
    backbone = train_letters(*some, epochs=1, width=8, rotate=False)
    lot = torch.Generator().manual_seed(SEED)

    def taken(kind: str, count: int) -> Records:
        labels = torch.from_numpy(mnist[f"y{kind}"]).long()
        chosen = [torch.randperm(int((labels == c).sum()), generator=lot)[:count] for c in range(10)]
        places = torch.cat([(labels == c).nonzero()[:, 0][chosen[c]] for c in range(10)])
        return embed(Records(pixels(torch.from_numpy(mnist[f"x{kind}"]))[places], labels[places]), backbone)

    public, private = taken("tr", 1000), taken("te", 2)
    mine, others = private[0::2], private[1::2]
    found, error = drawn(public, [mine, others], 10)
    print(
        f"digits: mean squared error {error:.3f}; between two of a class {_between(mine.features, others.features):.3f}"
    )
    return mine.features, found[0], found[1]


def faces(data: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Ten faces, two for each of five heads; the adversary knows other people's."""
    stored = np.load(data / "olivetti-faces.npz")
    pictures = torch.from_numpy(stored["x"]).float()[:, None] / 127.5 - 1
    pictures = nn.functional.interpolate(pictures, size=(32, 32), mode="bilinear", antialias=True)
    people, lot = torch.from_numpy(stored["y"]).long(), torch.Generator().manual_seed(SEED)
    torch.manual_seed(SEED)
    layers = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    backbone = nn.Sequential(*layers, nn.Linear(32 * 64, 256), nn.ReLU())
    order = torch.randperm(40, generator=lot)
    private, known = order[:20], torch.isin(people, order[20:])
    sides = torch.zeros(40, dtype=torch.int64)
    sides[order[0::2]] = 1  # two teams, by lot
    both = torch.cat([pictures[known], pictures[known].flip(3)])
    public = embed(Records(both, sides[people[known]].repeat(2)), backbone)

    def pair(person: int, other: int) -> Records:
        places = [
            int((people == each).nonzero()[int(torch.randint(10, (1,), generator=lot)), 0])
            for each in (person, other)
        ]
        pair = Records(pictures[places], sides[people[places]])
        return embed(pair[pair.labels.argsort()], backbone)

    sets = [pair(int(private[2 * k]), int(private[2 * k + 1])) for k in range(10)]
    found, error = drawn(public, sets, 2)
    own, others = (torch.cat([each.features for each in part]) for part in (sets[:5], sets[5:]))
    print(f"faces: mean squared error {error:.3f}; between two of a team {_between(own, others):.3f}")
    return own, found[:5].flatten(0, 1), found[5:].flatten(0, 1)


def _between(one: Tensor, two: Tensor) -> float:
    return float((one - two).square().mean())


def main(data: Path, out: Path) -> None:
    """Draw both, one below the other, twice as large."""
    torch.set_num_threads(2)
    rows = []
    for part in (digits(data), faces(data)):
        rows += [
            torch.cat([nn.functional.pad(p[0], (1, 1, 1, 1), value=1.0) for p in row], 1) for row in part
        ]
    grid = (torch.cat(rows) + 1).mul(127.5).clamp(0, 255).byte().numpy()
    picture = Image.fromarray(grid).resize((2 * grid.shape[1], 2 * grid.shape[0]), Image.Resampling.NEAREST)
    picture.quantize(32).save(out, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
