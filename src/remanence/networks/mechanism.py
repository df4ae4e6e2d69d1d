"""A user's own training function, one model at a time; and the outputs of a trained model behind an API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.checks import instance, one_of, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records, concatenate
from remanence.core.releases import Logits, Release, Weights
from remanence.training.own import call_own, name_of, shown_as, train_each

Train = Callable[[Records, int], Mapping[str, Tensor]]
Ask = Callable[[Mapping[str, Tensor], Records], Tensor]
ANSWERS = "logits", "probabilities", "top", "label"
_MOST_DECIMALS = 15  # the precision of a double


@final
@dataclass(frozen=True)
class Looped(Mechanism[Release]):
    """Calls `train(records, seed)` once per trial, in parallel processes if asked to."""

    train: Train
    release_type: type[Release] = Weights
    processes: int = 1
    ask: Ask | None = None
    name: ClassVar[str] = "own training function"

    @property
    def releases(self) -> type[Release]:
        """The type of release that the adversary sees."""
        return self.release_type

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train once per trial."""

        def given(trial: int) -> tuple[Records]:
            return (targets[trial] if known_data is None else concatenate([known_data, targets[trial]]),)

        parts = train_each(self.train, given, len(targets), generator, self.processes)
        return self.release_type({name: torch.stack([part[name] for part in parts]) for name in parts[0]})

    def answer(self, release: Release, records: Records) -> Tensor:
        """Query the models one at a time."""
        ask, logits = self.require_ask(), []
        for trial in range(len(release)):
            found = call_own(ask, {name: tensor[trial] for name, tensor in release.tensors.items()}, records)
            if not _is_logits(found, len(records), logits[0].shape[1] if logits else None):
                raise InputError(
                    "The function that asks a model returned something that is not logits.",
                    needs=f"a tensor of floating-point numbers, ({len(records)} probes, classes)",
                    got=f"{name_of(ask)} returned {shown_as(found)}",
                    hint="return model(probes.features)",
                )
            logits.append(found.detach())
        return torch.stack(logits)

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse queries if no `ask` function was given."""
        self.require_ask()

    def require_ask(self) -> Ask:
        """The function that queries a model; refuse if there is none."""
        if self.ask is None:
            raise InputError(
                "This training function's models cannot be queried.",
                needs="a function from what training returned, and probes, to logits",
                got=f"{name_of(self.train)} alone",
                hint="looped(train, ask=logits), where logits(tensors, probes) is of shape (probes, classes)",
            )
        return self.ask

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"train": name_of(self.train)}
        return shown if self.ask is None else {**shown, "ask": name_of(self.ask)}


def looped(
    train: Train, *, ask: Ask | None = None, releases: type[Release] = Weights, processes: int = 1
) -> Looped:
    """Wrap a function that trains one model: `train(records, seed)` returns named tensors.

    >>> def mean(records, seed):
    ...     return {"mean": records.features.mean(0)}
    >>> known = Records(torch.zeros(3, 2), torch.zeros(3))
    >>> targets = Records(torch.full((5, 1, 2), 4.0), torch.zeros(5, 1))
    >>> looped(mean).release(known, targets, torch.Generator())["mean"][0]
    tensor([1., 1.])

    If only outputs are published, `ask(tensors, probes)` gives the logits of one trained model, `(probes, classes)`,
    and `Queried` releases them as the API does.

    >>> from remanence import Queried
    >>> def logits(tensors, probes):
    ...     return probes.features - tensors["mean"]
    >>> probes = Records(torch.tensor([[2.0, 1.0]]), torch.zeros(1))
    >>> api = Queried(looped(mean, ask=logits), probes, answers="probabilities", decimals=2)
    >>> api.release(known, targets, torch.Generator())["answers"][0]
    tensor([[0.7300, 0.2700]])

    A function that returns a model's outputs instead of its weights needs `releases=Logits` and no `ask`.
    """
    return Looped(train, releases, processes, ask)


def _is_logits(found: object, records: int, classes: int | None) -> bool:
    if not isinstance(found, Tensor) or not found.is_floating_point() or found.ndim != 2:
        return False
    return found.shape == (records, classes or max(1, found.shape[1]))


@final
@dataclass(frozen=True)
class Queried(Mechanism[Logits]):
    """Trains like another mechanism, and releases only its outputs on `probes` (Balle et al. 2022, §VI-C).

    `answers` is "logits", "probabilities", "top" (the `top` most probable classes with their probabilities, the
    rest withheld) or "label" (the most probable class alone). Numbers are rounded to `decimals`; None means no
    rounding, except that "top" is then rounded to two. A top answer gives the returned classes (`returned`) along
    with the probabilities (`answers`), since a small probability may be rounded to 0.
    Your own training function can be queried too: `looped(train, ask=...)`.
    """

    mechanism: Mechanism[Release]
    probes: Records  # (probes,)
    answers: str = "logits"
    top: int = 3
    decimals: int | None = None
    name: ClassVar[str] = "queries to a trained model"

    def __post_init__(self) -> None:
        one_of("answers", self.answers, ANSWERS)
        whole("top", self.top)
        if self.decimals is not None:
            whole("decimals", self.decimals, least=0, most=_MOST_DECIMALS, hint="decimals=2, or None")
        instance("probes", self.probes, Records, "Records", "Records(inputs, torch.zeros(len(inputs)))")
        if len(self.probes.batch_shape) != 1 or not len(self.probes):
            raise InputError(
                "There are no probes.",
                needs="at least one probe, in a batch (probes,)",
                got=f"probes of batch {self.probes.batch_shape}",
                hint="known_data[:20], or public records of the same kind",
            )
        probes = self._unlabelled()
        probes.require_finite("probes")
        self.mechanism.check_probes(probes)

    def _unlabelled(self) -> Records:
        """The probes without labels, which a model does not need."""
        return Records(self.probes.features, torch.zeros(len(self.probes)), embedding=self.probes.embedding)

    @property
    def releases(self) -> type[Logits]:
        """The outputs."""
        return Logits

    @property
    def _decimals(self) -> int | None:
        return 2 if self.decimals is None and self.answers == "top" else self.decimals

    def settings(self) -> dict[str, Setting]:
        """What a report prints about the training."""
        shown: dict[str, Setting] = {"answers": self.answers, "probes": len(self.probes)}
        if self.answers == "top":
            shown["top"] = self.top
        if self._decimals is not None:
            shown["decimals"] = self._decimals
        return {"training": self.mechanism.name, **self.mechanism.settings(), **shown}

    def trials_at_once(self, targets: Records) -> int:
        """As many as the inner mechanism allows."""
        return self.mechanism.trials_at_once(targets)

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Logits:
        """Train, query, and discard the model."""
        self.mechanism.check_probes(self.probes, targets)
        return self.ask(self.mechanism.release(known_data, targets, generator))

    def ask(self, trained: Release) -> Logits:
        """The outputs of trained models."""
        device = next(iter(trained.tensors.values())).device
        logits = self.mechanism.answer(trained, self._unlabelled().to(device))
        if self.answers == "logits":
            return Logits({"answers": self._rounded(logits)})
        if logits.shape[-1] == 1:  # a logistic unit: the second of two classes
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        shares = self._rounded(logits.softmax(-1))
        if self.answers == "probabilities":
            return Logits({"answers": shares})
        count, classes = 1 if self.answers == "label" else self.top, logits.shape[-1]
        whole("top", count, most=classes, hint=f"top={classes}, or answers='probabilities'")
        returned = torch.zeros_like(logits).scatter_(-1, logits.topk(count, -1).indices, 1.0)
        if self.answers == "label":
            return Logits({"answers": returned})
        return Logits({"answers": shares * returned, "returned": returned})

    def _rounded(self, values: Tensor) -> Tensor:
        if self._decimals is None:
            return values
        return ((values.double() * 10**self._decimals).round() / 10**self._decimals).to(values)
