"""A model computed brick by brick: what proves that bricks are the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from dlbricks.bricks.graph.model_graph import ModelGraph
from dlbricks.bricks.layer import Layer, LayerSequence, LayerState
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.models.subgraphs import reads
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

Arrays = Mapping[str, Any]
Execute = Callable[[onnx.ModelProto, Arrays], list[Any]]


def execute(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def reference(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    """As ONNX's reference implementation executes it."""
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def alone(node: onnx.NodeProto, opsets: Mapping[str, int], given: Arrays) -> onnx.ModelProto:
    """A model of one node; its inputs are of the types of what they are given."""
    inputs = []
    for name, value in given.items():
        first = [*value, np.float32(0)][0] if isinstance(value, list) else value  # a sequence may be empty
        kind = onnx.helper.np_dtype_to_tensor_dtype(first.dtype)
        if isinstance(value, list):
            inputs.append(onnx.helper.make_tensor_sequence_value_info(name, kind, None))
        else:
            inputs.append(onnx.helper.make_tensor_value_info(name, kind, value.shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    graph = onnx.helper.make_graph([node], "alone", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def rebuilt(
    model: onnx.ModelProto, graph: ModelGraph, parts: Iterable[LayerSequence], feeds: Arrays, execute: Execute = execute
) -> list[Any]:
    """The outputs of a model, bricks executed one after the other from their own files.

    Skipped layers are executed as they are, and what is folded is computed by ONNX's reference implementation, as it
    is computed before inference.

    Args:
        model: The whole model *with* its weights in normal form (``models.normal``), so that its values have the
            names that the graph knows.
        graph: The same model's graph.
        parts: Its sequences; every live layer in exactly one.
        feeds: Its inputs.
        execute: What executes a model.
    """
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | dict(feeds)
    running = {name for layer in graph.layers if layer.state is not LayerState.FOLDED for name in layer.node.output}
    folded = {name: node for node in model.graph.node for name in node.output if name and name not in running}

    def value(name: str) -> Any:
        if name in folded and name not in known:
            node = folded[name]
            given = {one: shape_of(one) if node.op_type in {"Shape", "Size"} else value(one) for one in reads(node)}
            opsets = {opset.domain: opset.version for opset in model.opset_import}
            found = ReferenceEvaluator(alone(node, opsets, given)).run(None, given)
            known.update(zip(filter(None, node.output), map(np.asarray, found), strict=True))
        return known[name]

    def shape_of(name: str) -> Any:
        """What is made at run time need not be known for its shape: any array of that shape does."""
        return np.broadcast_to(np.float32(0), graph.types[name].shape) if name in running else value(name)

    def run(part: LayerSequence | Layer) -> None:
        if isinstance(part, LayerSequence):
            brick = onnx.ModelProto.FromString(build_brick(graph, part).model)
            arguments = zip(brick.graph.input, (*part.inputs, *part.weights), strict=True)
            found = execute(brick, {inner.name: value(name) for inner, name in arguments})
            known.update(zip(part.outputs, found, strict=True))
        else:
            given = {name: value(name) for name in reads(part.node)}
            found = execute(alone(part.node, dict(part.opsets), given), given)
            known.update(zip(filter(None, part.node.output), found, strict=True))

    waiting = [*parts, *(layer for layer in graph.layers if layer.state is LayerState.SKIPPED)]
    while waiting:
        needs = [one.inputs if isinstance(one, LayerSequence) else reads(one.node) for one in waiting]
        place = next(n for n, names in enumerate(needs) if running.intersection(names) <= known.keys())
        run(waiting.pop(place))
    return [value(output.name) for output in model.graph.output]
