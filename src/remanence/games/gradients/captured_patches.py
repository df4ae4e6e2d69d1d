"""Updates of a network that reads pictures in patches: a picture counts if the whole update can be recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.adversary.baseline import Baseline
from remanence.adversary.knowledge import Knowledge
from remanence.adversary.priors import Uninformed
from remanence.attacks.attack import Attack, Reconstruction, blindly
from remanence.attacks.gradients.leak_map import leak_map
from remanence.attacks.gradients.patch_fit import PatchFit
from remanence.attacks.gradients.patch_models import PatchModel, patch_model
from remanence.auditing import AuditResult, audit
from remanence.bounds.bound import Bound
from remanence.data.releases import Gradient
from remanence.games.gradients.captured import require_finite, shuffled
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, PATCHES_OPEN, Caveat
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.scoring.errors import Comparison, Criterion, Reduction

Reconstruct = Callable[[Gradient], Reconstruction]

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
        """How many pictures are proven."""
        return self.count if self.explains_all else 0


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
class CapturedPatches(AnyGame[SharedGradient]):
    """One or more updates of a network that reads patches. Each is a trial, and succeeds if its pictures are proven.

    The number of pictures is proven along with them. The control is the same attack on the same update with the
    entries of every tensor shuffled.
    """

    said: ClassVar[tuple[str, str]] = ("recovered", "pictures")

    mechanism: SharedGradient
    gradients: Gradient
    criterion: Criterion = Criterion(reduction=Reduction.EACH)
    bounds: tuple[Bound, ...] = ()
    default_trials: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.gradients))

    @property
    def knowledge(self) -> Knowledge:
        """The adversary knows the network and nothing else."""
        return Knowledge(self.mechanism, Uninformed(), None)

    def fits(self) -> None:
        """The gradients are numbers. Whether they belong to the network, recomputation tells."""
        require_finite(self.gradients)

    def baseline(self, chances: int = 1) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of what went in."""
        return {"gradients": self.gradients.sha256()}

    def to(self, device: torch.device | str) -> CapturedPatches:
        """The same game; patches are solved for on the CPU, in double precision."""
        return self

    def caveats(self) -> tuple[Caveat, ...]:
        """The pictures share their update; and what the layer's gradient leaves open."""
        return ONE_RELEASE, PATCHES_OPEN

    def records(self, trials: int, draws: Draws) -> None:
        """Nobody knows which pictures they were."""

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All updates together."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> Reconstruct:
        """The attack, ready for any update of this network."""
        return attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: Reconstruct, draws: Draws, unit: Unit) -> Outcome:
        """Attack every update, and a shuffled copy of each."""
        gradients = self.gradients.take(slice(0, unit.size))
        mixed = shuffled(gradients, draws.stream("control"))
        guess, decoy = blindly(prepared, gradients, mixed, draws.stream("coins"))
        found, controls = self.verified(guess, gradients), self.verified(decoy, mixed)
        counts = torch.tensor([one.proven for one in found])
        left = torch.tensor([one.unexplained for one in found], dtype=torch.float64)
        return Outcome(
            main=_counted(found),
            control=_counted(controls),
            numbers={**guess.numbers(), "proven": counts, "proven_batch_size": counts, "unexplained": left},
            proven=counts,
        )

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


def _counted(found: Sequence[Pictures]) -> Comparison:
    proven = torch.tensor([[one.explains_all] for one in found])
    return Comparison(torch.full(proven.shape, torch.nan, dtype=torch.float64), proven, proven)


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
