"""Small networks, and any training function."""

from remanence.core.doors import Door

DOOR = Door(
    "networks",
    attacks=(
        "remanence.reconstructor.attack:Reconstructor",
        "remanence.networks.attacks:RetrainAndCompare",
    ),
    targets=("remanence.networks.targets:digits_mlp",),
)
