"""What an operation graph means, computed on the CPU: the definitions of cuDNN's operations in PyTorch's words."""

# ruff: noqa: TID251 - computes with torch what cuDNN would

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from dlbricks.generator.cudnn.operations import Derivation, Operation, OperationGraph, Role, Tensor
from torch.nn import functional

Array = np.ndarray[Any, Any]


def _product(x: torch.Tensor, axes: list[int]) -> torch.Tensor:
    for axis in axes:
        x = torch.prod(x, axis, keepdim=True)
    return x


_UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs, "ceil": torch.ceil, "cos": torch.cos, "erf": torch.erf, "exp": torch.exp, "floor": torch.floor,
    "log": torch.log, "neg": torch.neg, "reciprocal": torch.reciprocal, "relu": torch.relu, "sigmoid": torch.sigmoid,
    "sin": torch.sin, "softplus": functional.softplus, "sqrt": torch.sqrt, "tan": torch.tan, "tanh": torch.tanh,
    "elu": functional.elu, "gelu": functional.gelu,
    "gelu_approx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}  # fmt: skip
_BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "max": torch.maximum,
    "min": torch.minimum, "matmul": torch.matmul,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int]], torch.Tensor]] = {
    "ADD": lambda x, axes: torch.sum(x, axes, keepdim=True),
    "AVG": lambda x, axes: torch.mean(x, axes, keepdim=True),
    "MAX": lambda x, axes: torch.amax(x, axes, keepdim=True),
    "MIN": lambda x, axes: torch.amin(x, axes, keepdim=True),
    "MUL": _product,
}


def evaluate(graph: OperationGraph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a graph by name, from the values of the network's inputs, weights and constants."""
    found = {name: _read(tensor, values) for name, tensor in graph.tensors.items() if _is_given(tensor)}
    for operation in graph.operations:
        result = _compute(operation, found, graph.tensors[operation.output].shape)
        assert tuple(result.shape) == graph.tensors[operation.output].shape, operation
        found[operation.output] = result
    return {value: found[tensor].numpy() for value, tensor in graph.outputs.items()}


def _is_given(tensor: Tensor) -> bool:
    return tensor.role in {Role.INPUT, Role.WEIGHT, Role.SCALAR}


def _read(tensor: Tensor, values: Mapping[str, Array]) -> torch.Tensor:
    if tensor.role is Role.SCALAR:
        return torch.full(tensor.shape, float(tensor.value or 0.0))
    if tensor.derivation is not Derivation.NONE:
        assert tensor.value is not None
        scale, mean, variance, *bias = (torch.from_numpy(values[name].astype(np.float32)) for name in tensor.sources)
        factor = scale / torch.sqrt(variance + tensor.value)
        return (factor if tensor.derivation is Derivation.SCALE else bias[0] - mean * factor).reshape(tensor.shape)
    order = tensor.order or tuple(range(len(tensor.shape)))
    stored = torch.from_numpy(np.array(values[tensor.sources[0]])).reshape([tensor.shape[at] for at in order])
    return stored.permute(*np.argsort(order).tolist())


def _compute(operation: Operation, values: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    kind, settings = operation.kind, operation.settings
    inputs = {port: values[name] for port, name in operation.inputs.items()}
    first = next(iter(inputs.values()))
    if kind == "conv_fprop":
        return _convolution(inputs["image"], inputs["weight"], settings)
    if kind == "reduction":
        axes = [at for at, size in enumerate(shape) if size != first.shape[at]]
        return _REDUCTIONS[settings["mode"]](first, axes) if axes else first
    if kind == "leaky_relu":
        return functional.leaky_relu(first, settings["negative_slope"])
    if kind == "sdpa":
        scores = inputs["q"] @ inputs["k"].mT * settings["attn_scale"] + inputs.get("bias", torch.zeros(1))
        return torch.softmax(scores, -1) @ inputs["v"]
    if kind in {"layernorm", "rmsnorm"}:
        norm = functional.layer_norm if kind == "layernorm" else functional.rms_norm
        width, epsilon = [first.shape[1]], float(inputs["epsilon"].reshape(-1)[0])
        extra = [inputs["bias"].reshape(-1)] if "bias" in inputs else []
        return norm(first.flatten(1), width, inputs["scale"].reshape(-1), *extra, eps=epsilon).reshape(first.shape)
    return _UNARY[kind](first) if len(inputs) == 1 else _BINARY[kind](*inputs.values())


def _convolution(image: torch.Tensor, weight: torch.Tensor, settings: Mapping[str, Any]) -> torch.Tensor:
    pads = [each for pair in zip(settings["pre_padding"], settings["post_padding"], strict=True) for each in pair[::-1]]
    convolve = {2: functional.conv2d, 3: functional.conv3d}[len(settings["stride"])]
    groups = image.shape[1] // weight.shape[1]
    padded = functional.pad(image, pads[::-1])
    return convolve(padded, weight, None, settings["stride"], 0, settings["dilation"], groups)
