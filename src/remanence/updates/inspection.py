"""The audit of opened updates, behind `remanence update`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from remanence.auditing import AuditResult, audit
from remanence.bounds import Bound, gaussian
from remanence.core.errors import Criterion, Reduction
from remanence.core.exceptions import InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.caveats import Caveat
from remanence.results.evidence import Evidence
from remanence.results.verdict import Policy
from remanence.updates.captured import Captured
from remanence.updates.caveats import (
    NEAR_TWINS,
    PATCHES_OPEN,
    PATCHES_UNORDERED,
    TEXTS_OPEN,
    UPDATE_COARSE,
    UPDATE_DECLARED,
    UPDATE_ONE_OUTPUT,
    UPDATE_OTHER_LOSS,
    UPDATE_SINGLE_LAYER,
    UPDATE_UNTESTED,
)
from remanence.updates.declared import Declared
from remanence.updates.dense.coordinates import condensed
from remanence.updates.dense.exposure import Exposure, head_exposure
from remanence.updates.dense.layers import DenseHead, Layers, dense_head, head_inputs
from remanence.updates.dense.reader import DenseReader, Own
from remanence.updates.exact import Exact
from remanence.updates.files import read_batch, read_tensors
from remanence.updates.leak_map import leak_map
from remanence.updates.opening import Update, belongs, opened, own_update, recognise
from remanence.updates.patches.reader import PatchReader
from remanence.updates.rounding import Rounding, coarsest
from remanence.updates.shared_gradient import Effort, Proven, Reader, Sent, SharedGradient

_OFF = (
    0.02  # by which shares may miss a sum of 1: rounding of weights, or a record that left next to no trace
)


def updates_of(entry: Evidence) -> list[dict[str, Any]]:
    """The entries of audit.json about each update, from the proofs of an attack's records.

    `proven` records; `different_records` behind the update, where that number is proven (records that are alike count
    once: each twice would send the same); `share_sum` of records that explain the update whole, 1 in a mean;
    `equal_share` where all of them have the same.
    """
    arrays = entry.arrays
    if "update" not in arrays:
        return []
    first = {update: place for place, update in reversed(list(enumerate(arrays["update"].tolist())))}
    names = ("proven", "proven_batch_size", "share_sum", "equal_share")
    found = ([arrays[name][place].item() for name in names] for _, place in sorted(first.items()))
    return [
        {
            "proven": int(proven),
            "different_records": int(size) or None,
            "share_sum": total or None,
            "equal_share": share or None,
        }
        for proven, size, total, share in found
    ]


def contradictions(updates: Sequence[dict[str, Any]], declared: Declared) -> Iterator[Caveat]:
    """Declared settings that proven records contradict, with other possible explanations."""
    rate, size, seen = declared.training.learning_rate, declared.batch_size, []
    for number, update in enumerate(updates):
        total, proven = update["share_sum"], update["proven"]
        fits = total is not None and abs(total - 1) <= _OFF
        if total is not None and rate is not None and not fits:
            without = ", or some records left no trace" if total < 1 else ""
            seen.append(
                f"Update {number}: the shares of its records add up to {total:.3g}, not 1 as in a mean. They fit a "
                f"learning rate of {rate * total:.3g} instead of {rate:g}; or the update was multiplied, as "
                f"clipping does{without}."
            )
        if size is not None and proven > size:
            seen.append(f"Update {number}: {proven} records are proven, but a batch of {size} was declared.")
        elif size is not None and fits and update["equal_share"] and size % proven:
            seen.append(
                f"Update {number}: {proven} records with equal shares explain it whole. In a plain mean each is "
                f"there equally often, and the declared {size} is not a multiple of that."
            )
    if seen:
        yield replace(UPDATE_DECLARED, seen=" ".join(seen[:4]))


# Possible reasons why no record was proven; dropped if one is.
_WHY_NOT = (
    UPDATE_UNTESTED, UPDATE_COARSE, UPDATE_OTHER_LOSS, UPDATE_SINGLE_LAYER, UPDATE_ONE_OUTPUT, PATCHES_OPEN, TEXTS_OPEN,
)  # fmt: skip
_DOUBLE = 1e-10  # precisions below are double's
_TURNED = "{} goes against the gradient, as new weights minus old ones do: its sign was flipped."


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
    def shape(self) -> tuple[int, ...] | None:
        """The shape of an input, if known."""
        return self.declared.input_shape if self.batch is None else tuple(self.batch.features.shape[1:])

    @property
    def sent(self) -> Sent:
        """The facts that hold for all updates."""
        return Sent(
            self.rounding,
            self.declared.training,
            all(update.scale_is_known for update in self.updates),
            all(update.sign_is_known for update in self.updates),
            self.batch is not None or all(update.disturbed is None for update in self.updates),
        )


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
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    own = None if batch is None else read_batch(batch, dtype)
    reader = recognise(model, declared.input_shape if own is None else tuple(own.features.shape[1:]))
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
    attack = Exact(longest=longest)
    if isinstance(subject.reader, DenseReader):
        return _dense(subject, subject.reader, attack, policy=policy, seed=seed, device=device, target=target)
    result = _whole(subject, attack, policy=policy, seed=seed, target=target)
    if isinstance(subject.reader, PatchReader) and not result.strongest.proven:
        dense = _dense_layers(subject.model, subject.reader.model.shape)
        if dense is not None:
            again = replace(subject, reader=dense)
            return _dense(again, dense, attack, policy=policy, seed=seed, device=device, target=target)
    return result


def _whole(subject: Subject, attack: Exact, *, policy: Policy, seed: int, target: str) -> AuditResult:
    """Updates of networks that read patches or tokens; the audit holds counts, and no picture or text."""
    updates = subject.updates
    mechanism, gradients = _whole_mechanism(subject, attack.longest)
    game = Captured(mechanism, gradients, criterion=Criterion(reduction=Reduction.EACH))
    result = audit(game, [attack], policy=policy, seed=seed, target=target)
    best = result.strongest
    more = () if bool(best.arrays["is_ordered"].all()) else (PATCHES_UNORDERED,)
    left = float(best.arrays["unexplained"][0])
    leaks = leak_map(
        subject.model,
        updates[0].gradient,
        precision=coarsest([updates[0].gradient], subject.rounding),
        unexplained=left if left < 1 else None,
    )
    found = {
        "leak_map": leaks,
        "notes": _notes(subject, best),
        "decays": [update.decay for update in updates],
    }
    if "tokens_in_batch" in best.arrays:
        found["tokens"] = {"number": int(best.arrays["tokens_in_batch"][0]), "certain": bool(best.proven)}
    evidence = tuple(_told(entry, more if entry.proven else ()) for entry in result.evidence)
    return replace(result, evidence=evidence, subject={**result.subject, **found})


def _dense(
    subject: Subject,
    reader: DenseReader,
    attack: Exact,
    *,
    policy: Policy,
    seed: int,
    device: str,
    target: str,
) -> AuditResult:
    """Updates of networks that end in dense layers."""
    declared, batch = subject.declared, None
    exposure = None
    if subject.batch is not None:
        entering = head_inputs(subject.model, reader.head, subject.batch.features)
        batch = Records(entering, subject.batch.labels)
        exposure = _exposure(reader.head, batch)
    mechanism, gradients = _dense_mechanism(subject, reader, is_known=batch is not None)
    game = Captured(
        mechanism,
        gradients,
        None if batch is None else [batch],
        batch_size=declared.batch_size,
        disturbed=next((one.disturbed for one in subject.updates if one.disturbed is not None), None),
        bounds=_ceilings(declared),
    )
    result = audit(game, [attack], policy=policy, seed=seed, device=device, target=target)
    best = result.strongest
    leaks = leak_map(
        subject.model,
        subject.updates[0].gradient,
        precision=subject.rounding.of_largest(gradients["0.weight"]),
        exposure=exposure,
        unexplained={
            name: float(best.arrays[f"unexplained {index}"][0])
            for index, name in enumerate(reader.head.names)
        },
    )
    found = {
        "leak_map": leaks,
        "notes": _notes(subject, best),
        "updates": updates_of(best),
    }
    evidence = tuple(
        _told(entry, (*[NEAR_TWINS] * bool(entry.proven), *contradictions(updates_of(entry), declared)))
        for entry in result.evidence
    )
    said = [*found["notes"], _scope(reader.head), str(exposure or "")]
    return replace(result, evidence=evidence, subject={**result.subject, **found, "said": said})


def _dense_mechanism(
    subject: Subject, reader: DenseReader, *, is_known: bool
) -> tuple[SharedGradient, Gradient]:
    """The dense layers as a network of their own, with their gradients; a large layer in few coordinates."""
    head, layers = _condensed(subject, reader.head, is_known=is_known)
    parts = {
        f"{index}.{name}": value
        for index, layer in enumerate(layers)
        for name, value in zip(("weight", "bias"), layer, strict=True)
        if value is not None
    }
    gradients = Gradient(parts)
    own = None if head.numbers is not None else Own.of(subject.model, reader.head, subject.shape)
    alone = DenseReader(replace(head, names=tuple(map(str, range(len(layers))))), own)
    fits = [update.fit for update in subject.updates if update.fit is not None and not update.decay]
    if len(fits) == len(subject.updates):
        alone.note(gradients, fits)
    numbers = head.weights[0].shape[1]
    return SharedGradient(subject.model, (numbers,), captured=subject.sent).read_as(alone), gradients


def _whole_mechanism(subject: Subject, longest: int) -> tuple[SharedGradient, Gradient]:
    """The network with its reader, and its updates."""
    reader, names = subject.reader, subject.updates[0].gradient
    shape = reader.model.shape if isinstance(reader, PatchReader) else (longest,)
    stacked = {name: torch.stack([update.gradient[name] for update in subject.updates]) for name in names}
    return SharedGradient(subject.model, shape, captured=subject.sent).read_as(reader), Gradient(stacked)


def read(subject: Subject, effort: Effort | None = None) -> list[Proven]:
    """The proofs for each update, without a control: for guards that withhold updates."""
    effort = effort or Effort()
    if isinstance(subject.reader, DenseReader):
        mechanism, gradients = _dense_mechanism(subject, subject.reader, is_known=False)
    else:
        mechanism, gradients = _whole_mechanism(subject, effort.longest)
    guess = mechanism.reader.reconstruct(gradients, mechanism, effort)
    claims = all(update.disturbed is None for update in subject.updates)
    return list(mechanism.reader.proofs(guess, gradients, mechanism, claims=claims))


def _told(entry: Evidence, more: Sequence) -> Evidence:
    """Evidence without the caveats that its proven records refute, and with further ones."""
    refuted = {caveat.id for caveat in _WHY_NOT} if entry.proven else set()
    return replace(entry, caveats=(*(c for c in entry.caveats if c.id not in refuted), *more))


def _notes(subject: Subject, best: Evidence) -> list[str]:
    """Notes about the files, and which of them point against the gradient."""
    notes = [note for update in subject.updates for note in update.notes]
    if isinstance(subject.reader, DenseReader):
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


def _ceilings(declared: Declared) -> tuple[Bound, ...]:
    """The ceiling on any attack, if there is noise."""
    if declared.noise is None:
        return ()
    return (gaussian(1 / declared.candidates, noise_multiplier=declared.noise.multiplier),)


def _condensed(subject: Subject, head: DenseHead, *, is_known: bool) -> tuple[DenseHead, Layers]:
    """The head and its gradients; those of a large first layer in coordinates of their span."""
    rounding = subject.rounding
    if rounding.relative < _DOUBLE:
        head = head.double()
    each = [head.layers_of({name: v[None] for name, v in one.gradient.items()}) for one in subject.updates]
    firsts = [(layers[0][0][0], None if layers[0][1] is None else layers[0][1][0]) for layers in each]
    found = None
    if not is_known:
        found = condensed(head, firsts, relative=rounding.relative, absolute=rounding.absolute)
    if found is not None:
        head = found.head
        each = [
            [(own[None], layers[0][1]), *layers[1:]]
            for own, layers in zip(found.gradients, each, strict=True)
        ]
    if len(each) == 1:
        return head, each[0]
    stacked: Layers = []
    for parts in zip(*each, strict=True):
        biases = [bias for _, bias in parts if bias is not None]
        stacked.append((torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None))
    return head, stacked


def _exposure(head: DenseHead, batch: Records) -> Exposure | None:
    """Which samples of the owner's batch have exclusive neurons."""
    if not head.activation.is_relu or len(head.weights) == 1:
        return None
    return head_exposure(head, batch.features, batch.labels)


def _scope(head: DenseHead) -> str:
    """What counts as recovered: inputs or features."""
    first = head.names[0] or "the first layer"
    if head.is_whole_network:
        return f"A sample is recovered if what enters {first}, the input itself, is known exactly."
    return (
        f"A sample is recovered if the {head.weights[0].shape[1]} features that enter {first} are known "
        "exactly; pictures can be rebuilt from them (see remanence_papers.gradients.hybrid)."
    )


def _dense_layers(model: nn.Module, shape: tuple[int, ...]) -> DenseReader | None:
    """The last dense layers of a network, if there are several: features can be read even if pictures cannot."""
    try:
        head = dense_head(model, torch.zeros(2, *shape, dtype=next(model.parameters()).dtype))
    except InputError:
        return None
    return DenseReader(head) if len(head.weights) > 1 else None
