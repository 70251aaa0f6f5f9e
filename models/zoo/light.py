"""The nine classic CNNs that ship inside the onnx wheel, as skeletons.

The files (``onnx/backend/test/data/light``) are real networks of the ONNX model zoo whose large weights were replaced
by ConstantOfShape nodes. Those, and the small float parameters that stayed, become weight inputs: trained statistics
beside synthetic filters would fit neither (ShuffleNet has variances of 1e-14).
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from ...errors import ModelNotFound
from ..skeleton import Skeleton, mark_weight
from .writer import constant_bytes

__all__ = ["LIGHT_FILES", "light"]

LIGHT_FILES = {
    "alexnet": "light_bvlc_alexnet.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "resnet50": "light_resnet50.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "vgg19": "light_vgg19.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
"""Zoo name to the file's name in the onnx wheel."""

_IR_VERSION = 10  # the first with metadata on value infos, where the role of a weight stands
_SHAPE_SLOTS = {("Reshape", 1), ("ConstantOfShape", 0)}  # operand slots of these files that want values, not weights


def light(name: str, batch: int) -> Skeleton:
    """The skeleton of one light model, rebuilt for ``batch`` images (the files are written for one).

    Raises:
        ModelNotFound: The installed onnx package does not carry its test data.
    """
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / LIGHT_FILES[name]
    if not path.is_file():
        raise ModelNotFound(
            f"zoo model '{name}' is not in the installed onnx package ({path})",
            remedy="install the onnx wheel from PyPI, which carries its test data",
        )
    source = onnx.load(path)
    graph = source.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    shaping = {node.input[slot] for node in graph.node for op, slot in _SHAPE_SLOTS if node.op_type == op}
    filled = {  # ConstantOfShape outputs: their shape is the value of the operand
        node.output[0]: tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist())
        for node in graph.node
        if node.op_type == "ConstantOfShape" and node.output[0] not in shaping
    }
    nodes = [node for node in graph.node if node.output[0] not in filled]
    used = {value: None for node in nodes for value in node.input}
    weights = [
        mark_weight(helper.make_tensor_value_info(value, TensorProto.FLOAT, _shape(value, filled, tensors)))
        for value in used
        if value in filled or (value in tensors and value not in shaping)
    ]
    inputs = [_with_batch(value, batch) for value in graph.input if value.name not in tensors]
    outputs = [_with_batch(value, batch) for value in graph.output]
    activations = {value.name for value in inputs} | {value for node in nodes for value in node.output}
    batched = {node.input[1] for node in nodes if node.op_type == "Reshape" and node.input[0] in activations}
    kept = [_target(tensors[value], batch if value in batched else 1) for value in used if value in shaping]
    model = helper.make_model(
        helper.make_graph(nodes, name, [*inputs, *weights], outputs, initializer=kept),
        opset_imports=source.opset_import,
        ir_version=_IR_VERSION,
    )
    return Skeleton(model, bound={"batch": batch}, weight_bytes=constant_bytes(model))


def _shape(value: str, filled: dict[str, tuple[int, ...]], tensors: dict[str, TensorProto]) -> tuple[int, ...]:
    return filled[value] if value in filled else tuple(tensors[value].dims)


def _with_batch(value: onnx.ValueInfoProto, batch: int) -> onnx.ValueInfoProto:
    value.type.tensor_type.shape.dim[0].dim_value = batch
    return value


def _target(tensor: TensorProto, batch: int) -> TensorProto:
    """A Reshape target for ``batch`` images: the leading 1 that these files write is the batch."""
    sizes = numpy_helper.to_array(tensor).copy()
    if sizes[0] == 1:
        sizes[0] = batch
    return numpy_helper.from_array(sizes, tensor.name)
