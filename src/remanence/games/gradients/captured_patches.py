"""Updates of a network that reads pictures in patches: a picture counts if the whole update can be recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.attacks.attack import Reconstruction
from remanence.attacks.gradients.leak_map import leak_map
from remanence.attacks.gradients.patch_fit import PatchFit
from remanence.attacks.gradients.patch_models import PatchModel, patch_model
from remanence.auditing import AuditResult, audit
from remanence.data.releases import Gradient
from remanence.games.gradients.captured_whole import CapturedWhole
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.results.caveats import ONE_RELEASE, PATCHES_OPEN, Caveat
from remanence.results.verdict import Policy

_LEFT = (
    3000  # rounding errors that a tensor of the recomputed update may be off by: a deep network adds up many
)
_LEFT_AT_MOST = 1e-2  # of half precision: a residual of a whole tensor would prove nothing
_NO_BETTER = 0.1  # a patch that is known to a tenth only is not called recovered
_ENOUGH = 0.8  # unknown numbers for each number of the update, at most


@final
@dataclass(frozen=True)
class Pictures:
    """What recomputation says about pictures that were named for one update."""

    count: int
    error: float  # of the worst patch, relative; what the residual leaves room for
    unexplained: float  # the share of the update that is left, by norm, in the worst tensor
    explains_all: bool

    @property
    def proven(self) -> int:
        """How many pictures are proven, and with them their number."""
        return self.count if self.explains_all else 0

    @property
    def number(self) -> int:
        """How many there were, where it is proven."""
        return self.proven


def verify_pictures(
    model: PatchModel, gradient: Mapping[str, Tensor], pictures: Tensor, labels: Tensor, *, precision: float
) -> Pictures:
    """Recompute the whole update from pictures and labels; a factor that all of it has is solved for."""
    sent = {name: value.double() for name, value in gradient.items()}
    numbers = sum(value.numel() for value in sent.values())
    if not len(pictures) or pictures.numel() > _ENOUGH * numbers or not pictures.isfinite().all():
        return Pictures(len(pictures), torch.inf, 1.0, explains_all=False)
    made = model.update(pictures, labels)
    factor = sum(float((sent[n] * made[n]).sum()) for n in sent) / sum(
        float(made[n].square().sum()) for n in sent
    )
    # Some tensors have a gradient of zero, as a key's bias has: what is sent of them is rounding alone.
    floor = precision * max(float(value.norm()) for value in sent.values())
    shares = [float((sent[n] - factor * made[n]).norm()) / (float(sent[n].norm()) + floor) for n in sent]
    rounding = min(_LEFT * precision, _LEFT_AT_MOST)
    fine = factor > 0 and all(
        share <= rounding or float(sent[n].norm()) < rounding * floor / precision
        for n, share in zip(sent, shares, strict=True)
    )
    error = _worst_patch(model, sent, made, factor, pictures, labels, precision)
    large = [
        share
        for n, share in zip(sent, shares, strict=True)
        if float(sent[n].norm()) > floor / precision * rounding
    ]
    return Pictures(
        len(pictures), error, max(large, default=1.0), explains_all=bool(fine and error < _NO_BETTER)
    )


def _worst_patch(
    model: PatchModel,
    sent: Mapping[str, Tensor],
    made: Mapping[str, Tensor],
    factor: float,
    pictures: Tensor,
    labels: Tensor,
    precision: float,
) -> float:
    """How far a patch may be off: patches solve Σ δ xᵀ = G, and what is left of G comes back in them."""
    own, bias = model.patches(pictures), model.layer.bias
    embedded = own @ model.weight.mT + (0 if bias is None else bias.detach())
    deltas = torch.cat([model.slopes(one, y, {})[0] for one, y in zip(embedded, labels, strict=True)])
    deltas = deltas * factor / len(pictures)
    inverse, failed = torch.linalg.inv_ex(deltas @ deltas.mT)
    if failed or not (inverse.diagonal() > 0).all():
        return torch.inf
    name = f"{model.name}.weight" if model.name else "weight"
    off = (sent[name] - factor * made[name]).norm() + precision * sent[name].norm()
    sizes = own.flatten(0, 1).norm(dim=1).clamp(min=1e-300)
    return float((off * inverse.diagonal().sqrt() / sizes).max())


@final
@dataclass(frozen=True)
class CapturedPatches(CapturedWhole):
    """One or more updates of a network that reads patches. Each is a trial, and succeeds if its pictures are proven.

    The number of pictures is proven along with them. The control is the same attack on the same update with the
    entries of every tensor shuffled.
    """

    said: ClassVar[tuple[str, str]] = ("recovered", "pictures")

    def caveats(self) -> tuple[Caveat, ...]:
        """The pictures share their update; and what the layer's gradient leaves open."""
        return ONE_RELEASE, PATCHES_OPEN

    def verified(self, guess: Reconstruction, gradients: Gradient) -> list[Pictures]:
        """What recomputation says about each update and the pictures that were named."""
        model, found = patch_model(self.mechanism.module, self.mechanism.example_shape), []
        for index, (pictures, labels) in enumerate(
            zip(guess.records.features, guess.records.labels, strict=True)
        ):
            named = ~labels.isnan()
            one = {name: values[index] for name, values in gradients.tensors.items()}
            found.append(
                verify_pictures(
                    model,
                    one,
                    pictures[named].double(),
                    labels[named].long(),
                    precision=self.mechanism.precision,
                )
            )
        return found


def audit_patches(
    model: nn.Module,
    gradients: Sequence[Mapping[str, Tensor]],
    shape: tuple[int, ...],
    *,
    precision: float,
    policy: Policy,
    seed: int,
    target: str,
) -> AuditResult:
    """What updates of a network that reads patches give away; the audit holds counts, and no picture."""
    stacked = {name: torch.stack([one[name] for one in gradients]) for name in gradients[0]}
    game = CapturedPatches(SharedGradient(model, shape, rounding=precision), Gradient(stacked))
    result = audit(game, [PatchFit()], policy=policy, seed=seed, target=target)
    told = [
        replace(entry, caveats=tuple(c for c in entry.caveats if c.id != PATCHES_OPEN.id))
        if entry.proven
        else entry
        for entry in result.evidence
    ]
    left = float(result.strongest.arrays["unexplained"][0])
    leaks = leak_map(model, gradients[0], precision=precision)
    leaks = [replace(leak, unexplained=left if left < 1 else None) for leak in leaks]
    subject = {**result.subject, "leak_map": [leak.to_json() for leak in leaks]}
    return replace(result, evidence=tuple(told), subject=subject)
