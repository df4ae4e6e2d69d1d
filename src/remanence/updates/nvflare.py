"""NVFLARE: check every update of your own federation before it is sent; log what it gives away, or withhold it.

Two filters of a client: `KeepModel` on the task's data notes the weights that came in, `ExposureGuard` on the task's
result lets all exact attacks read the update. They see a client's updates, not its data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from nvflare.apis.dxo import DataKind  # pyright: ignore[reportMissingImports]
from nvflare.apis.dxo_filter import DXOFilter  # pyright: ignore[reportMissingImports]
from torch import Tensor

from remanence.core.exceptions import InputError
from remanence.updates.declared import Declared, LocalTraining
from remanence.updates.guard import reason_to_withhold
from remanence.updates.opening import load_network

if TYPE_CHECKING:
    from nvflare.apis.dxo import DXO  # pyright: ignore[reportMissingImports]
    from nvflare.apis.fl_context import FLContext  # pyright: ignore[reportMissingImports]
    from nvflare.apis.shareable import Shareable  # pyright: ignore[reportMissingImports]

_KEPT = "remanence_weights_that_came_in"


class KeepModel(DXOFilter):
    """On the task's data: note the weights that the server sent."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHTS], data_kinds_to_filter=[DataKind.WEIGHTS])

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """Nothing is changed."""
        fl_ctx.set_prop(_KEPT, _tensors(dxo.data), private=True, sticky=True)


class ExposureGuard(DXOFilter):
    """On the task's result: check whether the update exposes a record, log it, and let it pass.

    `model` is path/to/file.py:factory. With `withhold` an update that exposes a record, contradicts its declaration,
    or cannot be read is not sent: the filter fails, and the server is told so; `allow_untested` is that of
    `reason_to_withhold`. On the server the same filter checks incoming updates. Silence is not protection: the guard
    runs the exact attack, and there are others.
    """

    def __init__(
        self,
        model: str,
        learning_rate: float,
        *,
        local_steps: int,
        withhold: bool = False,
        allow_untested: bool = False,
    ) -> None:
        kinds = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)
        # NVFLARE writes a filter's arguments into the job by the names of its attributes.
        self.model, self.learning_rate, self.local_steps = model, learning_rate, local_steps
        self.withhold, self.allow_untested = withhold, allow_untested
        self.declared = Declared(LocalTraining(local_steps, learning_rate))

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> None:
        """The update is unchanged; an exposed one raises if it is to be withheld."""
        before = fl_ctx.get_prop(_KEPT)
        why: str | None = "no weights came in: KeepModel must filter the task's data"
        if before is not None:
            sent = _tensors(dxo.data)
            if dxo.data_kind == DataKind.WEIGHT_DIFF:
                sent = {
                    name: before[name] + value if name in before else value for name, value in sent.items()
                }
            network, state, allowed = load_network(self.model), {**before, **sent}, self.allow_untested
            why = reason_to_withhold(network, before, state, self.declared, allow_untested=allowed)
        self.log_info(fl_ctx, f"remanence: {why or 'no record can be read off this update'}")
        if why is not None and self.withhold:
            raise InputError(
                "This update was withheld.",
                needs="an update that can be read completely, matches its declaration and exposes no record",
                got=why,
                hint="larger batches, noise, or withhold=False to log only",
            )


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in arrays.items()}
