"""A model without its weights: the normal form that every later stage reads.

A skeleton is valid ONNX in which large constants are *graph inputs marked as weights*. The same form serves a
whole model, a zoo recipe and a brick of a suite, so that one runner can execute all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from .control.choices import Choice

__all__ = ["KEPT_ELEMENTS", "Skeleton", "is_weight", "mark_weight"]

KEPT_ELEMENTS = 1024
"""Constants of up to this many elements keep their values in a skeleton (docs/architecture.md)."""

_ROLE = "role"
_WEIGHT = "weight"


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """A model's structure, bound to static input shapes, without weight payloads.

    Attributes:
        model: ONNX in normal form. No Constant nodes and no ConstantOfShape of a constant shape: each is an
            initializer (value known; at most ``KEPT_ELEMENTS`` elements, more only for the masks, positions and
            indices that a zoo recipe computes) or a graph input with ``role=weight`` (dtype and shape known, value
            not read). Model-local functions are inlined. Every other graph input
            has static dimensions. Node order is the file's.
        bound: What binding fixed, by dimension name (``batch``, ``sequence_length``, or ``input[axis]`` for an
            unnamed dimension) to its value. Empty for a model that was static.
        weight_bytes: Bytes of all constants of the source, whether or not they were read.
        path: The file with the weights; None for a zoo recipe, whose weights are synthetic.
        overrides: ``dim_param`` to value, to bind the *file* when a runtime loads it from ``path``.
        edited: True when the file itself cannot serve with ``overrides`` alone (a fixed batch was changed, an
            unnamed dimension bound): the runnable form must then be written from the edited structure.
        control: What was said of the course of its control flow, which is then written out (``bricks.graph.control``);
            None where it stays as it is, as in a brick.
    """

    model: onnx.ModelProto
    bound: Mapping[str, int] = field(default_factory=dict)
    weight_bytes: int = 0
    path: Path | None = None
    overrides: Mapping[str, int] = field(default_factory=dict)
    edited: bool = False
    control: tuple[Choice, ...] | None = None


def is_weight(value: onnx.ValueInfoProto) -> bool:
    """Whether a graph input is a weight, that is, filled by the runner with seeded values."""
    return any(entry.key == _ROLE and entry.value == _WEIGHT for entry in value.metadata_props)


def mark_weight(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Mark a graph input as a weight (in place) and return it."""
    if not is_weight(value):
        entry = value.metadata_props.add()
        entry.key, entry.value = _ROLE, _WEIGHT
    return value
