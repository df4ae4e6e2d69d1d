"""Record an Opacus training run as it happens, so that it can be audited: `remanence audit FOLDER`.

    with record(privacy_engine, optimizer, model, loader, out="run", canaries=canaries):
        ...  # the training loop, unchanged

What is written is what ran: who was in each batch, how gradients were clipped, how much noise was added, and whether
the weights moved accordingly. Training is bit for bit what it would have been.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from opacus import PrivacyEngine
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import (
    DPOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data import DataLoader

from remanence.core.exceptions import InputError
from remanence.private.canaries import Canaries
from remanence.private.opacus_batches import Batches, tensors_in
from remanence.private.opacus_ranks import Ranks
from remanence.private.opacus_replica import Reading, quiet_randomness
from remanence.private.opacus_steps import RecordingWarning, Steps
from remanence.private.recorder import Claim, RunRecorder

__all__ = ["Reading", "RecordingWarning", "record"]


@contextmanager
def record(
    privacy_engine: PrivacyEngine,
    optimizer: DPOptimizer,
    model: Any,
    loader: DataLoader[Any],
    *,
    out: str | Path,
    canaries: Canaries | None = None,
    reading: Reading | None = None,
    keep: Literal["projections", "whole"] = "projections",
) -> Iterator[None]:
    """Write what the training inside the `with` did into a new folder, whatever happens to it.

    All but `canaries` are what `make_private` returned. `canaries.inserted` must be the last records of the loader's
    data set; `reading` says how the loop looks at a record. `keep="whole"` also writes the parameters and gradients
    of every step.
    """
    reading = reading or Reading()
    _check(privacy_engine, optimizer, model, loader, canaries)
    records = _check_canaries(loader, canaries, reading)
    ranks = Ranks.of(optimizer)
    with ExitStack() as stack:
        if not ranks.leads:  # every process takes part, and one writes
            out = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "unused"
        recorder = RunRecorder(
            out,
            records=records,
            max_grad_norm=float(optimizer.max_grad_norm),
            canaries=canaries,
            framework=f"Opacus {version('opacus')}, torch {torch.__version__}",
        )
        try:
            batches = Batches(loader)
            stack.callback(batches.close)
            steps = Steps(recorder, optimizer, model, batches, reading, canaries)
        except BaseException:
            recorder.writer.abandon()
            raise
        recorder.steps_before = sum(count for _, _, count in privacy_engine.accountant.history)
        recorder.expected = (float(optimizer.noise_multiplier), _rate(batches.sampler), 0)
        recorder.manifest = {"secure": bool(privacy_engine.secure_mode), "kept": keep}

        def claims() -> list[Claim]:
            return [(float(n), float(q), int(count)) for n, q, count in privacy_engine.accountant.history]

        try:
            with steps.watching(claims, whole=keep == "whole"):
                yield
        except BaseException as error:
            recorder.observe("ended-early", where=f"{type(error).__name__}: {str(error)[:160]}")
            if recorder.steps:  # the training's own error is what its owner has to see
                recorder.finish()
            else:
                recorder.writer.abandon()
            raise
        if batches.marks.duplicates():
            recorder.observe("records-duplicated", count=batches.marks.duplicates())
        if batches.marks.near_duplicates():
            recorder.observe("records-nearly-duplicated", count=batches.marks.near_duplicates())
        if ranks.leads:
            recorder.finish()


def _rate(sampler: Any) -> float:
    """The rate at which a sampler draws records; that of the logical batches, if they are split."""
    sampler = sampler.sampler if isinstance(sampler, BatchSplittingSampler) else sampler
    return getattr(sampler, "sample_rate", 1 / max(1, len(sampler)))


def _check(
    privacy_engine: PrivacyEngine,
    optimizer: DPOptimizer,
    model: Any,
    loader: DataLoader[Any],
    canaries: Canaries | None,
) -> None:
    """Refuse what cannot be recorded truthfully, before training starts."""
    sharded = isinstance(optimizer, FSDPOptimizerFastGradientClipping | SimpleDistributedPerLayerOptimizer)
    if not isinstance(optimizer, DPOptimizer) or sharded:
        raise InputError(
            "This optimizer cannot be recorded.",
            needs="one of Opacus' optimizers in whose every process all parameters are",
            got=f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            hint='make_private(..., clipping="flat"); FSDP and per-layer clipping in DDP spread one step over hooks',
        )
    if not isinstance(model, AbstractGradSampleHooks):
        raise InputError(
            "The model does not give the gradients of single records.",
            needs="what make_private returned: a GradSampleModule or GradSampleHooks",
            got=type(model).__name__,
            hint="model, optimizer, loader = privacy_engine.make_private(...)",
        )
    if privacy_engine.accountant.history and canaries is not None:
        raise InputError(
            "Training has already begun, and the canaries with it.",
            needs="canaries that are recorded from the first step on",
            got=f"{sum(count for _, _, count in privacy_engine.accountant.history)} steps before it",
            hint="enter `with record(...)` right after make_private, or record the rest without canaries",
        )
    if getattr(loader, "batch_sampler", None) is None:
        raise InputError(
            "The loader does not say who is in a batch.",
            needs="a DataLoader with a batch sampler",
            got="a loader of single records or of an iterable data set",
            hint="the loader that make_private returned",
        )


def _check_canaries(loader: DataLoader[Any], canaries: Canaries | None, reading: Reading) -> int:
    """The number of records, of which the last must be the canaries."""
    data: Any = loader.dataset
    total = len(data)
    if (
        canaries is None or reading.augment is not None
    ):  # what is changed each time is known by its place alone
        return total
    inserted = canaries.inserted
    first = total - len(inserted)
    with quiet_randomness():
        there = first >= 0 and all(
            _holds(data[first + n], inserted.features[n]) for n in range(len(inserted))
        )
    if not there:
        raise InputError(
            "The canaries are not in the training data.",
            needs=f"canaries.inserted, {len(inserted)} records, at the end of the loader's data set",
            got=f"a data set of {total} records that ends differently",
            hint="ConcatDataset([data, TensorDataset(canaries.inserted.features, canaries.inserted.labels)]); "
            "Reading(augment=...) if the data set changes records at random",
        )
    return total


def _holds(record: Any, features: torch.Tensor) -> bool:
    """Whether a record, however it is packed, contains these features."""
    return any(
        tensor.shape == features.shape and torch.equal(features.to(tensor), tensor)
        for tensor in tensors_in(record)
    )
