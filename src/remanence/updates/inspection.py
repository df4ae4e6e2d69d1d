"""The audit of opened updates: the work behind `remanence update`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from remanence.auditing import AuditResult, audit
from remanence.bounds import Bound, gaussian
from remanence.core.catalogue import load_attack
from remanence.core.exceptions import IncompatibleGameError, InputError
from remanence.core.records import Records
from remanence.core.releases import Gradient
from remanence.results.verdict import Policy
from remanence.updates.captured import Captured
from remanence.updates.caveats import (
    NEAR_TWINS,
    UPDATE_COARSE,
    UPDATE_ONE_OUTPUT,
    UPDATE_OTHER_LOSS,
    UPDATE_SINGLE_LAYER,
    UPDATE_UNTESTED,
)
from remanence.updates.condensing import condensed
from remanence.updates.dense_layers import DenseHead, Layers
from remanence.updates.leak_map import leak_map
from remanence.updates.opening import Subject
from remanence.updates.proven import contradictions, updates_of
from remanence.updates.shared_gradient import SharedGradient

_EXACT = ("exclusive-neurons", "span-fit", "low-rank", "parallel-rows")
_WHY_NOT = (UPDATE_UNTESTED, UPDATE_COARSE, UPDATE_OTHER_LOSS, UPDATE_SINGLE_LAYER, UPDATE_ONE_OUTPUT)
_DOUBLE = 1e-10  # precisions below are double's
_QUICK = ("exclusive-neurons", "parallel-rows")  # where nothing can be recomputed, a search is in vain


def audit_gradients(
    subject: Subject,
    attacks: Sequence[str] | None,
    *,
    policy: Policy,
    seed: int,
    device: str,
    target: str,
) -> AuditResult:
    """Let the exact attacks, or those that are named, take the updates apart; and the leak map of the first."""
    training = subject.declared.training
    head, layers, batch = _condensed(subject)
    largest = subject.rounding.of_largest(layers[0][0])
    dtype = torch.float32 if largest > _DOUBLE else torch.float64
    network = _head_module(head, dtype)
    names = [name for name, _ in network.named_parameters()]
    tensors = [part for layer in layers for part in layer if part is not None]
    game = Captured(
        SharedGradient(
            network,
            (head.weights[0].shape[1],),
            local_steps=training.steps,
            learning_rate=training.learning_rate or 0.1,
            momentum=training.momentum,
            rounding=min(largest, 0.1),
        ),
        Gradient(dict(zip(names, tensors, strict=True))),
        None if batch is None else [batch],
        batch_size=subject.declared.batch_size,
        rounding=subject.rounding,
        training=training,
        scale_is_known=subject.scale_is_known,
        disturbed=subject.disturbed,
        bounds=_ceilings(subject),
        belongings=None if subject.reading is None else [subject.reading.belonging],
    )
    settled = (
        subject.is_settled and head.numbers is not None
    )  # a large network, of which nothing is left to find
    chosen = _attacks(attacks, game, _EXACT[:1] if settled else _EXACT)
    result = audit(game, chosen, policy=policy, seed=seed, device=device, target=target)
    if subject.again is not None and not all(update.proven for update in updates_of(result.strongest)):
        return audit_gradients(
            subject.again(), attacks, policy=policy, seed=seed, device=device, target=target
        )
    if any(entry.proven for entry in result.evidence):
        refuted = {caveat.id for caveat in _WHY_NOT}
        told = [
            replace(
                entry,
                caveats=(
                    *(c for c in entry.caveats if c.id not in refuted),
                    *[NEAR_TWINS] * bool(entry.proven),
                ),
            )
            for entry in result.evidence
        ]
        result = replace(result, evidence=tuple(told))
    leaks = leak_map(
        subject.model,
        subject.gradients[0],
        precision=largest,
        exposure=subject.exposure,
        unexplained=_unexplained(result, head, _head_names(network)),
    )
    result = replace(
        result,
        evidence=tuple(
            replace(entry, caveats=(*entry.caveats, *contradictions(updates_of(entry), subject.declared)))
            for entry in result.evidence
        ),
    )
    found = {
        "leak_map": [leak.to_json() for leak in leaks],
        "notes": list(subject.notes),
        "updates": [update.to_json() for update in updates_of(result.strongest)],
    }
    return replace(result, subject={**result.subject, **found})


def _ceilings(subject: Subject) -> tuple[Bound, ...]:
    """What no attack exceeds, where there is noise."""
    noise = subject.declared.noise
    if noise is None:
        return ()
    return (gaussian(1 / subject.declared.candidates, noise_multiplier=noise.multiplier),)


def _condensed(subject: Subject) -> tuple[DenseHead, Layers, Records | None]:
    """The head, its gradients and what entered it; those of a large first layer in coordinates of their span."""
    head, rounding, batch = subject.head, subject.rounding, subject.batch
    if rounding.relative < _DOUBLE:
        head = head.double()
    each = [head.layers_of({name: v[None] for name, v in one.items()}) for one in subject.gradients]
    firsts = [(layers[0][0][0], None if layers[0][1] is None else layers[0][1][0]) for layers in each]
    found = None if subject.reading is None else subject.reading.coordinates
    if batch is None and found is None:
        found = condensed(head, firsts, relative=rounding.relative, absolute=rounding.absolute)
    if found is not None:
        head = found.head
        each = [
            [(own[None], layers[0][1]), *layers[1:]]
            for own, layers in zip(found.gradients, each, strict=True)
        ]
    if len(each) == 1:
        return head, each[0], batch
    stacked: Layers = []
    for parts in zip(*each, strict=True):
        biases = [bias for _, bias in parts if bias is not None]
        stacked.append((torch.cat([weight for weight, _ in parts]), torch.cat(biases) if biases else None))
    return head, stacked, batch


def _attacks(names: Sequence[str] | None, game: Captured, exact: Sequence[str]):
    """Those that are named, or the exact ones that can play."""
    if names:
        return [load_attack(name) for name in names]
    chosen = []
    for name in exact if game.disturbed is None else _QUICK:
        attack = load_attack(name)
        try:
            attack.check(game.knowledge)
        except (IncompatibleGameError, InputError):
            continue
        chosen.append(attack)
    return chosen or [load_attack(_EXACT[1])]


def _head_names(network: nn.Sequential) -> list[str]:
    return [str(index) for index, layer in enumerate(network) if isinstance(layer, nn.Linear)]


def _unexplained(result: AuditResult, head: DenseHead, names: Sequence[str]) -> dict[str, float]:
    """What the strongest attack's proven records leave of each layer of the first update."""
    arrays = result.strongest.arrays
    return {
        layer: float(arrays[f"unexplained {name}"][0])
        for layer, name in zip(head.names, names, strict=True)
        if f"unexplained {name}" in arrays
    }


def _head_module(head: DenseHead, dtype: torch.dtype) -> nn.Sequential:
    """The dense layers alone, as a network of their own."""
    layers: list[nn.Module] = []
    for weight, bias in zip(head.weights, head.biases, strict=True):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        layer.weight = nn.Parameter(weight.to(dtype))
        if bias is not None:
            layer.bias = nn.Parameter(bias.to(dtype))
        layers += [layer, nn.ReLU() if head.activation.is_relu else head.activation.module()]
    return nn.Sequential(*layers[:-1])
