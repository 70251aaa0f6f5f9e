"""Conversions to a narrower floating-point type and back, with no arithmetic in between.

Saving: what the executed conversions take. They round, so that no runtime may leave them out; where they are what a
conversion of the model left over, nothing needs the rounding. Where it is meant, as in training for that type, the
finding is to be left alone: that is for the model's owner to judge.
"""

from __future__ import annotations

from .conversions import gone
from .rewritable import of_rewrite

__all__ = ["ANALYSIS"]

ANALYSIS = of_rewrite(
    "roundings",
    "roundings",
    title="{} values are converted to a narrower type and back, and nothing is computed in it",
    text="Leave both conversions out, where the rounding is not meant: the outputs become more exact.",
    priced=gone,
)
