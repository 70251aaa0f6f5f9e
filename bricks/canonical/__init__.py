"""The canonical form of a layer: equal computations are written alike, at any opset, with any defaults and names.

``form.py`` computes it. The rules per operator are in ``layout.py`` and ``spatial.py``, which register them.
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
