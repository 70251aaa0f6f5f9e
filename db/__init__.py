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
        Run,
        Stack,
        Stop,
        Subject,
        System,
        Verdict,
    )

__all__ = [
    "Block",
    "Combination",
    "Conditions",
    "Failure",
    "Filter",
    "Kernel",
    "KernelView",
    "Measurement",
    "Run",
    "Stack",
    "Stop",
    "Store",
    "Subject",
    "System",
    "Transferred",
    "Upgrade",
    "Verdict",
    "export",
    "frame",
    "merge",
    "upgrade",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Block": "values",
        "Combination": "values",
        "Conditions": "values",
        "Failure": "values",
        "Filter": "queries",
        "Kernel": "values",
        "KernelView": "values",
        "Measurement": "values",
        "Run": "values",
        "Stack": "values",
        "Stop": "values",
        "Store": "store",
        "Subject": "values",
        "System": "values",
        "Transferred": "transfer",
        "Upgrade": "revision",
        "Verdict": "values",
        "export": "exporting",
        "frame": "exporting",
        "merge": "merging",
        "upgrade": "revision",
    },
)
