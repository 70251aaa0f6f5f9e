"""The database of measurements, systems, stacks, and the runs that they came from.

Names are imported on first use, because workers need the value types only, without SQLAlchemy and pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .exporting import export, frame
    from .merging import merge
    from .queries import Filter
    from .revision import Upgrade, upgrade
    from .store import Store
    from .transfer import Transferred
    from .values import (
        Block,
        Combination,
        Conditions,
        Failure,
        Kernel,
        KernelView,
        Measurement,
        Proofs,
        Run,
        Stack,
        Stop,
        Subject,
        System,
        Verdict,
    )

__all__ = [
    "Block", "Combination", "Conditions", "Failure", "Filter", "Kernel", "KernelView", "Measurement", "Proofs", "Run",
    "Stack", "Stop", "Store", "Subject", "System", "Transferred", "Upgrade", "Verdict", "export", "frame", "merge",
    "upgrade",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "exporting": ("export", "frame"),
        "merging": ("merge",),
        "queries": ("Filter",),
        "revision": ("Upgrade", "upgrade"),
        "store": ("Store",),
        "transfer": ("Transferred",),
        "values": (
            "Block", "Combination", "Conditions", "Failure", "Kernel", "KernelView", "Measurement", "Proofs", "Run",
            "Stack", "Stop", "Subject", "System", "Verdict",
        ),
    },
)  # fmt: skip
