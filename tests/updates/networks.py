"""Networks whose updates are read: what is a factory here has the same weights every time."""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

VOCABULARY = 300


def dense():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 200), nn.ReLU(), nn.Linear(200, 7))


def plain():
    return nn.Sequential(nn.Linear(40, 150), nn.ReLU(), nn.Linear(150, 7)).double()


def conv():
    torch.manual_seed(0)
    last = nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 7)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), *last)


def mixed():
    return dense().append(nn.Softmax(1))


def frozen():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten())


def large():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(600, 1000), nn.ReLU(), nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 7)
    )


def unshifted():
    network = dense()
    network[1].bias.requires_grad_(False)
    return network


class Picky(nn.Linear):
    def forward(self, x):
        assert x.shape[1:] == (36,), "36 numbers are needed"
        return super().forward(x)


def picky():
    return nn.Sequential(Picky(36, 7))


class Squeezed(nn.Sequential):
    def forward(self, x):
        return super().forward(x).squeeze(-1)


def one():
    torch.manual_seed(0)
    return Squeezed(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 1))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def probe():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    trunk = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.Flatten(2), encoder, Mean())
    return nn.Sequential(trunk.requires_grad_(False), nn.Linear(4, 10))


def nothing():
    return 3


def still():
    return dense().requires_grad_(False)


class ViT(nn.Module):
    """A vision transformer of one layer, as people write them."""

    def __init__(self, positions=2, numbers=48):
        super().__init__()
        self.embed = nn.Conv2d(1, numbers, 8, 8)
        self.classes = nn.Parameter(0.02 * torch.randn(1, 1, numbers))
        self.places = nn.Parameter(0.02 * torch.randn(1, positions + 1, numbers))
        self.block = nn.TransformerEncoderLayer(
            numbers, 2, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(numbers, 10)

    def forward(self, pictures):
        tokens = self.embed(pictures).flatten(2).mT
        tokens = torch.cat([self.classes.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.block(tokens)[:, 0])


def vit():
    torch.manual_seed(0)
    return ViT(4, 40)


class Mixer(nn.Module):
    """No embedding of positions: what mixes them tells them apart."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 8, 8)
        self.mix = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2))
        self.head = nn.Linear(24, 5)

    def forward(self, pictures):
        tokens = self.stem(pictures).flatten(2)
        return self.head(gelu(tokens + self.mix(tokens)).mean(2))


class Heap(nn.Module):
    """Attention without positions: it reads the patches of a picture as a heap."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(1, 24, 8, 8)
        self.block = nn.TransformerEncoderLayer(24, 2, 32, activation="gelu", batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, pictures):
        return self.head(self.block(self.embed(pictures).flatten(2).mT).mean(1))


class Block(nn.Module):
    def __init__(self, size, causal):
        super().__init__()
        self.causal = causal
        self.before, self.after = nn.LayerNorm(size), nn.LayerNorm(size)
        self.queries, self.keys, self.values, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        y = self.before(x)
        parts = [f(y).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.queries, self.keys, self.values)]
        seen = scaled_dot_product_attention(*parts, is_causal=self.causal).transpose(1, 2).flatten(2)
        x = x + self.out(seen)
        return x + self.down(gelu(self.up(self.after(x))))


class Tiny(nn.Module):
    """A language model, with its embedding as output layer or not, or a classifier that reads in both directions."""

    def __init__(self, size=64, *, tied=False, classes=None, positions=True):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, size)
        self.positions = nn.Embedding(32, size) if positions else None
        self.blocks = nn.ModuleList(Block(size, causal=classes is None) for _ in range(2))
        self.norm = nn.LayerNorm(size)
        self.head = None if tied else nn.Linear(size, classes or VOCABULARY, bias=False)
        self.classes = classes

    def forward(self, ids):
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        x = x.mean(1) if self.classes else x
        return x @ self.embedding.weight.T if self.head is None else self.head(x)
