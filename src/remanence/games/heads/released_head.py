"""One head that exists and is about to be published: which of its training pictures come back out of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from pickle import UnpicklingError  # the error alone: files are read with weights_only

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from remanence.attacks.attack import Attack
from remanence.attacks.reconstructor.attack import Reconstructor
from remanence.auditing import AuditResult
from remanence.data.records import Records
from remanence.data.releases import Weights
from remanence.exceptions import InputError
from remanence.game import Game
from remanence.mechanisms.heads.transfer_head import TransferHead
from remanence.protocol import Prepared
from remanence.results.caveats import RELEASED_HEAD_UNLIKE_RECIPE
from remanence.scale.seeds import stream
from remanence.scoring.rates import SuccessRate

_RETRAINED = 50  # heads that the released one is compared with
_ROUNDING = 1e-5  # of a head's norm: two programs that train alike are no closer
_UNLIKE = 2.0  # times as far from the siblings as the farthest of them is another recipe's
_ERROR = 0.05  # the share of those that are said to have come back which may be there by chance
_COLUMNS = ("class", "picture", "error", "as_close", "public", "own")

_DAMAGED = (  # what a broken file raises on the way
    OSError,
    SafetensorError,
    UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    struct.error,
)

HeadWeights = Mapping[str, Tensor] | nn.Module | Path | str


@dataclass(frozen=True)
class PictureExposure:
    """What came back of one class, and which of your pictures it resembles most.

    A drawing that resembles everybody is within the threshold too. So a picture came back only if it is also closer
    than the public ones by more than chance. Over all classes, at most one in twenty of the pictures that are said to
    have come back is expected to be there by chance (Benjamini and Hochberg).
    """

    label: int
    picture: int  # its position among your pictures
    error: float
    succeeded: bool  # the error is within the threshold
    as_close: SuccessRate  # how many public pictures of the class that nothing was learned from come as close
    own: int  # how many pictures of the class are yours: the closest of many is closer
    level: float = 0.05  # the largest chance that counts as none
    public_needed: int = 20  # how many public pictures of the class can tell

    @property
    def by_chance(self) -> float:
        """How often your closest picture would be as far in front of the public ones, had you trained on neither.

        Assumes that your pictures and the public ones are draws of one kind: public pictures from another camera are
        further away for that reason alone.
        """
        closer, public = self.as_close.successes, self.as_close.trials
        if closer >= public:
            return 1.0
        return 1 - math.prod((public - i) / (public + self.own - i) for i in range(closer + 1))

    @property
    def came_back(self) -> bool:
        """Within the threshold, and closer than the public pictures by more than chance."""
        return self.succeeded and self.by_chance <= self.level * (1 + 1e-9)

    @property
    def undecided(self) -> bool:
        """Within the threshold and closer than all public pictures, which are too few to tell that from chance."""
        return self.succeeded and self.as_close.successes == 0 and not self.came_back

    def __str__(self) -> str:
        close = f"{self.as_close.successes} of {self.as_close.trials} public pictures come as close"
        picture, chance = f"class {self.label}: picture {self.picture}", f"{self.by_chance:.2g} by chance"
        if self.came_back or not self.succeeded:
            found = "came back" if self.came_back else "did not come back"
            return f"{picture} {found}, error {self.error:.3g}; {close} ({chance})"
        within = f"{picture} is within the threshold, error {self.error:.3g}"
        if not self.undecided:
            return f"{within}, but {close} ({chance})"
        times = math.ceil(self.public_needed / self.as_close.trials)
        return (
            f"{within}, and {close}, too few to tell ({chance}): "
            f"{self.public_needed} are needed, {times} times as many"
        )


def read_head(weights: HeadWeights, recipe: TransferHead, numbers: int) -> Weights:
    """The head's layers out of a module, a state dict (the last layers of it) or a file; nothing is unpickled."""
    tensors = _tensors(weights)
    if not isinstance(tensors, Mapping) or not all(_is_tensor(each) for each in tensors.values()):
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
            if tuple(tensor.shape) == shape and tensor.is_floating_point() and tensor.float().isfinite().all()
        ]
        if not places:
            raise InputError(
                "These are not the weights of such a head.",
                needs=f"finite numbers in layers of the shapes {', '.join(map(str, rows))}",
                got=", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(tensors.items())[-6:])
                or "no layers",
                hint="the head's own state_dict(); two_outputs=True in the recipe for two classes with two outputs",
            )
        found.insert(0, left.pop(places[-1]).detach().float())
    return Weights({name: tensor.unsqueeze(0) for name, tensor in zip(names, found, strict=True)})


def _is_tensor(value: object) -> bool:
    """Whether it has numbers: a lazy layer has none, and no shape, before its first batch."""
    return isinstance(value, Tensor) and not is_lazy(value)


def _tensors(weights: HeadWeights) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        return weights.state_dict()
    if isinstance(weights, Mapping):
        return weights
    if not isinstance(weights, str | PathLike):
        raise InputError(
            "This is no head.",
            needs="a module, a state dict, or the path of a file",
            got=f"{type(weights).__name__}: {weights!r}"[:200],
            hint="released=head, or released=head.state_dict()",
        )
    path = Path(weights)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, weights_only=True, map_location="cpu")
    except _DAMAGED as error:
        raise InputError(
            "The head cannot be read.",
            needs="a .safetensors file, or a state dict that torch.save wrote",
            got=f"{path}: {next(iter(str(error).splitlines()), type(error).__name__)}",
            hint="torch.save(head.state_dict(), path)",
        ) from None


def require_one_guess(attacks: Sequence[Attack]) -> None:
    """Refuse attacks that do not draw one picture of each class, before they learn to draw something else."""
    for attack in attacks:
        if isinstance(attack, Reconstructor) and (attack.guesses > 1 or not attack.conditional):
            raise _no_picture_of_each_class(f"guesses={attack.guesses}, conditional={attack.conditional}")


def _no_picture_of_each_class(got: str) -> InputError:
    return InputError(
        "This attack draws no picture of each class.",
        needs="one guess for each class of the released head",
        got=got,
        hint="Reconstructor(conditional=True, guesses=1)",
    )


def expose_head(result: AuditResult, game: Game, own: Records, head: Weights, seed: int) -> AuditResult:
    """The result with what came back out of this very head, by the attack that did best on heads like it."""
    device = own.features.device
    assert result.strongest.prepare is not None
    prepared: Prepared = result.strongest.prepare()
    guesses = prepared.reconstruct(head.to(device)).records[0]  # (classes,)
    assert game.strangers is not None
    public = game.strangers.records  # type: ignore[attr-defined]
    if len(guesses) != len(game.prior.classes):  # type: ignore[attr-defined]
        raise _no_picture_of_each_class(f"{len(guesses)} guesses for a head")
    rows: dict[str, list[float]] = {name: [] for name in _COLUMNS}
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
    distance, farthest = _distances(game, own, head.to(device), seed)
    pictures = _pictures(arrays, game.criterion.threshold)
    findings = {
        "released_classes_recovered": float(sum(picture.came_back for picture in pictures)),
        "released_classes_undecided": float(sum(picture.undecided for picture in pictures)),
        "released_classes_within_the_threshold": float(sum(picture.succeeded for picture in pictures)),
        "released_distance_from_the_recipe": distance,
    }
    caveats = () if distance <= _UNLIKE * farthest else (RELEASED_HEAD_UNLIKE_RECIPE,)
    evidence = tuple(
        replace(
            e,
            arrays={**e.arrays, **arrays},
            findings={**e.findings, **findings},
            caveats=(*e.caveats, *caveats),
        )
        if e is result.strongest
        else e
        for e in result.evidence
    )
    return replace(result, evidence=evidence)


def exposed_pictures(result: AuditResult) -> list[PictureExposure]:
    """What came back out of the released head, the closest first; empty if none was given.

    The chances assume that your pictures and the public ones are draws of one kind.
    """
    arrays = result.strongest.arrays
    if not all(f"released_{name}" in arrays for name in _COLUMNS):
        return []
    return _pictures(arrays, result.threat_model["criterion"]["threshold"])


def _pictures(arrays: Mapping[str, Tensor], threshold: float) -> list[PictureExposure]:
    columns = [arrays[f"released_{name}"].tolist() for name in _COLUMNS]
    found = [
        PictureExposure(int(label), picture, error, error <= threshold, SuccessRate(close, count), own)
        for label, picture, error, close, count, own in zip(*columns, strict=True)
    ]
    share = _ERROR / len(found)
    chances = sorted(picture.by_chance for picture in found if picture.succeeded)
    passed = max((n for n, chance in enumerate(chances, 1) if chance <= n * share * (1 + 1e-9)), default=0)
    first = sum(
        picture.succeeded and picture.as_close.successes == 0 for picture in found
    )  # own / (public + own) ≤ first · share
    judged = [
        replace(
            picture,
            level=passed * share,
            public_needed=math.ceil(picture.own * (1 / (max(1, first) * share) - 1) - 1e-6),
        )
        for picture in found
    ]
    return sorted(judged, key=lambda picture: picture.error)


def _distances(game: Game, own: Records, head: Weights, seed: int) -> tuple[float, float]:
    """How far the head is from the mean of heads retrained on the same pictures, in units of their usual distance.

    About 1 if the recipe is right, and less where nothing is random but rounding; much more means that the head was
    trained in another way, and the attack's shadows were too. Beside it, how far the farthest of those heads is from
    the others, and 1 at least.
    """
    generator = stream(seed, "retrained", own.features.device)
    assert game.targets is not None
    sets = game.targets.sample(1, generator)
    light = Records(sets.labels.unsqueeze(2), sets.labels, embedding=sets.embedding)  # pictures are not read
    heads = game.mechanism.release(None, light[torch.zeros(_RETRAINED, dtype=torch.int64)], generator).flat()
    middle = heads.mean(0)
    spread = (heads - middle).norm(dim=1)
    usual = spread.square().mean().sqrt().clamp(min=_ROUNDING * float(middle.norm()) + 1e-12)
    left_out = spread.max() * _RETRAINED / (_RETRAINED - 1)  # from the mean of the 49 others
    return float((head.flat()[0] - middle).norm() / usual), max(1.0, float(left_out / usual))
