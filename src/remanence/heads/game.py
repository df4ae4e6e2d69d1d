"""The game of a head audit: heads made like this on your pictures and, where one is handed in, this very head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.auditing import AuditResult, audit
from remanence.bounds.bound import Bound
from remanence.bounds.of_mechanism import of_classes
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.checks import instance
from remanence.core.distances import nearest_neighbour_errors
from remanence.core.errors import Criterion, Error, Reduction, mean_squared_error
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.rates import CONFIDENCE, SuccessRate
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.belonging import Fit, fit, likelier
from remanence.heads.head import GivenEmbeddings, Head
from remanence.heads.linear_reader import LinearReader
from remanence.heads.pictures import prepared_pictures
from remanence.heads.reading import HeadWeights, read_head
from remanence.heads.this_head import PictureExposure, ThisHead
from remanence.protocol import AnyGame, Companion, Prepared, Unit, Work
from remanence.reconstructor.attack import Reconstructor
from remanence.results.caveats import Caveat
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.seeds import Draws, stream

HEADS = 100  # that are made anew and attacked
GIVEN = "linear-reader, given the true features"  # its name among the companions of a result


@final
@dataclass(frozen=True)
class HeadAudit:
    """How heads are audited: what counts as recovered, what the adversary is told, and how much is run.

    A reconstruction succeeds below the nearest-neighbour `threshold`: where it is closer than the adversary's closest
    picture usually is to yours (or to other public ones, if that is farther), by mean squared error or another
    `error`. `limit` is the largest success that you tolerate: by default what a guess is known to achieve and a tenth
    of the rest.
    """

    error: Error = mean_squared_error
    threshold: float | None = None
    limit: float | None = None
    attacks: Sequence[Attack] | None = None  # None: the linear reader, and a network that starts from it
    trials: int = HEADS
    seed: int = 0
    device: torch.device | str = "cpu"
    target: str = "head"

    def __post_init__(self) -> None:
        instance("error", self.error, Error, "an Error", "remanence.mean_squared_error")


Heads = Game[Head, StratifiedPrior]


@final
@dataclass(frozen=True)
class HeadGame(AnyGame):
    """Heads made like this, on your pictures; and this very head, where there is one.

    `heads` plays the trials. What is drawn from the `released` head is compared with your pictures, class by class,
    and with public ones that nothing was learned from.
    """

    door: ClassVar[str] = "heads"
    default_trials = HEADS

    heads: Heads
    released: Weights | None = None
    fit: Fit | None = None
    mechanism: Mechanism[Release] = field(init=False, repr=False)
    criterion: Criterion = field(init=False, repr=False)
    bounds: tuple[Bound, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("mechanism", "criterion", "bounds"):
            object.__setattr__(self, name, getattr(self.heads, name))
        if self.released is not None and self.fit is None:
            recipe, own, public = self._made_from
            generator = stream(0, "made anew", own.features.device)
            object.__setattr__(self, "fit", fit(recipe, own, public, self.released, generator))

    @property
    def _made_from(self) -> tuple[Head, Records, Records]:
        """The recipe, your pictures and the public ones."""
        return self.heads.mechanism, self.heads.source.records, self.heads.prior.records

    def fits(self) -> None:
        """Refuse a head that was not made by the recipe from these pictures."""
        if self.released is None or self.fit is None or self.fit.belongs:
            return
        recipe, own, public = self._made_from
        generator = stream(0, "made otherwise", own.features.device)
        raise self.fit.refusal(recipe, likelier(recipe, own, public, self.released, generator))

    @property
    def knowledge(self) -> Knowledge:
        """The recipe, and public pictures."""
        return self.heads.knowledge

    def baseline(self, chances: int = 1) -> Baseline:
        """What a guess without the head achieves."""
        return self.heads.baseline(chances)

    def caveats(self) -> Iterable[Caveat]:
        """Those of heads made like this."""
        return self.heads.caveats()

    def fingerprints(self) -> dict[str, str]:
        """Hashes of the pictures, and of the head."""
        head = {} if self.released is None else {"released": self.released.sha256()}
        return {**self.heads.fingerprints(), **head}

    def to(self, device: torch.device | str) -> HeadGame:
        """The same game on another device."""
        return replace(super().to(device), heads=self.heads.to(device))

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """As in the game within; from a released head, one picture of each class must be drawn."""
        if self.released is not None and isinstance(attack, Reconstructor) and not attack.conditional:
            raise _no_picture_of_each_class("conditional=False")
        within = self.heads.work(attack, trials, draws)
        return replace(within, depends_on=(*within.depends_on, self.released))

    def trials(self, prepared: Prepared, draws: Draws, unit: Unit) -> Outcome:
        """Heads made like this; with the first of them, this very head."""
        outcome = self.heads.trials(prepared, draws, unit)
        if self.released is None or unit.number:
            return outcome
        return replace(outcome, once=self._this_head(prepared, draws, unit).tensors())

    @property
    def words(self) -> Words:
        """Reconstructions of pictures, one for each class of each head."""
        less = "Train on more pictures of each class, or release answers instead of the head."
        counts = (
            "A reconstruction counts if it is within the threshold of a training picture: by default, closer than the "
            "closest public picture usually is."
        )
        return Words("matched a training picture with", "reconstructions", counts=counts, less=less)

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """What came back out of the very head that was handed in."""
        return (ThisHead(**outcome.once),) if outcome.once else ()

    def limit(self) -> Policy:
        """What a guess is known to achieve, and a tenth of the rest."""
        guess = self.baseline().lower
        return Policy(guess + 0.1 * (1 - guess), set_by="default")

    def companions(self) -> Sequence[Companion]:
        """The linear reader, given the true embeddings: what the backbone leaves of the pictures."""
        first = tuple((int(row[0]),) for row in self.heads.prior.places)
        given = replace(self.heads, mechanism=GivenEmbeddings(first), bounds=())
        return (Companion(GIVEN, given, LinearReader()),)

    def _this_head(self, prepared: Prepared, draws: Draws, unit: Unit) -> ThisHead:
        assert self.released is not None
        assert self.fit is not None
        own, strangers, prior = self.heads.source, self.heads.strangers, self.heads.prior
        assert strangers is not None
        single = Weights({name: values.float() for name, values in self.released.tensors.items()})
        guesses = prepared.for_unit(draws, unit)(single).records[0]  # (classes,)
        if len(guesses) != len(prior.classes):
            raise _no_picture_of_each_class(f"{len(guesses)} guesses for a head")
        rows = []
        for guess in guesses.split(1):
            mine, others = (each.records.labels == guess.labels for each in (own, strangers))
            errors = self.criterion.error(own.records[mine], guess)
            best, place = errors.min(0)
            as_close = self.criterion.error(strangers.records[others], guess) <= best
            found = guess.labels, mine.nonzero()[place], best, as_close.sum(), others.sum(), mine.sum()
            rows.append([float(value) for value in found])
        power = self.fit.power or SuccessRate(0, 0)
        return ThisHead(
            torch.tensor(rows, dtype=torch.float64),
            torch.tensor(self.criterion.threshold, dtype=torch.float64),
            torch.tensor(self.fit.p_value, dtype=torch.float64),
            torch.tensor([power.successes, power.trials]),
        )


def _no_picture_of_each_class(got: str) -> InputError:
    return InputError(
        "This attack does not draw a picture of each class.",
        needs="one guess for each class of the released head",
        got=got,
        hint="Reconstructor(conditional=True)",
    )


def head_game(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    recipe: Head,
    *,
    prior: Records,
    released: HeadWeights | None = None,
    settings: HeadAudit | None = None,
) -> HeadGame:
    """The game that `audit_head` plays, for `remanence audit file.py:factory`."""
    settings = settings or HeadAudit()
    features = "a module, or a tensor of features"
    instance("backbone", backbone_or_features, (nn.Module, Tensor), features, "nn.Sequential(...)")
    instance("recipe", recipe, Head, "a TransferHead, or an OwnHead", "TransferHead(classes=10, epochs=30)")
    instance("prior", prior, Records, "Records of public pictures", "Records(pictures, labels)")
    own, adversary, controls = prepared_pictures(backbone_or_features, images, labels, prior)
    sizes = tuple(torch.unique(labels, return_counts=True)[1].tolist())
    # Not from your pictures alone: those that a guess is likely to meet lie close to others, and would lower it.
    error, threshold = settings.error, settings.threshold
    usual = max(float(nearest_neighbour_errors(each, adversary, error).mean()) for each in (own, controls))
    criterion = Criterion(error, usual if threshold is None else threshold, Reduction.CLASS)
    targets, prior_sets = StratifiedPrior(own, sizes), StratifiedPrior(adversary, sizes)
    ceiling = head_ceiling(recipe, targets, prior_sets, criterion)
    head = None if released is None else read_head(released, recipe, recipe.inputs_of(own).shape[-1])
    heads = Game(
        recipe,
        prior_sets,
        None,
        criterion,
        targets=targets,
        bounds=() if ceiling is None else (ceiling,),
        strangers=StratifiedPrior(controls, sizes),
    )
    return HeadGame(heads, None if head is None else head.to(own.features.device))


def audit_head(
    backbone_or_features: nn.Module | Tensor,
    images: Tensor,
    labels: Tensor,
    recipe: Head,
    *,
    prior: Records,
    released: HeadWeights | None = None,
    settings: HeadAudit | None = None,
) -> AuditResult:
    """Attack heads that are trained by your recipe on your pictures; the adversary holds only pictures like them.

    `prior` are public pictures of the same kind with their labels, which the adversary trains on. Give the backbone,
    or the features of your pictures and a `prior` that has its own as `embedding`. Every trial trains a new head, with
    fresh initial weights, on all of your pictures. The control compares what comes out of heads on public pictures
    with yours. The linear reader attacks first, and then a network that starts from it.

    `released` is the head that you are about to publish: its module, its state dict or a file of it. The recipe
    trains new heads, and if this one does not match them (`MisfitError`) there is no verdict. Otherwise there are two
    answers: how often pictures come back out of heads made like this (the rates), and which pictures come back out of
    this head (`exposed_pictures(result)`), each with its own test against public ones. The verdict is EXPOSED if
    either is. Every rate is shown next to that of the linear reader given the true features: the head protects the
    difference, and the backbone the rest. A recipe with a `noise_multiplier` comes with a ceiling that is proven on
    average over pictures; it never makes a verdict PROTECTED.
    """
    settings = settings or HeadAudit()
    game = head_game(
        backbone_or_features, images, labels, recipe, prior=prior, released=released, settings=settings
    )
    return audit(
        game,
        settings.attacks,
        policy=None if settings.limit is None else Policy(settings.limit),
        trials=settings.trials,
        seed=settings.seed,
        device=settings.device,
        target=settings.target,
    )


def exposed_pictures(result: AuditResult) -> list[PictureExposure]:
    """What came back out of the released head, the closest first; empty if none was given.

    By the attack that does best on heads made like it. The chances assume that your pictures and the public ones are
    draws of one kind.
    """
    heads = [each for each in result.strongest.findings if isinstance(each, ThisHead)]
    return heads[0].pictures() if heads else []


def head_ceiling(
    recipe: Head, own: StratifiedPrior, public: StratifiedPrior, criterion: Criterion
) -> Bound | None:
    """The proven success of one guess per class against heads with DP-SGD; None without noise.

    What a guess achieves is estimated from the public pictures. The pictures of a class may depend on each other.
    """
    if not recipe.noise_multiplier:
        return None
    classes = own.present
    guesses = public.class_baselines(criterion, [label for label, _ in classes])
    shares, counts = [guess.value for guess in guesses], [count for _, count in classes]
    longest = max(float(recipe.inputs_of(each.records).norm(dim=-1).max()) for each in (own, public))
    bound = of_classes(recipe, shares, counts, feature_norm=longest)
    confidence = f"what a guess achieves is at most what {CONFIDENCE:.0%} confidence allows"
    return replace(bound, assumptions=(*bound.assumptions, confidence))


def what_the_head_withholds(result: AuditResult) -> str:
    """Does the head protect, or the backbone? In a sentence, by the linear reader where it played.

    A share is given only where the reader certainly does better on these heads than on heads of strangers.
    """
    given = next(each for each in result.companions if each.attack == GIVEN).main
    told = (
        f"Given the true features, the linear reader matches a picture {1000 * given.rate:.0f} times in 1000"
    )
    found = next((each for each in result.evidence if each.attack == LinearReader.info.name), None)
    if found is None:
        return f"{told}. It did not play against heads, so nothing is known about what the heads withhold."
    from_heads = f"{told}, and from heads made like this in {found.main}."
    if not found.tells or not given.rate:
        return f"{from_heads} That is not certainly more than without your pictures, so it gives no share."
    share = min(1.0, found.main.rate / given.rate)
    return f"{from_heads} By that attack, the head gives away {share:.0%} of what the backbone leaves of the pictures."
