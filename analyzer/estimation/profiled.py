"""The kernels that ran for bricks, where a pass under a profiler recorded them."""

from __future__ import annotations

from collections.abc import Collection

from ...constructor.choice import Choice
from ...db import Store, Subject
from ...generator.measurement.profiling import PROFILED_CACHE
from .query import stored_under

__all__ = ["kernel_names"]


def kernel_names(store: Store, choice: Choice, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The kernels of each brick by its key, the longest first; without the bricks of which no view is stored.

    Args:
        store: The database.
        choice: The combination; kernels run whatever the caches hold.
        keys: The bricks.
    """
    views = store.kernels(stored_under(choice), subject=Subject.BRICK, keys=keys, cache=PROFILED_CACHE)
    return {
        identity.key: tuple(
            dict.fromkeys(one.name for one in sorted(view.kernels, key=lambda kernel: -(kernel.time_ns or 0)))
        )
        for identity, view in views.items()
    }
