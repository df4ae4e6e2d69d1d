"""Gradients and updates of clients."""

from remanence.core.doors import Door

DOOR = Door(
    "updates",
    commands=("remanence.updates.command:update",),
    attacks=("remanence.updates.exact:Exact",),
    targets=("remanence.updates.targets:digits_gradient",),
    caveats="remanence.updates.caveats",
    hashed={"gradients": "the update"},
    sections="remanence.updates.leak_map:sections",
    moved=dict.fromkeys(
        ("gradient", "audit --gradient", "update --model"),
        "remanence update model.py:make --gradient update.safetensors",
    ),
)
