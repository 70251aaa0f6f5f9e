"""The database: what was measured, on which system and stack, and where each number came from."""

from .export import export, frame
from .merge import merge
from .store import Store
from .transfer import Transferred
from .upgrade import Upgrade, upgrade
from .values import (
    Block,
    Combination,
    Conditions,
    Failure,
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
