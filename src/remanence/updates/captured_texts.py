"""Updates of a transformer that exist: a text counts if the update can be recomputed from it and its companions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from remanence.auditing import AuditResult, audit
from remanence.core.attack import Reconstruction
from remanence.core.exceptions import InputError
from remanence.core.releases import Gradient
from remanence.results.caveats import ONE_RELEASE, Caveat
from remanence.results.findings import Words
from remanence.results.verdict import Policy
from remanence.updates.captured import SEND_LESS
from remanence.updates.captured_whole import CapturedWhole, coarsest
from remanence.updates.caveats import TEXTS_OPEN, UPDATE_CROWDED
from remanence.updates.leak_map import leak_map
from remanence.updates.local_training import LocalTraining
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import SharedGradient
from remanence.updates.text_decay import without_decay
from remanence.updates.text_models import TextModel, text_model
from remanence.updates.texts import Texts, verify_texts
from remanence.updates.token_spans import TokenSpans


@final
@dataclass(frozen=True)
class CapturedTexts(CapturedWhole):
    """One or more updates of a transformer. Each is a trial, and succeeds if all its texts are proven.

    The number of texts is proven along with them, so that no rate is divided by an unknown one. The control is the same
    attack on the same update with the entries of every tensor shuffled.
    """

    training: LocalTraining = field(default_factory=LocalTraining)

    @property
    def words(self) -> Words:
        """Texts of a batch."""
        counts = "Only what the whole update can be computed again from counts."
        return Words("recovered", "texts", counts=counts, less=SEND_LESS)

    @property
    def text(self) -> TextModel:
        """The model as one that reads texts."""
        return replace(text_model(self.mechanism.module), is_difference=bool(self.coarse.tensors))

    def caveats(self) -> tuple[Caveat, ...]:
        """The texts share their update; and what could not be tested."""
        text, precision = self.text, self.mechanism.precision
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
        return (ONE_RELEASE, TEXTS_OPEN)

    def verified(self, guess: Reconstruction, gradients: Gradient) -> list[Texts]:
        """What recomputation says about each update and the sequences that were named."""
        text, found = self.text, []
        for index, sequences in enumerate(guess.records.features):
            named = [ids[ids >= 0] for ids in sequences if (ids >= 0).any()]
            one = {name: values[index] for name, values in gradients.tensors.items()}
            tokens = int(guess.diagnostics["tokens_in_batch"][index])
            found.append(
                verify_texts(text, one, named, rounding=self.coarse, tokens=tokens, training=self.training)
            )
        return found


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
    rounding: Rounding | None = None,
    training: LocalTraining | None = None,
    longest: int = 64,
    policy: Policy,
    seed: int,
    target: str,
) -> AuditResult:
    """What updates of a transformer give away about their texts; the audit holds counts, and no text."""
    rounding, training = (
        rounding or Rounding.of([next(model.parameters()).dtype]),
        training or LocalTraining(),
    )
    text = replace(text_model(model), is_difference=bool(rounding.tensors))
    read = {*text.first.weights(gradients[0]), *text.second.weights(gradients[0])}
    layers = [{name: value for name, value in one.items() if name in read} for one in gradients]
    precision = coarsest(layers if any(value.any() for value in layers[0].values()) else gradients, rounding)
    decays = [0.0] * len(gradients)
    if training.is_plain:
        taken = [without_decay(text, one, precision) for one in gradients]
        gradients, decays = [one for one, _ in taken], [decay for _, decay in taken]
    names = gradients[0].keys()
    stacked = {name: torch.stack([one[name] for one in gradients]) for name in names}
    mechanism = SharedGradient(
        model,
        (longest,),
        training.steps,
        training.learning_rate or 1.0,
        training.momentum,
        rounding=precision,
    )
    game = CapturedTexts(mechanism, Gradient(stacked), rounding=rounding, training=training)
    attack = TokenSpans(longest=longest, is_difference=text.is_difference)
    result = audit(game, [attack], policy=policy, seed=seed, target=target)
    if result.strongest.proven:
        told = [
            replace(one, caveats=tuple(c for c in one.caveats if c != TEXTS_OPEN)) for one in result.evidence
        ]
        result = replace(result, evidence=tuple(told))
    left = float(result.strongest.arrays["unexplained"][0])
    leaks = leak_map(model, gradients[0], precision=game.mechanism.precision)
    leaks = [replace(leak, unexplained=left if left < 1 else None) for leak in leaks]
    certain = bool(result.strongest.proven)
    tokens = int(result.strongest.arrays["tokens_in_batch"][0])
    found = {
        "leak_map": [leak.to_json() for leak in leaks],
        "tokens": {"number": tokens, "certain": certain},
        "decays": decays,
    }
    return replace(result, subject={**result.subject, **found})
