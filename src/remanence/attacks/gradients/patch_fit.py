"""Whole pictures from the gradient of a layer that reads patches: vision transformers, and convolutions like them.

The gradient of such a layer, its bias gradient beside it, is G = s Σ δ_ip (x_ip, 1)ᵀ over pictures i and positions
p. Its rank r is the number of patches, so every (x_ip, 1) is a combination c_ip of r known directions: G = D C, where C
has the rows c_ip. The gradient of the embedding of position p is S_p = s Σ_i δ_ip = D 1_p, so that w_p = G⁺ S_p, in
coordinates, meets c_iq · w_p = 1 for q = p and 0 for all other positions. It tells exactly which patches lie where. For
one picture nothing is left open, and its patches follow by linear algebra. For more, what is left of c_ip is solved for
by damped Gauss–Newton: δ follows from the picture and its label by one pass through the network. Whether what was found
is the batch, recomputation of the whole update tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.adversary.knowledge import Knowledge
from remanence.attacks.attack import Attack, Reconstruction
from remanence.attacks.catalogue import AttackInfo
from remanence.attacks.gradients.patch_equations import PatchEquations
from remanence.attacks.gradients.patch_models import PatchModel, patch_model
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.references import REMANENCE
from remanence.scale.progress import track

_UNKNOWNS = 1100  # numbers that are solved for at most
_FITS = 1e-4  # of the update: what a good start leaves at most, whatever sums of many numbers were rounded by


@final
@dataclass(frozen=True)
class PatchFit(Attack[Gradient]):
    """Solve for the pictures of a batch within the span of the gradient of a layer that reads patches.

    The batch must have fewer patches than one has numbers, and than the layer has outputs. `starts` random points are
    tried; at most `slots` pictures are returned.
    """

    slots: int = 16
    starts: int = 6
    info: ClassVar[AttackInfo] = AttackInfo(
        "patch-fit",
        "Solves for the pictures of a batch within the span of the gradient of a layer that reads patches.",
        "the gradient of one step on a vision transformer, or another network that reads patches which do not overlap",
        "one gradient",
        REMANENCE,
    )

    def check(self, knowledge: Knowledge) -> None:
        """A network that reads patches, and the gradient of one step."""
        self._subject(knowledge)

    def _subject(self, knowledge: Knowledge) -> tuple[SharedGradient, PatchModel]:
        mechanism = knowledge.mechanism
        reason = f"{mechanism.name} releasing {mechanism.releases.sees}"
        if isinstance(mechanism, SharedGradient):
            try:
                model = patch_model(mechanism.module, mechanism.example_shape)
            except InputError as error:
                reason = error.got
            else:
                if mechanism.local_steps == 1:
                    return mechanism, model
                reason = "several local steps"
        raise self.refusal(got=reason, hint="inverting-gradients, for other networks that read pictures")

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Gradient], Reconstruction]:
        """The layer is looked for once; one seed serves every release, so that trials stay independent."""
        mechanism, model = self._subject(knowledge)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))

        def attack(release: Gradient) -> Reconstruction:
            pictures = torch.zeros(len(release), self.slots, *model.shape, dtype=torch.float64)
            labels = torch.full((len(release), self.slots), torch.nan, dtype=torch.float64)
            ranks = torch.zeros(len(release), dtype=torch.int64)
            for trial in range(len(release)):
                gradient = {name: value[trial].double() for name, value in release.tensors.items()}
                found, named, ranks[trial] = fit_patches(
                    model, gradient, precision=mechanism.precision, seed=seed, starts=self.starts
                )
                count = min(self.slots, len(found))
                pictures[trial, :count], labels[trial, :count] = found[:count], named[:count].double()
            return Reconstruction(Records(pictures, labels), diagnostics={"independent_patches": ranks})

        return attack


def fit_patches(
    model: PatchModel, gradient: Mapping[str, Tensor], *, precision: float, seed: int = 0, starts: int = 6
) -> tuple[Tensor, Tensor, int]:
    """Pictures, their labels, and how many independent patches there are (0 where they span everything)."""
    nothing = torch.zeros(0, *model.shape, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    span = PatchEquations.of(model, gradient, precision)
    if span is None:
        return *nothing, 0
    if span.unknowns > _UNKNOWNS:
        return *nothing, span.rank
    generator = torch.Generator().manual_seed(seed)
    best: tuple[float, Tensor, Tensor] | None = None
    fits = max(4 * precision, min(1e3 * precision, _FITS)) ** 2
    for _ in track(range(starts), total=starts, what="solving for patches"):
        found = span.solve(generator, fits)
        best = found if best is None or found[0] < best[0] else best
        if best[0] < fits or not span.unknowns or span.work.left <= 0:
            break
    if best is None:
        return *nothing, span.rank
    value, coordinates, labels = best
    if coordinates.numel() <= _UNKNOWNS:
        value, coordinates = span.polished(value, coordinates, labels)
    return model.pictures(span.patches(coordinates)), labels, span.rank
