"""The canonical form of a layer: one spelling per computation, whatever opset, defaults and names the source used.

``form.py`` drives; the rules stand by kind of operator in the modules imported here, which register themselves.
"""

from __future__ import annotations

from . import layout, spatial
from .bodies import CanonicalForm, LayerSignature
from .form import canonical_form, source_form
from .roles import ANY, CANONICAL_OPSET, versions_around

__all__ = [
    "ANY",
    "CANONICAL_OPSET",
    "CanonicalForm",
    "LayerSignature",
    "canonical_form",
    "layout",
    "source_form",
    "spatial",
    "versions_around",
]
