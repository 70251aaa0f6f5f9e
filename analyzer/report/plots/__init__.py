"""Plots: pure functions from values to matplotlib figures.

Nothing is shown or saved here; ``save`` writes a figure as PNG or SVG. matplotlib is imported when the first
figure is made.
"""

from .accuracy import GranularityPoint, ModelLatency, accuracy_against_granularity, estimate_beside_measured
from .figure import save
from .forest import Rival, forest
from .history import Mark, Past, over_time
from .layers import Fall, Step, latency_by_layer, waterfall
from .roofline import Roof, RooflineDot, roofline_chart
from .sweep import ModelShare, Reading, Sweep, similarity_grid, sweeps, unique_share

__all__ = [
    "Fall",
    "GranularityPoint",
    "Mark",
    "ModelLatency",
    "ModelShare",
    "Past",
    "Reading",
    "Rival",
    "Roof",
    "RooflineDot",
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
