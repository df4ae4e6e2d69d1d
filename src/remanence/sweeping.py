"""A sweep: the same audit at several settings of the training, so that a setting can be chosen."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from remanence import bounds
from remanence.auditing import AuditResult, announce, audit, compatible_attacks
from remanence.bounds.calibration import noise_for_epsilon
from remanence.core.attack import Attack
from remanence.core.checks import number
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism
from remanence.core.priors import EmpiricalPrior, FinitePrior, Prior
from remanence.core.stratified import StratifiedPrior
from remanence.game import Game
from remanence.heads.ceiling import ASSERTED, head_ceiling
from remanence.heads.head_game import HeadGame
from remanence.heads.transfer_head import TransferHead
from remanence.networks.membership import Membership
from remanence.protocol import AnyGame
from remanence.results.verdict import Policy
from remanence.scale.progress import track
from remanence.scale.run import IN_PROCESS, Run
from remanence.scale.seeds import Draws, stream
from remanence.tables.leave_one_out import LeaveOneOut
from remanence.training.sgd import SGD

_MODELS = 100  # whose accuracy is averaged

Setting = str | int | float | bool | None
Settings = Mapping[str, Setting]

AnyGameT = TypeVar("AnyGameT", bound=AnyGame)
TrainingGameT = TypeVar("TrainingGameT", bound=Game | LeaveOneOut)


@dataclass(frozen=True)
class Point:
    """One audit of a sweep, and what was changed for it."""

    settings: Settings
    result: AuditResult
    note: str = ""
    accuracy: tuple[float, float] | None = (
        None  # of such models on the public records, and twice its standard error
    )

    @property
    def name(self) -> str:
        """For a folder."""
        return "-".join(f"{name}={value}" for name, value in self.settings.items())


def parse_axes(texts: Sequence[str]) -> dict[str, list[Setting]]:
    """Settings and their values from the command line.

    >>> parse_axes(["noise_multiplier=0.5,1", "signs=true"])
    {'noise_multiplier': [0.5, 1], 'signs': [True]}
    """
    axes = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not all(value.strip() for value in values.split(",")):
            raise InputError(
                "The settings to sweep cannot be read.",
                needs="a name, an equals sign, and values with commas between them",
                got=text,
                hint="--set noise_multiplier=0.5,1,2",
            )
        if name in axes:
            raise InputError(
                "A setting was named twice.", needs="each once", got=name, hint="join the values"
            )
        axes[name] = [_value(value.strip()) for value in values.split(",")]
    return axes


def grid(axes: Mapping[str, Sequence[Setting]]) -> list[dict[str, Setting]]:
    """Every combination, the last setting running fastest.

    >>> grid({"steps": [1, 2], "momentum": [0.0]})
    [{'steps': 1, 'momentum': 0.0}, {'steps': 2, 'momentum': 0.0}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def with_settings(game: AnyGameT, settings: Settings) -> tuple[AnyGameT, str]:
    """The same game at other settings, and what had to be dropped.

    Names are those of the mechanism's fields (`noise_multiplier`, `penalty`, `keep`), of the prior's (`counts`,
    `set_size`), or `known_data` and `candidates`, which shorten those lists. For heads `epsilon` sets the noise, with
    δ = N^-1.1 (Maciazek and Allison 2025). A ceiling is computed anew where one is known for such a mechanism.
    """
    if isinstance(game, Membership):
        inner, note = with_settings(game.game, settings)
        return replace(game, game=inner), note
    if isinstance(game, HeadGame) and game.released is None:
        inner, note = with_settings(game.heads, settings)
        return replace(game, heads=inner), note
    if (isinstance(game, LeaveOneOut) and game.release is not None) or not isinstance(
        game, Game | LeaveOneOut
    ):
        raise InputError(
            "This audit looks at a release that exists.",
            needs="a game that trains, so that it can train with other settings",
            got=type(game).__name__,
            hint="LeaveOneOut(mechanism, data) or Game(mechanism, ...) without a release",
        )
    changed = game
    for name, value in sorted(
        settings.items(), key=lambda item: item[0] == "epsilon"
    ):  # whose noise is for the rest
        changed = _with_setting(changed, name, value)
    if isinstance(changed, Game) and isinstance(changed.mechanism, TransferHead):
        own, prior = changed.targets, changed.prior
        ceiling = None
        if isinstance(own, StratifiedPrior) and isinstance(prior, StratifiedPrior):
            said = any(ASSERTED in bound.assumptions for bound in game.bounds)
            ceiling = head_ceiling(changed.mechanism, own, prior, changed.criterion, independent=said)
        return replace(changed, bounds=() if ceiling is None else (ceiling,)), ""
    if not game.bounds:
        return changed, ""
    try:
        return replace(changed, bounds=(bounds.of(changed.mechanism, changed.baseline().value),)), ""
    except InputError as error:
        return replace(changed, bounds=()), f"no ceiling: {error.summary}"


def sweep(
    game: AnyGame,
    axes: Mapping[str, Sequence[Setting]],
    attacks: Sequence[Attack] | None = None,
    *,
    policy: Policy | None = None,
    trials: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    run: Run = IN_PROCESS,
) -> list[Point]:
    """Audit at every combination of settings. Each result's intervals hold at 95 % for itself, not for all together."""
    games = [(settings, *with_settings(game, settings)) for settings in grid(axes)]
    for _, changed, _ in games:
        announce(changed, attacks or compatible_attacks(changed), trials, Draws(seed, device), run)
    points = []
    for settings, changed, note in track(games, total=len(games), what="sweeping"):
        result = audit(changed, attacks, policy=policy, trials=trials, seed=seed, device=device, run=run)
        points.append(Point(settings, result, note, _accuracy(changed, seed)))
    return points


def _accuracy(game: AnyGame, seed: int) -> tuple[float, float] | None:
    """The mean accuracy of models on records that they were not trained on: those that the adversary holds."""
    if isinstance(game, HeadGame):
        return _accuracy(game.heads, seed)
    if not isinstance(game, Game) or not isinstance(game.mechanism, TransferHead | SGD):
        return None
    prior, targets = game.prior, game.targets
    if not isinstance(prior, EmpiricalPrior | StratifiedPrior) or targets is None:
        return None
    generator = stream(seed, "accuracy", "cpu")
    release = game.mechanism.release(game.known_data, targets.sample(_MODELS, generator), generator)
    if isinstance(game.mechanism, TransferHead):
        shares = game.mechanism.accuracy(release, prior.records).double()
    else:
        answers = game.mechanism.answer(release, prior.records)
        found = answers.argmax(2) if answers.shape[2] > 1 else answers[..., 0] > 0
        shares = (found == prior.records.labels).double().mean(1)
    return float(shares.mean()), 2 * float(shares.std()) / _MODELS**0.5


def _value(text: str) -> Setting:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, int | float | bool) or found is None else text


def _with_setting(game: TrainingGameT, name: str, value: Setting) -> TrainingGameT:
    mechanism: Any = game.mechanism
    if name == "epsilon" and isinstance(game, Game) and isinstance(mechanism, TransferHead):
        return replace(game, mechanism=_with_epsilon(mechanism, game.targets, value))
    if name in _fields(mechanism):
        return replace(game, mechanism=replace(mechanism, **{name: _fitting(mechanism, name, value)}))
    if isinstance(game, Game):
        if name == "known_data" and game.known_data is not None:
            return replace(game, known_data=game.known_data[: _count(name, value, len(game.known_data))])
        if name == "candidates" and isinstance(game.prior, FinitePrior):
            count = _count(name, value, len(game.prior.candidates))
            return replace(game, prior=FinitePrior(game.prior.candidates[:count], game.prior.weights[:count]))
        if name in _fields(game.prior):
            sources = {"prior": game.prior, "targets": game.targets, "strangers": game.strangers}
            having = {key: source for key, source in sources.items() if name in _fields(source)}
            return replace(
                game, **{k: replace(s, **{name: _fitting(s, name, value)}) for k, s in having.items()}
            )
    raise InputError(
        f"The training has no setting named {name!r}.",
        needs=f"one of {', '.join([*_fields(mechanism), *_fields(getattr(game, 'prior', None))])}; known_data or "
        "candidates; epsilon for transfer-learned heads",
        got=name,
        hint="`remanence audit TARGET` prints the settings of its training",
    )


def _with_epsilon(head: TransferHead, targets: Prior | None, value: Setting) -> TransferHead:
    """The same recipe with noise for (ε, N^-1.1); with none for an ε of None."""
    if value is None:
        return replace(head, noise_multiplier=None)
    value = number("epsilon", value, above=0, hint="10")
    if not isinstance(targets, StratifiedPrior):
        raise InputError(
            "epsilon has no δ here.",
            needs="targets of a StratifiedPrior, whose number of records N gives δ = N^-1.1",
            got=type(targets).__name__,
            hint="--set noise_multiplier=...",
        )
    noise = noise_for_epsilon(
        float(value), delta=targets.set_size**-1.1, sample_rate=head.sample_rate, steps=head.steps
    )
    return replace(head, noise_multiplier=noise)


def _fields(value: Mechanism | Prior | None) -> list[str]:
    """The settings of a mechanism or a prior that a number or a word can set."""
    if not dataclasses.is_dataclass(value):
        return []
    plain = (str, int, float, bool, type(None))
    return [
        field.name for field in dataclasses.fields(value) if isinstance(getattr(value, field.name), plain)
    ]


def _fitting(owner: Any, name: str, value: Setting) -> Setting:
    """The value as the kind of number that stood there before."""
    before = getattr(owner, name)
    fits = (
        before is None
        or value is None
        or isinstance(value, type(before))
        or (isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool))
    )
    if not fits or (isinstance(value, bool) and not isinstance(before, bool | None)):
        raise InputError(
            f"{name} cannot be {value!r}.",
            needs=f"a value like {before!r}",
            got=repr(value),
            hint=f"--set {name}={before}",
        )
    return float(value) if isinstance(before, float) and isinstance(value, int) else value


def _count(name: str, value: Setting, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InputError(
            f"{name} cannot be {value!r}.",
            needs=f"a whole number from 1 to {most}, which the game has",
            got=repr(value),
            hint=f"--set {name}={most}",
        )
    return value
