"""Layer keys: equal where the computation is equal, different where it is not, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import Layer, LayerState, Role
from dlbricks.models.skeleton import Skeleton, mark_weight
from onnx import numpy_helper


@dataclass(frozen=True)
class Spelling:
    """One way to write an operator; inputs called w... are weights of the model, k... are constants."""

    opset: int
    node: str
    inputs: str = "float[2,4,6,6] x"
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    out: str = "y"


def _layer(spelling: Spelling) -> Layer:
    text = f"""<ir_version: 10, opset_import: ["" : {spelling.opset}, "ai.onnx.ml" : 3, "com.microsoft" : 1]>
    g ({spelling.inputs}) => () {{ {spelling.out} = {spelling.node} }}"""
    model = onnx.parser.parse_model(text)
    for value in model.graph.input:
        if value.name.startswith("w"):
            mark_weight(value)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in spelling.constants.items()
    )
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in model.graph.node[0].output if name)
    layer = build_graph(Skeleton(model)).layers[0]
    assert layer.state is LayerState.LIVE, layer.reason
    return layer


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


CONV = "float[2,4,6,6] x, float[8,4,3,3] w"

EQUAL = {
    "opset": [Spelling(6, "Relu(x)"), Spelling(13, "Relu(x)"), Spelling(21, "Relu(x)"), Spelling(25, "Relu(x)")],
    "names": [Spelling(21, "Relu(x)"), Spelling(21, "Relu(other)", "float[2,4,6,6] other", out="z")],
    "defaults": [Spelling(21, "LeakyRelu(x)"), Spelling(21, "LeakyRelu<alpha = 0.01>(x)")],
    "negative axis": [Spelling(21, "Concat<axis = -3>(x, x)"), Spelling(21, "Concat<axis = 1>(x, x)")],
    "order of attributes": [
        Spelling(21, "Conv<group = 1, pads = [1,1,1,1]>(x, w)", CONV),
        Spelling(21, "Conv<pads = [1,1,1,1], group = 1>(x, w)", CONV),
    ],
    "padding": [
        Spelling(11, 'Conv<auto_pad = "SAME_UPPER">(x, w)', CONV),
        Spelling(22, "Conv<kernel_shape = [3,3], strides = [1,1], pads = [1,1,1,1]>(x, w)", CONV),
    ],
    "bounds": [
        Spelling(6, "Clip<min = 0.0, max = 6.0>(x)"),
        Spelling(13, "Clip(x, k0, k1)", constants={"k0": np.float32(0), "k1": np.float32(6)}),
    ],
    "bounds that do not bind": [
        Spelling(6, "Clip(x)"),
        Spelling(13, "Clip(x, k0)", constants={"k0": np.float32(np.finfo(np.float32).min)}),
    ],
    "targets": [
        Spelling(9, "Reshape(x, k)", constants={"k": _ints(0, -1)}),
        Spelling(21, "Reshape<allowzero = 1>(x, k)", constants={"k": _ints(2, 144)}),
    ],
    "axes": [
        Spelling(9, "ReduceMean<axes = [3, 2]>(x)"),
        Spelling(21, "ReduceMean(x, k)", constants={"k": _ints(-2, -1)}),
    ],
    "all axes": [Spelling(9, "ReduceSum(x)"), Spelling(13, "ReduceSum(x, k)", constants={"k": _ints(0, 1, 2, 3)})],
    "ends": [
        Spelling(9, "Slice<starts = [1], ends = [9223372036854775807], axes = [3]>(x)"),
        Spelling(
            13, "Slice(x, k0, k1, k2, k3)",
            constants={"k0": _ints(-5), "k1": _ints(6), "k2": _ints(3), "k3": _ints(1)},
        ),
    ],
    "parts": [
        Spelling(9, "Split<axis = 1>(x)", out="y, z"),
        Spelling(13, "Split<axis = 1>(x, k)", out="y, z", constants={"k": _ints(2, 2)}),
        Spelling(18, "Split<axis = -3, num_outputs = 2>(x)", out="y, z"),
    ],
    "inference": [
        Spelling(7, "Dropout<ratio = 0.1>(x)"),
        Spelling(13, "Dropout<seed = 4>(x, k)", constants={"k": np.float32(0.7)}),
    ],
    "momentum": [
        Spelling(7, f"BatchNormalization<{attributes}>(x, w, w, w, w)", "float[2,4,6,6] x, float[4] w")
        for attributes in ("momentum = 0.9", "momentum = 0.1", "spatial = 1")
    ],
    "coerced axes": [
        Spelling(9, "Softmax(x)", "float[2,5,1,1] x"), Spelling(13, "Softmax<axis = -3>(x)", "float[2,5,1,1] x"),
    ],
    "upsampling": [
        Spelling(9, "Upsample(x, k)", constants={"k": np.asarray([1, 1, 2, 2], np.float32)}),
        Spelling(
            19, 'Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , k)',
            constants={"k": _ints(2, 4, 12, 12)},
        ),
    ],
    "rounding that does not matter": [
        Spelling(11, "MaxPool<kernel_shape = [2,2], strides = [2,2], ceil_mode = 1>(x)"),
        Spelling(11, "MaxPool<kernel_shape = [2,2], strides = [2,2], storage_order = 1>(x)"),
    ],
    "letters": [
        Spelling(12, 'Einsum<equation = "b i j k , b j k i -> b i">(x, x)', "float[2,4,4,4] x"),
        Spelling(12, 'Einsum<equation = "nxyz,nyzx->nx">(x, x)', "float[2,4,4,4] x"),
    ],
    "weights": [
        Spelling(21, "Add(x, k)", constants={"k": np.full((4, 6, 6), value, np.float32)}) for value in (1, 2)
    ],
    "parameters however small": [
        Spelling(21, "Conv(x, k)", constants={"k": np.full((2, 4, 1, 1), value, np.float32)}) for value in (1, 2)
    ],
    "operands of a sum of products however small": [
        Spelling(12, 'Einsum<equation = "nchw,cd->ndhw">(x, k)', constants={"k": np.full((4, 2), value, np.float32)})
        for value in (1, 2)
    ],
    "scales of quantisation": [
        Spelling(13, "QuantizeLinear(x, k)", constants={"k": np.float32(value)}) for value in (0.1, 0.2)
    ],
    "where a weight is kept": [
        Spelling(21, "MatMul(x, k)", constants={"k": np.ones((6, 3), np.float32)}),
        Spelling(21, "MatMul(x, w)", "float[2,4,6,6] x, float[6,3] w"),
    ],
}  # fmt: skip

DIFFERENT = {
    "operator": [Spelling(21, "Relu(x)"), Spelling(21, "Tanh(x)")],
    "shape": [Spelling(21, "Relu(x)"), Spelling(21, "Relu(x)", "float[2,4,6,7] x")],
    "element type": [Spelling(21, "Relu(x)"), Spelling(21, "Relu(x)", "float16[2,4,6,6] x")],
    "attribute": [Spelling(21, "LeakyRelu(x)"), Spelling(21, "LeakyRelu<alpha = 0.2>(x)")],
    "padding": [
        Spelling(21, "Conv<pads = [0,1,0,1]>(x, w)", CONV),
        Spelling(21, "Conv<pads = [1,0,1,0]>(x, w)", CONV),
        Spelling(21, "Conv<pads = [1,1,1,1]>(x, w)", CONV),
        Spelling(21, "Conv(x, w)", CONV),
    ],
    "exponent": [
        Spelling(21, "Pow(x, k)", constants={"k": np.float32(value)}) for value in (2, 3, 0.5)
    ] + [Spelling(21, "Pow(x, k)", constants={"k": np.float64(2)})],
    "constant or weight": [
        Spelling(21, "Mul(x, k)", constants={"k": np.float32(2)}),
        Spelling(21, "Mul(x, w)", "float[2,4,6,6] x, float w"),
    ],
    "weight or activation": [
        Spelling(21, "Add(x, w)", "float[2,4,6,6] x, float[2,4,6,6] w"),
        Spelling(21, "Add(x, z)", "float[2,4,6,6] x, float[2,4,6,6] z"),
    ],
    "zero point": [
        Spelling(13, "QuantizeLinear(x, k, kz)", constants={"k": np.float32(1), "kz": np.uint8(value)})
        for value in (0, 128)
    ],
    "long deciding constant": [
        Spelling(
            21, "Pad(x, k)", "float[1,1,1,1,1,1,1,1,1] x", constants={"k": np.asarray([value] + [0] * 17, np.int64)}
        )
        for value in (0, 1)
    ],
    "wanted outputs": [
        Spelling(21, "MaxPool<kernel_shape = [2,2]>(x)"), Spelling(21, "MaxPool<kernel_shape = [2,2]>(x)", out="y, i"),
    ],
    "semantics of the opset": [
        Spelling(11, "Softmax<axis = 1>(x)"), Spelling(13, "Softmax<axis = 1>(x)"),
    ],
    "rounding": [
        Spelling(21, "MaxPool<kernel_shape = [3,3], strides = [2,2], ceil_mode = 1>(x)"),
        Spelling(21, "MaxPool<kernel_shape = [3,3], strides = [2,2]>(x)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_equal_computations_have_one_key(name: str) -> None:
    keys = {_layer(spelling).key for spelling in EQUAL[name]}

    assert len(keys) == 1


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_computations_have_different_keys(name: str) -> None:
    keys = {_layer(spelling).key for spelling in DIFFERENT[name]}

    assert len(keys) == len(DIFFERENT[name])


def test_what_cannot_be_upgraded_keeps_the_source_form() -> None:
    layer = _layer(Spelling(11, "Softmax<axis = 1>(x)"))

    assert layer.canonical is None
    assert layer.canonical_opsets == (("", 11),)
    assert layer.node.op_type == "Softmax"


def test_newer_operators_raise_the_opset() -> None:
    layer = _layer(Spelling(24, "RMSNormalization<axis = -1>(x, w)", "float[2,4,6,6] x, float[6] w"))

    assert layer.canonical_opsets == (("", 23),)
    assert {attribute.name: attribute.i for attribute in layer.canonical.attribute}["axis"] == 3


def test_newer_element_types_raise_the_opset() -> None:
    old = _layer(Spelling(22, "Conv(x, w)", CONV))
    new = _layer(Spelling(22, "Conv(x, w)", CONV.replace("float", "bfloat16")))

    assert old.canonical_opsets == (("", 21),)
    assert new.canonical_opsets == (("", 22),)


def test_attributes_that_hold_weights_are_refused() -> None:
    scale = ", ".join(["1.0"] * 36)
    text = f"""<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]> g (float[2,36] x) => (float[2,36] y) {{
        y = ai.onnx.ml.Scaler<offset = [{scale}], scale = [{scale}]>(x) }}"""

    layer = build_graph(Skeleton(onnx.parser.parse_model(text))).layers[0]

    assert layer.state is LayerState.SKIPPED
    assert "holds 36 values" in layer.reason


def test_made_constants_are_named_by_their_slot() -> None:
    layer = _layer(Spelling(9, "ReduceMean<axes = [3, 2]>(x)"))

    assert [operand.value for operand in layer.operands] == ["x", "%1"]
    assert list(layer.canonical.input) == ["x", "%1"]
    assert layer.operands[1].role is Role.CONSTANT
    assert numpy_helper.to_array(onnx.TensorProto.FromString(layer.operands[1].data)).tolist() == [2, 3]


_PROGRAM = """
import onnx
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.models.skeleton import Skeleton
text = '''<ir_version: 8, opset_import: ["" : 12]> g (bool c, float[2,4,6,6] x) => (float[2,4,6,6] y, float[2,4,3,3] z)
<float k = {2.0}> {
    h = If(c) <then_branch = a () => (float t) { t = Neg(k) }, else_branch = b () => (float u) { u = Identity(k) }>
    y = Mul(x, h)
    z = MaxPool<kernel_shape = [2,2], strides = [2,2], auto_pad = "SAME_UPPER">(x)
}'''
graph = build_graph(Skeleton(onnx.parser.parse_model(text)))
print(*[layer.key for layer in graph.layers], graph.key)
"""


def test_keys_are_equal_in_every_process() -> None:
    answers = set()
    for seed in ("0", "1", "random"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _PROGRAM]
        answers.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    (answer,) = answers
    assert len(answer.split()) == 4


def test_keys_do_not_change_between_releases() -> None:
    """A stored latency is found by its key: whoever changes this orphans every database. Meant to be hard."""
    layer = _layer(Spelling(11, 'Conv<auto_pad = "SAME_UPPER">(x, w)', CONV))

    assert layer.key == "7f6a3a3787fa06fb97d1267a5fdf12f343d6d92eb79c18e852efc3afb81a2da9"


def test_an_average_keeps_the_kernel_of_its_opset() -> None:
    """ONNX Runtime has another, much slower one for windows that may be dilated."""
    pool = "AveragePool<kernel_shape = [2, 2]>(x)"
    old, new = _layer(Spelling(13, pool)), _layer(Spelling(20, pool))

    assert (old.canonical_opsets, old.valid_opsets) == ((("", 18),), (1, 19))
    assert new.canonical_opsets == (("", 21),)
    assert old.key != new.key


def test_what_uses_nothing_new_is_written_for_older_opsets_too() -> None:
    reshape = _layer(Spelling(17, "Reshape(x, k)", constants={"k": _ints(2, -1)}))

    assert reshape.canonical_opsets == (("", 21),)
    assert reshape.valid_opsets is not None
    assert (
        reshape.valid_opsets[0] == 5
    )  # the shape was an attribute before; allowzero, which came later, is at its default
