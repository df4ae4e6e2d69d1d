"""Hayes et al. 2023: reconstruction by optimisation, without a shortlist (Figures 1, 6, 8 and 12)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from unittest.mock import patch

import torch
from torch import Tensor

from remanence import bounds
from remanence.core.distances import nearest_neighbour_errors
from remanence.core.errors import Criterion, mean_squared_error
from remanence.core.knowledge import Knowledge
from remanence.core.priors import EmpiricalPrior, Uninformed
from remanence.core.rates import SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Transcript
from remanence.game import Game
from remanence.private import optimised
from remanence.private.optimised import GradientBased
from remanence.private.prior_aware import PriorAware
from remanence.reconstructor.attack import Reconstructor
from remanence.scale.progress import track
from remanence.scale.seeds import stream
from remanence.training.dpsgd import DPSGD
from remanence_papers import baselines
from remanence_papers.datasets import handwriting, load_arrays, pictures
from remanence_papers.hayes_games import (
    EXACT,
    NORM,
    STEPS,
    measure,
    mechanism_of,
    over_epsilon,
    shortlist_game,
    table_1,
)
from remanence_papers.reproduction import Cell, Outcome, Panel, Row, Settings, curve, interval

SMALL_EPSILONS = (10.0, 100.0, 1000.0, 10_000.0)
PAPER_EPSILONS = (10.0, 100.0, 300.0, 1000.0, 10_000.0)
_PAPER_ON_MNIST = {10.0: "fails", 100.0: "begins to work", 1000.0: "works", 10_000.0: "works"}  # §2, in words
_PAPER_IN_COLOUR = {100.0: "fails", 1000.0: "begins to work", 10_000.0: "works"}  # §2, in words
# What stands on the diagonal of a class' covariance, as a share of the squared range.
COLLECTED = {"[0, 1]": 1e-3, "[0, 1], 0.004": 4e-3, "[−1, 1]": 1e-3}
WIDE = ("[−1, 1]", "[−1, 1] alone")
FLAT = "Adam from five starts until the loss is flat; *iterations* is the mean; the paper takes 1,000,000."


def least_squared_error(noise_multiplier: float, steps: int) -> float:
    """The mean squared error that no *unbiased* attack on full batches goes below, for numbers in [0, 1].

    1/(4·(e^ε − 1)) for (2, ε)-Rényi DP under replacement of a record (Guo et al. 2022a), ε = 4·T/σ², because replacing
    moves a sum of clipped gradients by up to two clipping norms. A biased attack, which knows the data, may do better.

    >>> round(least_squared_error(10.0, 100), 4)
    0.0047
    """
    epsilon = 4 * steps / noise_multiplier**2
    return 1 / (4 * math.expm1(epsilon)) if epsilon < 700 else 0.0


@dataclass(frozen=True)
class Reconstructed:
    """Targets, what an attack made of them, and how many iterations that took."""

    targets: Tensor  # (targets, pixels), in [0, 1]
    found: Tensor
    iterations: float

    @property
    def errors(self) -> Tensor:
        """Mean squared errors."""
        return (self.targets - self.found).square().mean(1)


@cache
def reconstruct(
    settings: Settings, epsilon: float, loss: str, count: int, kind: str = "pictures"
) -> Reconstructed:
    """Attack `count` targets whose labels the adversary knows: a game for each class."""
    data, known = _colours(settings)[:2] if kind == "colours" else _split(settings, wide=kind in WIDE)
    mechanism = _mechanism(settings, data, epsilon, kind)
    parts = []
    for label in range(10):
        own = data[len(known) :][data.labels[len(known) :] == label]
        pool, rest = own[: -(-count // 10)], own[-(-count // 10) :]
        pool = pool if kind != "noise" else Records(_uniform(settings, pool), pool.labels)
        belief = EmpiricalPrior(rest) if kind in COLLECTED else Uninformed()
        game = Game(mechanism, belief, known, EXACT, EmpiricalPrior(pool)).to(settings.device)
        attack = GradientBased(loss=loss, labels=(label,))  # pyright: ignore[reportArgumentType]
        with patch.object(optimised, "_RIDGE", COLLECTED.get(kind, optimised._RIDGE)):
            solve = attack.prepare(game.knowledge, stream(settings.seed, "attack", settings.device))
        training = stream(settings.seed + label, "training", settings.device)
        chunk = mechanism.trials_at_once(pool[:1, None].to(settings.device))
        for start in range(0, len(pool), chunk):
            targets = pool[start : start + chunk].to(settings.device)[:, None]
            release = mechanism.release(game.known_data, targets, training)
            assert isinstance(release, Transcript)
            guess = solve(release)
            parts.append(
                (
                    targets.flat[:, 0].cpu(),
                    guess.records.flat[:, 0].cpu(),
                    guess.diagnostics["iterations"].cpu(),
                )
            )
    targets, found, iterations = (torch.cat(column) for column in zip(*parts, strict=True))
    if kind in WIDE:
        targets, found = (targets + 1) / 2, (found + 1) / 2
    return Reconstructed(targets, found, float(iterations.mean()))


def model_based(settings: Settings, epsilon: float, count: int) -> Tensor:
    """The errors of Balle et al.'s network, which sees the final weights alone and knows the initial ones."""
    data, known = _split(settings)
    rest = data[len(known) :]
    rank = torch.zeros(len(rest), dtype=torch.int64)  # of each picture within its class
    for label in range(10):
        own = rest.labels == label
        rank[own] = torch.arange(int(own.sum()))
    targets, public = rest[rank < -(-count // 10)], rest[rank >= -(-count // 10)]
    mechanism = replace(
        mechanism_of(data, epsilon=epsilon, settings=settings), final_only=True, initial_seed=settings.seed
    )
    device, (shadows, steps) = settings.device, _shadows(settings)
    knowledge = Knowledge(mechanism, EmpiricalPrior(public.to(device)), known.to(device))
    solve = Reconstructor(shadows=shadows, steps=steps).prepare(
        knowledge, stream(settings.seed, "attack", device)
    )
    release = mechanism.release(
        known.to(device), targets.to(device)[:, None], stream(settings.seed, "training", device)
    )
    return (targets.flat - solve(release).records.flat[:, 0].cpu()).square().mean(1)


def figure_1(settings: Settings) -> Outcome:
    """The error of two attacks over ε, optimisation on every gradient and a network on the final weights; a gallery."""
    data, known = _split(settings)
    name = handwriting(settings)[1]
    count, printed = _counts(settings)
    everyone = data[len(known) :]
    neighbour = float(nearest_neighbour_errors(everyone[:count], everyone, rank=2).mean())  # itself is first
    epsilons = SMALL_EPSILONS if settings.small else PAPER_EPSILONS
    rows: list[dict[str, Cell]] = []
    shown: dict[float, Reconstructed] = {}
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        row: dict[str, Cell] = {"epsilon": epsilon}
        for loss, targets in (("likelihood", count), ("equation-1", printed)):
            if loss == "equation-1" and epsilon in (10.0, 300.0):
                continue  # it is many times slower, and three points show where it lies
            found = reconstruct(settings, epsilon, loss, targets)
            row[loss], row[f"± {loss}"] = _mean(found.errors)
            row[f"iterations, {loss}"] = round(found.iterations)
            if loss == "likelihood":
                row["control"] = float((found.targets.roll(1, 0) - found.found).square().mean())
                shown[epsilon] = found
        row["model-based"], row["± model-based"] = _mean(model_based(settings, epsilon, count))
        noise = mechanism_of(data, epsilon=epsilon, settings=settings).noise_multiplier
        limit = least_squared_error(noise, STEPS)
        row |= {"nearest neighbour": neighbour, "random vectors": 1 / 6, "guo (unbiased)": limit}
        rows.append(row | {"paper": _PAPER_ON_MNIST.get(epsilon)})
    lines = ("likelihood", "equation-1", "model-based", "nearest neighbour", "random vectors")
    panels = [_errors(rows, lines), _gallery(shown)]
    notes = [
        FLAT,
        "± is two standard errors over targets. *control*: the same reconstructions against another target. *guo*: "
        "Guo et al.'s limit for unbiased attacks with replacement's sensitivity; the paper prints 1/(4(e^ε − 1)).",
        "The paper: the attack starts to work on MNIST between ε = 100 and 1000.",
        "*model-based*: Balle et al.'s network on the final weights, which knows the initial ones, after {} shadows "
        "at each ε and {} steps.".format(*_shadows(settings)),
    ]
    return Outcome(name, rows, panels, table_1(len(known), count, **{"trials of equation 1": printed}), notes)


def with_a_prior(settings: Settings) -> Outcome:
    """The same search by whoever also knows what a class looks like, from all pictures that are not in the game."""
    data, known = _split(settings)
    count = _counts(settings)[0]
    others = data[len(known) :]
    neighbours = nearest_neighbour_errors(others[:count], others, rank=2)  # itself is first
    close = Criterion(mean_squared_error, float(neighbours.mean()))
    guess = EmpiricalPrior(others).baseline(close)
    middle = _mean((others.flat - _class_means(others)).square().mean(1))[0]
    epsilons = SMALL_EPSILONS[1:] if settings.small else PAPER_EPSILONS
    rows: list[dict[str, Cell]] = []
    shown: dict[float, Reconstructed] = {}
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        row: dict[str, Cell] = {"epsilon": epsilon}
        kinds = {"no prior": "pictures", "no prior, [−1, 1]": "[−1, 1] alone"}
        kinds |= {f"prior, {kind}": kind for kind in COLLECTED}
        for name, kind in kinds.items():
            found = reconstruct(settings, epsilon, "likelihood", count, kind)
            row[name], row[f"± {name}"] = _mean(found.errors)
        found = reconstruct(settings, epsilon, "likelihood", count, "[0, 1]")
        strangers = (found.targets.roll(1, 0) - found.found).square().mean(1)
        row |= {"mean of the class": middle, "nearest neighbour": close.threshold}
        for name, errors in (("closer than a neighbour", found.errors), ("control", strangers)):
            row[name] = interval(SuccessRate(int((errors <= close.threshold).sum()), len(errors)))
        mechanism = mechanism_of(data, epsilon=epsilon, settings=settings)
        ceiling = bounds.dpsgd(guess.value, noise_multiplier=mechanism.noise_multiplier, steps=STEPS)
        row |= {"guess from": guess.lower, "guess to": guess.value, "γ": float(ceiling.success)}
        rows.append(row)
        shown[epsilon] = found
    lines = (
        "no prior",
        "no prior, [−1, 1]",
        "prior, [0, 1]",
        "prior, [−1, 1]",
        "mean of the class",
        "nearest neighbour",
    )
    panels = [_errors(rows, lines), _gallery(shown)]
    notes = [
        FLAT,
        "*prior*: minus the logarithm of a Gaussian density is added to the loss, with the mean and the covariance of "
        "the target's class over all pictures that are neither known nor targets, and a thousandth of the squared "
        "range on the diagonal. *0.004*: four times as much, which is what 0.004 on the diagonal is for pixels in "
        "[0, 1].",
        "Errors are in units of [0, 1] in every column, ± two standard errors over targets. The paper has no prior.",
        "*closer than a neighbour*: the share of targets that came back, with the prior in [0, 1], closer than the "
        "mean distance of a picture to the nearest other one; *control*: against another target. *guess* and *γ* are "
        "for the same threshold. A guess is bounded from above at 99 % confidence, so γ holds with it.",
    ]
    return Outcome(handwriting(settings)[1], rows, panels, table_1(len(known), count), notes)


def _class_means(records: Records) -> Tensor:
    means = torch.stack([records.flat[records.labels == label].mean(0) for label in range(10)])
    return means[records.labels]


def figure_8(settings: Settings) -> Outcome:
    """Matched to shortlists of 2, 8 and 128: the gradient-based attack beside the prior-aware one."""
    data, known = _split(settings)
    name = handwriting(settings)[1]
    count = _counts(settings)[0]
    trials = settings.trials or (150 if settings.small else 4000)
    epsilons = (10.0, 100.0, 1000.0) if settings.small else PAPER_EPSILONS[:4]
    others = data[len(known) :][:5000].flat
    rows: list[dict[str, Cell]] = []
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        found = reconstruct(settings, epsilon, "likelihood", count)
        distances = torch.cdist(found.found, others)
        own = (found.found - found.targets).norm(dim=1, keepdim=True)
        farther = (distances > own + 1e-4).sum(1).tolist()
        for size in (2, 8, 128):
            game = shortlist_game(
                data,
                mechanism_of(data, epsilon=epsilon, settings=settings),
                candidates=size,
                known=len(known),
            )
            # Of all shortlists with size − 1 other pictures, the share in which the target is the nearest.
            shares = [_choose(k, len(others) - 1, size - 1) for k in farther]
            mean, error = _mean(torch.tensor(shares))
            cells = measure(game, {"prior-aware": PriorAware()}, settings, trials, data[len(known) :])
            rows.append({"epsilon": epsilon, "candidates": size, "gradient-based": mean, "±": error, **cells})
    panels = [
        over_epsilon(
            [row for row in rows if row["candidates"] == size],
            ("bound", "prior-aware", "gradient-based", "guess"),
            f"{size} candidates",
        )
        for size in (2, 8, 128)
    ]
    notes = [
        FLAT,
        f"*gradient-based*: {count} reconstructions, each averaged over all shortlists that could surround it; "
        "± is two standard errors. The paper draws 1,000 shortlists and finds an order of magnitude between the two.",
    ]
    return Outcome(name, rows, panels, table_1(len(known), trials), notes)


def in_colour(settings: Settings) -> Outcome:
    """CIFAR-10: the error over ε, the share of targets with enough pixels right, and a gallery."""
    data, known, name = _colours(settings)
    count = settings.trials or (10 if settings.small else 200)
    others = data[len(known) :]
    neighbour = float(nearest_neighbour_errors(others[:count], others, rank=2).mean())  # itself is first
    epsilons = (100.0, 10_000.0) if settings.small else (100.0, 1000.0, 10_000.0, 100_000.0)
    rows: list[dict[str, Cell]] = []
    shown: dict[float, Reconstructed] = {}
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        found = reconstruct(settings, epsilon, "likelihood", count, "colours")
        row: dict[str, Cell] = {"epsilon": epsilon}
        row["likelihood"], row["± likelihood"] = _mean(found.errors)
        row["control"] = float((found.targets.roll(1, 0) - found.found).square().mean())
        row |= {"nearest neighbour": neighbour, "random vectors": 1 / 6}
        for share in (0.6, 0.8):
            row[f"{share:.0%} of the pixels"] = interval(_share_right(found.targets, found.found, share))
        row["learning rate"] = _mechanism(settings, data, epsilon, "colours").learning_rate
        rows.append(row | {"paper": _PAPER_IN_COLOUR.get(epsilon)})
        shown[epsilon] = found
    panels = [_errors(rows, ("likelihood", "nearest neighbour", "random vectors")), _gallery(shown)]
    used = {**table_1(len(known), count), "clipping norm": 1.0}
    notes = [
        FLAT,
        "The paper trains the last layer of a WRN-28-10. Its weights cannot be had: a perceptron with 10 hidden "
        "units on "
        "the pixels stands in, which gives away more of them. The paper's attack works between ε = 1,000 and "
        "10,000.",
    ]
    return Outcome(name, rows, panels, used, notes)


def _mechanism(settings: Settings, data: Records, epsilon: float, kind: str) -> DPSGD:
    norm = 1.0 if kind == "colours" else NORM
    return mechanism_of(data, epsilon=epsilon, max_grad_norm=norm, settings=settings)


def _colours(settings: Settings) -> tuple[Records, Records, str]:
    """CIFAR-10, flat, with pixels in [0, 1], of which 499 are known; the digits at the small scale."""
    if settings.small:
        data, name = handwriting(settings)
        return data, data[:499], name.replace("MNIST", "CIFAR-10")
    arrays = load_arrays(settings, "cifar10.npz", "xtr", "ytr")
    pixels = torch.from_numpy(arrays["xtr"]).permute(0, 3, 1, 2).flatten(1).float() / 255
    data = Records(pixels, torch.from_numpy(arrays["ytr"].ravel()).long())
    return data, data[:499], f"CIFAR-10 (32x32 pixels in colour, {len(data):,} pictures)"


def figure_12(settings: Settings) -> Outcome:
    """At least a share of the pixels within 32/255: pictures, and noise drawn from the prior that γ is about."""
    data, known = _split(settings)
    name = handwriting(settings)[1]
    count = _counts(settings)[0]
    dimension, levels = data.flat.shape[1], 17 if settings.small else 256
    chance = (2 * math.ceil(32 / 255 * (levels - 1) - 1) + 1) / levels  # whole levels strictly within
    epsilons = SMALL_EPSILONS if settings.small else PAPER_EPSILONS[1:]
    rows: list[dict[str, Cell]] = []
    for epsilon in track(epsilons, total=len(epsilons), what="values of ε"):
        mechanism = mechanism_of(data, epsilon=epsilon, settings=settings)
        tried = {
            kind: reconstruct(settings, epsilon, "likelihood", count, kind) for kind in ("pictures", "noise")
        }
        for share in (0.6, 0.8, 0.9, 1.0):
            log_baseline = baselines.pixels(dimension, share=share, chance=chance)
            ceiling = bounds.dpsgd(
                noise_multiplier=mechanism.noise_multiplier, steps=STEPS, log_baseline=log_baseline
            )
            row: dict[str, Cell] = {
                "epsilon": epsilon,
                "share of pixels": share,
                "log10 guess": log_baseline / math.log(10),
            }
            for kind, found in tried.items():
                row[kind] = interval(_share_right(found.targets, found.found, share))
            row["control"] = interval(
                _share_right(tried["noise"].targets.roll(1, 0), tried["noise"].found, share)
            )
            rows.append(row | {"bound": float(ceiling.success)})
    panels = [
        over_epsilon(
            [row for row in rows if row["share of pixels"] == share],
            ("bound", "pictures", "noise"),
            f"{share:.0%} of the pixels",
        )
        for share in (0.6, 0.8, 1.0)
    ]
    notes = [
        FLAT,
        f"A guess of one pixel is right with {chance:.4f} ({levels} levels); their number is binomial. The "
        "paper takes the power of one chance, which is too small (docs/errata.md).",
        "γ holds for targets drawn from the prior, here uniform noise. Pictures are not, so γ says nothing about them, "
        "although the paper compares them with it.",
    ]
    return Outcome(name, rows, panels, table_1(len(known), count), notes)


def _errors(rows: Sequence[Row], lines: Sequence[str]) -> Panel:
    curves = [curve(line, rows, "epsilon", line) for line in lines]
    return Panel("", "ε", "mean squared error, pixels in [0, 1]", curves, log_up=True)


def _gallery(shown: Mapping[float, Reconstructed]) -> Panel:
    """The first target of each class, and the guesses at each ε."""
    targets = next(iter(shown.values())).targets
    firsts = [len(targets) // 10 * label for label in range(10)]
    tiles = [targets, *(each.found for each in shown.values())]
    rows = ["target", *(f"ε = {epsilon:g}" for epsilon in shown)]
    return Panel(
        "first target of each class", pictures=[pictures(each[firsts]) for each in tiles], picture_rows=rows
    )


def _share_right(targets: Tensor, found: Tensor, share: float) -> SuccessRate:
    """How often at least a share of the pixels is within 32/255."""
    near = (targets.double() - found.double()).abs().flatten(1) < 32 / 255
    right = near.double().mean(1) >= share - 1e-9
    return SuccessRate(int(right.sum()), len(right))


def _split(settings: Settings, *, wide: bool = False) -> tuple[Records, Records]:
    data = handwriting(settings)[0]
    data = Records(2 * data.features - 1, data.labels) if wide else data
    return data, data[: 499 if settings.small else 999]


def _counts(settings: Settings) -> tuple[int, int]:
    """Targets for the likelihood, and for the slower loss of Equation 1."""
    return (
        (settings.trials or 20, settings.trials or 10)
        if settings.small
        else (settings.trials or 300, min(40, settings.trials or 40))
    )


def _shadows(settings: Settings) -> tuple[int, int]:
    """Shadow models at each ε, and steps of learning from them."""
    return (500, 200) if settings.small else (20_000, 2000)


def _uniform(settings: Settings, pool: Records) -> Tensor:
    """Pixels of uniform noise, on the levels that the pictures have."""
    levels = 17 if settings.small else 256
    generator = torch.Generator().manual_seed(settings.seed + int(pool.labels[0]))
    return torch.randint(levels, pool.features.shape, generator=generator).float() / (levels - 1)


def _mean(values: Tensor) -> tuple[float, float]:
    """The mean and two standard errors."""
    return float(values.double().mean()), 2 * float(values.double().std()) / len(values) ** 0.5


def _choose(good: int, everyone: int, taken: int) -> float:
    """The chance that all that are taken, without replacement, are good."""
    if good < taken:
        return 0.0
    return math.exp(sum(math.log(good - k) - math.log(everyone - k) for k in range(taken)))
