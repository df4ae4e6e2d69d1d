"""The game of a head audit: heads made like this on your pictures and, where one is handed in, this very head."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from remanence.bounds.bound import Bound
from remanence.core.attack import Attack
from remanence.core.baseline import Baseline
from remanence.core.checks import number, whole
from remanence.core.distances import nearest_neighbour_errors
from remanence.core.errors import Criterion, Error, Reduction, mean_squared_error
from remanence.core.exceptions import InputError
from remanence.core.knowledge import Knowledge
from remanence.core.mechanism import Mechanism
from remanence.core.records import Records
from remanence.core.releases import Release, Weights
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.belonging import Fit, fit, likelier
from remanence.heads.ceiling import head_ceiling
from remanence.heads.class_sizes import infer_class_sizes
from remanence.heads.companion import GIVEN, with_embeddings_given
from remanence.heads.head import Head
from remanence.heads.linear_reader import LinearReader
from remanence.heads.pictures import check_kinds, prepared_pictures
from remanence.heads.reading import HeadWeights, read_head
from remanence.heads.this_head import ThisHead
from remanence.protocol import AnyGame, Companion, Prepared, Unit, Work
from remanence.reconstructor.attack import Reconstructor
from remanence.results.caveats import Caveat
from remanence.results.findings import Finding, Words
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.seeds import Draws, stream

HEADS = 100  # that are made anew and attacked


@final
@dataclass(frozen=True)
class HeadAudit:
    """How heads are audited: what counts as recovered, what the adversary is told, and how much is run.

    A reconstruction succeeds below the nearest-neighbour `threshold`: where it is closer than the adversary's closest
    picture usually is to yours (or to other public ones, if that is farther), by mean squared error or another
    `error`. With `per_class`, heads are trained on that many of your pictures of each class instead of all. Public
    pictures that `augment(..., copies)` made are that many `copies` of the same ones. Without `sizes_known` the
    adversary has to infer from a head how many pictures of each class there were. `independent` is your word that the
    pictures of a class do not depend on each other, which makes the ceiling of a private head lower. `limit` is the
    largest success that you tolerate: by default what a guess is known to achieve and a tenth of the rest.
    """

    error: Error = mean_squared_error
    threshold: float | None = None
    per_class: int | None = None
    copies: int = 1
    sizes_known: bool = True
    independent: bool = False
    limit: float | None = None
    attacks: Sequence[Attack] | None = None  # None: the linear reader, and a network that starts from it
    trials: int = HEADS
    seed: int = 0
    device: torch.device | str = "cpu"
    target: str = "head"

    def __post_init__(self) -> None:
        if not isinstance(self.error, Error):
            got = type(self.error).__name__
            raise InputError(
                "The error cannot be used.", needs="an Error", got=got, hint="remanence.mean_squared_error"
            )
        if self.attacks is not None and not isinstance(self.attacks, list | tuple):
            got = type(self.attacks).__name__
            raise InputError("The attacks cannot be used.", needs="a list of them", got=got, hint="[attack]")
        if self.per_class is not None:
            whole("per_class", self.per_class)
        if self.threshold is not None:
            number("threshold", self.threshold, least=0)


Heads = Game[Head, StratifiedPrior]


@final
@dataclass(frozen=True)
class HeadGame(AnyGame):
    """Heads made like this, on your pictures; and this very head, where there is one.

    `heads` plays the trials. What is drawn from the `released` head is held against your pictures, class by class,
    and against public ones that nothing was learned from.
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

    @classmethod
    def of(cls, heads: Heads, released: Weights | None = None) -> HeadGame:
        """See how the released head compares with heads that are made anew by the recipe from the same pictures."""
        if released is None:
            return cls(heads)
        own, prior = heads.source, heads.prior
        generator = stream(0, "made anew", own.records.features.device)
        return cls(heads, released, fit(heads.mechanism, own.records, prior.records, released, generator))

    def fits(self) -> None:
        """Refuse a head that was not made by the recipe from these pictures."""
        if self.released is None or self.fit is None or self.fit.belongs:
            return
        recipe, own, prior = self.heads.mechanism, self.heads.source, self.heads.prior
        generator = stream(0, "made otherwise", own.records.features.device)
        instead = likelier(recipe, own.records, prior.records, self.released, generator)
        raise self.fit.refusal(recipe, instead)

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
        return HeadGame(
            self.heads.to(device), None if self.released is None else self.released.to(device), self.fit
        )

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """As in the game within; from a released head, one picture of each class must be drawn."""
        if self.released is not None and isinstance(attack, Reconstructor):
            _require_one_guess(attack)
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
        """Drawings of pictures, one for each class of each head."""
        less = "Train on more pictures of each class, or release answers instead of the head."
        return Words("matched a training picture with", "reconstructions", less=less)

    def findings(self, outcome: Outcome, confidence: float) -> Sequence[Finding]:
        """What came back out of the very head that was handed in."""
        return (ThisHead(**outcome.once),) if outcome.once else ()

    def limit(self) -> Policy:
        """What a guess is known to achieve, and a tenth of the rest."""
        guess = self.baseline().lower
        return Policy(guess + 0.1 * (1 - guess), set_by="default")

    def companions(self) -> Sequence[Companion]:
        """The linear reader, given the true embeddings: what the backbone leaves of the pictures."""
        return (Companion(GIVEN, with_embeddings_given(self.heads), LinearReader()),)

    def _this_head(self, prepared: Prepared, draws: Draws, unit: Unit) -> ThisHead:
        assert self.released is not None
        assert self.fit is not None
        own, strangers, prior = self.heads.source, self.heads.strangers, self.heads.prior
        assert strangers is not None
        guesses = prepared.for_unit(draws, unit)(_single(self.released)).records[0]  # (classes,)
        if len(guesses) != len(prior.classes):
            raise _no_picture_of_each_class(f"{len(guesses)} guesses for a head")
        rows = []
        for index, label in enumerate(guesses.labels.tolist()):
            guess = guesses[index : index + 1]
            mine = (own.records.labels == label).nonzero().squeeze(1)
            errors = self.criterion.error(own.records[mine], guess)
            others = self.criterion.error(strangers.records[strangers.records.labels == label], guess)
            best = errors.min()
            rows.append(
                (
                    label,
                    int(mine[errors.argmin()]),
                    float(best),
                    int((others <= best).sum()),
                    len(others),
                    len(mine),
                )
            )
        label, picture, error, as_close, public, mine = (
            torch.tensor(column) for column in zip(*rows, strict=True)
        )
        threshold, p_value = (
            torch.tensor(value, dtype=torch.float64) for value in (self.criterion.threshold, self.fit.p_value)
        )
        power = self.fit.power
        others = torch.tensor([0, 0] if power is None else [power.successes, power.trials])
        return ThisHead(label, picture, error.double(), as_close, public, mine, threshold, p_value, others)


def _require_one_guess(attack: Reconstructor) -> None:
    """Refuse, before it learns to draw something else, what does not draw one picture of each class."""
    if attack.guesses > 1 or not attack.conditional:
        raise _no_picture_of_each_class(f"guesses={attack.guesses}, conditional={attack.conditional}")


def _no_picture_of_each_class(got: str) -> InputError:
    return InputError(
        "This attack does not draw a picture of each class.",
        needs="one guess for each class of the released head",
        got=got,
        hint="Reconstructor(conditional=True, guesses=1)",
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
    check_kinds(backbone_or_features, recipe, prior)
    per_class = settings.per_class
    if released is not None and per_class is not None:
        raise InputError(
            "A released head was trained on all of your pictures.",
            needs="`released`, or `per_class` for heads on some of them",
            got="both",
            hint="leave per_class out",
        )
    own, adversary, controls = prepared_pictures(backbone_or_features, images, labels, prior, settings)
    counts = torch.unique(labels, return_counts=True)[1]
    sizes = tuple(counts.tolist()) if per_class is None else per_class
    # Not from your pictures alone: those that a guess is likely to meet lie close to others, and would lower it.
    error, threshold = settings.error, settings.threshold
    usual = max(float(nearest_neighbour_errors(each, adversary, error).mean()) for each in (own, controls))
    criterion = Criterion(error, usual if threshold is None else threshold, Reduction.CLASS)
    targets, prior_sets = StratifiedPrior(own, sizes), StratifiedPrior(adversary, sizes, settings.copies)
    ceiling = head_ceiling(recipe, targets, prior_sets, criterion, independent=settings.independent)
    head = None if released is None else read_head(released, recipe, recipe.inputs_of(own).shape[-1])
    if not settings.sizes_known:
        prior_sets = _inferred(recipe, targets, prior_sets, head, settings.seed)
    heads = Game(
        recipe,
        prior_sets,
        None,
        criterion,
        targets=targets,
        bounds=() if ceiling is None else (ceiling,),
        strangers=StratifiedPrior(controls, sizes),
    )
    return HeadGame.of(heads, None if head is None else head.to(own.features.device))


def _inferred(
    recipe: Head, own: StratifiedPrior, public: StratifiedPrior, head: Weights | None, seed: int
) -> StratifiedPrior:
    """What the adversary believes who has to read the sizes of the classes off a head."""
    generator = stream(seed, "sizes", "cpu")
    seen = recipe.release(None, own.sample(1, generator), generator) if head is None else _single(head)
    largest = min(8, *(size for size, _ in public.sizes))
    sizes = infer_class_sizes(seen, recipe, public.records, generator, largest=largest)[0]
    return replace(public, counts=tuple(sizes.tolist()))


def _single(head: Weights) -> Weights:
    """In the precision that attacks read."""
    return Weights({name: values.float() for name, values in head.tensors.items()})
