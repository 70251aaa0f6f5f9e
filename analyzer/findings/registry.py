"""The analyses, in the order in which they are asked."""

from __future__ import annotations

from .analyses import (
    activations,
    attention,
    branches,
    broken_fusion,
    conversions,
    duplicates,
    expansions,
    float64,
    inserted,
    local_response,
    normalisations,
    one_hot,
    roundings,
    slow_kernels,
    transposes,
    unfolded,
)
from .analyses.measured import alternatives, batch, fusions, padding, roofline
from .analyses.precision import quantisation
from .analyses.settings import denormals, huge_pages, threads
from .analysis import Analysis

__all__ = ["ANALYSES"]

ANALYSES: tuple[Analysis, ...] = tuple(
    module.ANALYSIS
    for module in (
        activations,
        normalisations,
        attention,
        broken_fusion,
        transposes,
        conversions,
        roundings,
        float64,
        quantisation,
        duplicates,
        expansions,
        one_hot,
        local_response,
        unfolded,
        padding,
        fusions,
        slow_kernels,
        roofline,
        denormals,
        alternatives,
        batch,
        threads,
        huge_pages,
        branches,
        inserted,
    )
)
