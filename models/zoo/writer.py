"""Writing an ONNX skeleton by code: nodes in order, weights as inputs marked ``role=weight``, constants by value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..skeleton import Skeleton, mark_weight
from ..subgraphs import declared_shape, rename

_OPSET = 17  # the first with LayerNormalization, as written by the exporters of the built-in architectures
_IR_VERSION = 10  # the first with metadata on value infos, for the role of a weight


def constant_bytes(model: onnx.ModelProto) -> int:
    """Return the bytes of all weight inputs and initializers of a skeleton."""
    weights = (
        math.prod(declared_shape(value.type))
        * helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).itemsize
        for value in model.graph.input
        if value.metadata_props
    )
    return int(sum(weights) + sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer))


class GraphWriter:
    """Append-only builder of one skeleton; every method returns the name of its value.

    Example:
        >>> graph = GraphWriter("double")
        >>> x = graph.input("x", (1, 4))
        >>> skeleton = graph.finish({"y": (graph.node("Add", x, x), (1, 4))})
        >>> [node.op_type for node in skeleton.model.graph.node]
        ['Add']
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[onnx.ValueInfoProto] = []
        self._weights: dict[str, onnx.ValueInfoProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []

    def input(self, name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> str:
        """Declare an activation input of the model."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Declare a float weight; repeating a name returns the same value (tied weights)."""
        if name not in self._weights:
            self._weights[name] = mark_weight(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def constant(self, values: object, dtype: type[np.generic] = np.float32) -> str:
        """Add a constant with relevant values (a scale, a shape, an index, a mask); equal ones are shared."""
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            self._initializers.append(numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def indices(self, *values: int) -> str:
        """Add an int64 vector: a shape, axes."""
        return self.constant(values, np.int64)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append an operator with one output."""
        return self.nodes(operator, *inputs, outputs=1, **attributes)[0]

    def nodes(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Append an operator with several outputs."""
        stem = f"{operator.lower()}_{len(self._nodes)}"
        names = [stem] if outputs == 1 else [f"{stem}_{index}" for index in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, name=stem, **attributes))
        return names

    def finish(
        self, outputs: Mapping[str, tuple[str, Sequence[int]]], *, bound: Mapping[str, int] | None = None
    ) -> Skeleton:
        """Close the graph.

        Args:
            outputs: Public name of each float output, to its value and shape.
            bound: The fixed dimensions, for the record.
        """
        renamed = {value: name for name, (value, _) in outputs.items()}
        for node in self._nodes:
            rename(node, renamed)
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, (_, shape) in outputs.items()]
        graph = helper.make_graph(
            self._nodes, self._name, [*self._inputs, *self._weights.values()], infos, initializer=self._initializers
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        return Skeleton(model, bound=dict(bound or {}), weight_bytes=constant_bytes(model))
