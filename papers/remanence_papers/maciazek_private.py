"""Maciazek and Allison 2025, §4: what comes back out of heads with DP-SGD or other defences, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from remanence import bounds
from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.records import Records
from remanence.core.releases import Weights
from remanence.heads.transfer_head import TransferHead
from remanence.reconstructor.attack import Reconstructor
from remanence.scale.progress import track
from remanence_papers.maciazek import (
    Heads,
    Setup,
    Trials,
    accuracy_of,
    evaluate,
    handwriting_setup,
    judged,
    prepare,
    relative,
    tiles,
)
from remanence_papers.maciazek_tables import pictures_setup
from remanence_papers.reproduction import Cell, Curve, Outcome, Panel, Settings

ACCURACIES = {(1e-5, 10): 0.812, (1e-5, 40): 0.920, (1e-4, 10): 0.587, (1e-4, 40): 0.794}  # by decay and N
LIMIT = 0.015  # the paper's largest TPR at an FPR of 1 %
CLIPPING = 4.0
_ACCURACIES = 400  # heads whose accuracy is averaged


@dataclass(frozen=True)
class PublishedHead(TransferHead):
    """A head that is published with normal noise of this deviation on every number, or rounded to 2^bits levels.

    Levels lie between a tensor's largest value and less than that.
    """

    release_noise: float = 0.0
    bits: int | None = None

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Weights:
        """The same numbers with noise on them, or rounded."""
        shown = dict(super().release(known_data, targets, generator).tensors)
        for name, values in shown.items():
            if self.release_noise:
                noise = torch.randn(values.shape, generator=generator, device=generator.device).to(values)
                values = values + self.release_noise * noise
            if self.bits is not None:
                largest = values.abs().flatten(1).amax(1).clamp(min=1e-30)
                largest = largest.view(-1, *[1] * (values.ndim - 1))
                step = 2 * largest / (2**self.bits - 1)
                values = ((values + largest) / step).round() * step - largest
            shown[name] = values
        return Weights(shown)


@dataclass(frozen=True)
class Sampling:
    """How batches are drawn: the paper's text says one thing and its code does another."""

    name: str
    rate: float
    steps_per_epoch: int


def as_the_code_ran() -> Sampling:
    """Poisson batches at a rate of one half, twice in an epoch."""
    return Sampling("code", 0.5, 2)


def as_the_text_says(size: int) -> Sampling:
    """Batches of N − 1 on average, one in an epoch."""
    return Sampling("text", (size - 1) / size, 1)


def private(
    head: TransferHead, size: int, epsilon: float, sampling: Sampling, clipping: float = CLIPPING
) -> TransferHead:
    """The recipe with enough noise for (ε, N^-1.1); at ε = ∞ the recipe itself."""
    if epsilon == math.inf:
        return head
    steps = head.epochs * sampling.steps_per_epoch
    noise = noise_for_epsilon(epsilon, delta=size**-1.1, sample_rate=sampling.rate, steps=steps)
    epochs = round(steps * sampling.rate)  # a TransferHead counts them in steps of 1 / sample_rate
    made = replace(
        head,
        epochs=epochs,
        noise_multiplier=noise,
        max_grad_norm=clipping,
        sample_rate=sampling.rate,
    )
    assert made.steps == steps, "noise is for as many steps as are taken"
    return made


@dataclass(frozen=True)
class Tradeoff:
    """One panel of Figure 4: how many pictures per class, which ε, and what the paper reads off."""

    per_class: int
    epsilons: tuple[float, ...]
    clipping: float
    paper: float  # the largest ε that meets the limit
    text_too: bool = False  # one ε again with the sampling that the text describes


def figure_4(settings: Settings) -> Outcome:
    """Attack and accuracy over ε for one picture per class, with δ = N^-1.1, and the same pictures at every ε."""
    epsilons = (80.0, 20.0, 5.0) if settings.small else (40.0, 20.0, 10.0, 5.0)
    return _tradeoff(
        handwriting_setup(settings), settings, Tradeoff(1, epsilons, CLIPPING, 7.2, text_too=True)
    )


def figure_4_four(settings: Settings) -> Outcome:
    """The same with four pictures per class."""
    epsilons = (20.0, 2.0) if settings.small else (20.0, 10.0, 5.0, 2.0)
    return _tradeoff(handwriting_setup(settings), settings, Tradeoff(4, epsilons, CLIPPING, 6.0))


def figure_4_cifar(settings: Settings) -> Outcome:
    """CIFAR-10, one picture per class."""
    epsilons = (80.0, 20.0) if settings.small else (80.0, 40.0, 20.0, 10.0)
    return _tradeoff(pictures_setup(settings), settings, Tradeoff(1, epsilons, 1.2, 15.5))


def figure_4_cifar_four(settings: Settings) -> Outcome:
    """CIFAR-10, four pictures per class."""
    epsilons = (160.0, 20.0) if settings.small else (160.0, 80.0, 40.0, 20.0)
    return _tradeoff(pictures_setup(settings), settings, Tradeoff(4, epsilons, 1.2, 41.8))


def _tradeoff(setup: Setup, settings: Settings, panel: Tradeoff) -> Outcome:
    game, size = setup.game(panel.per_class), panel.per_class * setup.classes
    plain = game.mechanism
    trials = settings.trials or 1000
    code, text = as_the_code_ran(), as_the_text_says(size)
    points = [(epsilon, code) for epsilon in (math.inf, *panel.epsilons)]
    points += [(panel.epsilons[1], text)] if panel.text_too else []
    rows: list[dict[str, Cell]] = []
    shown: list[tuple[str, Trials]] = []
    for epsilon, sampling in track(points, total=len(points), what="values of ε"):
        head = private(plain, size, epsilon, sampling, panel.clipping)
        row, found = _attacked(replace(game, mechanism=head), setup, settings, trials)
        private_run = epsilon < math.inf
        if sampling is code:
            shown.append((f"ε = {epsilon:g}" if private_run else "no DP-SGD", found))
        rows.append(
            {
                "epsilon": epsilon if private_run else None,
                "sampling": f"{sampling.name}, {sampling.rate:.3g}" if private_run else None,
                "noise multiplier": head.noise_multiplier or 0.0,
                "steps": head.steps,
                "no test exceeds": _ceiling(head),
                **row,
                "paper's accuracy without DP-SGD": None
                if settings.small or private_run
                else ACCURACIES.get((setup.head.weight_decay, size)),
            }
        )
    ran = [row for row in rows if row["epsilon"] and str(row["sampling"]).startswith("code")]
    ran.sort(key=lambda row: _number(row["epsilon"]))
    largest = largest_epsilon([(_number(row["epsilon"]), _number(row["TPR at 1 %"])) for row in ran])
    met = "none of these ε" if largest is None else f"ε up to about {largest:.3g}"
    lines = [
        Curve(name, [_number(row["epsilon"]) for row in ran], [_number(row[name]) for row in ran])
        for name in ("TPR at 1 %", "no test exceeds", "accuracy")
    ]
    return Outcome(
        setup.name,
        rows,
        [Panel("Privacy and utility", "ε", "rate", lines), _by_epsilon(shown)],
        {
            "N": size,
            "delta": size**-1.1,
            "max grad norm": panel.clipping,
            "trials": trials,
            "largest ε that meets the limit": largest,
            "the paper's": None if settings.small else panel.paper,
        },
        [
            "The row without ε is training without DP-SGD.",
            "*code* is the sampling that the paper's code ran, half of the set twice in an epoch; *text* is what its "
            f"text says, a rate of (N − 1) / N = {text.rate:.3g} once in an epoch. Both have the ε of their row.",
            "*no test exceeds* is proven: the largest true positive rate at a false positive rate of 1 % of any test "
            "whether a picture was trained on or another one in its place (`bounds.true_positives`). With a δ as large "
            "as N^-1.1 it says much less than the attack: that an ε leaves nothing is about this attack.",
            f"A TPR of at most {LIMIT} at an FPR of 1 % is met by {met}, interpolated over log ε (sampling as the "
            f"code ran it). The paper's figure has {panel.paper:g}. Ours "
            "counts real false positives over all classes, and is about these reconstructors: without DP-SGD they have "
            f"{next(_number(row['TPR at 1 %']) for row in rows if not row['epsilon']):.3f}, and one that learns for "
            "longer may need a smaller ε.",
        ],
    )


def _ceiling(head: TransferHead) -> float | None:
    """The largest true positive rate at a false positive rate of 1 % that DP-SGD allows, for one picture per class."""
    if not head.noise_multiplier:
        return None
    return bounds.true_positives(
        0.01, noise_multiplier=head.noise_multiplier, sample_rate=head.sample_rate, steps=head.steps
    ).success


def defences(settings: Settings) -> Outcome:
    """What else a practitioner would try, beside DP-SGD: how much accuracy a lower TPR costs with each."""
    setup = handwriting_setup(settings)
    game, size = setup.game(1), setup.classes
    plain = game.mechanism
    trials = settings.trials or 1000
    scale = _scale(game, settings)
    tried: dict[str, dict[str, TransferHead]] = {
        "none": {"": plain},
        "DP-SGD": {f"ε = {e:g}": private(plain, size, e, as_the_code_ran()) for e in (10.0, 160.0)},
        "wide initial weights": {f"{w:g}": replace(plain, initialisation=w) for w in (0.02, 0.1)},
        "noise at release": {
            f"{share:g} of a weight's deviation": PublishedHead(**vars(plain), release_noise=share * scale)
            for share in (1.0, 3.0)
        },
        "rounded weights": {f"{bits} bits": PublishedHead(**vars(plain), bits=bits) for bits in (4, 2)},
        "fewer epochs": {"1": replace(plain, epochs=1)},
    }
    settings_tried = [(name, what, head) for name, heads in tried.items() for what, head in heads.items()]
    rows: list[dict[str, Cell]] = []
    for name, what, head in track(settings_tried, total=len(settings_tried), what="defences"):
        row, _ = _attacked(replace(game, mechanism=head), setup, settings, trials)
        rows.append({"defence": name, "setting": what, **row})
    curves = []
    for name in tried:
        own = [row for row in rows if row["defence"] == name]
        curves.append(
            Curve(
                name, [_number(row["accuracy"]) for row in own], [_number(row["TPR at 1 %"]) for row in own]
            )
        )
    return Outcome(
        setup.name,
        rows,
        [Panel("Lower is safer, right is more useful", "accuracy", "TPR at 1 %", curves, log_across=False)],
        {"N": size, "trials": trials, "deviation of a weight": scale},
        [
            "The adversary knows the defence and trains his shadows with it. All rows are one picture per class.",
            "*relative* divides an error by the one within which a twentieth of the public pictures of the class lie.",
            "Only DP-SGD comes with a proof, for any attack. The others are what this attack makes of them.",
            "Noise at release is in units of the deviation of a weight over heads without a defence; rounding is "
            "to 2^bits levels between a tensor's largest value and less than that.",
        ],
    )


def _attacked(game: Heads, setup: Setup, settings: Settings, trials: int) -> tuple[dict[str, Cell], Trials]:
    """What the attack achieves on such heads and what they are good for."""
    attack = (
        Reconstructor(steps=500, separation=0.3)
        if settings.small
        else Reconstructor(steps=800, batch=1024, separation=0.3)
    )
    reconstruct, _ = prepare(game, attack, settings)
    found = evaluate(game, reconstruct, settings, trials)
    accuracy = accuracy_of(game, setup.private, settings, _ACCURACIES)
    spread = 2 * _number(accuracy["spread of accuracy"]) / _ACCURACIES**0.5
    row = {
        **judged(found, setup.threshold),
        **relative(found, setup),
        "accuracy": accuracy["accuracy"],
        "± (two errors)": spread,
    }
    return row, found


def _scale(game: Heads, settings: Settings) -> float:
    """How far a weight varies from head to head."""
    game = game.to(settings.device)
    generator = torch.Generator(settings.device).manual_seed(settings.seed)
    release = game.mechanism.release(None, game.prior.sample(500, generator), generator)
    return float(release["weight"].std(0).mean())


def _by_epsilon(shown: Sequence[tuple[str, Trials]]) -> Panel:
    """Figures 5 and 16: the same pictures from heads of less and less ε. All rows met the same targets."""
    first = shown[0][1]
    labels = first.guesses.labels[0]
    places = [int((first.targets.labels[0] == label).nonzero()[0, 0]) for label in labels]
    rows = [tiles(first.targets.features[0, places])]
    rows += [tiles(found.guesses.features[0]) for _, found in shown]
    return Panel("Reconstructions", pictures=rows, picture_rows=["trained on", *(name for name, _ in shown)])


def _number(cell: Cell) -> float:
    """A number, or the rate of a cell with an interval."""
    return float(cell["rate"] if isinstance(cell, Mapping) else cell or 0.0)


def largest_epsilon(points: Sequence[tuple[float, float]], limit: float = LIMIT) -> float | None:
    """Where the rate of points (ε, rate) crosses the limit, interpolated over log ε; None if all are above.

    >>> points = [(1.0, 0.01), (100.0, 0.02)]
    >>> round(largest_epsilon(points), 6), largest_epsilon(points, 0.001), largest_epsilon(points, 0.5)
    (10.0, None, 100.0)
    """
    best = None
    for index, (epsilon, rate) in enumerate(points):
        if rate > limit:
            break
        best = epsilon
        if index + 1 < len(points) and points[index + 1][1] > limit:
            after, above = points[index + 1]
            best = epsilon * (after / epsilon) ** ((limit - rate) / (above - rate))
    return best
