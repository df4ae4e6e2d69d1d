"""Record an Opacus training run as it happens, so that it can be audited: `remanence audit FOLDER`.

    with record(privacy_engine, optimizer, model, loader, out="run", canaries=canaries):
        ...  # the training loop, unchanged

What is written is what ran: who was in each batch, how much noise was added, how gradients were clipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from remanence.exceptions import InputError
from remanence.games.recorded_runs.canaries import Canaries
from remanence.games.recorded_runs.projections import Decoder
from remanence.games.recorded_runs.recording import STEP, RecordingWriter
from remanence.integrations.opacus_steps import Steps, sampler_of

Loss = Callable[[Tensor, Tensor], Tensor]

_ROWS_AT_ONCE = 256
_LARGEST_WHOLE = 2_000_000  # parameters; above it a step would write more than 24 MB


@contextmanager
def record(
    privacy_engine: PrivacyEngine,
    optimizer: DPOptimizer,
    model: nn.Module,
    loader: DataLoader[Any],
    *,
    out: str | Path,
    canaries: Canaries | None = None,
    loss: Loss = cross_entropy,
    precision: Literal["float32", "float16"] = "float32",
    keep: Literal["whole", "projections"] | None = None,
) -> Iterator[None]:
    """Write a transcript of the training inside the `with` into a new folder, whole or not at all.

    All but the model's `loss` are what `make_private` returned. `canaries.inserted` must be the last
    records of the loader's data set. `keep` says whether parameters and gradients of every step are kept
    (looked at after training) or only what they say about the canaries (looked at in every step, slower); left
    out, the model's size decides.
    """
    _check(privacy_engine, optimizer, model, loader)
    positions = _positions(loader, canaries)
    numbers = sum(parameter.numel() for parameter in optimizer.params)
    whole = numbers <= _LARGEST_WHOLE if keep is None else keep == "whole"
    writer = RecordingWriter(Path(out), precision=precision)
    steps = Steps(optimizer, sampler_of(loader), positions)
    decoder = None if canaries is None else Decoder(len(canaries), canaries.candidates)

    def read(
        noise: float, rate: float, norm: float, parameters: Tensor, gradients: Tensor, known: Tensor
    ) -> None:
        if canaries is not None and decoder is not None:
            found = _candidate_gradients(model, optimizer, canaries, parameters, loss, norm)
            released = (gradients - known).cpu()
            decoder.step(found, released, noise=noise * norm, sample_rate=min(rate, 1.0))

    checked = canaries is None or any(isinstance(m, nn.modules.dropout._DropoutNd) for m in model.modules())

    def take(*tensors: Tensor) -> None:
        nonlocal checked
        own = steps.canaries_in_step()
        if canaries is not None and not checked and own:
            found = _candidate_gradients(model, optimizer, canaries, tensors[0], loss, steps.norms[-1])
            _check_loss(found[canaries.rows[torch.tensor(own)]].sum(0), steps, len(own))
            checked = True
        if whole:
            writer.add(dict(zip(STEP, tensors, strict=True)))
        else:
            read(steps.noises[-1], _rate(privacy_engine, loader), steps.norms[-1], *tensors)

    try:
        with steps.watching(take):
            yield
        claimed = [list(segment) for segment in privacy_engine.accountant.history]
        if not steps.sizes or not claimed:
            raise InputError(
                "No training step was recorded.",
                needs="at least one optimizer.step() inside the `with`",
                got=f"{len(steps.sizes)} steps, {len(claimed)} entries in the accountant's history",
                hint="put the whole training loop inside `with record(...)`",
            )
        manifest = {
            "opacus": version("opacus"),
            "torch": torch.__version__,
            "accountant": privacy_engine.accountant.mechanism(),
            "claimed": claimed,
            "parameters": numbers,
            "kept": "whole" if whole else "projections",
            **steps.summary(records=len(loader.dataset)),  # pyright: ignore[reportArgumentType]
        }
        writer.add_once("batches", steps.batches())
        if canaries is not None and decoder is not None:
            if whole:
                # The law that is claimed, not what the optimizer was told: the test is of the claim.
                claims = [(noise, rate) for noise, rate, count in claimed for _ in range(count)]
                for step, tensors in enumerate(writer.replay("reading the canaries")):
                    read(*claims[min(step, len(claims) - 1)], steps.norms[step], *tensors)
            manifest["canaries"] = {
                "count": len(canaries),
                "candidates": canaries.candidates,
                "design": str(canaries.design),
                "sha256": canaries.shortlists.sha256(),
            }
            writer.add_once("canaries", {"scores": decoder.scores(), "chosen": canaries.chosen})
            projections = decoder.projections(
                steps.presence(canaries.rows, canaries.shortlists.labels.numel())
            )
            if projections is not None:
                writer.add_once("projections", projections)
        writer.finish(manifest)
    finally:
        writer.abandon()


def _check(
    privacy_engine: PrivacyEngine, optimizer: DPOptimizer, model: nn.Module, loader: DataLoader[Any]
) -> None:
    """Refuse what cannot be recorded truthfully, before training starts."""
    kind = type(optimizer)
    flat = isinstance(optimizer, DPOptimizer) and all(
        base is DPOptimizer or not base.__module__.startswith("opacus.") or not issubclass(base, DPOptimizer)
        for base in kind.__mro__
    )
    if not flat:
        raise InputError(
            "This optimizer cannot be recorded.",
            needs="Opacus' DPOptimizer: flat clipping of every record's gradient, on one device",
            got=f"{kind.__module__}.{kind.__name__}",
            hint='make_private(..., clipping="flat", grad_sample_mode="hooks")',
        )
    if not isinstance(model, GradSampleModule):
        raise InputError(
            "The model does not keep the gradients of single records.",
            needs="the model that make_private returned, with grad_sample_mode hooks or functorch",
            got=type(model).__name__,
            hint="model, optimizer, loader = privacy_engine.make_private(...)",
        )
    if privacy_engine.accountant.history:
        raise InputError(
            "Training has already begun.",
            needs="a recording from the first step on",
            got=f"{sum(count for _, _, count in privacy_engine.accountant.history)} steps before it",
            hint="enter `with record(...)` right after make_private",
        )
    if getattr(loader, "batch_sampler", None) is None:
        raise InputError(
            "The loader does not say who is in a batch.",
            needs="a DataLoader with a batch sampler",
            got="a loader of single records or of an iterable data set",
            hint="the loader that make_private returned",
        )


def _rate(privacy_engine: PrivacyEngine, loader: DataLoader[Any]) -> float:
    """The sampling rate that the accountant has been told, or will be told first."""
    history, sampler = privacy_engine.accountant.history, sampler_of(loader)
    return history[-1][1] if history else getattr(sampler, "sample_rate", 1 / max(1, len(sampler)))


def _positions(loader: DataLoader[Any], canaries: Canaries | None) -> range:
    """Where the canaries are in the data set: at its end, and checked to be there."""
    total = len(loader.dataset)  # pyright: ignore[reportArgumentType]
    if canaries is None:
        return range(total, total)
    inserted = canaries.inserted
    first = total - len(inserted)
    for offset in range(len(inserted) if first >= 0 else 0):
        features, label = loader.dataset[first + offset][:2]
        own = inserted.features[offset].to(torch.as_tensor(features).dtype)
        if not torch.equal(own, torch.as_tensor(features)) or int(label) != int(inserted.labels[offset]):
            first = -1
            break
    if first < 0:
        raise InputError(
            "The canaries are not in the training data.",
            needs=f"canaries.inserted, {len(inserted)} records, at the end of the loader's data set",
            got=f"a data set of {total} records that ends differently",
            hint="TensorDataset(torch.cat([X, canaries.inserted.features]), torch.cat([y, canaries.inserted.labels]))",
        )
    return range(first, total)


def _check_loss(expected: Tensor, steps: Steps, count: int) -> None:
    """Refuse a loss that is not the one that trains: the canaries' gradients must add up to what was summed."""
    off = float((steps.canary_sum.cpu() - expected).norm()) / (steps.norms[-1] * (1 + count))
    if off > 1e-2:
        raise InputError(
            "The canaries' gradients are not those of this training.",
            needs="the loss that the loop trains with, and a forward pass without randomness",
            got=f"clipped gradients whose sum differs by {off:.2g} clipping norms per canary",
            hint="record(..., loss=your_loss), with the same reduction as in the loop",
        )


def _candidate_gradients(
    model: nn.Module,
    optimizer: DPOptimizer,
    canaries: Canaries,
    parameters: Tensor,
    loss: Loss,
    max_norm: float,
) -> Tensor:
    """Every candidate's clipped gradient at some parameters, by Opacus' own hooks; leaves no trace."""
    records = canaries.shortlists
    own = optimizer.params
    sizes = [parameter.numel() for parameter in own]
    kept = [(p.data, p.grad, p.grad_sample, p.summed_grad) for p in own]  # pyright: ignore
    training = {module: module.training for module in model.modules()}
    gradients = []
    try:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        for parameter, values in zip(own, parameters.split(sizes), strict=True):
            parameter.data = values.view_as(parameter).to(parameter)
        features = records.features.flatten(0, 1).to(own[0].device)
        features = features.to(own[0].dtype) if features.is_floating_point() else features
        labels = records.labels.flatten().to(own[0].device)
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            chunk = slice(start, start + _ROWS_AT_ONCE)
            for parameter in own:
                parameter.grad = None  # or backward() would add to the one that is kept
                parameter.grad_sample = None  # pyright: ignore[reportAttributeAccessIssue]
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about inputs without gradients, as in every Opacus loop
                loss(model(features[chunk]), labels[chunk]).backward()
            flat = torch.cat([sample.flatten(1) for sample in optimizer.grad_samples], 1)
            norms = flat.norm(dim=1, keepdim=True)
            gradients.append(flat * (max_norm / (norms + 1e-6)).clamp(max=1))
    finally:
        for parameter, (data, grad, sample, summed) in zip(own, kept, strict=True):
            parameter.data, parameter.grad = data, grad
            parameter.grad_sample, parameter.summed_grad = sample, summed  # pyright: ignore
        for module, mode in training.items():
            module.training = mode
    return torch.cat(gradients).cpu()
