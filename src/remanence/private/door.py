"""Training with noise: DP-SGD, its transcripts, and recorded runs."""

from remanence.core.doors import Door

DOOR = Door(
    "private",
    commands=("remanence.private.command:run",),
    attacks=(
        "remanence.private.optimised:GradientBased",
        "remanence.private.prior_aware:PriorAware",
        "remanence.private.canaries:OneRunCanaries",
    ),
    targets=(
        "remanence.private.targets:digits_noisy_sum",
        "remanence.private.targets:digits_dpsgd",
        "remanence.private.targets:digits_dpsgd_poisson",
        "remanence.private.targets:digits_dpsgd_pictures",
    ),
    caveats="remanence.private.caveats",
    hashed={"canaries": "the canaries"},
    files={"manifest.json": "run {}"},
    moved=dict.fromkeys(("record", "audit --recording"), "remanence run recording/")
    | {"run --accuse-at": "remanence run without it: a claim is refuted at a level of 0.001"},
)
