"""Gradients and updates of clients."""

from remanence.core.doors import Door

DOOR = Door(
    "updates",
    commands=("remanence.updates.command:update",),
    attacks=(
        "remanence.updates.exclusive_neurons:ExclusiveNeurons",
        "remanence.updates.low_rank:LowRank",
        "remanence.updates.parallel_rows:ParallelRows",
        "remanence.updates.patch_fit:PatchFit",
        "remanence.updates.span_fit:SpanFit",
        "remanence.updates.token_spans:TokenSpans",
    ),
    targets=("remanence.updates.targets:digits_gradient",),
    caveats="remanence.updates.caveats",
    sections="remanence.updates.leak_map_view:sections",
)
