"""Plots: pure functions from values to matplotlib figures.

Nothing is shown or saved here; ``save`` writes a figure as PNG or SVG. matplotlib is imported when the first
figure is made.
"""

from .accuracy import GranularityPoint, ModelLatency, accuracy_against_granularity, estimate_beside_measured
from .figure import save
from .forest import Rival, forest
from .history import Mark, Past, over_time
from .layers import Step, latency_by_layer
from .repetition import ModelShare, similarity_grid, unique_share
from .roofline import Dot, Roof, roofline_chart
from .sweep import Reading, Sweep, sweeps
from .waterfall import Fall, waterfall

__all__ = [
    "Dot",
    "Fall",
    "GranularityPoint",
    "Mark",
    "ModelLatency",
    "ModelShare",
    "Past",
    "Reading",
    "Rival",
    "Roof",
    "Step",
    "Sweep",
    "accuracy_against_granularity",
    "estimate_beside_measured",
    "forest",
    "latency_by_layer",
    "over_time",
    "roofline_chart",
    "save",
    "similarity_grid",
    "sweeps",
    "unique_share",
    "waterfall",
]
