"""Watching an Opacus optimizer: who was in each step, what was clipped, what noise was added, what the weights did."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor, nn

from remanence.private.canaries import Canaries
from remanence.private.opacus_batches import Batches, tensors_in
from remanence.private.opacus_canaries import CanaryStep, CanaryWatch, RunAs
from remanence.private.opacus_ranks import Ranks
from remanence.private.opacus_replica import Clipping, Reading, Replica, quiet_randomness
from remanence.private.opacus_updates import Updates
from remanence.private.recorder import Claim, NoisedStep, RunRecorder

_CLIPPED = 1e-3  # clipping norms per record by which a sum may be off, through rounding


@final
class RecordingWarning(UserWarning):
    """Recording cannot go on; training does."""


@final
class Steps:
    """What really runs, taken in step by step and handed to the recorder."""

    def __init__(
        self,
        recorder: RunRecorder,
        optimizer: DPOptimizer,
        model: Any,
        batches: Batches,
        reading: Reading,
        canaries: Canaries | None,
    ) -> None:
        self._recorder, self._optimizer, self._batches = recorder, optimizer, batches
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._model = model
        self._module: nn.Module = model._module if isinstance(model, AbstractGradSampleHooks) else model
        self._ranks = Ranks.of(optimizer)
        self._updates = Updates(optimizer, self._module, recorder.observe)
        recorder.names = self._updates.names()
        recorder.sizes = [p.numel() for p in optimizer.params]
        self._tolerance = 4 * max((torch.finfo(p.dtype).eps for p in optimizer.params), default=0.0)
        self._canary_watch: CanaryWatch | None = None
        if canaries is not None:
            replica = Replica(model, optimizer.params, reading)
            self._canary_watch = CanaryWatch(
                recorder, replica, canaries, reading, self._ghost, self._tolerance
            )
        self._stopped = False
        self._members: list[int] = []
        self._sums: list[Tensor] | None = None  # clipped gradients, tensor by tensor
        self._canary_sums: list[Tensor] | None = None
        self._canary_rows: dict[int, Tensor] = {}  # clipped gradients of canaries in the step, by index
        self._clipping = Clipping.of(optimizer)
        self._autocast: torch.dtype | None = None
        self._floats: torch.dtype | None = None  # of what the model is given
        self._seed: int | None = None
        self._size = 0  # of the last step's batch

    @contextmanager
    def watching(self, claims: Callable[[], list[Claim]], *, whole: bool) -> Iterator[None]:
        """Follow the model and the optimizer, and let go of both at the end."""
        optimizer = self._optimizer

        def noised() -> None:
            self._recorder.claimed = claims()
            self._noised(whole=whole)

        def together() -> None:
            # A process that has stopped recording would leave the others waiting for it.
            self._stopped = not self._ranks.agree(not self._stopped)
            self._safely(noised)

        def clipped() -> None:
            self._recorder.claimed = claims()
            self._clipped()

        wanted = {
            "accumulate" if self._ghost else "clip_and_accumulate": (clipped, None),
            "add_noise": (None, together),
        }
        before = {name: vars(optimizer).get(name) for name in wanted}
        ours = {name: self._around(getattr(optimizer, name), *both) for name, both in wanted.items()}
        vars(optimizer).update(ours)
        handle = self._module.register_forward_pre_hook(self._fed, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
            self._safely(lambda: self._updates.finish(self._size))
            self._recorder.claimed = claims()
            self._stopped = True
            for name, plain in before.items():
                if vars(optimizer).get(name) is ours[name]:  # and not what somebody put there since
                    delattr(optimizer, name)
                    vars(optimizer).update({} if plain is None else {name: plain})

    def _around(
        self, plain: Callable[[], None], first: Callable[[], None] | None, then: Callable[[], None] | None
    ) -> Callable[[], None]:
        def watched() -> None:
            self._safely(first)
            plain()
            if then is not None:
                then()

        return watched

    def _safely(self, action: Callable[[], None] | None) -> None:
        """Whatever goes wrong in recording, training goes on and what was recorded is kept."""
        if action is None or self._stopped:
            return
        try:
            with torch.no_grad():
                action()
        except Exception as error:  # noqa: BLE001  nothing that happens here may reach the training
            self._stopped = True
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
            self._recorder.observe("recording-stopped", where=reason)
            warnings.warn(
                f"Recording stopped after {self._recorder.steps} steps: {reason}. Training goes on.",
                RecordingWarning,
                stacklevel=4,
            )

    def _fed(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is given a batch."""
        if not torch.is_grad_enabled() or not self._module.training:
            return

        def note() -> None:
            self._batches.fed((args, kwargs))
            device = self._optimizer.params[0].device.type
            mixed = torch.is_autocast_enabled(device)
            self._autocast = torch.get_autocast_dtype(device) if mixed else None
            floats = [t.dtype for t in tensors_in((args, kwargs)) if t.is_floating_point()]
            self._floats = floats[0] if floats else None

        self._safely(note)

    def _clipped(self) -> None:
        """One physical batch: whose gradients they are, and what their clipped sum should be."""
        self._updates.check(self._size)
        self._clipping = self._clipping_now()
        if self._ghost:
            self._whose(self._rows_of_ghosts())
            return
        samples = [sample.flatten(1) for sample in self._optimizer.grad_samples]
        members = self._whose(len(samples[0]))
        norms = torch.stack([sample.norm(dim=1).float() for sample in samples])
        factors = self._clipping.factors(norms)
        self._watch_norm(norms.norm(dim=0))
        self._sums = _plus(self._sums, [_weighted(f, s) for f, s in zip(factors, samples, strict=True)])
        rows = [place for place, index in enumerate(members) if index >= self._recorder.first_canary]
        if self._canary_watch is None or not rows:
            return
        own = torch.tensor(rows, device=factors.device)
        parts = [(f[own], s[own]) for f, s in zip(factors, samples, strict=True)]
        self._canary_sums = _plus(self._canary_sums, [_weighted(f, s) for f, s in parts])
        tested = set(self._recorder.tested(members).tolist())
        keep = [place for place, row in enumerate(rows) if members[row] in tested]
        if keep:
            clipped = torch.cat([f[keep, None] * s[keep].float() for f, s in parts], 1)
            self._canary_rows.update(zip([members[rows[place]] for place in keep], clipped, strict=True))

    def _clipping_now(self) -> Clipping:
        if self._ghost:  # the module clips, the optimizer makes the noise, and each has a norm of its own
            return Clipping((float(getattr(self._model, "max_grad_norm", self._optimizer.max_grad_norm)),))
        return Clipping.of(self._optimizer)

    def _rows_of_ghosts(self) -> int:
        norms = [getattr(p, "_norm_sample", None) for p in self._optimizer.params]
        return max((len(norm) for norm in norms if norm is not None), default=0)

    def _whose(self, rows: int) -> list[int]:
        members = self._batches.take(rows)
        if members is None:
            self._recorder.observe("batch-not-from-loader", worst=float(rows))
            members = []
        self._members += members
        return members if len(members) == rows else [-1] * rows

    def _watch_norm(self, norms: Tensor) -> None:
        """A clipping norm that is computed from the batch gives the batch away."""
        own = self._clipping.norms
        if len(norms) < 4 or len(own) != 1:
            return
        computed = [norms.mean(), norms.median(), norms.quantile(0.5), norms.max(), norms.min()]
        if any(abs(float(value) / own[0] - 1) < 1e-5 for value in computed):
            self._recorder.observe("norm-from-the-batch", worst=own[0])

    def _noised(self, *, whole: bool) -> None:
        """One logical step, between its noise and its update."""
        optimizer, ranks = self._optimizer, self._ranks
        parameters = optimizer.params
        summed = ranks.total([p.summed_grad.detach().flatten().float() for p in parameters])  # pyright: ignore
        noised = ranks.total([_gradient(p) for p in parameters])
        members = ranks.joined(self._members)
        self._size = len(members)
        norms = self._clipping.total, float(optimizer.max_grad_norm)
        if abs(norms[0] / norms[1] - 1) > 1e-4:
            self._recorder.observe("clipped-elsewhere", worst=norms[0] / norms[1], where=f"{norms[0]:.4g}")
        if self._sums is not None:
            self._sums = ranks.total(self._sums)
            self._check_clipping(summed)
        self._watch_seed()
        self._recorder.add(NoisedStep(members, summed, noised, norms, _told(optimizer)))
        iterations = 1 if self._ghost else optimizer.accumulated_iterations
        self._updates.foresee(noised, iterations, ranks.count)
        known = torch.cat(summed)
        if self._canary_watch is not None:
            rows = ranks.merged(self._canary_rows)
            inside = self._canary_sums or [torch.zeros_like(tensor) for tensor in summed]
            inside = torch.cat(ranks.total(inside))
            if ranks.leads:
                step = CanaryStep(members, rows, inside, summed, noised, self._sums)
                run_as = RunAs(self._clipping, self._autocast, self._floats)
                with quiet_randomness():
                    self._canary_watch.replica.follow(parameters)
                    known = self._canary_watch.look(step, run_as)
        if whole:
            flat = torch.cat([p.detach().flatten().float() for p in parameters])
            self._recorder.writer.add_step(
                {"parameters": flat, "gradients": torch.cat(noised), "known": known}
            )
        self._members, self._sums, self._canary_sums, self._canary_rows = [], None, None, {}

    def _check_clipping(self, summed: list[Tensor]) -> None:
        """The sum that noise is added to must be that of clipped gradients."""
        assert self._sums is not None
        off = torch.stack([(a - b).norm() for a, b in zip(summed, self._sums, strict=True)]).norm()
        share = float(off) / self._clipping.total / (1 + len(self._members))
        if not share <= _CLIPPED + self._tolerance:
            self._recorder.observe("clipping-wrong", worst=share, where=self._effective_norm(summed))

    def _effective_norm(self, summed: list[Tensor]) -> str:
        """The norm to which gradients were clipped instead, if there is one that explains their sum."""
        if self._ghost or len(self._clipping.norms) > 1 or self._ranks.count > 1:
            return ""
        samples = [sample.flatten(1) for sample in self._optimizer.grad_samples]
        if len(samples[0]) != len(self._members):
            return ""  # in several physical batches, of which only the last is there
        norms = torch.stack([sample.norm(dim=1).float() for sample in samples])

        def off(norm: float) -> float:
            factors = Clipping((norm,)).factors(norms)
            sums = [_weighted(f, s) for f, s in zip(factors, samples, strict=True)]
            return float(torch.stack([(a - b).norm() for a, b in zip(summed, sums, strict=True)]).norm())

        low, high = float(norms.norm(dim=0).max()) * 1e-3, float(norms.norm(dim=0).max())
        for _ in range(40):  # the distance falls towards the norm that was used, and rises beyond it
            third = (high / low) ** (1 / 3)
            low, high = (low, high / third) if off(low * third) < off(high / third) else (low * third, high)
        fits = off(high) <= (_CLIPPED + self._tolerance) * high * (1 + len(self._members))
        return f"{high:.4g}" if fits else ""

    def _watch_seed(self) -> None:
        """Seeds that are set while training runs make noise that can be made again."""
        generator = self._optimizer.generator
        if generator is None:
            device = self._optimizer.params[0].device
            generator = torch.default_generator
            if device.type == "cuda":
                generator = torch.cuda.default_generators[device.index or 0]
        seed = getattr(generator, "initial_seed", lambda: None)()
        if seed is not None and self._seed is not None and seed != self._seed:
            self._recorder.observe("seeded-in-the-loop", worst=float(seed))
        self._seed = seed


def _told(optimizer: DPOptimizer) -> float:
    """The noise multiplier that the optimizer is set to; adaptive clipping spends some of its budget elsewhere."""
    own = float(getattr(optimizer, "_adjusted_noise_multiplier", None) or optimizer.noise_multiplier)
    counting = getattr(optimizer, "unclipped_num_std", None)
    return own if counting is None or own <= 0 else (own**-2 - (2 * counting) ** -2) ** -0.5


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.detach().flatten().float().clone()


def _weighted(factors: Tensor, sample: Tensor) -> Tensor:
    """The weighted sum of gradients of single records; half precision is added up in single."""
    return factors.to(sample.device) @ sample.float()


def _plus(before: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    return more if before is None else [a + b for a, b in zip(before, more, strict=True)]
