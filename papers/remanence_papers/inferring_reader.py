"""The linear reader of an adversary who was not told the recipe: they infer it from the head, and then read.

They train shadows by every recipe that people are likely to use, on pictures of their own, and compare what can be seen
of a head without its training pictures: the sizes of its layers, what its rows share, what it says where no picture
has anything, and how it answers to public pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from remanence.core.attack import Attack, Reconstruction, joined
from remanence.core.catalogue import AttackInfo
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.references import REMANENCE
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.heads.linear_reader import LinearReader
from remanence.heads.pictures import without_pictures
from remanence.heads.transfer_head import Loop, TransferHead
from remanence.reconstructor.shadows import ShadowFarm
from remanence.scale.progress import track

RECIPE, P_VALUE = (
    "recipe",
    "p_value",
)  # of each head: the place of its likeliest recipe, and how well that fits
_SHADOWS = 200  # of each recipe: half say how its heads vary, half how far off one usually is
_PUBLIC = 300  # pictures that heads are asked about
_BLUR = 0.01  # of a trait, which is a logarithm: rounding is no other recipe
_SHRINK = 0.2  # towards independent traits, which a hundred heads cannot tell apart
_NOTHING = 1e-12
_EPOCHS = 10, 20, 30, 50, 100, 200
_DIRECTIONS = 8


@final
@dataclass(frozen=True)
class InferringReader(Attack[Weights]):
    """Ridge regression from a head to a picture, learnt on shadows of the recipe that the head is likeliest to have.

    `candidates` are the recipes that they consider; by default those of `plausible`. Of the declared recipe nothing is
    used but how the head computes, which its file shows.
    """

    shadows: int = LinearReader.shadows
    candidates: tuple[TransferHead, ...] | None = None
    info: ClassVar[AttackInfo] = AttackInfo(
        "linear-reader-infers-recipe",
        "Infers from a head how it was trained, trains shadow heads like that, and reads pictures by ridge regression.",
        "a transfer-learned head; public pictures of the same kind",
        "weights",
        REMANENCE,
    )

    def check(self, knowledge: Knowledge) -> tuple[TransferHead, StratifiedPrior]:
        """Heads, and public pictures to train shadows on."""
        head, prior = knowledge.mechanism, knowledge.prior
        if isinstance(head, TransferHead) and isinstance(prior, StratifiedPrior):
            return head, prior
        raise self.refusal(
            got=f"{knowledge.mechanism.name}; {prior.describe()}",
            hint="play(head_game(...).heads, InferringReader())",
        )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train a few shadows of every recipe; readers are trained when a head asks for one."""
        head, _ = self.check(knowledge)
        judge = Judge.of(knowledge, self.candidates or tuple(plausible(head)), generator)
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        @cache
        def reader(place: int) -> Callable[[Release], Reconstruction]:
            own = torch.Generator(generator.device).manual_seed(seed + place)
            believed = replace(knowledge, mechanism=judge.recipes[place])
            return LinearReader(self.shadows).prepare(believed, own)

        def reconstruct(release: Release) -> Reconstruction:
            found, p_values = judge(release)
            order = found.argsort(stable=True)
            parts = [
                reader(int(place))(release.take(order[found[order] == place])) for place in found.unique()
            ]
            guess = joined(parts).take(order.argsort())
            seen = {RECIPE: judge.places[found], P_VALUE: p_values}
            return replace(guess, diagnostics={**guess.diagnostics, **seen})

        return reconstruct


def plausible(head: TransferHead) -> Iterator[TransferHead]:
    """What people are likely to have done with a head that computes like this."""
    loop = head.loop or Loop()
    computes = Loop(bias=loop.bias, activation=loop.activation)
    shape = TransferHead(
        head.classes,
        1,
        hidden=head.hidden,
        task=head.task,
        two_outputs=head.two_outputs,
        loop=None if computes == Loop() else computes,
    )
    starts = ("pytorch", 0.002, 0.02) if head.hidden else ("pytorch", 0.0, 0.002, 0.02)
    sgd = product(("sgd",), (0.001, 0.01, 0.1), ((0.0, 0.0), (0.0, 0.1), (0.9, 0.0)))
    adam = product(("adam",), (0.001, 0.01, 0.1), ((0.0, 0.0),))
    steps = *sgd, *adam
    for start, epochs, (name, rate, (momentum, decay)) in product(starts, _EPOCHS, steps):
        yield replace(
            shape,
            epochs=epochs,
            learning_rate=rate,
            optimizer=name,
            momentum=momentum,
            weight_decay=decay,
            initialisation=start,
        )


@final
@dataclass(frozen=True)
class Judge:
    """Says of heads which recipe is the likeliest, by how the traits of each recipe's heads vary."""

    recipes: tuple[TransferHead, ...]
    places: Tensor  # of these among all that were tried
    means: Tensor  # (recipes, traits)
    inverses: Tensor  # of the covariances
    volumes: Tensor  # (recipes,), logarithms of their determinants
    usual: Tensor  # how far off a recipe's own heads are, (recipes, heads)
    public: Records

    @classmethod
    def of(cls, knowledge: Knowledge, recipes: tuple[TransferHead, ...], generator: torch.Generator) -> Judge:
        """From shadows of every recipe; those whose training comes to nothing are left out."""
        prior = knowledge.prior
        assert isinstance(prior, StratifiedPrior)
        pool = prior.records
        chosen = torch.randperm(len(pool), generator=generator, device=generator.device)[:_PUBLIC]
        public = without_pictures(pool[chosen.to(pool.labels.device)])
        light = replace(knowledge, prior=replace(prior, records=without_pictures(pool)))
        kept, seen = [], []
        for place, recipe in enumerate(track(recipes, total=len(recipes), what="recipes tried")):
            farm = ShadowFarm(replace(light, mechanism=recipe), generator)
            try:
                block = farm.block(_SHADOWS)
            except InputError:  # it diverges: such a head is not published
                continue
            if len(block) == _SHADOWS:
                kept.append(place)
                seen.append(traits(recipe, Weights(block.tensors), public))
        if not kept:
            raise InputError(
                "No recipe was left to try.",
                needs="candidates whose training comes to finite numbers",
                got=f"{len(recipes)} that diverge on these features",
                hint="features of a usual size, or InferringReader(candidates=(TransferHead(...),))",
            )
        values = torch.stack(seen)  # (recipes, heads, traits)
        fitted, aside = values.chunk(2, 1)
        means = fitted.mean(1)
        apart = fitted - means[:, None]
        covariance = apart.mT @ apart / apart.shape[1]
        alone = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
        unit = torch.eye(alone.shape[1], dtype=alone.dtype, device=alone.device)
        covariance = (1 - _SHRINK) * covariance + _SHRINK * alone + _BLUR**2 * unit
        inverses, volumes = torch.linalg.inv(covariance), torch.logdet(covariance)
        usual = _off(aside - means[:, None], inverses)
        places = torch.tensor(kept, device=means.device)
        return cls(tuple(recipes[place] for place in kept), places, means, inverses, volumes, usual, public)

    def __call__(self, release: Release) -> tuple[Tensor, Tensor]:
        """The place of each head's likeliest recipe, and how many of that recipe's own heads are as far off."""
        seen = traits(self.recipes[0], release, self.public)  # (trials, traits)
        off = _off(seen - self.means[:, None], self.inverses)  # (recipes, trials)
        found = (off + self.volumes[:, None]).argmin(0)
        own, far = self.usual[found], off.gather(0, found[None])[0]
        return found, ((own >= far[:, None]).sum(1) + 1).double() / (own.shape[1] + 1)


def _off(apart: Tensor, inverses: Tensor) -> Tensor:
    """Squared distances in units of how heads vary, `(recipes, heads)`."""
    return torch.einsum("rht,rtu,rhu->rh", apart, inverses, apart)


def traits(head: TransferHead, release: Release, public: Records) -> Tensor:
    """What can be seen of heads without their training pictures, `(heads, traits)`, mostly logarithms."""
    tensors = release.tensors
    weight = tensors["weight"].double()
    rows = weight if (last := tensors.get("out_weight")) is None else last.double() @ weight
    common = rows.mean(1, keepdim=True)
    centred = rows - common if rows.shape[1] > 1 else rows
    answers, labels = head.answer(release, public).double(), head.classes_of(public)
    index = labels.expand(len(answers), -1).unsqueeze(2)
    margins = answers.gather(2, index).squeeze(2) - answers.scatter(2, index, -torch.inf).amax(2)
    losses = cross_entropy(answers.flatten(0, 1), labels.repeat(len(answers)), reduction="none")
    inputs = head.inputs_of(public)
    silent = weight[:, :, inputs.abs().amax(0) <= 0]
    found = [
        *(each.flatten(1) for each in tensors.values()),
        common.flatten(1),
        margins,
        losses.view_as(margins).mean(1, keepdim=True),
        answers.std(2),
        *([silent.flatten(1)] if silent.shape[2] else []),
    ]
    sizes = [each.double().square().mean(1).sqrt() for each in found]
    sizes += [weight.abs().amax((1, 2)), *torch.linalg.svdvals(centred)[:, :_DIRECTIONS].unbind(1)]
    logs = torch.stack(sizes, 1).clamp(min=_NOTHING).log()
    flat = weight.flatten(1) / sizes[0][:, None].clamp(min=_NOTHING)
    return torch.cat([logs, flat.pow(4).mean(1, keepdim=True)], 1)
