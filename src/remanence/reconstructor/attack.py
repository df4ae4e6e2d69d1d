"""The attack that learns to invert training: a network from releases to records, trained on shadow models.

It serves two adversaries. Informed (Balle et al. 2022, §IV): shadows are trained on the known records and one
record of the adversary's own. Weak (Maciazek and Allison 2025): shadows are trained on sets of the adversary's own
records, and the network reconstructs one record of each requested class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from remanence.core.attack import Attack, Reconstruction
from remanence.core.catalogue import AttackInfo
from remanence.core.checks import number, one_of, whole
from remanence.core.distances import public_errors
from remanence.core.knowledge import Knowledge
from remanence.core.priors import EmpiricalPrior
from remanence.core.records import Records
from remanence.core.references import MACIAZEK_2025
from remanence.core.releases import Gradient, Logits, Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.reconstructor.decoders import (
    convolutional,
    draws_pictures,
    perceptron,
    separation_loss,
    softmin_loss,
)
from remanence.reconstructor.learning import Learner
from remanence.reconstructor.network import HeldOut, ReconstructorNetwork
from remanence.reconstructor.readers import FlatReader, Readable, Tensors
from remanence.reconstructor.shadows import ShadowFarm, Shadows, batches, split
from remanence.scale.fingerprints import fingerprint, versions
from remanence.scale.run import IN_PROCESS, Run

_STORED = 2000  # default number of shadows if training is slow
_FIRST = 4000  # shadows to fit the linear reader that a network starts from
_STATISTICS = 2000  # shadows for the reader's standardisation
_STRANGERS = 4  # other sets to compare each reconstruction of a batch with


@final
@dataclass(frozen=True)
class Reconstructor(Attack[Release]):
    """A network that reads a release and reconstructs the record, or one record for each class.

    `mode` "strong" exploits the symmetry of a linear head and trains with a schedule and averaged weights;
    "paper" reads the flattened, standardised numbers and trains as in the papers. `shadows` is how many are
    trained once and kept. None streams fresh ones, each seen once, if they train faster than the
    network learns (linear heads), and otherwise keeps 2,000. `width` is the paper's S for pictures, and the size of
    the hidden layers otherwise. Unless `conditional`, it reconstructs one record of a set, of whichever class,
    instead of one for each class. `separation` is the weight of a second objective in strong mode with classes:
    the true positive rate at a false positive rate of 1 %, so that an uncertain reconstruction
    does not resemble every record. None means 0.1 for one record of each class; 0 for several, because fewer would
    come within a loose threshold, which the verdict counts; and 0 for augmented copies, which are not strangers.
    In a run folder, learning resumes after an interruption. `watch` is called with step, error and rate.
    """

    mode: str = "strong"
    steps: int = 600
    batch: int = 128
    width: int = 0  # 0: chosen from the size of the record
    shadows: int | None = None
    learning_rate: float | None = None
    conditional: bool = True
    separation: float | None = None
    watch: Callable[[int, float, float], None] | None = field(default=None, compare=False)
    info: ClassVar[AttackInfo] = AttackInfo(
        "reconstructor",
        "Trains shadow models on its own records, and a network that draws the record from the release.",
        "samples from the population; the training recipe; nothing else, or all other training records",
        "weights, answers or one gradient",
        MACIAZEK_2025.at("§3; Balle et al. 2022, §IV"),
    )

    def __post_init__(self) -> None:
        one_of("mode", self.mode, ("strong", "paper"))
        for name, least in (("steps", 1), ("batch", 2), ("width", 0)):
            whole(name, getattr(self, name), least=least)
        if self.shadows is not None:
            whole("shadows", self.shadows, least=2)
        if self.learning_rate is not None:
            number("learning_rate", self.learning_rate, above=0)
        if self.separation is not None:
            number("separation", self.separation, least=0)

    def check(self, knowledge: Knowledge) -> None:
        """Require releases of a fixed shape, and records to train shadows on."""
        readable = issubclass(knowledge.mechanism.releases, Weights | Logits | Gradient)
        if not readable or not isinstance(knowledge.prior, EmpiricalPrior | StratifiedPrior):
            raise self.refusal(
                got=f"{knowledge.mechanism.releases.sees}; {knowledge.prior.describe()}",
                hint="Game(..., prior=EmpiricalPrior(records) or StratifiedPrior(records), targets=...)",
            )

    def prepare(
        self, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train shadows and networks."""
        return self.learn(knowledge, generator)

    def prepare_on(
        self, run: Run, knowledge: Knowledge, generator: torch.Generator
    ) -> Callable[[Release], Reconstruction]:
        """Train shadows as units of a run, whose folder stores the learning progress."""
        return self.learn(knowledge, generator, run=run)

    def learn(
        self,
        knowledge: Knowledge,
        generator: torch.Generator,
        shadows: Shadows | None = None,
        run: Run = IN_PROCESS,
        *,
        held_out: HeldOut | None = None,
    ) -> Callable[[Release], Reconstruction]:
        """Like `prepare_on`, from trained shadows, with `held_out` ones for validation."""
        assert shadows is None or run.journal is None, "a checkpoint's key does not cover shadows"
        self.check(knowledge)
        ours, aside = split(knowledge) if held_out is None else (knowledge, knowledge)
        farm, stored, belongs_to = ShadowFarm(ours, generator), shadows, ""
        if run.journal is not None:  # a hash of all records takes a while
            belongs_to = self._fingerprint(ours, generator)
        mechanism, prior = ours.mechanism, ours.prior
        streams = isinstance(mechanism, Readable) and mechanism.streams and self.shadows is None
        if stored is None and not streams:
            stored = farm.stored(self.shadows or _STORED, run)
        asked = knowledge.prior if self.conditional and isinstance(knowledge.prior, StratifiedPrior) else None
        trial = held_out or HeldOut.of(aside, generator, 1 if asked is None else len(asked.classes))
        start, strong = None, asked is not None and self.mode == "strong"
        if strong and isinstance(prior, StratifiedPrior) and isinstance(mechanism, Readable):
            blocks = farm.blocks(_FIRST) if stored is None else [stored]
            start = mechanism.first_drawing(prior, blocks, Shadows(trial.tensors, trial.targets))
        keep = {"fingerprint": belongs_to, "checkpoint": run.checkpoint(belongs_to)}
        network = self._learn(farm, stored, trial, start, keep)

        def reconstruct(release: Release) -> Reconstruction:
            drawn = network.draw(network.prepare(release.tensors))
            if asked is None:
                unknown = torch.full(drawn.shape[:2], torch.nan, device=drawn.device)
                return Reconstruction(Records(drawn, unknown))
            labels = asked.classes.expand(len(release), -1)
            records = Records(drawn, labels)
            # Errors relative to these are a better test of membership than the errors themselves.
            public = public_errors(records, asked.records)
            return Reconstruction(records, diagnostics={"class": labels.clone(), "public_error": public})

        return reconstruct

    def _learn(
        self,
        farm: ShadowFarm,
        stored: Shadows | None,
        trial: HeldOut,
        start: Callable[[Tensors], Tensor] | None,
        keep: Mapping[str, Any],
    ) -> ReconstructorNetwork:
        generator, sample = farm.generator, farm.block(_STATISTICS) if stored is None else stored
        seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))

        def built(start: Callable[[Tensors], Tensor] | None) -> ReconstructorNetwork:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return build_network(self, farm.knowledge, sample, start).to(generator.device)

        prior = farm.knowledge.prior
        # The mean of several records of a class is a bad start: a network does better without it.
        alone = isinstance(prior, StratifiedPrior) and prior.places.shape[1] == 1
        network = built(start if alone else None)
        stream = batches(farm, stored, self.batch, network.prepare)
        prepared = network.prepare(trial.tensors)
        separation = self._separation(prior, network)
        unit = network.decoder.unit  # makes errors dimensionless, for the sum with a rate and the softmin

        def draw() -> list[Tensor]:
            shadows = next(stream)
            batch = [shadows.targets.features, *(shadows.tensors[name] for name in prepared)]
            if network.places is None:
                return batch
            asked = torch.randint(
                len(network.places), (len(shadows),), generator=generator, device=generator.device
            )
            return [asked, *batch]

        def loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
            asked, (features, *values) = (None, batch) if network.places is None else (batch[0], batch[1:])
            drawn = model(dict(zip(prepared, values, strict=True)), asked)
            if asked is None:
                return softmin_loss(drawn, features)
            own = network.candidates(features, asked)
            aim = softmin_loss(drawn / unit, own / unit)
            if not separation or len(own) <= _STRANGERS:
                return aim
            others = [network.candidates(features, asked, k + 1) for k in range(_STRANGERS)]
            apart = separation_loss(drawn / unit, own / unit, torch.stack(others) / unit)
            return aim + separation * apart

        learner = Learner(
            steps=self.steps,
            learning_rate=self.learning_rate or network.learning_rate,
            scheduled=self.mode == "strong",
            **keep,
            from_start=network.start is not None,
        )

        def worth(error: float, rate: float) -> float:  # as in the loss, a higher rate may cost some error
            return separation * rate - error / unit**2

        def quality(model: ReconstructorNetwork, step: int) -> tuple[float, str]:
            error, rate = trial.quality(model, prepared)
            if self.watch:
                self.watch(step, error, rate)
            return worth(error, rate), f" (held out: error {error:.4f}, TPR at 1 % FPR {rate:.3f})"

        learnt = learner.fit(network, draw, loss, quality)
        if start is None or network.start is not None:
            return learnt
        reading = built(start).eval()  # its output equals the linear reader's
        read = worth(*trial.quality(reading, reading.prepare(trial.tensors)))
        return reading if read > worth(*trial.quality(learnt, prepared)) else learnt

    def _separation(self, prior: object, network: ReconstructorNetwork) -> float:
        """The weight of the second objective for this network."""
        if self.mode == "paper" or network.places is None or not isinstance(prior, StratifiedPrior):
            return 0.0
        if self.separation is None:  # another copy of the target would count as a stranger
            return 0.1 if network.places.shape[1] == 1 and prior.copies == 1 else 0.0
        return self.separation

    def _fingerprint(self, knowledge: Knowledge, generator: torch.Generator) -> str:
        """The key of a checkpoint: reconstructor, training, records, random draws, device type and code."""
        return fingerprint(self, knowledge, generator, generator.device.type, versions())


def build_network(
    attack: Reconstructor,
    knowledge: Knowledge,
    sample: Shadows,
    start: Callable[[Tensors], Tensor] | None = None,
) -> ReconstructorNetwork:
    """An untrained network whose reader is standardised on some shadows; with a `start`, its initial output is that."""
    prior, mechanism = knowledge.prior, knowledge.mechanism
    assert isinstance(prior, EmpiricalPrior | StratifiedPrior)
    places = None
    if attack.conditional and isinstance(prior, StratifiedPrior):
        places = prior.places.to(prior.records.labels.device)
    reader, strong = None, attack.mode == "strong"
    classes = 0 if places is None else len(places)
    if isinstance(mechanism, Readable):
        reader = mechanism.reader(sample.tensors, prior, classes=classes, strong=strong)
    if reader is None:
        reader = FlatReader(sample.tensors, classes)
    pool = prior.records
    rate = 1e-3 if strong else 2e-4
    # Balle et al. 2022 reconstruct MNIST with a perceptron, and colour pictures with convolutions.
    grey = isinstance(prior, EmpiricalPrior) and len(pool.example_shape) < 3
    if grey or not draws_pictures(pool.example_shape):
        small = not draws_pictures(pool.example_shape)
        rate = 3e-3 if strong and small else rate
        hidden = attack.width or (256 if small else 1000)
        decoder = perceptron(reader.size, (hidden, hidden), pool, strong=strong)
    elif strong:
        decoder = convolutional(reader.size, attack.width or 64, pool, trunk=1024)
    else:
        decoder = convolutional(reader.size, attack.width or 256, pool)
    if start is not None:
        decoder.silence()
    return ReconstructorNetwork(reader, decoder, places, rate, start)
