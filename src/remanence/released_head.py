"""One head that exists and is about to be published: which of its training pictures come back out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError  # the error alone: files are read with weights_only

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from remanence.adversary import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.auditing import AuditResult
from remanence.exceptions import InputError
from remanence.game import Game
from remanence.mechanisms.heads import TransferHead
from remanence.records import Records
from remanence.releases import Release, Weights
from remanence.rounds import stream
from remanence.statistics import SuccessRate

_RETRAINED = 50  # heads that the released one is compared with

HeadWeights = Mapping[str, Tensor] | nn.Module | Path | str


@dataclass(frozen=True)
class PictureExposure:
    """What came back of one class, and which of your pictures it resembles most."""

    label: int
    picture: int  # its position among your pictures
    error: float
    succeeded: bool  # the error is within the threshold
    as_close: SuccessRate  # how many public pictures of the class come as close
    own: int  # how many pictures of the class are yours: the closest of many is closer

    @property
    def by_chance(self) -> float:
        """How often your closest picture would be as far in front of the public ones, had you trained on neither."""
        closer, public = self.as_close.successes, self.as_close.trials
        if closer >= public:
            return 1.0
        return 1 - math.prod((public - i) / (public + self.own - i) for i in range(closer + 1))

    def __str__(self) -> str:
        found = "came back" if self.succeeded else "did not come back"
        close = f"{self.as_close.successes} of {self.as_close.trials} public pictures come as close"
        told = f"class {self.label}: picture {self.picture} {found}, error {self.error:.3g}; {close}"
        return f"{told} ({self.by_chance:.2g} by chance)"


@dataclass(frozen=True)
class KeptAttack(Attack[Release]):
    """Another attack that remembers what it prepared, so that one head more costs nothing."""

    attack: Attack
    prepared: list[Callable[[Release], Reconstruction]] = field(
        default_factory=list, compare=False, repr=False
    )

    @property
    def info(self) -> AttackInfo:  # type: ignore[override]
        """The other attack's."""
        return self.attack.info

    def check(self, knowledge: Knowledge) -> None:
        """As the other attack does."""
        self.attack.check(knowledge)

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Prepare it, and remember."""
        self.prepared.append(self.attack.prepare(knowledge, generator))
        return self.prepared[-1]


def read_head(weights: HeadWeights, recipe: TransferHead, numbers: int) -> Weights:
    """The head's layers out of a module, a state dict (the last layers of it) or a file; nothing is unpickled."""
    tensors = _tensors(weights)
    if not isinstance(tensors, Mapping) or not all(isinstance(each, Tensor) for each in tensors.values()):
        raise InputError(
            "These are not the weights of a head.",
            needs="a state dict: names and tensors",
            got=f"{type(tensors).__name__} of other things",
            hint="head.state_dict(), not a checkpoint around it",
        )
    rows = [(recipe.outputs, numbers), (recipe.outputs,)]
    names = ["weight", "bias"]
    if recipe.hidden is not None:
        rows = [
            (recipe.hidden, numbers),
            (recipe.hidden,),
            (recipe.outputs, recipe.hidden),
            (recipe.outputs,),
        ]
        names += ["out_weight", "out_bias"]
    left = list(tensors.values())
    found: list[Tensor] = []
    for shape in reversed(rows):  # from the end, by shape: files may have put the names into another order
        places = [
            i
            for i, tensor in enumerate(left)
            if tuple(tensor.shape) == shape and tensor.is_floating_point() and tensor.isfinite().all()
        ]
        if not places:
            raise InputError(
                "These are not the weights of such a head.",
                needs=f"finite numbers in layers of the shapes {', '.join(map(str, rows))}",
                got=", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(tensors.items())[-6:]),
                hint="the head's own state_dict(), trained as the recipe says",
            )
        found.insert(0, left.pop(places[-1]).detach().float())
    return Weights({name: tensor.unsqueeze(0) for name, tensor in zip(names, found, strict=True)})


def _tensors(weights: HeadWeights) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        return weights.state_dict()
    if isinstance(weights, Mapping):
        return weights
    path = Path(weights)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(
            "The head cannot be read.",
            needs="a .safetensors file, or a state dict that torch.save wrote",
            got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)}",
            hint="torch.save(head.state_dict(), path)",
        ) from None


def expose_head(
    result: AuditResult, game: Game, own: Records, head: Weights, attacks: list[KeptAttack], seed: int
) -> AuditResult:
    """The result with what came back out of this very head, by the attack that did best on heads like it."""
    attack = next(each for each in attacks if each.info.name == result.strongest.attack)
    device = own.features.device
    if not attack.prepared:  # the trials were taken from an earlier run
        attack.prepare(game.knowledge, stream(seed, "attack", device))
    guesses = attack.prepared[-1](head.to(device)).records[0]  # (classes,)
    assert game.strangers is not None
    public = game.strangers.records  # type: ignore[attr-defined]
    if len(guesses) != len(game.prior.classes):  # type: ignore[attr-defined]
        raise InputError(
            "This attack draws no picture of each class.",
            needs="one guess for each class",
            got=f"{len(guesses)} guesses for a head",
            hint="Reconstructor(conditional=True, guesses=1)",
        )
    rows = {"class": [], "picture": [], "error": [], "as_close": [], "public": [], "own": []}
    for index, label in enumerate(guesses.labels.tolist()):
        guess = guesses[index : index + 1]
        mine = (own.labels == label).nonzero().squeeze(1)
        errors = game.criterion.error(own[mine], guess)
        others = game.criterion.error(public[public.labels == label], guess)
        best = float(errors.min())
        place, closer = int(mine[errors.argmin()]), int((others <= best).sum())
        values = label, place, best, closer, len(others), len(mine)
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
    arrays = {f"released_{name}": torch.tensor(values) for name, values in rows.items()}
    recovered = int((arrays["released_error"] <= game.criterion.threshold).sum())
    findings = {
        "released_classes_recovered": float(recovered),
        "released_distance_from_the_recipe": _distance(game, own, head.to(device), seed),
    }
    evidence = tuple(
        replace(e, arrays={**e.arrays, **arrays}, findings={**e.findings, **findings})
        if e is result.strongest
        else e
        for e in result.evidence
    )
    return replace(result, evidence=evidence)


def exposed_pictures(result: AuditResult) -> list[PictureExposure]:
    """What came back out of the released head, the closest first; empty if none was given."""
    arrays = result.strongest.arrays
    if "released_error" not in arrays:
        return []
    threshold = result.threat_model["criterion"]["threshold"]
    columns = [
        arrays[f"released_{name}"].tolist()
        for name in ("class", "picture", "error", "as_close", "public", "own")
    ]
    rows = [
        PictureExposure(int(label), picture, error, error <= threshold, SuccessRate(close, count), own)
        for label, picture, error, close, count, own in zip(*columns, strict=True)
    ]
    return sorted(rows, key=lambda row: row.error)


def _distance(game: Game, own: Records, head: Weights, seed: int) -> float:
    """How far the head is from the mean of heads retrained on the same pictures, in units of their usual distance.

    About 1 if the recipe is right: much more means that the head was trained in another way, and the attack's shadows
    were too.
    """
    generator = stream(seed, "retrained", own.features.device)
    assert game.targets is not None
    heads = game.mechanism.release(None, game.targets.sample(_RETRAINED, generator), generator).flat()
    middle = heads.mean(0)
    usual = (heads - middle).square().sum(1).mean().sqrt()
    return float((head.flat()[0] - middle).norm() / usual.clamp(min=1e-12))
