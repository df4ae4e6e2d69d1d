"""Updates of a transformer that exist: a text counts if the update can be recomputed from it and its companions."""

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
from remanence.attacks.gradients.text_decay import without_decay
from remanence.attacks.gradients.text_models import text_model
from remanence.attacks.gradients.token_spans import TokenSpans, rows_that_moved
from remanence.auditing import AuditResult, audit
from remanence.bounds.bound import Bound
from remanence.data.records import Records
from remanence.data.releases import Gradient
from remanence.exceptions import InputError
from remanence.games.gradients.captured import require_finite, shuffled
from remanence.games.gradients.texts import Texts, verify_texts
from remanence.mechanisms.shared_gradient import SharedGradient
from remanence.protocol import AnyGame, Unit, Work
from remanence.results.caveats import ONE_RELEASE, UPDATE_CROWDED, Caveat
from remanence.results.outcome import Outcome
from remanence.results.verdict import Policy
from remanence.scale.run import Run
from remanence.scale.seeds import Draws
from remanence.scoring.errors import Comparison, Criterion, Reduction

Reconstruct = Callable[[Gradient], Reconstruction]


@final
@dataclass(frozen=True)
class CapturedTexts(AnyGame[SharedGradient]):
    """One or more updates of a transformer. Each is a trial, and succeeds if all its texts are proven.

    The number of texts is proven along with them, so that no rate is divided by an unknown one. The control is the same
    attack on the same update with the entries of every tensor shuffled.
    """

    said: ClassVar[tuple[str, str]] = ("recovered", "texts")

    mechanism: SharedGradient
    gradients: Gradient
    criterion: Criterion = Criterion(reduction=Reduction.EACH)
    bounds: tuple[Bound, ...] = ()
    default_trials: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "default_trials", len(self.gradients))

    @property
    def knowledge(self) -> Knowledge:
        """The adversary knows the model and nothing else."""
        return Knowledge(self.mechanism, Uninformed(), None)

    def fits(self) -> None:
        """The gradients are numbers. Whether they belong to the model, recomputation tells."""
        require_finite(self.gradients)

    def baseline(self, chances: int = 1) -> Baseline:
        """Nothing: there is nothing to guess from."""
        return Uninformed().baseline(self.criterion)

    def fingerprints(self) -> dict[str, str]:
        """Hashes of what went in."""
        return {"gradients": Records(self.gradients.flat(), torch.zeros(len(self.gradients))).sha256()}

    def to(self, device: torch.device | str) -> CapturedTexts:
        """The same game; texts are searched for on the CPU, where the model is."""
        return self

    def caveats(self) -> tuple[Caveat, ...]:
        """The texts share their update; and what could not be tested."""
        text, precision = text_model(self.mechanism.module), self.mechanism.precision
        for index in range(len(self.gradients)):
            one = {name: values[index] for name, values in self.gradients.tensors.items()}
            for layer, which in (("first", text.first), ("second", text.second)):
                span = text.span(which, one, precision)
                if not span.tells:
                    seen = (
                        f"update {index}: what entered the {layer} attention layer fills {span.rank} dimensions, of "
                        f"{span.most} that its gradient has."
                        if span.part is not None
                        else f"update {index}: the {layer} attention layer has no gradient."
                    )
                    return (ONE_RELEASE, replace(UPDATE_CROWDED, seen=seen))
        return (ONE_RELEASE,)

    def records(self, trials: int, draws: Draws) -> None:
        """Nobody knows which texts they were."""

    def work(self, attack: Attack, trials: int, draws: Draws) -> Work:
        """All updates together."""
        count = min(trials, len(self.gradients))
        return Work(count, count, (replace(self, bounds=()),))

    def prepare(self, attack: Attack, draws: Draws, run: Run) -> Reconstruct:
        """The attack, ready for any update of this model."""
        return attack.prepare_on(run, self.knowledge, draws.stream("attack"))

    def trials(self, prepared: Reconstruct, draws: Draws, unit: Unit) -> Outcome:
        """Attack every update, and a shuffled copy of each."""
        gradients = self.gradients.take(slice(0, unit.size))
        mixed = shuffled(gradients, draws.stream("control"))
        guess, decoy = blindly(prepared, gradients, mixed, draws.stream("coins"))
        texts, controls = self.verified(guess, gradients), self.verified(decoy, mixed)
        left = torch.tensor([one.unexplained for one in texts], dtype=torch.float64)
        counts = torch.tensor([one.proven for one in texts])
        sizes = torch.tensor([one.proven * one.is_complete for one in texts])
        return Outcome(
            main=_found(texts),
            control=_found(controls),
            numbers={**guess.numbers(), "proven": counts, "proven_batch_size": sizes, "unexplained": left},
            proven=counts,
        )

    def verified(self, guess: Reconstruction, gradients: Gradient) -> list[Texts]:
        """What recomputation says about each update and the sequences that were named."""
        text, found = text_model(self.mechanism.module), []
        for index, sequences in enumerate(guess.records.features):
            named = [ids[ids >= 0] for ids in sequences if (ids >= 0).any()]
            one = {name: values[index] for name, values in gradients.tensors.items()}
            tokens = int(guess.diagnostics["tokens_in_batch"][index])
            found.append(verify_texts(text, one, named, precision=self.mechanism.precision, tokens=tokens))
        return found


def _found(texts: Sequence[Texts]) -> Comparison:
    proven = torch.tensor([[one.explains_all] for one in texts])
    return Comparison(torch.full(proven.shape, torch.nan, dtype=torch.float64), proven, proven)


def reads_texts(model: nn.Module) -> bool:
    """Whether it is a transformer that this game can play with."""
    try:
        text_model(model)
    except InputError:
        return False
    return True


def audit_texts(
    model: nn.Module,
    gradients: Sequence[Mapping[str, Tensor]],
    *,
    precision: float | None = None,
    longest: int = 64,
    policy: Policy,
    seed: int,
    target: str,
) -> AuditResult:
    """What updates of a transformer give away about their texts; the audit holds counts, and no text."""
    exact = precision or torch.finfo(next(model.parameters()).dtype).eps
    taken = [without_decay(text_model(model), one, exact) for one in gradients]
    gradients, decays = [one for one, _ in taken], [decay for _, decay in taken]
    names = gradients[0].keys()
    stacked = {name: torch.stack([one[name] for one in gradients]) for name in names}
    game = CapturedTexts(SharedGradient(model, (longest,), rounding=precision), Gradient(stacked))
    result = audit(game, [TokenSpans(longest=longest)], policy=policy, seed=seed, target=target)
    left = float(result.strongest.arrays["unexplained"][0])
    leaks = leak_map(model, gradients[0], precision=game.mechanism.precision)
    leaks = [replace(leak, unexplained=left if left < 1 else None) for leak in leaks]
    certain = bool(result.strongest.proven) or rows_that_moved(text_model(model), gradients[0]) is not None
    tokens = int(result.strongest.arrays["tokens_in_batch"][0])
    found = {
        "leak_map": [leak.to_json() for leak in leaks],
        "tokens": {"number": tokens, "certain": certain},
        "decays": decays,
    }
    return replace(result, subject={**result.subject, **found})
