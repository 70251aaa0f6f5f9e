"""The model processor: from a skeleton to the unique sequences that models share.

``build_graph`` makes the DAG of layers, ``split`` and ``sequences`` cut it, ``build_brick`` writes what is unique of
it, ``write_suite`` and ``Suite`` carry it to the machine where it is measured. Names are imported on first use: onnx
and networkx are heavy, and a caller that only opens a suite needs little of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .costs import Cost, layer_cost
    from .cutting.wiring import make_sequence, sequences
    from .graph.graph import ModelGraph, build_graph
    from .graph.similarity import Repetition, SimilarityMatrix, jaccard, layer_keys, repetition, similarity_matrix
    from .layer import Layer, LayerState, Operand, Role
    from .sequence import LayerSequence
    from .suite.brick import Brick, build_brick, load_brick
    from .suite.suite import Suite
    from .suite.writing import write_suite
    from .tensor import TensorType

__all__ = [
    "Brick",
    "Cost",
    "Layer",
    "LayerSequence",
    "LayerState",
    "ModelGraph",
    "Operand",
    "Repetition",
    "Role",
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
        "Brick": "suite.brick",
        "Cost": "costs",
        "Layer": "layer",
        "LayerState": "layer",
        "ModelGraph": "graph.graph",
        "Operand": "layer",
        "Repetition": "graph.similarity",
        "Role": "layer",
        "LayerSequence": "sequence",
        "SimilarityMatrix": "graph.similarity",
        "Suite": "suite.suite",
        "TensorType": "tensor",
        "build_brick": "suite.brick",
        "build_graph": "graph.graph",
        "jaccard": "graph.similarity",
        "layer_cost": "costs",
        "layer_keys": "graph.similarity",
        "load_brick": "suite.brick",
        "make_sequence": "cutting.wiring",
        "repetition": "graph.similarity",
        "sequences": "cutting.wiring",
        "similarity_matrix": "graph.similarity",
        "write_suite": "suite.writing",
    },
)
# Functions that share their module's name (split, decoys, rebuild) are imported from there: a name cannot be both.
