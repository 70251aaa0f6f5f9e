"""Domains: which values an input may hold, and the site at which an operator says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy.typing as npt
import onnx
from onnx import helper

__all__ = ["MIXED", "ONES", "POSITIVE", "Domain", "Kind", "Shape", "Site", "between", "exact"]

Shape = tuple[int, ...]


class Kind(IntEnum):
    """What a domain says; where several consumers differ, the first of these wins."""

    EXACT = 0
    """These values and no others."""
    RANGE = 1
    """Integers in [low, high), floats in [low, high]."""
    POSITIVE = 2
    """Positive and away from zero."""
    MIXED = 3
    """Booleans: both."""
    ONES = 4
    """A mask that masks nothing, a harmless integer."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Legal values of one input.

    Attributes:
        kind: Which of the fields count.
        values: For ``EXACT``: flattened; repeated where the input has more elements.
        low: For ``RANGE``.
        high: For ``RANGE``.
    """

    kind: Kind
    values: tuple[float, ...] = ()
    low: float = 0
    high: float = 0


POSITIVE = Domain(Kind.POSITIVE)
MIXED = Domain(Kind.MIXED)
ONES = Domain(Kind.ONES)


def exact(*values: float) -> Domain:
    """These values."""
    return Domain(Kind.EXACT, values=values)


def between(low: float, high: float) -> Domain:
    """A range; of one value at least."""
    return Domain(Kind.RANGE, low=low, high=max(high, low + 1) if isinstance(high, int) else high)


@dataclass(frozen=True, slots=True)
class Site:
    """One node, seen from one of its inputs.

    Attributes:
        node: The node.
        slot: Which of its inputs is asked about.
        shapes: Value to static shape, where known.
        constants: Value to its value, where known.
    """

    node: onnx.NodeProto
    slot: int
    shapes: Mapping[str, Shape]
    constants: Mapping[str, npt.NDArray[Any]]

    def input(self, slot: int) -> Shape | None:
        """Shape of an input."""
        return self.shapes.get(self.node.input[slot]) if slot < len(self.node.input) else None

    def output(self, slot: int = 0) -> Shape | None:
        """Shape of an output."""
        return self.shapes.get(self.node.output[slot]) if slot < len(self.node.output) else None

    def constant(self, slot: int) -> npt.NDArray[Any] | None:
        """Value of an input, where it is a constant."""
        return self.constants.get(self.node.input[slot]) if slot < len(self.node.input) else None

    def attribute(self, name: str, default: Any) -> Any:
        """Value of an attribute."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default
