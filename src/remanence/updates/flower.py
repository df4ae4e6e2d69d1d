"""Flower: keep your own federation's updates for an audit, or withhold those that give samples away.

Both are client mods: `ClientApp(mods=[record_updates(folder)])`. They see a client's updates, not its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor, nn

from remanence.scale.files import write_files
from remanence.updates.declared import Declared
from remanence.updates.guard import reason_to_withhold

if TYPE_CHECKING:
    from flwr.app import Context, Message  # pyright: ignore[reportMissingImports]

    CallNext = Callable[[Message, Context], Message]
    Mod = Callable[[Message, Context, CallNext], Message]

EXPOSED = 700  # the code of the error that is sent instead of an update


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
            name = f"{context.node_id}-{seen + 1}.safetensors"
            numbers = [key for key in before if after[key].is_floating_point()]
            moved = {key: (after[key] - before[key]).contiguous() for key in numbers}
            write_files(place, {f"weights-{name}": save(before), f"update-{name}": save(moved)})
        return reply

    return mod


def withhold_exposed(
    make_model: Callable[[], nn.Module], declared: Declared, *, allow_untested: bool = False
) -> Mod:
    """Send an error instead of an update that exposes a sample, contradicts its declaration, or cannot be read.

    `make_model` makes the network; `declared` says how many steps the client takes and at which rate, and the shape of
    an input where there are convolutions in front. See `guard.reason_to_withhold`. A client can omit its mods: the
    server enforces the check with `passing`. Silence is not protection: other attacks may see more.
    """

    def mod(message: Message, context: Context, call_next: CallNext) -> Message:
        before = _weights(message)
        reply = call_next(message, context)
        if reply.has_error() or not before:
            return reply
        why = _why_not(before, reply, make_model, declared, allow_untested)
        return reply if why is None else _error(message, why)

    return mod


def passing(
    replies: Iterable[Message],
    before: Mapping[str, Tensor],
    make_model: Callable[[], nn.Module],
    declared: Declared,
    *,
    allow_untested: bool = False,
) -> list[Message]:
    """On the server: the replies that may be used. Each gets the same check, whatever its client claims.

    In a strategy: `super().aggregate_train(server_round, passing(replies, weights, make, declared))`.
    """
    return [
        reply
        for reply in replies
        if reply.has_error() or _why_not(before, reply, make_model, declared, allow_untested) is None
    ]


def _why_not(
    before: Mapping[str, Tensor],
    reply: Message,
    make_model: Callable[[], nn.Module],
    declared: Declared,
    allow_untested: bool,
) -> str | None:
    """The reason to hold a reply back; every set of arrays in it counts."""
    sent = [dict(record.to_torch_state_dict()) for record in reply.content.array_records.values()]
    each = (
        reason_to_withhold(make_model(), before, state, declared, allow_untested=allow_untested)
        for state in sent
    )
    return next((why for why in each if why is not None), None)


def _weights(message: Message) -> dict[str, Tensor]:
    """The first set of arrays in a message, as tensors."""
    for record in message.content.array_records.values():
        return dict(record.to_torch_state_dict())
    return {}


def _error(message: Message, why: str) -> Any:
    from flwr.app import Error, Message  # pyright: ignore[reportMissingImports]

    return Message(Error(EXPOSED, f"This update was withheld: {why}"), reply_to=message)
