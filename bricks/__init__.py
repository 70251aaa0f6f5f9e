"""The model processor: from a skeleton to the unique sequences that models share.

``build_graph`` makes the DAG of layers, ``split`` and ``sequences`` cut it, ``build_brick`` writes what is unique of
it, ``write_suite`` and ``Suite`` carry it to the machine where it is measured. Names are imported on first use: onnx
and networkx are heavy, and a caller that only opens a suite needs little of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .brick import Brick, build_brick, load_brick
    from .costs import Cost, layer_cost
    from .graph import ModelGraph, build_graph
    from .layer import Layer, LayerState, Operand, Role
    from .sequence import Sequence
    from .similarity import Repetition, SimilarityMatrix, jaccard, layer_keys, repetition, similarity_matrix
    from .suite import Suite, write_suite
    from .tensor import TensorType
    from .wiring import make_sequence, sequences

__all__ = [
    "Brick",
    "Cost",
    "Layer",
    "LayerState",
    "ModelGraph",
    "Operand",
    "Repetition",
    "Role",
    "Sequence",
    "SimilarityMatrix",
    "Suite",
    "TensorType",
    "build_brick",
    "build_graph",
    "jaccard",
    "layer_cost",
    "layer_keys",
    "load_brick",
    "make_sequence",
    "repetition",
    "sequences",
    "similarity_matrix",
    "write_suite",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Brick": "brick",
        "Cost": "costs",
        "Layer": "layer",
        "LayerState": "layer",
        "ModelGraph": "graph",
        "Operand": "layer",
        "Repetition": "similarity",
        "Role": "layer",
        "Sequence": "sequence",
        "SimilarityMatrix": "similarity",
        "Suite": "suite",
        "TensorType": "tensor",
        "build_brick": "brick",
        "build_graph": "graph",
        "jaccard": "similarity",
        "layer_cost": "costs",
        "layer_keys": "similarity",
        "load_brick": "brick",
        "make_sequence": "wiring",
        "repetition": "similarity",
        "sequences": "wiring",
        "similarity_matrix": "similarity",
        "write_suite": "suite",
    },
)
# Functions that share their module's name (split, decoys, rebuild) are imported from there: a name cannot be both.
