"""The database: what was measured, on which system and stack, and where each number came from.

Names are imported on first use: a worker wants the value types, and neither SQLAlchemy nor pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .exporting import export, frame
    from .filter import Filter
    from .merging import merge
    from .store import Store
    from .transfer import Transferred
    from .upgrading import Upgrade, upgrade
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
        "Filter": "filter",
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
        "Upgrade": "upgrading",
        "Verdict": "values",
        "export": "exporting",
        "frame": "exporting",
        "merge": "merging",
        "upgrade": "upgrading",
    },
)
