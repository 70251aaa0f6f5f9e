"""Operators in float16, which the runtime's CPU kernels mostly lack, computed in float32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .recording import Values
from .rewrite import Draft, Rewrite

_HALF = np.dtype(np.float16)


def precision(values: Values, _: float) -> list[Rewrite]:
    """Return the rewrite of all operators in float16 to float32; casts to float16 stay."""
    rewrite = values.attempt(_widened, values)
    return [] if rewrite is None else [rewrite]


def _widened(values: Values) -> Rewrite | None:
    graph, draft = values.graph, Draft(values.graph)
    wide, whole, gone = dict[str, str](), list[str](), list[int]()

    def cast(value: str, to: int, name: str) -> str:
        draft.op("Cast", value, to=name)
        draft.nodes[-1].attribute.append(helper.make_attribute("to", to))
        return name

    def read(value: str) -> str:
        if not value or values.dtypes.get(value) != _HALF:
            return value
        if value not in wide:
            array = graph.constants.get(value)
            wide[value] = (
                cast(value, TensorProto.FLOAT, graph.fresh("single"))
                if array is None
                else draft.constant(array.astype(np.float32))
            )
        return wide[value]

    for index, node in enumerate(graph.nodes):
        halves = [value for value in node.output if values.dtypes.get(value) == _HALF]
        rounds = node.op_type == "Cast" and (bool(halves) or node.input[0] not in wide)
        if rounds or not (halves or any(values.dtypes.get(value) == _HALF for value in node.input)):
            continue  # a cast to float16 rounds, which is kept; one from it is kept where nothing becomes wider
        if any(attribute.HasField("g") for attribute in node.attribute):
            return None
        gone.append(index)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = graph.fresh("single")
        copy.input[:] = [read(value) for value in node.input]
        for slot, value in enumerate(node.output):
            if value in halves:
                wide[value] = copy.output[slot] = graph.fresh("single")
            elif value:
                whole.append(value)
        for attribute in copy.attribute:
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT16:
                single = numpy_helper.to_array(attribute.t).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(single))
        draft.nodes.append(copy)
    for value in graph.wanted:
        if value in wide and value in graph.producer:
            whole.append(cast(wide[value], TensorProto.FLOAT16, value))
    if not gone or not whole:
        return None
    return draft.rewrite("precision: float16 in float32", whole, graph.names(gone), values.cost_of(gone) / 2)
