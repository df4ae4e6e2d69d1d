"""What a fitted object holds: every array in it, by the path that leads there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_DEEPEST = 12


def arrays_in(held: Any, path: str = "model") -> Iterator[tuple[str, np.ndarray]]:
    """Every array in an object and in all that it holds, once.

    >>> from sklearn.preprocessing import StandardScaler
    >>> found = dict(arrays_in(StandardScaler().fit([[1.0], [3.0]]), "scaler"))
    >>> found["scaler.mean_"]
    array([2.])
    """
    yield from _walk(held, path, set(), 0)


def _walk(held: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, np.ndarray]]:
    if (
        held is None
        or isinstance(held, str | bytes | int | float | bool | type)
        or depth > _DEEPEST
        or id(held) in seen
    ):
        return
    seen.add(id(held))
    if hasattr(held, "to_numpy") and hasattr(held, "index"):  # a pandas table or column, and its index
        yield from _walk(held.to_numpy(), path, seen, depth + 1)
        yield from _walk(np.asarray(held.index), f"{path}.index", seen, depth + 1)
        return
    if hasattr(held, "toarray") and hasattr(held, "nnz"):  # sparse
        held = held.toarray() if held.shape[0] * held.shape[1] < 1e8 else held.data
    if isinstance(held, np.ndarray):
        if held.dtype.names:
            for name in held.dtype.names:
                yield f"{path}.{name}", held[name]
        elif held.dtype.kind == "O":
            yield path, held
            for place, item in enumerate(held.ravel()[:10_000]):
                yield from _walk(item, f"{path}[{place}]", seen, depth + 1)
        else:
            yield path, held
    elif isinstance(held, Mapping):
        for name, item in held.items():
            yield from _walk(
                item, f"{path}[{name!r}]" if not isinstance(name, str) else f"{path}.{name}", seen, depth + 1
            )
    elif isinstance(held, list | tuple | set | frozenset):
        yield from _items(list(held), path, seen, depth)
    elif isinstance(held, memoryview):
        yield path, np.asarray(held)
    elif hasattr(held, "get_arrays"):  # a tree of neighbours: its first array holds the rows
        yield f"{path}.data", np.asarray(held.get_arrays()[0])
    else:
        yield from _walk_state(held, path, seen, depth)


def _items(held: list[Any], path: str, seen: set[int], depth: int) -> Iterator[tuple[str, np.ndarray]]:
    numbers = bool(held) and all(
        isinstance(item, int | float) and not isinstance(item, bool) for item in held
    )
    if numbers:
        yield path, np.asarray(held)
        return
    for place, item in enumerate(held):
        inside = f"{path}[{place}]"
        if isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], str):  # a named step
            inside, item = f"{path}.{item[0]}", item[1]
        yield from _walk(item, inside, seen, depth + 1)


def _walk_state(held: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, np.ndarray]]:
    state = getattr(held, "__dict__", None)
    if state is None and type(held).__module__.startswith(
        "sklearn."
    ):  # a compiled class, such as a decision tree
        try:
            state = held.__getstate__()
        except Exception:  # noqa: BLE001 - no state is nothing to look at
            return
    if isinstance(state, Mapping):
        for name, item in state.items():
            shown = (
                "" if name in ("steps", "transformers_", "estimators_", "transformer_list") else f".{name}"
            )
            # What a user passed in before fitting (transformers) is not what came out of it (transformers_).
            if name != "transformers":
                yield from _walk(item, f"{path}{shown}", seen, depth + 1)
    elif isinstance(state, tuple | list):
        yield from _items(list(state), path, seen, depth)
