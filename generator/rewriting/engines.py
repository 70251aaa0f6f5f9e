"""The engines, each with its share of the budget."""

from __future__ import annotations

from collections.abc import Mapping

from .affine import affine
from .attention import attention
from .channels import channels
from .demand import demand
from .equality import constants, equal
from .normalisations import normalisations
from .order import order
from .pointwise import pointwise
from .products import products
from .recurrence import recurrence
from .repetition import repetition
from .structure import precision, weights
from .towers import towers
from .values import Engine
from .witnesses import witnesses

ENGINES: Mapping[str, tuple[Engine, float]] = {
    "constants": (constants, 0.05),
    "normalisations": (normalisations, 0.12),
    "channels": (channels, 0.05),
    "order": (order, 0.08),
    "demand": (demand, 0.08),
    "products": (products, 0.03),
    "precision": (precision, 0.05),
    "repetition": (repetition, 0.05),
    "towers": (towers, 0.03),
    "recurrence": (recurrence, 0.06),
    "attention": (attention, 0.06),
    "pointwise": (pointwise, 0.2),
    "weights": (weights, 0.08),
    "equality": (equal, 0.1),
    "affine": (affine, 0.2),
    "witnesses": (witnesses, 0.2),
}
"""By name, in the order in which they are asked: those that may take their whole share come last."""
