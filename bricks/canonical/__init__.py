"""The canonical form of a layer: one spelling per computation, whatever opset, defaults and names the source used.

``form.py`` drives; the rules stand by kind of operator in the modules imported here, which register themselves.
"""

from __future__ import annotations

from . import axes, elementwise, layout, recurrent, resampling, spatial
from .form import canonical_form, source_form
from .schemas import ANY, CANONICAL_OPSET, versions_around
from .signature import Form, Signature

__all__ = [
    "ANY",
    "CANONICAL_OPSET",
    "Form",
    "Signature",
    "axes",
    "canonical_form",
    "elementwise",
    "layout",
    "recurrent",
    "resampling",
    "source_form",
    "spatial",
    "versions_around",
]
