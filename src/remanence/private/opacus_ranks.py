"""Several processes that train together with Opacus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed
from opacus.optimizers import DPOptimizer
from torch import Tensor


@final
@dataclass(frozen=True)
class Ranks:
    """The processes that train together; one, as a rule."""

    count: int
    rank: int

    @classmethod
    def of(cls, optimizer: DPOptimizer) -> Ranks:
        """Those that the optimizer adds gradients up over."""
        return cls(getattr(optimizer, "world_size", 1), getattr(optimizer, "rank", 0))

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def agree(self, well: bool) -> bool:
        """Whether all is well in every process."""
        if self.count > 1:
            flag = torch.tensor(int(well))
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
            return bool(flag)
        return well

    def total(self, tensors: list[Tensor]) -> list[Tensor]:
        """Sums over all processes."""
        if self.count > 1:
            flat = torch.cat(tensors)
            torch.distributed.all_reduce(flat)
            return list(flat.split([len(tensor) for tensor in tensors]))
        return tensors

    def joined(self, members: list[int]) -> list[int]:
        """All processes' lists, one after the other."""
        if self.count == 1:
            return members
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, members)
        return [index for part in found for index in part]

    def merged(self, rows: dict[int, Tensor]) -> dict[int, Tensor]:
        """All processes' rows."""
        if self.count == 1:
            return rows
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, {index: row.cpu() for index, row in rows.items()})
        return {index: row for part in found for index, row in part.items()}
