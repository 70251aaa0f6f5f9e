"""The database: what was measured, on which system and stack, and where each number came from.

Names are imported on first use: a worker wants the value types, and neither SQLAlchemy nor pandas.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exporting import export, frame
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

_HOMES = {
    "Block": "values",
    "Combination": "values",
    "Conditions": "values",
    "Failure": "values",
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
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    setattr(sys.modules[__name__], name, value)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
