"""Before a transfer-learned classifier is published: which of its training pictures come back out of its head?"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from remanence.adversary.priors import StratifiedPrior
from remanence.attacks.attack import Attack
from remanence.attacks.reconstructor.attack import Reconstructor
from remanence.attacks.reconstructor.class_sizes import infer_class_sizes
from remanence.auditing import AuditResult, audit
from remanence.checks import is_whole
from remanence.data.records import Records
from remanence.exceptions import InputError
from remanence.game import Game
from remanence.games.heads.ceiling import head_ceiling
from remanence.games.heads.released_head import (
    HeadWeights,
    expose_head,
    read_head,
    require_one_guess,
)
from remanence.mechanisms.heads.transfer_head import TransferHead, embed
from remanence.results.verdict import Policy
from remanence.scale.seeds import stream
from remanence.scoring.errors import Criterion, Error, Reduction, mean_squared_error, nearest_neighbour_errors

_CONTROLS = 4  # one in so many of the public pictures is kept from the adversary, for the control


def audit_head(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    recipe: TransferHead,
    *,
    prior: Records,
    released: HeadWeights | None = None,
    sizes_known: bool = True,
    error: Error = mean_squared_error,
    threshold: float | None = None,
    limit: float | None = None,
    per_class: int | None = None,
    copies: int = 1,
    attacks: list[Attack] | None = None,
    trials: int = 100,
    seed: int = 0,
    device: torch.device | str = "cpu",
    target: str = "head",
) -> AuditResult:
    """Attack heads that are trained by your recipe on your pictures; the adversary holds only pictures like them.

    `prior` are public pictures of the same kind with their labels, which the adversary trains on. Give the backbone,
    or the features of your pictures and a `prior` that has its own as `embedding`. Every trial trains a new head, with
    fresh initial weights, on all of your pictures; with `per_class`, on that many of each class. A reconstruction
    succeeds below the nearest-neighbour threshold: where it is closer than the adversary's closest picture usually is
    to yours (or to other public ones, if that is farther), by mean squared error or another `error`; or below a
    `threshold` of yours. The control holds what comes out of heads on public pictures against yours.

    `limit` is the largest success that you tolerate: by default what a guess is known to achieve and a tenth of the
    rest. A recipe with a `noise_multiplier` comes with a proven ceiling, so that the verdict may be PROTECTED.

    `released` is the head that you are about to publish: its module, its state dict or a file of it. The same attack
    is then held against that very head, and `exposed_pictures(result)` tells which picture of each class came back, and
    where there are too few public pictures to tell.
    The verdict still rests on all trials. Without `sizes_known` the adversary has to infer from a head how many
    pictures of each class there were: from the released one, or from one trained for it.
    """
    if attacks is not None and not isinstance(attacks, list | tuple):
        raise InputError(
            "The attacks cannot be used.", needs="a list of them", got=type(attacks).__name__, hint="[attack]"
        )
    if released is not None and per_class is not None:
        raise InputError(
            "A released head was trained on all of your pictures.",
            needs="`released`, or `per_class` for heads on some of them",
            got="both",
            hint="leave per_class out",
        )
    if released is not None:
        require_one_guess(attacks or [])
    game = head_game(
        backbone_or_features,
        images,
        labels,
        recipe,
        prior=prior,
        error=error,
        threshold=threshold,
        per_class=per_class,
        copies=copies,
    )
    assert isinstance(game.targets, StratifiedPrior)
    assert isinstance(game.prior, StratifiedPrior)
    own = game.targets.records
    assert own.embedding is not None
    head = None if released is None else read_head(released, recipe, own.embedding.shape[-1])
    head = None if head is None else head.to(own.features.device)
    if not sizes_known:
        generator = stream(seed, "sizes", "cpu")
        seen = head or recipe.release(None, game.targets.sample(1, generator), generator)
        largest = min(8, *(size for size, _ in game.prior.sizes))
        sizes = infer_class_sizes(seen, recipe, game.prior.records, generator, largest=largest)[0]
        game = replace(game, prior=replace(game.prior, counts=tuple(sizes.tolist())))
    chosen = [Reconstructor()] if attacks is None else list(attacks)
    if limit is None:
        guess = game.baseline().lower
        limit = guess + 0.1 * (1 - guess)
    result = audit(game, chosen, policy=Policy(limit), trials=trials, seed=seed, device=device, target=target)
    if head is None:
        return result
    return expose_head(result, game.to(device), own.to(device), head, seed)


def _check_kinds(backbone_or_features: object, recipe: object, prior: object, error: object) -> None:
    """Refuse what is not of the kind that it should be."""
    kinds = {
        "backbone": (
            backbone_or_features,
            nn.Module | Tensor,
            "a module, or a tensor of features",
            "nn.Sequential(...)",
        ),
        "recipe": (recipe, TransferHead, "a TransferHead", "TransferHead(classes=10, epochs=30)"),
        "prior": (prior, Records, "Records of public pictures", "Records(pictures, labels)"),
        "error": (error, Error, "an Error", "remanence.mean_squared_error"),
    }
    for name, (value, kind, needs, hint) in kinds.items():
        if not isinstance(value, kind):
            raise InputError(f"The {name} cannot be used.", needs=needs, got=type(value).__name__, hint=hint)


def _check_pictures(images: Tensor, labels: Tensor, prior: Records, copies: int) -> None:
    """Refuse what no head can be trained on, before any time is spent."""
    for name, value in {"labels": labels, "images": images}.items():
        if not isinstance(value, Tensor) or not value.ndim or not 0 < len(value) == len(labels):
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
            raise InputError(
                f"The {name} cannot be used.",
                needs="tensors with one entry for each of your pictures, and at least one picture",
                got=f"{type(value).__name__}{shape}",
                hint="torch.as_tensor(array)",
            )
    if labels.ndim != 1 or not torch.equal(labels, labels.long()):
        raise InputError(
            "The labels cannot be used.",
            needs="one whole number for each picture",
            got=f"{labels.dtype} of shape {tuple(labels.shape)}",
            hint="the number of the class, from 0 up",
        )
    if images.dtype != torch.float32 or prior.features.dtype != torch.float32:
        raise InputError(
            "The pictures are no float32 numbers.",
            needs="float32, scaled as the backbone expects them",
            got=f"{images.dtype}, and {prior.features.dtype} in the prior",
            hint="images.float() / 255",
        )
    if images.shape[1:] != prior.features.shape[1:]:
        raise InputError(
            "Your pictures and the public ones have different shapes.",
            needs=f"public pictures of shape {tuple(images.shape[1:])}",
            got=str(tuple(prior.features.shape[1:])),
            hint="resize them as you did yours",
        )
    Records(images, labels).require_finite("images")
    prior.require_finite("prior")
    if copies < 1 or len(prior) % copies:
        raise InputError(
            "The public pictures are not so many copies.",
            needs="at least 1 copy, and as many pictures in each",
            got=f"{copies} copies in {len(prior)} pictures",
            hint="the same `copies` as in augment(...)",
        )


def _check_enough(public: Records, copies: int, counts: list[int]) -> None:
    """Refuse fewer public pictures of a class than all parties need: controls, watching, and shadows."""
    found = (torch.unique(public.labels, return_counts=True)[1] // copies).tolist()
    short = [(have, 4 * count) for have, count in zip(found, counts, strict=True) if have < 4 * count]
    if short:
        raise InputError(
            "There are too few public pictures.",
            needs=f"at least {short[0][1]} of a class, four for each of yours (eleven are better)",
            got=f"{short[0][0]}",
            hint="more public pictures; or per_class=1 for heads on one of yours of each class",
        )


def head_game(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    recipe: TransferHead,
    *,
    prior: Records,
    error: Error = mean_squared_error,
    threshold: float | None = None,
    per_class: int | None = None,
    copies: int = 1,
) -> Game:
    """The game that `audit_head` plays, for `remanence audit file.py:factory`.

    A `prior` that `augment(..., copies)` made has that many `copies` of the same pictures.
    """
    _check_kinds(backbone_or_features, recipe, prior, error)
    if per_class is not None and not is_whole(per_class, 1):
        raise InputError(
            "per_class cannot be used.", needs="a whole number of at least 1", got=repr(per_class), hint="1"
        )
    _check_pictures(images, labels, prior, copies)
    if isinstance(backbone_or_features, nn.Module):
        own = embed(Records(images, labels), backbone_or_features)
        public = embed(prior, backbone_or_features)
    else:
        features = backbone_or_features.detach()
        if features.dtype != torch.float32 or features.ndim != 2 or len(features) != len(labels):
            raise InputError(
                "The features cannot be used.",
                needs=f"float32 numbers of shape ({len(labels)}, numbers)",
                got=f"{features.dtype} of shape {tuple(features.shape)}",
                hint="features.float().flatten(1)",
            )
        own = Records(images, labels, embedding=features)
        public = prior
    if public.embedding is None or public.embedding.shape[-1] != own.embedding.shape[-1]:  # type: ignore[union-attr]
        raise InputError(
            "The public pictures have no features that fit.",
            needs=f"an embedding of {own.embedding.shape[-1]} numbers for each",  # type: ignore[union-attr]
            got="none" if public.embedding is None else f"{public.embedding.shape[-1]} numbers",
            hint="give the backbone, or prior=embed(records, backbone)",
        )
    classes, counts = torch.unique(labels, return_counts=True)
    if not torch.equal(classes, torch.unique(public.labels)):
        raise InputError(
            "Your pictures and the public ones have different classes.",
            needs=f"public pictures of the classes {classes.tolist()}",
            got=str(torch.unique(public.labels).tolist()),
            hint="the adversary knows the classes; give a few public pictures of each",
        )
    if not torch.equal(public.labels, public.labels[: len(public) // copies].repeat(copies)):
        raise InputError(
            "The public pictures are not so many copies.",
            needs=f"{copies} copies of the same pictures one after the other, as `augment` makes them",
            got=f"{len(public)} pictures whose labels do not repeat",
            hint="the same `copies` as in augment(...), or none",
        )
    sizes = tuple(counts.tolist()) if per_class is None else per_class
    _check_enough(public, copies, counts.tolist() if per_class is None else [per_class] * len(classes))
    originals = public.labels[: len(public) // copies]
    apart = torch.zeros(len(originals), dtype=torch.bool, device=originals.device)
    for label in classes:  # no copy of a control's picture stays with the adversary
        apart[(originals == label).nonzero().squeeze(1)[::_CONTROLS]] = True
    adversary, controls = public[~apart.repeat(copies)], public[: len(originals)][apart]
    errors = nearest_neighbour_errors(own, public)
    same = errors <= 1e-12 * own.flat.double().square().mean()
    if same.any():
        raise InputError(
            "Some of your pictures are among the public ones.",
            needs="public pictures that the head was not trained on",
            got=f"{int(same.sum())} pictures that are in both",
            hint="take them out of `prior`: what is public needs no attack",
        )
    # Not from your pictures alone: those that a guess is likely to meet lie close to others, and would lower it.
    usual = max(float(nearest_neighbour_errors(each, adversary, error).mean()) for each in (own, controls))
    criterion = Criterion(error, usual if threshold is None else threshold, Reduction.CLASS)
    targets, prior_sets = StratifiedPrior(own, sizes), StratifiedPrior(adversary, sizes, copies)
    ceiling = head_ceiling(recipe, targets, prior_sets, criterion)
    return Game(
        recipe,
        prior_sets,
        None,
        criterion,
        targets=targets,
        bounds=() if ceiling is None else (ceiling,),
        strangers=StratifiedPrior(controls, sizes),
    )
