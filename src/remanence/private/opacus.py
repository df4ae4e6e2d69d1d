"""Record an Opacus training run as it happens, so that it can be audited: `remanence run FOLDER`.

    with record(privacy_engine, optimizer, model, loader, out="run", canaries=canaries, seed="os"):
        ...  # the training loop, unchanged

Every step is replayed during training: the records of the batch, each record's clipped gradient, the noise, and the
new weights. Gradients and updates are replayed one step late: any hidden state that the loop's own code reads has
changed by then. The folder says which parts came out the same, and why others did not. Without `seed`,
recording does not change a bit of the training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, final

import torch
from opacus import PrivacyEngine
from opacus.grad_sample.gsm_base import AbstractGradSampleHooks
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor, nn
from torch.utils.data import DataLoader

from remanence.core.checks import brief, instance, number, one_of
from remanence.core.exceptions import InputError
from remanence.private.canaries import Canaries
from remanence.private.opacus_batches import Batches, rate_of
from remanence.private.opacus_updates import Declared, Limits, Updates
from remanence.private.own_pass import (
    Clipping,
    LayerDraws,
    OwnPass,
    Pass,
    Reading,
    names_of,
    norms_of,
    quiet_randomness,
    tensors_in,
)
from remanence.private.recording import RunRecorder
from remanence.private.seeds import Stream, from_the_system, unknown

__all__ = ["Reading", "RecordingWarning", "record"]

_ROUNDING = 64  # units in the last place per record, by which two ways of adding up gradients may differ
_MOST_ROUNDING = 0.02  # of a clipping norm per record, in half precision
_APART = 1e-6  # relative, by which the norms of layers may add up to another one in single precision
_SCALED = 1e-3  # of the noise, by which it may differ from a multiple of what the generator gives


@final
class RecordingWarning(UserWarning):
    """Recording cannot go on; training does."""


@contextmanager
def record(
    privacy_engine: PrivacyEngine,
    optimizer: DPOptimizer,
    model: Any,
    loader: DataLoader[Any],
    *,
    out: str | Path,
    canaries: Canaries,
    reading: Reading | None = None,
    seed: Literal["os", "secret"] | None = None,
    limits: Sequence[float] = (),
) -> Iterator[None]:
    """Write what the training inside the `with` did into a new folder, whatever happens to it.

    The first four are what `make_private` returned. `canaries.inserted` must be the last records of the loader's data
    set; `reading` says how the loop looks at a record. `seed="os"` draws noise and batches from generators that the
    operating system's entropy seeds. With `seed="secret"` they keep generators of their own that you seeded, and you
    assert that the seeds stay secret. `limits` are the numbers to which the loop limits noised gradients or weights.
    """
    reading = reading or Reading()
    _check(privacy_engine, optimizer, model, loader, seed)
    hint = "limits=[5.0]"
    for level in instance("limits", limits, (list, tuple), "a list of numbers", hint):
        number("limits", level, above=0, hint=hint)
    records = _check_canaries(loader, canaries)
    with ExitStack() as stack:
        rate, names = rate_of(loader.batch_sampler), names_of(model._module)
        recorder = RunRecorder(
            out,
            records=records,
            canaries=canaries,
            history=lambda: privacy_engine.accountant.history,
            expected=(float(optimizer.noise_multiplier), rate, 0),
            about={
                "framework": f"Opacus {version('opacus')}, torch {torch.__version__}",
                "seed": seed or "unknown",
                "rate": rate,
                "tensors": [names[id(p)] for p in optimizer.params],
                **_counted(optimizer, rate, records),
            },
        )
        if seed == "os":
            stack.enter_context(_seeded(optimizer, loader))
        steps = Steps(recorder, optimizer, model, loader, reading, canaries, limits)
        stack.callback(steps.batches.close)
        try:
            with steps.watching():
                yield
        except BaseException as error:
            recorder.note("recording-stopped", f"{type(error).__name__}: {brief(error)}")
            if recorder.steps:  # the training's own error is what its owner has to see
                recorder.finish()
            raise
        recorder.replayed("seed", unknown(seed, [steps.noise, steps.draws]), steps=recorder.steps)
        if duplicates := steps.batches.duplicates():
            recorder.note("records-duplicated", "", count=duplicates)
        recorder.finish()


@contextmanager
def _seeded(optimizer: DPOptimizer, loader: DataLoader[Any]) -> Iterator[None]:
    """Noise and batches from the system's entropy, until recording ends."""
    sampler: Any = loader.batch_sampler
    noise, batches = optimizer.generator, getattr(sampler, "generator", None)
    optimizer.generator = from_the_system(optimizer.params[0].device)
    if hasattr(sampler, "generator"):
        sampler.generator = from_the_system(torch.device("cpu"))
    try:
        yield
    finally:
        optimizer.generator = noise
        if hasattr(sampler, "generator"):
            sampler.generator = batches


def _counted(optimizer: DPOptimizer, rate: float, records: int) -> dict[str, int]:
    """The divisor and the batches of an epoch, where they were counted from the records, as Opacus does."""
    batches, divisor = round(1 / rate), optimizer.expected_batch_size
    counted = optimizer.loss_reduction == "mean" and divisor == int(records / batches)
    return {"divisor": divisor, "batches": batches} if counted and divisor else {}


class _Hook:
    """What is hung onto the module: it does nothing in a copy of it, and is nothing to keep when one is stored."""

    def __init__(self, call: Callable[..., None] | None = None) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._call is not None:
            self._call(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _Hook, ()


@final
class Steps:
    """Replays the actual training part by part and hands it to the recorder."""

    def __init__(
        self,
        recorder: RunRecorder,
        optimizer: DPOptimizer,
        model: Any,
        loader: DataLoader[Any],
        reading: Reading,
        canaries: Canaries,
        limits: Sequence[float],
    ) -> None:
        self._recorder, self._optimizer = recorder, optimizer
        self._reading, self._canaries = reading, canaries
        self._ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._module: nn.Module = model._module
        device = optimizer.params[0].device
        self.noise = Stream("the generator of the noise", optimizer.generator, device)
        batches: Any = getattr(loader.batch_sampler, "generator", None)
        self.draws = Stream("the generator of the batches", batches, loaders=True)
        limited = partial(recorder.note, "post-processed")
        self._of_sums, self._of_gradients = (Limits("noised gradients", limits, limited) for _ in range(2))
        self._updates = Updates(optimizer, self._module, Limits("weights", limits, limited))
        self._declared = Declared(optimizer, len(loader))
        self._own = OwnPass(model, optimizer.params, reading)
        self._layers, self._shared = LayerDraws(), optimizer.generator is None or batches is None
        self._eps = max((torch.finfo(p.dtype).eps for p in optimizer.params), default=0.0)
        self._stopped = False
        self._stepping = False  # between the noise of a step and the next batch
        self._updated = False  # the optimizer has taken the step
        self._depth = 0  # of steps inside a step: a user's own optimizer calls its parent's
        self._divisions: set[Any] = set()  # numbers of passes that noised sums were divided by
        self._off: dict[str, str] = {}  # settings that are not as declared, in this step
        self._why_update = ""
        self._noised: list[Tensor] = []
        self._before: list[Tensor] = []  # sums of clipped gradients, before the noise
        self._summed: list[Tensor] = []  # the same, flat and in single precision
        self._fed: Pass | None = None  # the last pass that trained
        # A pass to be replayed: its batch, its records and the norms of their gradients before clipping.
        self._pending: tuple[_Batch, Pass, list[int], list[Tensor]] | None = None
        self._batch = _Batch(looking=True)
        self.batches = Batches(loader, self.draws)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the model and the optimizer, and let go of both at the end."""
        optimizer = self._optimizer
        wanted = {
            "accumulate" if self._ghost else "clip_and_accumulate": (self._clip, lambda: None),
            "add_noise": (self._before_noise, self._add_noise),
        }
        before = {name: vars(optimizer).get(name) for name in wanted}
        ours = {name: self._around(getattr(optimizer, name), *both) for name, both in wanted.items()}
        vars(optimizer).update(ours)
        handles = [
            self._module.register_forward_pre_hook(_Hook(self._called), with_kwargs=True),
            self._module.register_forward_hook(_Hook(self._returned)),
            optimizer.original_optimizer.register_step_pre_hook(lambda *_: self._safely(self._about_to_step)),
            optimizer.original_optimizer.register_step_post_hook(lambda *_: self._safely(self._stepped)),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._safely(self._at_the_end)
            self._stopped = True
            for name, plain in before.items():
                if vars(optimizer).get(name) is ours[name]:  # and not what was put there since
                    delattr(optimizer, name)
                    vars(optimizer).update({} if plain is None else {name: plain})

    def _around(self, plain: Callable[[], None], *both: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            self._safely(both[0])
            plain()
            self._safely(both[1])

        return watched

    def _safely(self, action: Callable[[], None]) -> None:
        """Whatever goes wrong in recording, training goes on and what was recorded is kept."""
        if self._stopped:
            return
        try:
            with torch.no_grad():
                action()
        except Exception as error:  # noqa: BLE001  nothing that happens here may reach the training
            self._stopped = True
            reason = f"{type(error).__name__}: {brief(error)}"
            self._recorder.note("recording-stopped", reason)
            warnings.warn(
                f"Recording stopped after {self._recorder.steps} steps: {reason}. Training goes on.",
                RecordingWarning,
                stacklevel=4,
            )

    def _called(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is given a batch."""

        trains = torch.is_grad_enabled() and any(module.training for module in self._module.modules())

        def note() -> None:
            began = self._layers.before()
            if trains:
                self._fed = self._own.now((args, kwargs), began)
                with suppress(Exception):  # it fails again, and is told, when a batch is replayed
                    self.batches.mark()

        self._safely(note)

    def _returned(self, *_: Any) -> None:
        def note() -> None:
            why = self._layers.after()
            if not self._shared:
                self._batch.why = self._batch.why or why

        self._safely(note)

    def _clip(self) -> None:
        """One physical batch, about to be clipped."""
        self._after_step()
        self._settle()
        batch, optimizer = self._batch, self._optimizer
        if self._ghost:
            own = [getattr(p, "_norm_sample", torch.zeros(0)) for p in optimizer.params]
        else:
            own = [sample.flatten(1).float().norm(dim=1) for sample in optimizer.grad_samples]
        members = self.batches.take(max(len(norms) for norms in own))
        if members is None or self._fed is None:
            batch.why = "gradients came from records that the loader did not hand out"
            return
        batch.members += members
        batch.clipping = Clipping.of(optimizer)
        off = self._declared.off(optimizer, self._recorder.steps)
        batch.norm_why = batch.norm_why or off.get("max_grad_norm", "")
        batch.why = batch.why or self._own.several_ways(self._fed)
        if members:
            self._pending = batch, self._fed, members, own

    def _settle(self) -> None:
        """Replay the last physical batch, now that the next one has come; its step too, if it was the last."""
        if self._pending is None:
            return
        (batch, one, members, theirs), self._pending = self._pending, None
        try:
            self._add_up(batch, one, members, theirs)
        except Exception as error:  # noqa: BLE001  a loop may look at its records in any way
            batch.why = f"the recorder's own pass fails ({type(error).__name__}: {brief(error)})"
        if batch.released is not None:
            self._judge(batch)

    def _add_up(self, batch: _Batch, one: Pass, members: list[int], theirs: list[Tensor]) -> None:
        """The recorder's own pass over a physical batch."""
        assert batch.clipping is not None
        fetched, why = self.batches.fetch(members)
        batch.why, batch.last = batch.why or why, one
        features, labels = self._reading.split(fetched)
        start, far = 0, self._far(one)
        for samples in self._own.gradients(one, features, labels):
            norms = norms_of(samples)
            factors = batch.clipping.factors(norms)
            batch.sums = _added(batch.sums, samples, factors)
            here, most = slice(start, start + norms.shape[1]), far * float(norms.norm(dim=0).max())
            batch.same &= all(
                len(a) == len(members) and torch.allclose(a[here].float(), b, rtol=far, atol=most)
                for a, b in zip(theirs, norms, strict=True)
            )
            if batch.looking:
                known = [index < self._recorder.first_canary for index in members[here]]
                batch.known = _added(batch.known, samples, factors * torch.tensor(known).to(factors))
            start += norms.shape[1]

    def _before_noise(self) -> None:
        """The sum of a logical batch is complete: what the noise must be."""
        optimizer = self._optimizer
        self._off = self._declared.off(optimizer, self._recorder.steps)
        self._before = [p.summed_grad.detach().clone() for p in optimizer.params]  # pyright: ignore
        self._summed = [part.flatten().float() for part in self._before]
        norm, clipped = float(optimizer.max_grad_norm), Clipping.of(optimizer).total
        if abs(norm - clipped) > _APART * clipped:
            self._off["max_grad_norm"] = (
                f"noise is made for a norm of {norm:.6g}, and clipping is to {clipped:.6g}"
            )
        deviation = float(optimizer.noise_multiplier) * norm

        def draw(generator: torch.Generator) -> list[Tensor]:
            return [torch.empty_like(s).normal_(0.0, deviation, generator=generator) for s in self._before]

        secure = bool(optimizer.secure_mode) or deviation == 0
        self._foreseen: list[Tensor] | None = None if secure else self.noise.next(optimizer.generator, draw)

    def _add_noise(self) -> None:
        """One logical step, between its noise and its update."""
        optimizer, batch, recorder = self._optimizer, self._batch, self._recorder
        self.noise.taken()
        batch.clipping = batch.clipping or Clipping.of(optimizer)
        self._noised = [p.grad.detach().clone() for p in optimizer.params]  # pyright: ignore[reportOptionalMemberAccess]
        recorder.replayed("sampling", self.batches.settle(batch.members))
        recorder.replayed("norm", batch.norm_why or self._off.get("max_grad_norm", ""))
        noised, why = self._noise_again()
        recorder.replayed("noise", self._off.get("noise_multiplier", why))
        norm, told = batch.clipping.total, float(optimizer.noise_multiplier)
        recorder.add(batch.members, self._summed, noised, norm=norm, told=told)
        self._stepping, self._updated, self._why_update = True, False, "the optimizer took no step"
        batch.summed, batch.released = self._summed, noised
        if self._pending is None:  # an empty batch
            self._judge(batch)
        self._batch = _Batch(looking=recorder.looks())

    def _judge(self, batch: _Batch) -> None:
        """A step whose records have been added up again: are they the sum, and what does it say about canaries?"""
        assert batch.released is not None
        assert batch.clipping is not None
        if not batch.members and not batch.why:
            batch.sums = [torch.zeros_like(part) for part in batch.summed]
        self._recorder.replayed("clipping", batch.why or self._clipped(batch, batch.clipping))
        one = batch.last or self._fed
        if batch.looking and one is not None:
            left = torch.cat(batch.released) - torch.cat(batch.known or batch.summed)
            lists = self._canaries.shortlists
            features, labels = lists.features.flatten(0, 1), lists.labels.flatten()
            self._recorder.read(self._own.clipped(one, features, labels, batch.clipping), left)

    def _clipped(self, batch: _Batch, clipping: Clipping) -> str:
        """Why the sum that noise is added to is not that of the records' clipped gradients."""
        count = 1 + len(batch.members)
        if batch.sums is None:
            return "it is unknown which records' gradients were summed"
        apart = [(a - b).norm() for a, b in zip(batch.summed, batch.sums, strict=True)]
        off = float(torch.stack(apart).norm()) / clipping.total
        if off <= min(_ROUNDING * self._precision(batch.last), _MOST_ROUNDING) * count:
            self._recorder.rounding = max(self._recorder.rounding, off)
            return "" if batch.same else "records' gradients, before clipping, are not the recorder's own"
        if batch.same and off > 2 * self._far(batch.last) * count:
            why = f"the sum is off by {off / count:.2g} clipping norms per record"
            self._recorder.note("clipping-wrong", why)
        return f"the records' own gradients, clipped, give another sum ({off:.2g} clipping norms away)"

    def _far(self, one: Pass | None) -> float:
        """How far apart two norms of a record's gradient may be, of the largest norm, and count as the same."""
        return max(1e-3, 8 * self._precision(one))

    def _precision(self, one: Pass | None) -> float:
        """The relative precision of the numbers in a pass."""
        return self._eps if one is None or one.autocast is None else torch.finfo(one.autocast).eps

    def _noise_again(self) -> tuple[list[Tensor], str]:
        """The noised sums to be recorded; why they are not what the generator gives to the bit, if they are not."""
        noised = [g.flatten().float() for g in self._noised]
        if self._foreseen is None:
            return noised, self.noise.why or "there is no noise, or its generator cannot be read"
        both = zip(self._before, self._foreseen, self._noised, strict=True)
        expected = [(before + z).view_as(after) for before, z, after in both]
        flat = [part.flatten().float() for part in expected]
        if self._of_sums.allow(self._noised, expected):
            return flat, ""
        units = [z.flatten().double() for z in self._foreseen]
        noise = [(a - b).double() for a, b in zip(noised, self._summed, strict=True)]
        every, all_of_it = torch.cat(units), torch.cat(noise)
        alike = float(every @ all_of_it / (every.norm() * all_of_it.norm()).clamp(min=1e-300))
        certain = alike < 0.1 or any(_is_share(own, unit) for own, unit in zip(noise, units, strict=True))
        # Otherwise the noise was there, and something was done to it.
        return noised if certain else flat, "the noise generator gives other numbers"

    def _about_to_step(self) -> None:
        """The optimizer's own step begins: are these the noised gradients, divided by what was declared?"""
        self._depth += 1
        if not self._stepping or self._depth > 1:
            return
        optimizer, step = self._optimizer, self._recorder.steps - 1
        passes = 1 if self._ghost else optimizer.accumulated_iterations
        scale = (optimizer.expected_batch_size or 1) * passes if optimizer.loss_reduction == "mean" else 1.0
        self._divisions.add(passes)
        actual = [p.grad.detach() for p in optimizer.params]  # pyright: ignore[reportOptionalMemberAccess]
        off = {**self._declared.off(optimizer, step), **self._off}
        why = [reason for name, reason in off.items() if name not in ("max_grad_norm", "noise_multiplier")]
        if self._updated:
            why.append("several steps were taken on one noised gradient")
        if len(self._divisions) > 1:
            why.append("noised sums are divided by a number that changes")
        self._updated, self._why_update = True, why[0] if why else ""
        noised = [g / scale for g in self._noised]
        if not self._of_gradients.allow(actual, noised):
            self._why_update = "the optimizer was not given the noised gradient"
            for place, (bare, given) in enumerate(zip(self._summed, actual, strict=True)):
                if torch.allclose((bare.view_as(given) / scale).to(given), given, rtol=1e-5, atol=1e-9):
                    self._recorder.unnoised(place)
        self._updates.begin()

    def _stepped(self) -> None:
        self._depth -= 1

    def _after_step(self) -> None:
        """Before anything else happens, and at the end: did the last step lead where it had to?"""
        if self._stepping:
            self._stepping, why = False, self._updates.check()
            self._recorder.replayed("update", self._why_update or why)

    def _at_the_end(self) -> None:
        """Training is over: replay the last step, and check that nothing has moved since."""
        self._after_step()
        if self._recorder.steps and (why := self._updates.check()):
            self._recorder.replayed("update", why)
        self._settle()


def _is_share(noise: Tensor, unit: Tensor) -> bool:
    """Whether it is a multiple of what the generator gives, and smaller."""
    share = unit @ noise / (unit @ unit).clamp(min=1e-300)
    return bool(share < 1 - _SCALED and (noise - share * unit).norm() <= _SCALED * unit.norm())


@final
class _Batch:
    """One logical batch, added up from its physical ones by the recorder's own pass."""

    def __init__(self, looking: bool) -> None:
        self.looking = looking  # the attack looks for the canaries in this step
        self.members: list[int] = []
        self.why, self.norm_why = "", ""
        self.clipping: Clipping | None = None
        self.sums: list[Tensor] | None = None
        self.known: list[Tensor] | None = None  # the sums without canaries, where the attack looks for them
        self.same = True  # the training's gradients of records, before clipping, are the recorder's own
        self.last: Pass | None = None
        self.summed: list[Tensor] = []  # what the noise was added to
        self.released: list[Tensor] | None = None  # with its noise


def _added(sums: list[Tensor] | None, samples: list[Tensor], factors: Tensor) -> list[Tensor]:
    """The sums of gradients so far, with those of some more records times their factors."""
    more = [factor @ sample for factor, sample in zip(factors, samples, strict=True)]
    return more if sums is None else [a + b for a, b in zip(sums, more, strict=True)]


def _check(
    privacy_engine: PrivacyEngine,
    optimizer: DPOptimizer,
    model: Any,
    loader: DataLoader[Any],
    seed: str | None,
) -> None:
    """Refuse what cannot be recorded truthfully, before training starts."""
    if not isinstance(optimizer, DPOptimizer) or hasattr(optimizer, "world_size"):
        raise InputError(
            "This optimizer cannot be recorded.",
            needs="one of Opacus' optimizers, in one process: a step shared by several processes cannot be replayed",
            got=f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            hint="BatchMemoryManager, which trains large batches in one process",
        )
    needs = "make_private's GradSampleModule or GradSampleHooks, with gradients of single records"
    hint = "model, optimizer, loader = privacy_engine.make_private(...)"
    instance("model", model, AbstractGradSampleHooks, needs, hint)
    one_of("seed", seed, ["os", "secret", None])
    if privacy_engine.accountant.history:
        raise InputError(
            "Training has already begun.",
            needs="a training that is recorded from the first step on: the claim is about all of them",
            got=f"{sum(count for _, _, count in privacy_engine.accountant.history)} steps before it",
            hint="enter `with record(...)` right after make_private",
        )
    if getattr(loader, "batch_sampler", None) is None:
        raise InputError(
            "The loader does not say which records are in a batch.",
            needs="a DataLoader with a batch sampler",
            got="a loader of single records or of an iterable data set",
            hint="the loader that make_private returned",
        )


def _check_canaries(loader: DataLoader[Any], canaries: Canaries) -> int:
    """The number of records, of which the last must be the canaries."""
    hint = "crafted(count, shape, classes, seed=...), whose `inserted` records are appended to the data"
    instance("canaries", canaries, Canaries, "canaries, which `remanence run` looks for", hint)
    data: Any = loader.dataset
    total = len(data)
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
            hint="ConcatDataset([data, TensorDataset(canaries.inserted.features, canaries.inserted.labels)]), "
            "without random changes",
        )
    return total


def _holds(record: Any, features: torch.Tensor) -> bool:
    """Whether a record, however it is packed, contains these features."""
    return any(
        tensor.shape == features.shape and torch.equal(features.to(tensor), tensor)
        for tensor in tensors_in(record)
    )
