"""The network that reconstructs records from releases, and the held-out shadows that validate it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remanence.core.knowledge import Knowledge
from remanence.core.records import Records
from remanence.core.roc import Roc
from remanence.reconstructor.decoders import Decoder
from remanence.reconstructor.readers import Reader, Tensors
from remanence.reconstructor.shadows import finite_trials

_HELD_OUT = 500  # shadows for validation; fewer if there are many classes
_DRAWN = 2500  # approximate number of reconstructions per evaluation
_AT_ONCE = 1024  # releases read together
_TOGETHER = 4096  # records that a GPU reconstructs at once, where launches cost more than memory
_START = "start"
_COMPARED = 50  # held-out shadows whose reconstructions are compared with their records at once
_NUMBERS = 2**27  # the same limit in numbers, on a GPU


class ReconstructorNetwork(nn.Module):
    """A reader, a decoder, and the indices of each class's records within a set (None: not conditional).

    With a `start`, which reconstructs a record of each class from a release, the network learns the residual.
    """

    def __init__(
        self,
        reader: Reader,
        decoder: Decoder,
        places: Tensor | None,
        learning_rate: float,
        start: Callable[[Tensors], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.reader, self.decoder, self.places, self.learning_rate = reader, decoder, places, learning_rate
        self.start = start

    def prepare(self, tensors: Tensors) -> Tensors:
        """The reader's precomputed tensors, and the records that the network starts from."""
        prepared = self.reader.prepare(tensors)
        return prepared if self.start is None else {**prepared, _START: self.start(tensors)}

    def forward(self, tensors: Tensors, asked: Tensor | None) -> Tensor:
        """A record for every release, `(trials, *example)`, from the prepared tensors."""
        tensors = dict(tensors)
        first = tensors.pop(_START, None)  # (trials, classes, *example)
        if asked is None:
            return self.decoder(self.reader(tensors, asked))
        rows = torch.arange(len(asked), device=asked.device)
        return self.decoder(self.reader(tensors, asked), None if first is None else first[rows, asked])

    def candidates(self, features: Tensor, asked: Tensor, of: int = 0) -> Tensor:
        """The records of the requested classes in sets `(trials, set, *example)`: `(trials, of the class, *example)`.

        They come from the set `of` positions earlier, cyclically.
        """
        assert self.places is not None
        rows = torch.arange(len(asked), device=asked.device)[:, None]
        return features[(rows - of) % len(rows), self.places[asked]]

    @torch.no_grad()
    def draw(self, prepared: Tensors) -> Tensor:
        """One record for every release, or one of each class: `(trials, 1 or classes, *example)`."""
        count = len(next(iter(prepared.values())))
        parts = []
        for start in range(0, count, _AT_ONCE):
            block = {name: tensor[start : start + _AT_ONCE] for name, tensor in prepared.items()}
            size = min(_AT_ONCE, count - start)
            if self.places is None:
                parts.append(self(block, None).unsqueeze(1))
                continue
            every = torch.arange(len(self.places), device=self.places.device)
            few = max(1, _TOGETHER // size) if self.places.is_cuda else 1
            parts.append(torch.cat([self._drawn(block, asked, size) for asked in every.split(few)], 1))
        return torch.cat(parts)

    def _drawn(self, block: Tensors, asked: Tensor, size: int) -> Tensor:
        """The requested records from each of `size` releases, `(size, asked, *example)`."""
        times = len(asked)
        if times > 1:
            block = {name: tensor.repeat_interleave(times, 0) for name, tensor in block.items()}
        return self(block, asked.repeat(size)).unflatten(0, (size, times))


@dataclass(frozen=True)
class HeldOut:
    """Validation shadows, trained on records that no network learns from, and equally many strangers."""

    tensors: Tensors
    targets: Records  # (trials, set)
    strangers: Records

    @classmethod
    def of(cls, knowledge: Knowledge, generator: torch.Generator, asked: int = 1) -> HeldOut:
        """Train them; `asked` is the number of records reconstructed from each."""
        count = max(_HELD_OUT // 5, min(_HELD_OUT, _DRAWN // asked))
        targets, strangers = knowledge.prior.sample_pair(count, generator, generator)
        chunk = knowledge.mechanism.trials_at_once(targets)
        parts = [
            knowledge.release(targets[start : start + chunk], generator)
            for start in range(0, len(targets), chunk)
        ]
        release = type(parts[0]).concatenate(parts)
        kept = finite_trials(release)
        return cls(release.take(kept).tensors, targets[kept], strangers[kept])

    def quality(self, network: ReconstructorNetwork, prepared: Tensors) -> tuple[float, float]:
        """The mean error of the closest record, and the true positive rate at a false positive rate of 1 %."""
        on_gpu = self.targets.features.is_cuda  # as in learning
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            drawn = network.draw(prepared)

        def closest(records: Tensor, drawn: Tensor) -> Tensor:
            records = records.unsqueeze(1) if network.places is None else records[:, network.places]
            pairs = records - drawn.unsqueeze(2)  # (trials, asked, of the class, *example)
            return pairs.flatten(3).square().mean(3).amin(2)

        few = _COMPARED
        if drawn.is_cuda:  # where launches cost more than memory
            alike = 1 if network.places is None else network.places.shape[1]
            few = max(1, _NUMBERS // (alike * drawn[0].numel()))

        def errors(records: Tensor) -> Tensor:
            pairs = zip(records.split(few), drawn.split(few), strict=True)
            return torch.cat([closest(*pair) for pair in pairs])

        both = torch.stack([errors(each.features) for each in (self.targets, self.strangers)])
        own, others = both.cpu()  # one synchronisation with the device
        return float(own.mean()), Roc(own.numpy(), others.numpy()).true_positive_rate(0.01)
