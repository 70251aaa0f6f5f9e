"""The analyses, in the order in which they are asked."""

from __future__ import annotations

from .analyses import (
    activations,
    alternatives,
    branches,
    broken_fusion,
    conversions,
    denormals,
    duplicates,
    expansions,
    float64,
    inserted,
    local_response,
    normalisations,
    one_hot,
    roundings,
    slow_kernels,
    threads,
    transposes,
    unfolded,
)
from .analysis import Analysis

__all__ = ["ANALYSES"]

ANALYSES: tuple[Analysis, ...] = tuple(
    module.ANALYSIS
    for module in (
        activations,
        normalisations,
        broken_fusion,
        transposes,
        conversions,
        roundings,
        float64,
        duplicates,
        expansions,
        one_hot,
        local_response,
        unfolded,
        slow_kernels,
        denormals,
        alternatives,
        threads,
        branches,
        inserted,
    )
)
