"""DP-SGD: thousands of runs at once, with the full transcript that the strongest adversary sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from remanence.core.checks import number, whole
from remanence.core.exceptions import InputError
from remanence.core.mechanism import Mechanism, Setting
from remanence.core.records import Records
from remanence.core.releases import Release, Transcript, Weights
from remanence.scale.progress import track
from remanence.training.perceptron import Network
from remanence.training.sgd import gpu_bytes

_CPU_BYTES = 2**28
_GPU_SHARE = 0.4  # of the device's memory, for transcripts


@final
@dataclass(frozen=True)
class DPSGD(Mechanism[Release]):
    """Differentially private SGD, with Opacus' parameter names.

    Each step draws every record with probability `sample_rate` (Poisson), clips its gradient to
    `max_grad_norm`, adds N(0, (noise_multiplier · max_grad_norm)²) to the sum, divides by the expected
    batch size and takes a step. Releases the whole `Transcript`, or with `final_only` the last weights. With an
    `initial_seed` every run starts from the same parameters, which the adversary knows.
    """

    network: Network
    noise_multiplier: float
    steps: int
    sample_rate: float = 1.0
    max_grad_norm: float = 1.0
    learning_rate: float = 1.0
    momentum: float = 0.0
    final_only: bool = False
    initial_seed: int | None = None
    name: ClassVar[str] = "DP-SGD"

    def __post_init__(self) -> None:
        number("noise_multiplier", self.noise_multiplier, least=0)
        whole("steps", self.steps)
        number("sample_rate", self.sample_rate, above=0, most=1)
        number("max_grad_norm", self.max_grad_norm, above=0)
        number("momentum", self.momentum, least=0, below=1)

    @property
    def releases(self) -> type[Release]:
        """The transcript, or the final weights."""
        return Weights if self.final_only else Transcript

    def gaussian_noise(self, feature_norm: float | None = None) -> tuple[float, float, int] | None:
        """The noise multiplier, sampling rate and steps of the training."""
        return self.noise_multiplier, self.sample_rate, self.steps

    def settings(self) -> dict[str, Setting]:
        """The training settings that a report prints."""
        return {
            "network": repr(self.network)[:200],
            "parameters": self.network.numbers,
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "max_grad_norm": self.max_grad_norm,
            "learning_rate": self.learning_rate,
            "momentum": self.momentum,
            "initialisation": "unknown"
            if self.initial_seed is None and not self.network.own_start
            else "known",
        }

    def trials_at_once(self, targets: Records) -> int:
        """Few, because a transcript is large, and to stay within a CPU's cache."""
        device = targets.features.device
        on_gpu = device.type == "cuda"
        budget = int(_GPU_SHARE * gpu_bytes(device)) if on_gpu else _CPU_BYTES
        numbers = self.network.numbers * (4 if self.final_only else 3 * self.steps)
        return max(1, min(4096 if on_gpu else 64, budget // (4 * numbers)))

    def release(self, known_data: Records | None, targets: Records, generator: torch.Generator) -> Release:
        """Train once per trial on the known data and that trial's targets."""
        self.network.check(targets)
        if known_data is not None:
            self.network.check(known_data[None])
        trials, set_size = targets.batch_shape
        known_count = 0 if known_data is None else len(known_data)
        if self.network.mixes(known_data, targets, known_count + set_size):
            raise InputError(
                "The network mixes the records of a batch.",
                needs="a separate gradient for every record, which DP-SGD clips",
                got="one step on a batch that is not the sum of its records' steps",
                hint="a network without statistics of, or attention over, the batch",
            )
        device = targets.features.device
        expected = self.sample_rate * (known_count + set_size)
        if self.initial_seed is None:
            parameters = self.network.initial(trials, generator).to(device)
        else:
            one = self.network.initial(1, torch.Generator().manual_seed(self.initial_seed))
            parameters = one.to(device).expand(trials, -1)
        velocity = torch.zeros_like(parameters)
        room = trials, 0 if self.final_only else self.steps, self.network.numbers
        history = {name: parameters.new_empty(room) for name in ("parameters", "gradients", "known")}
        for step in track(range(self.steps), total=self.steps, what="training"):
            known = torch.zeros_like(parameters)
            if known_data is not None:
                known = self._known_sum(
                    parameters, known_data, self._draw(trials, known_count, generator, device)
                )
            present = self._draw(trials, set_size, generator, device)
            own = self.network.clipped_sum(parameters, targets, max_norm=self.max_grad_norm, mask=present)
            noise = torch.randn(parameters.shape, generator=generator, device=generator.device).to(device)
            gradient = known + own + self.noise_multiplier * self.max_grad_norm * noise
            if not self.final_only:
                for name, value in (("parameters", parameters), ("gradients", gradient), ("known", known)):
                    history[name][:, step] = value
            velocity = self.momentum * velocity + gradient / expected
            parameters = parameters - self.learning_rate * velocity
        if self.final_only:
            return Weights({"parameters": parameters})
        return Transcript(history)

    def check_probes(self, probes: Records, targets: Records | None = None) -> None:
        """Refuse probes that the network cannot take as input."""
        if targets is None:
            self.network.check(probes[None])

    def answer(self, release: Release, records: Records) -> Tensor:
        """Query the networks at the end of training."""
        if self.final_only:
            return self.network.classify(release["parameters"], records[None])
        return super().answer(release, records)

    def _draw(
        self, trials: int, count: int, generator: torch.Generator, device: torch.device
    ) -> Tensor | None:
        """Which records are in the batch, `(trials, records)`; None for all."""
        if self.sample_rate == 1:
            return None
        return (
            torch.rand(trials, count, generator=generator, device=generator.device) < self.sample_rate
        ).to(device)

    def _known_sum(self, parameters: Tensor, known_data: Records, mask: Tensor | None) -> Tensor:
        norm = self.max_grad_norm
        if mask is None:
            return self.network.clipped_sum(parameters, known_data[None], max_norm=norm)
        # A sampled batch is gathered, padded to the largest, instead of computing on all records.
        most = max(1, int(mask.sum(1).max()))
        order = mask.to(torch.int8).argsort(1, descending=True)[:, :most]
        return self.network.clipped_sum(
            parameters, known_data[order], max_norm=norm, mask=mask.gather(1, order)
        )
