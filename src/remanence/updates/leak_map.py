"""What each layer's gradient gives away, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from remanence.updates.dense.exposure import Exposure
from remanence.updates.dense.layers import LARGE
from remanence.updates.parts import rows_times
from remanence.updates.span import Decomposed

_FEW, _RANKS_UP_TO = 16, 128


def leak_map(
    model: nn.Module,
    gradient: Mapping[str, Tensor],
    *,
    precision: float,
    exposure: Exposure | None = None,
    unexplained: Mapping[str, float] | float | None = None,
) -> list[dict[str, object]]:
    """One entry of audit.json for each layer that has a weight; `gradient` has no dimension for trials.

    `nonzero` is the share of entries that are not zero (β of Pan et al. 2022, Theorem 1). `rank` is that of a dense
    layer's gradient, at most the batch size; None for other layers, or if it is not low. `exclusive` counts samples
    that have an exclusive neuron here, where the batch is known; `unexplained` is the share by norm that proven records
    leave, of each layer or of the whole update.
    """
    layers = []
    for name, values in gradient.items():
        if not name.endswith("weight") or values.ndim < 2:
            continue
        layer = name.removesuffix("weight").removesuffix(".")
        owner = model.get_submodule(name.rpartition(".")[0])  # attention calls its own in_proj_weight
        is_dense = values.ndim == 2 and not isinstance(owner, nn.Embedding)
        exclusive = None
        if exposure is not None and layer in exposure.names:
            exclusive = int((exposure.exclusive[exposure.names.index(layer)] >= 1).sum())
        layers.append(
            {
                "name": layer,
                "shape": list(values.shape),
                "nonzero": int(values.count_nonzero()) / values.numel(),
                "rank": _rank(values, precision) if is_dense else None,
                "exclusive": exclusive,
                "unexplained": unexplained.get(layer) if isinstance(unexplained, Mapping) else unexplained,
            }
        )
    return layers


def _rank(values: Tensor, precision: float) -> int | None:
    """The rank of a layer's gradient, looked for below 128; None where it is that or more, or as large as the layer."""
    least = min(values.shape)
    for width in (min(_FEW, least), min(_RANKS_UP_TO, least)):  # of a large layer, wide sketches take long
        generator = torch.Generator(device=values.device).manual_seed(0)
        sketch = torch.randn(
            values.shape[1], width, generator=generator, device=values.device, dtype=torch.float64
        )
        dtype = torch.float32 if values.numel() > LARGE and values.dtype != torch.float64 else torch.float64
        seen = rows_times(values, sketch.to(dtype))
        rank = Decomposed.of(seen).at(precision).basis.shape[1] if seen.any() else 0
        if rank < width:
            return rank
    return None
