"""The engines, each with its share of the budget."""

from __future__ import annotations

from collections.abc import Mapping

from .affine import affine
from .channels import channels
from .demand import demand
from .lookup import lookup
from .needless import constants
from .normalisations import normalisations
from .order import order
from .pointwise import pointwise
from .recording import Engine
from .repetition import repetition
from .transforms import transforms
from .widening import precision

ENGINES: Mapping[str, tuple[Engine, float]] = {
    "precision": (precision, 0.1),
    "transforms": (transforms, 0.05),
    "pointwise": (pointwise, 0.15),
    "constants": (constants, 0.1),
    "unused": (demand, 0.1),
    "lookup": (lookup, 0.05),
    "order": (order, 0.1),
    "repetition": (repetition, 0.05),
    "normalisations": (normalisations, 0.05),
    "affine": (affine, 0.1),
    "channels": (channels, 0.05),
}
"""Engines by name, in the order of asking: the largest saving per second of search first."""
