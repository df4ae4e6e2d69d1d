"""Flower: keep the updates of a federation that one owns for an audit, or hold back those that give samples away.

Both are client mods: `ClientApp(mods=[record_updates(folder)])`. They see what a client sends, nothing of its data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor, nn

from remanence.scale.files import write_files
from remanence.updates.local_training import LocalTraining
from remanence.updates.reading import exposed_samples

if TYPE_CHECKING:
    from flwr.app import Context, Message  # pyright: ignore[reportMissingImports]

    CallNext = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, CallNext], Message]

EXPOSED = 700  # the code of the error that goes out in place of an update


def record_updates(folder: Path | str) -> Mod:
    """Write the weights that came in and the update that goes out, for `remanence update --weights --gradient`.

    Files are named by client and numbered by round; the update is new weights minus old ones, so pass the learning
    rate of a single step to `--learning-rate`.
    """
    place = Path(folder)

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        before = _weights(message)
        reply = call_next(message, context)
        after = _weights(reply) if not reply.has_error() else {}
        if before and after.keys() == before.keys():
            seen = len(list(place.glob(f"update-{context.node_id}-*.safetensors")))
            name = f"{context.node_id}-{seen + 1}"
            write_files(
                place,
                {
                    f"weights-{name}.safetensors": save(before),
                    f"update-{name}.safetensors": save(
                        {
                            key: (after[key] - before[key]).contiguous()
                            for key in before
                            if after[key].is_floating_point()
                        }
                    ),
                },
            )
        return reply

    return mod


def withhold_exposed(
    make_model: Callable[[], nn.Module],
    *,
    learning_rate: float,
    local_steps: int = 1,
    example: Tensor | None = None,
) -> Mod:
    """Send an error instead of an update from which the exact attacks, all of them, prove a sample.

    `make_model` makes the network, `example` is a batch of zeros of the right shape for one with convolutions in
    front. A quiet mod is no protection: it knows the exact attacks, and there are others.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        before = _weights(message)
        reply = call_next(message, context)
        if reply.has_error() or not before:
            return reply
        training = LocalTraining(local_steps, learning_rate)
        found = exposed_samples(make_model(), before, _weights(reply), training=training, example=example)
        return _error(message, found) if found else reply

    return mod


def _weights(message: Message) -> dict[str, Tensor]:
    """The first set of arrays in a message, as tensors."""
    for record in message.content.array_records.values():
        return dict(record.to_torch_state_dict())
    return {}


def _error(message: Message, count: int) -> Any:
    from flwr.app import Error, Message  # pyright: ignore[reportMissingImports]

    reason = f"{count} samples can be read off this update; it was withheld"
    return Message(Error(EXPOSED, reason), reply_to=message)
