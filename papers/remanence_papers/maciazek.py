"""Maciazek and Allison 2025: heads on handwriting, a reconstructor, and how its errors are judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from remanence.core.attack import Attack, Reconstruction
from remanence.core.distances import nearest_neighbour_errors, public_errors
from remanence.core.errors import Criterion, Reduction, mean_squared_error
from remanence.core.rates import SuccessRate
from remanence.core.records import Records, concatenate
from remanence.core.releases import Release
from remanence.core.roc import Roc, TruePositiveRate
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.pictures import embed
from remanence.heads.transfer_head import TransferHead
from remanence.reconstructor.attack import Reconstructor
from remanence_papers.datasets import load_arrays
from remanence_papers.letters import load_letters, pixels, train_letters
from remanence_papers.normal_errors import Gaussians
from remanence_papers.reproduction import Cell, Curve, Panel, Settings, interval
from remanence_papers.signatures import READ

LARGEST_ERROR = 4.0  # pixels are in [−1, 1]
ORACLE = "oracle, given the embedding"
BACKBONE = "letters-backbone.safetensors"
_SHOWN = 10
_AT_ONCE = 500  # heads whose pictures are drawn and compared together

Reconstruct = Callable[[Release], Reconstruction]
Heads = Game[TransferHead, StratifiedPrior]


@dataclass(frozen=True)
class Setup:
    """What the heads are trained on, and how."""

    name: str
    public: Records
    private: Records
    head: TransferHead
    threshold: float
    epochs: tuple[int, int]  # for a set of no picture, and more for each picture of a class
    backbone: nn.Module | None = None
    elsewhere: Callable[[], Records] | None = None  # embedded pictures of another kind
    copies: int = 1  # of the same public pictures: 2 where they are mirrored too

    @property
    def classes(self) -> int:
        """How many kinds of pictures there are."""
        return self.head.classes

    def game(self, per_class: int) -> Heads:
        """The paper's recipes have more epochs for larger sets."""
        first, more = self.epochs
        return Game(
            replace(self.head, epochs=first + more * per_class),
            StratifiedPrior(self.public, per_class, self.copies),
            None,
            Criterion(mean_squared_error, self.threshold, Reduction.CLASS),
            targets=StratifiedPrior(self.private, per_class),
        )

    def recipe(self, trials: int) -> dict[str, Cell]:
        """What a page prints about the heads."""
        return {
            "trials": trials,
            "learning rate": self.head.learning_rate,
            "weight decay": self.head.weight_decay,
            "epochs": f"{self.epochs[0]} + {self.epochs[1]} per picture of a class",
            "initial deviation": str(self.head.initialisation),
        }


def handwriting_setup(settings: Settings) -> Setup:
    """MNIST on a backbone that learned letters, or the embedded digits on one that learned the other half."""
    if settings.small:
        from remanence.heads.targets import digits_backbone, digits_heads, digits_transfer

        public, private = digits_transfer()
        game = digits_heads()
        name = "scikit-learn's digits 5 to 9 (8x8 pixels) on a backbone for 0 to 4, a stand-in for MNIST"
        recipe = game.mechanism, game.criterion.threshold, (26, 6)
        return Setup(name, public, private, *recipe, digits_backbone()[0], digits_elsewhere)
    digits = load_arrays(settings, "mnist.npz", "xtr", "ytr", "xte", "yte")
    backbone = _letters_backbone(settings)

    def embedded(arrays: dict[str, np.ndarray], images: str, labels: str) -> Records:
        pictures = pixels(torch.from_numpy(arrays[images]).to(settings.device))
        answers = torch.from_numpy(arrays[labels].astype(np.int64)).to(settings.device)
        return embed(Records(pictures, answers), backbone)

    def letters() -> Records:
        return embedded(load_arrays(settings, "cyrillic-letters.npz", "xte", "yte"), "xte", "yte")

    public, private = embedded(digits, "xtr", "ytr"), embedded(digits, "xte", "yte")
    threshold = float(nearest_neighbour_errors(private, public).mean())
    head = TransferHead(classes=10, epochs=32, learning_rate=0.01, weight_decay=1e-5)
    name = "MNIST (resized to 32x32) on a backbone for Cyrillic letters, which stand in for EMNIST's"
    return Setup(name, public, private, head, threshold, (26, 6), backbone, letters)


def _letters_backbone(settings: Settings) -> nn.Module:
    """As `benchmarks/letters_backbone.py` stored it in the data folder, or trained here and now."""
    assert settings.data is not None, "Settings refuses the paper's scale without data"
    if (stored := settings.data / BACKBONE).exists():
        READ.add(stored)
        return load_letters(stored).to(settings.device)
    letters = load_arrays(settings, "cyrillic-letters.npz", "xtr", "ytr")
    images, labels = torch.from_numpy(letters["xtr"]), torch.from_numpy(letters["ytr"].astype(np.int64))
    return train_letters(images, labels, epochs=10, seed=settings.seed, device=settings.device)


def prepare(game: Game, attack: Attack, settings: Settings) -> tuple[Reconstruct, float]:
    """Let the adversary learn, and say how many seconds that took."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    knowledge = game.to(settings.device).knowledge
    started = time.perf_counter()
    reconstruct = attack.prepare(knowledge, generator)
    if generator.device.type == "cuda":
        torch.cuda.synchronize()
    return reconstruct, time.perf_counter() - started


def for_seconds(game: Game, attack: Reconstructor, settings: Settings, seconds: float) -> Reconstructor:
    """The same attack with as many steps as fit into so many seconds, from the time of two short runs."""
    short, long = 20, 60
    prepare(game, replace(attack, steps=2), settings)  # what the first run of its kind takes longer
    first, second = (prepare(game, replace(attack, steps=steps), settings)[1] for steps in (short, long))
    each = max(second - first, 1e-9) / (long - short)
    return replace(attack, steps=max(long, round(short + (seconds - first) / each)))


@dataclass(frozen=True)
class Trials:
    """Heads, what came out of them, and the error of the closest picture of the asked class."""

    targets: Records  # (trials, set)
    strangers: Records
    guesses: Records  # (trials, classes)
    own: Tensor  # errors against the set that the head was trained on, the paper's H0: (trials, classes)
    stranger: Tensor  # against another set: honest false positives, H1
    release: Release

    def roc(self) -> Roc:
        """True positives against honest false positives."""
        return Roc(self.own.numpy(), self.stranger.numpy())


def evaluate(game: Game, reconstruct: Reconstruct, settings: Settings, trials: int) -> Trials:
    """Train heads and hold what comes out against their own sets and others."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed + 1)
    game = game.to(settings.device)
    assert game.targets is not None
    parts: list[Trials] = []
    for start in range(0, trials, _AT_ONCE):
        count = min(_AT_ONCE, trials - start)
        targets, strangers = game.targets.sample_pair(count, generator, generator)
        release = game.mechanism.release(None, targets, generator)
        guesses = reconstruct(release).records
        own, stranger = (
            game.criterion.compare(records, guesses).errors.cpu() for records in (targets, strangers)
        )
        parts.append(
            Trials(targets.to("cpu"), strangers.to("cpu"), guesses.to("cpu"), own, stranger, release)
        )
    return Trials(
        concatenate([part.targets for part in parts]),
        concatenate([part.strangers for part in parts]),
        concatenate([part.guesses for part in parts]),
        torch.cat([part.own for part in parts]),
        torch.cat([part.stranger for part in parts]),
        type(parts[0].release).concatenate([part.release for part in parts]),
    )


def without_the_head(
    game: Heads, reconstruct: Reconstruct, settings: Settings, found: Trials
) -> tuple[Tensor, Tensor]:
    """Errors of reconstructions from normally distributed weights, and of pictures drawn from the pool.

    The first are the paper's false positives, the second its H1*; `(trials, classes)` both.
    """
    generator = torch.Generator(settings.device).manual_seed(settings.seed + 2)
    game = game.to(settings.device)
    trials, targets = len(found.own), found.targets.to(settings.device)
    shadows = game.mechanism.release(None, game.prior.sample(max(2 * trials, 6000), generator), generator)
    made_up = reconstruct(surrogate(shadows, trials, generator)).records
    drawn = replace(game.prior, counts=1).sample(trials, generator)
    errors = [game.criterion.compare(targets, guesses).errors.cpu() for guesses in (made_up, drawn)]
    return errors[0], errors[1]


def surrogate(shadows: Release, count: int, generator: torch.Generator) -> Release:
    """Releases with normally distributed numbers of the shadows' mean and covariance."""
    flat = shadows.flat()
    mean, centred = flat.mean(0), flat - flat.mean(0)
    # A random combination of the centred shadows has exactly their covariance.
    mixing = torch.randn(count, len(flat), generator=generator, device=generator.device, dtype=flat.dtype)
    numbers = (mean + mixing.to(flat.device) @ centred / (len(flat) - 1) ** 0.5).float()
    tensors, start = {}, 0
    for name, tensor in shadows.tensors.items():
        width = tensor[0].numel()
        tensors[name] = numbers[:, start : start + width].reshape(count, *tensor.shape[1:])
        start += width
    return type(shadows)(tensors)


def rate_of(errors: Tensor, threshold: float) -> dict[str, float]:
    """How often the error is at most the threshold; the classes of a trial stand or fall together."""
    return interval(SuccessRate(int((errors <= threshold).sum()), errors.numel(), clusters=len(errors)))


def rate_cell(rate: TruePositiveRate | None, errors: Tensor) -> Cell:
    """A true positive rate as a cell of the table; none where there are too few controls to tell."""
    if rate is None:
        return None
    return {"rate": rate.rate, "lower": rate.lower, "upper": rate.upper, "trials": errors.numel()}


def judged(found: Trials, threshold: float) -> dict[str, Cell]:
    """The three rates of the paper's Table 1, false positives counted honestly."""
    return {
        "TPR": rate_of(found.own, threshold),
        "FPR": rate_of(found.stranger, threshold),
        "TPR at 1 %": rate_cell(found.roc().tpr_at_fpr(0.01), found.own),
    }


def share_of(rows: list[dict[str, Cell]], oracle: int = 0) -> list[dict[str, Cell]]:
    """Each row with its TPR at 1 % over that of the oracle, which is one of them."""
    whole = rows[oracle]["TPR at 1 %"]
    for row in rows:
        own = row["TPR at 1 %"]
        if isinstance(own, Mapping) and isinstance(whole, Mapping) and whole["rate"]:
            row["share of the oracle"] = own["rate"] / whole["rate"]
    return rows


def relative(found: Trials, setup: Setup) -> dict[str, Cell]:
    """The test that allows for a reconstruction that looks like everybody."""
    guesses = found.guesses.to(setup.public.features.device)
    public = public_errors(guesses, setup.public).cpu().numpy()
    roc = Roc(found.own.numpy() / public, found.stranger.numpy() / public)
    return {"relative TPR at 1 %": rate_cell(roc.tpr_at_fpr(0.01), found.own)}


def accuracy_of(game: Heads, test: Records, settings: Settings, count: int = 200) -> dict[str, Cell]:
    """Mean and spread of the heads' accuracy on the private pictures (Table 4)."""
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    game = game.to(settings.device)
    head = game.mechanism
    release = head.release(None, game.prior.sample(count, generator), generator)
    accuracy = head.accuracy(release, test.to(settings.device))
    return {"accuracy": float(accuracy.mean()), "spread of accuracy": float(accuracy.std())}


def roc_panel(title: str, found: Trials, made_up: Tensor) -> Panel:
    """Figures 6, 8 and 9: the measured curve, and what normal laws for the logits of the errors say."""
    roc = found.roc()
    fpr, tpr = roc.curve()
    places = np.geomspace(1e-3, 1, 60)
    laws = Gaussians.of(roc, LARGEST_ERROR)
    fake = Roc(found.own.numpy(), made_up.numpy()).curve()
    curves = [
        Curve("measured", places.tolist(), np.interp(places, fpr, tpr).tolist()),
        Curve("Equation 6", places.tolist(), laws.cumulative(places).tolist()),
        Curve("Neyman–Pearson", places.tolist(), laws.neyman_pearson(places).tolist()),
        Curve("by surrogate", places.tolist(), np.interp(places, *fake).tolist()),
    ]
    return Panel(title, "false positive rate", "true positive rate", curves)


def histogram_panel(title: str, laws: Mapping[str, Tensor]) -> Panel:
    """Figure 7: how the logit of the error is distributed under each hypothesis."""
    logits = {}
    for name, errors in laws.items():
        share = (errors[errors.isfinite()] / LARGEST_ERROR).clamp(1e-6, 1 - 1e-6)
        logits[name] = share.logit().numpy()
    ends = min(v.min() for v in logits.values()), max(v.max() for v in logits.values())
    edges = np.linspace(*ends, 41)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    curves = [
        Curve(name, middles, np.histogram(values, edges, density=True)[0].tolist())
        for name, values in logits.items()
    ]
    return Panel(title, "logit of the error over 4", "density", curves, log_across=False)


def gallery(title: str, found: Trials, threshold: float, *, false_positives: bool = False) -> Panel:
    """Reconstructions below the closest picture of their class; a tick where the error is within the threshold.

    Of `false_positives` the picture is one that the head was not trained on (Figures 2 and 15).
    """
    records = found.strangers if false_positives else found.targets
    errors = found.stranger if false_positives else found.own
    order = errors.flatten().argsort()[:_SHOWN] if false_positives else torch.arange(_SHOWN)
    trial, asked = order // errors.shape[1], order % errors.shape[1]
    sets, guesses = records[trial], found.guesses[trial, asked]
    distances = (sets.flat - guesses.flat.unsqueeze(1)).square().mean(2)
    closest = distances.where(sets.labels == guesses.labels.unsqueeze(1), torch.inf).argmin(1)
    near = sets.features[torch.arange(_SHOWN), closest]
    ticks = ["✓" if error <= threshold else "" for error in errors.flatten()[order].tolist()]
    names = ["another set" if false_positives else "trained on", "reconstruction"]
    return Panel(
        title, pictures=[tiles(near), tiles(guesses.features)], picture_rows=names, picture_columns=ticks
    )


def tiles(features: Tensor) -> list:
    """Pictures in [−1, 1] for a panel; grey ones have no dimension for it."""
    squares = ((features + 1) / 2).clamp(0, 1)
    squares = squares[:, 0] if squares.ndim == 4 and squares.shape[1] == 1 else squares
    return (squares.double() * 100).round().div(100).tolist()


def digits_elsewhere() -> Records:
    """The digits 0 to 4, embedded by the same network: another distribution than that of 5 to 9."""
    from remanence.heads.targets import digits_backbone

    backbone, pictures, labels, _ = digits_backbone()
    return embed(Records(pictures[labels < 5], labels[labels < 5]), backbone)
