"""The audit of opened updates, behind `remanence update`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from remanence.auditing import AuditResult, audit
from remanence.bounds import gaussian
from remanence.core.checks import brief
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy
from remanence.updates import caveats
from remanence.updates.captured import Captured
from remanence.updates.declared import Declared
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.exposure import head_exposure
from remanence.updates.dense.layers import DenseHead, head_inputs
from remanence.updates.dense.reader import DenseReader, Own
from remanence.updates.exact import Exact
from remanence.updates.leak_map import leak_map
from remanence.updates.opening import (
    Update,
    belongs,
    dense_reader,
    opened,
    own_update,
    read_batch,
    read_tensors,
    recognise,
)
from remanence.updates.patches.reader import PatchReader
from remanence.updates.rounding import Rounding
from remanence.updates.shared_gradient import Proven, Reader, Sent, SharedGradient

# Possible reasons why no record was proven; dropped if one is.
_WHY_NOT = (
    caveats.UPDATE_UNTESTED, caveats.UPDATE_COARSE, caveats.UPDATE_OTHER_LOSS, caveats.UPDATE_SINGLE_LAYER,
    caveats.UPDATE_ONE_OUTPUT, caveats.PATCHES_OPEN, caveats.TEXTS_OPEN,
)  # fmt: skip
_DOUBLE = 1e-10  # precisions below are double's
_TURNED = "{} points the opposite way to a gradient, or with a learning rate to new minus old: its sign was flipped."


@final
@dataclass(frozen=True)
class Subject:
    """A network, how it is read, and its updates; with the batch if the owner audits their own."""

    model: nn.Module
    reader: Reader
    updates: Sequence[Update]
    declared: Declared
    batch: Records | None = None

    @property
    def rounding(self) -> Rounding:
        """The rounding of all updates' numbers; the coarsest counts."""
        return reduce(Rounding.or_coarser, (update.rounding for update in self.updates))

    @property
    def is_noised(self) -> bool:
        """Whether nothing can be recomputed, because the client added noise."""
        return self.declared.noise is not None

    @property
    def sent(self) -> Sent:
        """The facts that hold for all updates."""
        return Sent(
            self.rounding,
            self.declared.training,
            all(update.scale_is_known for update in self.updates),
            all(update.sign_is_known for update in self.updates),
            not self.is_noised,
        )


def recognised(model: nn.Module, shape: tuple[int, ...] | None) -> Reader:
    """The reader of a network; what else its own code raises is about the inputs that it was tried with."""
    try:
        return recognise(model, shape)
    except (AssertionError, LookupError) as error:
        raise InputError(
            "The network cannot read the inputs that it was tried with.",
            needs="a network that computes logits from one tensor",
            got=f"{type(error).__name__}: {brief(error)}",
            hint="the shape of one input, for example --input-shape 3,32,32",
        ) from None


def open_update(
    model: nn.Module, tensors: Mapping[str, Tensor], declared: Declared, *, is_after: bool = False
) -> Subject:
    """One update by name, or the weights `is_after` a round, tested against the declaration; `MisfitError` if not."""
    reader = recognised(model, declared.input_shape)
    update = opened(model, tensors, declared, is_after=is_after)
    return Subject(model, reader, [belongs(reader, model, update, declared)], declared)


def audit_files(
    model: nn.Module,
    declared: Declared,
    *,
    updates: Sequence[Path] = (),
    after: Sequence[Path] = (),
    batch: Path | None = None,
    policy: Policy,
    seed: int = 0,
    device: str = "cpu",
    target: str,
    longest: int = 64,
) -> AuditResult:
    """Audit updates, weights `after` a round, or the update that the owner's own batch would make."""
    own = None
    if batch is not None:
        own = read_batch(batch, next((value.dtype for value in model.parameters()), torch.float32))
        declared = replace(declared, input_shape=tuple(own.features.shape[1:]))
    reader = recognised(model, declared.input_shape)
    if own is not None:
        found = [own_update(model, reader, own, declared)]
    else:
        files = [(path, False) for path in updates] + [(path, True) for path in after]
        each = (opened(model, read_tensors(p), declared, is_after=new, source=p.name) for p, new in files)
        found = [belongs(reader, model, update, declared) for update in each]
    subject = Subject(model, reader, found, declared, own)
    return inspect(subject, policy=policy, seed=seed, device=device, target=target, longest=longest)


def inspect(
    subject: Subject, *, policy: Policy, seed: int = 0, device: str = "cpu", target: str, longest: int = 64
) -> AuditResult:
    """Audit updates; if a network reads patches and none is proven, read the features entering its dense layers."""

    def audited(one: Subject) -> AuditResult:
        noise, guess = one.declared.noise, 1 / one.declared.candidates
        game = Captured(
            *_released(one, longest),
            batch_size=one.declared.batch_size if one.batch is None else len(one.batch),
            disturbed=caveats.UPDATE_NOISED if one.is_noised else None,
            bounds=() if noise is None else (gaussian(guess, noise_multiplier=noise.multiplier),),
        )
        attack = Exact(longest=longest)
        result = audit(game, [attack], policy=policy, seed=seed, device=device, target=target)
        return _explained(one, result)

    result = audited(subject)
    if isinstance(subject.reader, PatchReader) and not result.strongest.proven:
        try:
            dense = dense_reader(subject.model, subject.reader.model.shape)
        except InputError:
            return result
        return audited(replace(subject, reader=dense)) if len(dense.head.weights) > 1 else result
    return result


def read(subject: Subject) -> list[Proven]:
    """The proofs for each update, without a control: for guards, which withhold what may be a mean of records too."""
    mechanism, gradients = _released(subject, 64)
    guess = mechanism.reader.reconstruct(gradients, mechanism, seed=0, longest=64)
    return list(mechanism.reader.proofs(guess, gradients, mechanism, claims=not subject.is_noised))


def _released(subject: Subject, longest: int) -> tuple[SharedGradient, Gradient]:
    """The mechanism with its reader, and its updates; dense layers are a network of their own."""
    reader, noise = subject.reader, subject.declared.noise
    shape, each = (longest,), [update.gradient for update in subject.updates]
    if isinstance(reader, PatchReader):
        shape = reader.model.shape
    if isinstance(reader, DenseReader):
        head, each = _condensed(subject, reader.head)
        own = None if head.numbers else Own.of(subject.model, head, subject.declared.input_shape)
        reader, shape = DenseReader(head, own), (head.weights[0].shape[1],)
    norm, multiplier = (None, 0.0) if noise is None else (noise.max_grad_norm, noise.multiplier)
    mechanism = SharedGradient(
        subject.model, shape, max_grad_norm=norm, noise_multiplier=multiplier, captured=subject.sent
    )
    # One update is not copied: it may be large.
    stacked = {
        name: value[None] if len(each) == 1 else torch.stack([one[name] for one in each])
        for name, value in each[0].items()
    }
    return mechanism.read_as(reader), Gradient(stacked)


def _condensed(subject: Subject, head: DenseHead) -> tuple[DenseHead, Sequence[Mapping[str, Tensor]]]:
    """The head and its gradients by name; those of a large first layer in coordinates of their span."""
    if subject.rounding.relative < _DOUBLE:
        head = head.double()
    names = [f"{name}.{part}".removeprefix(".") for name in head.names for part in ("weight", "bias")]
    each = [{name: one.gradient[name] for name in names if name in one.gradient} for one in subject.updates]
    found = condensed(head, [head.layers_of(one)[0] for one in each], subject.rounding)
    if found is None:
        return head, each
    head, gradients, _ = found
    return head, [{**one, names[0]: own} for one, own in zip(each, gradients, strict=True)]


def _explained(subject: Subject, result: AuditResult) -> AuditResult:
    """The result with what is known of each layer and each update; it holds counts, and no record."""
    reader, best = subject.reader, result.strongest
    found: dict[str, Any] = {"notes": _notes(subject, best)}
    exposure = None
    if isinstance(reader, DenseReader):
        head, batch = reader.head, subject.batch
        if batch is not None and head.activation.is_relu and len(head.weights) > 1:
            exposure = head_exposure(head, head_inputs(subject.model, head, batch.features), batch.labels)
        names = enumerate(head.names)
        unexplained = {name: float(best.arrays[f"unexplained {index}"][0]) for index, name in names}
        # Records that are alike count once: each twice would send the same.
        counts, sizes = best.arrays["proven"], best.arrays["proven_batch_size"]
        found["updates"] = [
            {"proven": int(counts[place]), "different_records": int(sizes[place]) or None}
            for place in np.unique(best.arrays["update"], return_index=True)[1]
        ]
        found["notes"] += [_scope(head), *[str(exposure)] * (exposure is not None)]
    else:
        left = float(best.arrays["unexplained"][0])
        unexplained = left if left < 1 else None
    if "tokens_in_batch" in best.arrays:
        found["tokens"] = {"number": int(best.arrays["tokens_in_batch"][0]), "certain": bool(best.proven)}
    first, coarse = subject.updates[0].gradient, subject.rounding
    found["leak_map"] = leak_map(
        subject.model, first, rounding=coarse, exposure=exposure, unexplained=unexplained
    )
    evidence = tuple(_told(entry, subject) for entry in result.evidence)
    return replace(result, evidence=evidence, subject={**result.subject, **found})


def _told(entry: Evidence, subject: Subject) -> Evidence:
    """Evidence without the caveats that its proven records refute, and with those that they raise."""
    if not entry.proven:
        is_open = isinstance(subject.reader, DenseReader) and not subject.is_noised
        return replace(entry, caveats=(*entry.caveats, *[caveats.DENSE_OPEN] * is_open))
    kept = [caveat for caveat in entry.caveats if caveat.id not in {one.id for one in _WHY_NOT}]
    if isinstance(subject.reader, DenseReader):
        kept.append(caveats.NEAR_TWINS)
    elif not bool(entry.arrays["is_ordered"].all()):
        kept.append(caveats.PATCHES_UNORDERED)
    return replace(entry, caveats=tuple(kept))


def _notes(subject: Subject, best: Evidence) -> list[str]:
    """Notes about the files: what they hold, their decay, and which of them point against the gradient."""
    notes = [note for update in subject.updates for note in update.notes]
    notes += [
        f"A weight decay was found and subtracted: {abs(update.decay):.3g} times the weights."
        for update in subject.updates
        if update.decay
    ]
    arrays = best.arrays
    for place, update in enumerate(subject.updates):
        here = arrays["update"] == place
        if bool((arrays["sign"][here] < 0).any()) and bool((arrays["proven"][here] > 0).any()):
            notes.append(_TURNED.format(update.source))
    return list(dict.fromkeys(notes))


def _scope(head: DenseHead) -> str:
    """What counts as recovered: inputs or features."""
    first = head.names[0] or "the first layer"
    if head.is_whole_network:
        return f"A sample is recovered if what enters {first}, the input itself, is known exactly."
    return (
        f"A sample is recovered if the {head.weights[0].shape[1]} features that enter {first} are known "
        "exactly; pictures can be rebuilt from them (see remanence_papers.gradients.hybrid)."
    )
