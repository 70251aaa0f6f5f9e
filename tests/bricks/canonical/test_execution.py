"""A canonical form computes what the source computes: both are executed, at old opsets and new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models.skeleton import Skeleton
from onnx import helper, numpy_helper

from ..rebuild import execute, reference

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One operator: its text with inputs ``x`` (activations, seeded) and what else it reads."""

    opset: int
    node: str
    shapes: Mapping[str, tuple[int, ...]]
    out: str = "y"
    constants: Arrays = field(default_factory=dict)
    op_type: str = ""
    """The canonical operator, where it has another name."""
    dtype: str = "float32"


def _ints(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def _floats(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


X = {"x": (2, 3, 8, 8)}
CONV = {"x": (1, 4, 9, 9), "w": (6, 4, 3, 3)}
TRANSPOSE = {"x": (1, 4, 5, 5), "w": (4, 6, 3, 3)}
ROW = {"x": (2, 3, 4)}

CASES = {
    # broadcasting before opset 7
    "add-6 same shape": Case(6, "Add(x, z)", {"x": (2, 3), "z": (2, 3)}),
    "add-6 last axes": Case(6, "Add<broadcast = 1>(x, z)", {"x": (2, 3, 4), "z": (3, 4)}),
    "mul-6 last axes by axis": Case(6, "Mul<broadcast = 1, axis = 1>(x, z)", {"x": (2, 3, 4), "z": (3, 4)}),
    "sum-6": Case(6, "Sum(x, z)", {"x": (2, 3), "z": (2, 3)}),
    "gemm-6": Case(6, "Gemm<broadcast = 1>(x, w, b)", {"x": (2, 3), "w": (3, 4), "b": (4,)}),
    # attributes that became inputs
    "clip-6": Case(6, "Clip<min = -0.5, max = 0.5>(x)", X),
    "clip-6 one bound": Case(6, "Clip<min = 0.0>(x)", X),
    "clip-12 without upper bound": Case(12, "Clip(x, low)", X, constants={"low": np.float32(-0.1)}),
    "dropout-7": Case(7, "Dropout<ratio = 0.7>(x)", X),
    "dropout-12 with mask": Case(12, "Dropout(x)", X, out="y, mask"),
    "dropout-13 not training": Case(
        13, "Dropout<seed = 3>(x, ratio, training)", X,
        constants={"ratio": np.float32(0.9), "training": np.asarray(False)},
    ),
    "squeeze-1": Case(9, "Squeeze<axes = [2, 0]>(x)", {"x": (1, 3, 1, 4)}),
    "squeeze-1 all": Case(9, "Squeeze(x)", {"x": (1, 3, 1, 4)}),
    "squeeze-11": Case(11, "Squeeze<axes = [-2]>(x)", {"x": (1, 3, 1, 4)}),
    "unsqueeze-1": Case(9, "Unsqueeze<axes = [0, 3]>(x)", {"x": (3, 4)}),
    "unsqueeze-1 descending": Case(9, "Unsqueeze<axes = [3, 0]>(x)", {"x": (3, 4)}),
    "unsqueeze-11": Case(11, "Unsqueeze<axes = [-1]>(x)", {"x": (3, 4)}),
    "reduce-mean-1": Case(9, "ReduceMean<axes = [1, 2], keepdims = 0>(x)", X),
    "reduce-sum-13": Case(13, "ReduceSum<keepdims = 0>(x, axes)", X, constants={"axes": _ints(-1)}),
    "reduce-sum-13 nothing": Case(13, "ReduceSum<noop_with_empty_axes = 1>(x, axes)", X, constants={"axes": _ints()}),
    "slice-1": Case(9, "Slice<starts = [1, -3], ends = [9223372036854775807, -1], axes = [2, 3]>(x)", X),
    "slice-1 without axes": Case(9, "Slice<starts = [0, 1], ends = [1, 3]>(x)", X),
    "slice-10": Case(
        10, "Slice(x, s, e, a)", X, constants={"s": _ints(-3, 1), "e": _ints(100, -2), "a": _ints(3, 2)}
    ),
    "slice-13 backwards": Case(
        13, "Slice(x, s, e, a, t)", X,
        constants={"s": _ints(-1, 5), "e": _ints(-(2**63), 1), "a": _ints(3, 2), "t": _ints(-2, -1)},
    ),
    "slice-13 nothing": Case(
        13, "Slice(x, s, e, a)", X, constants={"s": _ints(5), "e": _ints(2), "a": _ints(-1)}
    ),
    "pad-2": Case(9, "Pad<pads = [0, 0, 1, 2, 0, 0, 3, 0], value = 0.5>(x)", X),
    "pad-2 reflect": Case(9, "Pad<mode = \"reflect\", pads = [0, 0, 1, 2, 0, 0, 3, 0]>(x)", X),
    "pad-11": Case(11, "Pad(x, p)", X, constants={"p": _ints(0, 0, 1, 2, 0, 0, 3, 0)}),
    "pad-18 axes": Case(
        18, "Pad<mode = \"edge\">(x, p, , a)", X, constants={"p": _ints(1, 2, 3, 0), "a": _ints(-1, 2)}
    ),
    "split-2": Case(9, "Split<axis = 1, split = [1, 2]>(x)", X, out="y, z"),
    "split-13": Case(13, "Split<axis = -1>(x, s)", X, out="y, z", constants={"s": _ints(3, 5)}),
    "split-18 uneven": Case(18, "Split<axis = 3, num_outputs = 3>(x)", X, out="y, z, u"),
    "topk-1": Case(9, "TopK<k = 2>(x)", ROW, out="y, i"),
    "reshape-5": Case(9, "Reshape(x, s)", X, constants={"s": _ints(0, -1)}),
    "reshape-14": Case(14, "Reshape(x, s)", X, constants={"s": _ints(-1, 0, 4)}),
    "tile-6": Case(9, "Tile(x, r)", ROW, constants={"r": _ints(1, 2, 3)}),
    "expand-8": Case(9, "Expand(x, s)", {"x": (3, 1)}, constants={"s": _ints(2, 1, 4)}),
    "cumsum-11": Case(11, "CumSum<exclusive = 1>(x, a)", ROW, constants={"a": _ints(-1)}),
    "onehot-9": Case(
        9, "OneHot(x, d, v)", {"x": (3,)}, constants={"d": _ints(5), "v": _floats(0, 2)}, dtype="int64"
    ),
    "trilu-14": Case(14, "Trilu<upper = 0>(x, k)", {"x": (4, 4)}, constants={"k": np.int64(0)}),
    "dft-17": Case(17, "DFT<axis = 1, onesided = 1>(x)", {"x": (2, 8, 1)}),
    "dft-17 default axis": Case(17, "DFT(x)", {"x": (2, 4, 3, 1)}),
    "dft-20": Case(20, "DFT<onesided = 1>(x)", {"x": (2, 8, 1)}),
    # axes and defaults
    "transpose-1": Case(9, "Transpose(x)", X),
    "flatten-9": Case(9, "Flatten<axis = 2>(x)", X),
    "flatten-11": Case(11, "Flatten<axis = -1>(x)", X),
    "concat-11": Case(11, "Concat<axis = -2>(x, z)", {"x": (2, 3, 4), "z": (2, 1, 4)}),
    "argmax-1": Case(9, "ArgMax<axis = 1, keepdims = 0>(x)", X),
    "gather-11": Case(11, "Gather<axis = -1>(x, i)", X, constants={"i": _ints(3, -1)}),
    "scatter-9": Case(
        9, "Scatter<axis = 1>(x, i, u)", {"x": (2, 3)}, op_type="ScatterElements",
        constants={"i": _ints(0, 2).reshape(2, 1), "u": _floats(7, 8).reshape(2, 1)},
    ),
    "depth-to-space-1": Case(9, "DepthToSpace<blocksize = 2>(x)", {"x": (1, 8, 2, 3)}),
    "softmax-1": Case(9, "Softmax<axis = 1>(x)", {"x": (2, 5)}),
    "softmax-1 image": Case(9, "Softmax(x)", {"x": (2, 5, 1, 1)}),
    "softmax-11 middle": Case(11, "Softmax<axis = 1>(x)", {"x": (2, 1, 5)}),
    "cast-9": Case(9, "Cast<to = 7>(x)", X),
    "cast-19": Case(19, "Cast<to = 11, saturate = 0>(x)", X),
    "einsum-12": Case(12, "Einsum<equation = \"ij, jk\">(x, z)", {"x": (2, 3), "z": (3, 4)}),
    "einsum-12 ellipsis": Case(12, "Einsum<equation = \"...qd,...kd->...qk\">(x, z)", {"x": (2, 3, 4), "z": (2, 5, 4)}),
    "prelu-6 one slope": Case(6, "PRelu(x, s)", {"x": (2, 3, 4), "s": (1,)}),
    "prelu-7": Case(7, "PRelu(x, s)", {"x": (2, 3, 4), "s": (3, 1)}),
    "pow-7": Case(7, "Pow(x, e)", {"x": (2, 3)}, constants={"e": np.float32(2)}),
    # windows
    "conv-1 same": Case(9, "Conv<auto_pad = \"SAME_UPPER\", strides = [2, 2]>(x, w)", {**CONV, "x": (1, 4, 8, 10)}),
    "conv-11 same lower": Case(
        11, "Conv<auto_pad = \"SAME_LOWER\", strides = [2, 2], dilations = [1, 2]>(x, w)", {**CONV, "x": (1, 4, 8, 10)}
    ),
    "conv-11 valid": Case(11, "Conv<auto_pad = \"VALID\", kernel_shape = [3, 3]>(x, w)", CONV),
    "conv-11 groups": Case(
        11, "Conv<group = 2, pads = [1, 0, 2, 1]>(x, w, b)", {"x": (1, 4, 9, 9), "w": (6, 2, 3, 3), "b": (6,)}
    ),
    "conv-22": Case(22, "Conv(x, w)", CONV),
    "conv-transpose-11": Case(11, "ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(x, w)", TRANSPOSE),
    "conv-transpose-11 same": Case(11, "ConvTranspose<strides = [2, 2], auto_pad = \"SAME_UPPER\">(x, w)", TRANSPOSE),
    "conv-transpose-11 output shape": Case(
        11, "ConvTranspose<strides = [2, 2], output_shape = [9, 9]>(x, w)", TRANSPOSE
    ),
    "maxpool-1": Case(7, "MaxPool<kernel_shape = [3, 3], auto_pad = \"SAME_LOWER\", strides = [2, 2]>(x)", X),
    "maxpool-8 indices": Case(9, "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)", X, out="y, i"),
    "maxpool-10 ceil": Case(10, "MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", X),
    "maxpool-10 ceil without effect": Case(
        10, "MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)", X
    ),
    "averagepool-7 same": Case(
        7, "AveragePool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = \"SAME_UPPER\">(x)", X
    ),
    "averagepool-11 ceil": Case(
        11, "AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)", X
    ),
    "averagepool-11 ceil and padding": Case(
        11,
        "AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1, "
        "count_include_pad = 1>(x)",
        X,
    ),
    "averagepool-19": Case(19, "AveragePool<kernel_shape = [2, 2]>(x)", X),
    "averagepool-19 dilated": Case(19, "AveragePool<kernel_shape = [2, 2], dilations = [2, 2]>(x)", X),
    "lppool-2": Case(9, "LpPool<kernel_shape = [2, 2], strides = [2, 2]>(x)", X),
    # normalisation
    "batchnorm-7": Case(
        7, "BatchNormalization<momentum = 0.5>(x, s, b, m, v)",
        {**X, "s": (3,), "b": (3,), "m": (3,), "v": (3,)},
    ),
    "batchnorm-14": Case(14, "BatchNormalization(x, s, b, m, v)", {**X, "s": (3,), "b": (3,), "m": (3,), "v": (3,)}),
    "layernorm-17": Case(17, "LayerNormalization<axis = -1>(x, s)", {**ROW, "s": (4,)}),
    "meanvariance-9": Case(9, "MeanVarianceNormalization(x)", X),
    # resampling
    "upsample-7": Case(7, "Upsample<scales = [1.0, 1.0, 2.0, 3.0]>(x)", X, op_type="Resize"),
    "upsample-9": Case(
        9, "Upsample<mode = \"nearest\">(x, s)", X, constants={"s": _floats(1, 1, 2, 1.5)}, op_type="Resize"
    ),
    "upsample-9 linear": Case(
        9, "Upsample<mode = \"linear\">(x, s)", X, constants={"s": _floats(1, 1, 2, 3)}, op_type="Resize"
    ),
    "resize-10": Case(10, "Resize(x, s)", X, constants={"s": _floats(1, 1, 0.5, 2)}),
    "resize-10 linear": Case(10, "Resize<mode = \"linear\">(x, s)", X, constants={"s": _floats(1, 1, 2, 2)}),
    "resize-11 sizes": Case(
        11, "Resize<mode = \"linear\">(x, roi, s, z)", X,
        constants={"roi": _floats(), "s": _floats(), "z": _ints(2, 3, 16, 4)},
    ),
    "resize-11 inexact sizes": Case(
        11, "Resize<mode = \"linear\">(x, roi, s, z)", X,
        constants={"roi": _floats(), "s": _floats(), "z": _ints(2, 3, 11, 5)},
    ),
    "resize-13 cubic": Case(
        13, "Resize<mode = \"cubic\", coordinate_transformation_mode = \"align_corners\">(x, , s)", X,
        constants={"s": _floats(1, 1, 2, 2)},
    ),
    "resize-18 axes": Case(18, "Resize<axes = [-1, 2]>(x, , s)", X, constants={"s": _floats(2, 0.5)}),
    "grid-sample-16": Case(16, "GridSample<mode = \"bilinear\">(x, g)", {"x": (1, 2, 4, 4), "g": (1, 3, 3, 2)}),
    "roi-align-10": Case(
        10, "RoiAlign<output_height = 2, output_width = 2>(x, r, i)", {"x": (1, 2, 8, 8)},
        constants={"r": _floats(0, 0, 6, 6).reshape(1, 4), "i": _ints(0)},
    ),
    # quantisation
    "quantize-10": Case(10, "QuantizeLinear(x, s, z)", X, constants={"s": np.float32(0.1), "z": np.uint8(3)}),
    "quantize-13 axis": Case(
        13, "QuantizeLinear<axis = -3>(x, s, z)", X,
        constants={"s": _floats(0.1, 0.2, 0.3), "z": np.asarray([1, 2, 3], np.uint8)},
    ),
    # recurrence
    "gru-7 bidirectional": Case(
        7, "GRU<hidden_size = 2, direction = \"bidirectional\", linear_before_reset = 1>(x, w, r, b)",
        {"x": (4, 1, 3), "w": (2, 6, 3), "r": (2, 6, 2), "b": (2, 12)}, out=", h",
    ),
}  # fmt: skip


def _model(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    generator = np.random.default_rng(7)
    feeds = {}
    for name, shape in case.shapes.items():
        values = generator.standard_normal(shape)
        values = np.abs(values) + 0.5 if name == "v" else values
        feeds[name] = (values * 2 if case.dtype == "int64" else values).astype(case.dtype)
    arguments = ", ".join(f"{case.dtype.replace('32', '')}{list(shape)} {name}" for name, shape in case.shapes.items())
    body = f'<ir_version: 8, opset_import: ["" : {case.opset}]> g ({arguments}) => () {{ {case.out} = {case.node} }}'
    model = onnx.parser.parse_model(body)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in case.constants.items())
    outputs = [name for name in model.graph.node[0].output if name]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
    return model, feeds


@pytest.mark.sweep(60)
@pytest.mark.parametrize("name", CASES)
def test_canonical_form_computes_the_same(name: str) -> None:
    case = CASES[name]
    model, feeds = _model(case)
    graph = build_graph(Skeleton(model))
    (part,) = sequences(graph, 1)

    brick = build_brick(graph, part)

    (layer,) = graph.layers
    assert layer.canonical is not None
    assert layer.canonical.op_type == (case.op_type or model.graph.node[0].op_type)
    canonical = onnx.ModelProto.FromString(brick.model)
    onnx.checker.check_model(canonical, full_check=True)
    assert load_brick(brick.model, expected=part.key).key == brick.key
    try:
        run, expected = execute, execute(model, feeds)
    except Exception:  # noqa: BLE001 - the runtime's errors share no base class, and it lacks kernels that are so old
        run, expected = reference, reference(model, feeds)
    arguments = zip(canonical.graph.input, (*part.inputs, *part.weights), strict=True)
    given = {value.name: np.asarray((feeds | case.constants)[name]) for value, name in arguments}
    kinds = [kind for kind in layer.output_types if kind is not None]
    for wanted, found, kind in zip(expected, run(canonical, given), kinds, strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == kind.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
