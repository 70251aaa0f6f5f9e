"""All operators: importing this module imports every module that registers some."""
# ruff: noqa: F401 - they register themselves

from __future__ import annotations

from . import (
    arithmetic,
    control,
    convolution,
    elements,
    generation,
    indexing,
    linear,
    normalisation,
    pooling,
    quantisation,
    recurrence,
    reduction,
    resizing,
    shape,
)
from .registry import Operator, registered

__all__ = ["find"]


def find(name: str) -> Operator | None:
    """The function of an operator; None where there is none."""
    return registered(name)
