"""A speech detector as they are published: its whole graph sits in an If on the sampling rate."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["generation", "speech_detector"]

_HIDDEN = 128


def speech_detector(samples: int = 512) -> onnx.ModelProto:
    """Inputs ``input``, ``state`` and ``sr``; the branch for 16 kHz transforms 256 samples at a time, the other 128.

    Short-time Fourier transform as a convolution, four convolutions, an LSTM, a decision; audio and state are captured
    from around the branches.
    """
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, samples]),
        helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 1, _HIDDEN]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    outputs = [
        helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1]),
        helper.make_tensor_value_info("stateN", TensorProto.FLOAT, [2, 1, _HIDDEN]),
    ]
    branches = {"then_branch": _branch("wide", 256), "else_branch": _branch("narrow", 128)}
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["output", "stateN"], name="If_0", **branches),
    ]
    rate = numpy_helper.from_array(np.array(16000, np.int64), "rate")
    graph = helper.make_graph(nodes, "detector", inputs, outputs, [rate])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def _branch(name: str, window: int) -> onnx.GraphProto:
    rng = np.random.default_rng(window)
    nodes: list[onnx.NodeProto] = []
    bins = window // 2 + 1

    def constant(label: str, value: np.ndarray) -> str:
        tensor = numpy_helper.from_array(value, f"{name}_{label}")
        nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
        return tensor.name

    def weight(label: str, *shape: int) -> str:
        return constant(label, (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def add(operator: str, inputs: list[str], label: str, count: int = 1, **attributes: object) -> str:
        made = [f"{name}_{label}{number or ''}" for number in range(count)]
        nodes.append(helper.make_node(operator, inputs, made, name=f"{name}/{label}", **attributes))
        return made[0]

    def ints(label: str, *values: int) -> str:
        return constant(label, np.array(values, np.int64))

    framed = add("Unsqueeze", ["input", ints("axis1", 1)], "framed")
    padded = add("Pad", [framed, ints("pads", 0, 0, window // 4, 0, 0, window // 4)], "padded", mode="reflect")
    spectrum = add("Conv", [padded, weight("basis", 2 * bins, 1, window)], "spectrum", strides=[window // 2])
    real = add("Slice", [spectrum, ints("s0", 0), ints("s1", bins), ints("sa", 1)], "real")
    imaginary = add("Slice", [spectrum, ints("i0", bins), ints("i1", 2 * bins), ints("ia", 1)], "imaginary")
    power = add("Add", [add("Mul", [real, real], "real2"), add("Mul", [imaginary, imaginary], "imaginary2")], "power")
    value = add("Sqrt", [power], "magnitude")
    channels = bins
    for number, (width, stride) in enumerate([(128, 1), (64, 2), (64, 2), (_HIDDEN, 1)]):
        filters = weight(f"filters{number}", width, channels, 3)
        value = add("Conv", [value, filters], f"encoded{number}", strides=[stride], pads=[1, 1])
        value = add("Relu", [value], f"active{number}")
        channels = width
    steps = add("Transpose", [value], "steps", perm=[2, 0, 1])
    hidden = add("Slice", ["state", ints("h0", 0), ints("h1", 1), ints("ha", 0)], "hidden")
    cell = add("Slice", ["state", ints("c0", 1), ints("c1", 2), ints("ca", 0)], "cell")
    w, r = weight("w", 1, 4 * _HIDDEN, _HIDDEN), weight("r", 1, 4 * _HIDDEN, _HIDDEN)
    nodes.append(
        helper.make_node(
            "LSTM",
            [steps, w, r, "", "", hidden, cell],
            [f"{name}_all", f"{name}_h", f"{name}_c"],
            name=f"{name}/lstm",
            hidden_size=_HIDDEN,
        )
    )
    add("Concat", [f"{name}_h", f"{name}_c"], "stateN", axis=0)
    last = add("Squeeze", [f"{name}_h", ints("squeezed", 0)], "last")
    decided = add("MatMul", [add("Relu", [last], "lastactive"), weight("decision", _HIDDEN, 1)], "decided")
    add("Sigmoid", [decided], "output")
    outputs = [
        helper.make_tensor_value_info(f"{name}_output", TensorProto.FLOAT, [1, 1]),
        helper.make_tensor_value_info(f"{name}_stateN", TensorProto.FLOAT, [2, 1, _HIDDEN]),
    ]
    return helper.make_graph(nodes, name, [], outputs)


def generation(*, width: int = 256, trips: int | None = None) -> onnx.ModelProto:
    """A Loop that feeds what it made back: two products and a gate per iteration, what each made stacked at the end.

    Args:
        width: Of what it carries.
        trips: Iterations; None: an input ``steps`` says.
    """
    rng = np.random.default_rng(width)
    body_nodes = [
        helper.make_node("Identity", ["goes_on"], ["goes_on_still"]),
        helper.make_node("MatMul", ["x", "w0"], ["wide"], name="up"),
        helper.make_node("Relu", ["wide"], ["active"], name="gate"),
        helper.make_node("MatMul", ["active", "w1"], ["narrow"], name="down"),
        helper.make_node("Add", ["narrow", "bias"], ["moved"], name="residual"),
        helper.make_node("Tanh", ["moved"], ["x_next"], name="squash"),
        helper.make_node("ReduceMean", ["x_next"], ["mean"], name="mean", axes=[1], keepdims=1),
    ]

    def info(name: str, dtype: int, shape: list[int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    body = helper.make_graph(
        body_nodes,
        "body",
        [info("trip", TensorProto.INT64, []), info("goes_on", TensorProto.BOOL, []), info("x", 1, [1, width])],
        [info("goes_on_still", TensorProto.BOOL, []), info("x_next", 1, [1, width]), info("mean", 1, [1, 1])],
    )
    loop = helper.make_node("Loop", ["steps", "", "start"], ["end", "means"], name="Loop_0", body=body)
    constants = [
        numpy_helper.from_array(rng.standard_normal((width, 4 * width)).astype(np.float32) / 16, "w0"),
        numpy_helper.from_array(rng.standard_normal((4 * width, width)).astype(np.float32) / 32, "w1"),
    ]
    inputs = [info("start", 1, [1, width]), info("bias", 1, [1, width])]
    if trips is None:
        inputs.append(info("steps", TensorProto.INT64, []))
    else:
        constants.append(numpy_helper.from_array(np.array(trips, np.int64), "steps"))
    outputs = [
        info("end", 1, [1, width]),
        helper.make_tensor_value_info("means", TensorProto.FLOAT, [trips or "made", 1, 1]),
    ]
    graph = helper.make_graph([loop], "generation", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
