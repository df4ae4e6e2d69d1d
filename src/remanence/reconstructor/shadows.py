"""Shadow models: the adversary repeats the victim's training on their own records, for which the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from remanence.core.attack import training_failed
from remanence.core.knowledge import Knowledge
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.releases import Release
from remanence.core.stratified import StratifiedPrior
from remanence.scale.fingerprints import fingerprint
from remanence.scale.run import IN_PROCESS, Run
from remanence.scale.seeds import unit_seed

_BATCHES = 16  # per block of fresh shadows on a GPU: more would occupy its memory, often unused


@dataclass(frozen=True)
class Shadows:
    """Releases and the sets that they were trained on; with several classes, one is requested per target."""

    tensors: Mapping[str, Tensor]  # of the releases
    targets: Records  # (shadows, set)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, index: Tensor) -> Shadows:
        """The shadows at these indices."""
        return Shadows({name: tensor[index] for name, tensor in self.tensors.items()}, self.targets[index])


@dataclass(frozen=True)
class ShadowFarm:
    """Trains any number of shadow models in blocks, each on a fresh draw from the prior."""

    knowledge: Knowledge
    generator: torch.Generator

    @property
    def at_once(self) -> int:
        """How many fit into memory together."""
        probe = torch.Generator(self.generator.device).manual_seed(0)
        return self.knowledge.mechanism.trials_at_once(self.knowledge.prior.sample(1, probe))

    def block(self, count: int | None = None, targets: Records | None = None) -> Shadows:
        """`count` shadows on fresh draws (default: as many as fit into memory), or shadows on given sets."""
        mechanism = self.knowledge.mechanism
        if targets is None:
            targets = self.knowledge.prior.sample(count or self.at_once, self.generator)
        release = mechanism.release(self.knowledge.known_data, targets, self.generator)
        kept = finite_trials(release)
        return Shadows(release.take(kept).tensors, targets[kept])

    def blocks(self, count: int) -> Iterator[Shadows]:
        """This many shadows on fresh draws, in blocks that fit into memory."""
        most = self.at_once
        for start in range(0, count, most):
            yield self.block(min(most, count - start))

    def stored(self, count: int, run: Run = IN_PROCESS) -> Shadows:
        """A fixed number, trained in blocks and kept; every single record is used once before any is repeated."""
        prior, most = self.knowledge.prior, self.at_once
        targets = prior.sample(count, self.generator)
        if isinstance(prior, EmpiricalPrior) and prior.set_size == 1:
            rounds = -(-count // len(prior.records))
            device = self.generator.device
            orders = [
                torch.randperm(len(prior.records), generator=self.generator, device=device)
                for _ in range(rounds)
            ]
            targets = prior.records[torch.cat(orders)[:count, None].to(prior.records.labels.device)]
        # Each block has its own random stream, derived from the farm's, so they can be trained in any order, anywhere.
        own = fingerprint(self.generator)
        mechanism, known = self.knowledge.mechanism, self.knowledge.known_data
        depends_on = {"mechanism": mechanism, "known_data": known, "targets": targets, "stream": own}
        plan = run.plan("training shadows", count, most, self.generator.device, depends_on)
        train = partial(_train_block, self.knowledge, targets, int(own, 16), self.generator.device, most)
        found = run.map(plan, lambda: train, _join)
        release = mechanism.releases(
            {name: tensor.to(self.generator.device) for name, tensor in found.items()}
        )
        kept = finite_trials(release)
        return Shadows(release.take(kept).tensors, targets[kept])


def finite_trials(release: Release) -> Tensor | slice:
    """The models whose training did not diverge: usually all, without a copy; refuse if fewer than half."""
    lost = release.not_finite()
    if not lost.any():
        return slice(None)
    if 2 * int(lost.sum()) > len(lost):
        raise training_failed(lost)
    return (~lost).nonzero().squeeze(1).to(next(iter(release.tensors.values())).device)


def _join(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _train_block(
    knowledge: Knowledge, targets: Records, seed: int, device: torch.device, most: int, block: int
) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(unit_seed([seed], block))
    chosen = targets[block * most : (block + 1) * most]
    return dict(knowledge.release(chosen, generator).tensors)


def batches(
    farm: ShadowFarm,
    stored: Shadows | None,
    size: int,
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> Iterator[Shadows]:
    """Endless batches: fresh ones, each seen once, or the stored ones, reshuffled every epoch.

    `prepare` is applied to whole blocks. A batch's targets are the records' features, not their embeddings.
    """

    def ready(shadows: Shadows) -> Shadows:
        targets = Records(shadows.targets.features, shadows.targets.labels)
        return Shadows(prepare(shadows.tensors), targets)

    kept = None if stored is None else ready(stored)
    most = farm.at_once if kept is None else 0
    if farm.generator.device.type == "cuda":
        most = min(most, _BATCHES * size)
    while True:
        block = ready(farm.block(most)) if kept is None else kept
        order = torch.randperm(len(block), generator=farm.generator, device=farm.generator.device)
        for index in order.split(size):
            if len(index) == size or len(block) < size:
                yield block.take(index.to(block.targets.labels.device))


def split(knowledge: Knowledge) -> tuple[Knowledge, Knowledge]:
    """The knowledge with some of the prior's records held out: one in twenty, or one in eight if there are few."""
    prior = knowledge.prior
    assert isinstance(prior, EmpiricalPrior | StratifiedPrior)
    copies = prior.copies if isinstance(prior, StratifiedPrior) else 1
    originals = prior.records.labels[: len(prior.records) // copies]
    every = 20 if len(originals) >= 5000 else 8
    if isinstance(prior, StratifiedPrior):  # enough for a set of its own, of every class
        every = max(2, min([every, *(size // copies // count for size, count in prior.sizes if count)]))
    rank = torch.empty_like(originals, dtype=torch.int64)  # rank when sorted by class
    rank[originals.argsort(stable=True)] = torch.arange(len(originals), device=rank.device)
    aside = (rank % every == every - 1).repeat(copies)
    ours, theirs = (replace(prior, records=prior.records[mask]) for mask in (~aside, aside))
    return replace(knowledge, prior=ours), replace(knowledge, prior=theirs)
