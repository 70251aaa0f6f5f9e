"""A trap: a model, a tempting rewrite of it, and legal inputs on which the rewrite gives another answer.

A model is written in ONNX's text format. Its weights and constants are given as arrays by name::

    def clip_after_resize() -> Trap:
        return trap(
            "The clip is dropped, because ordinary images stay in its range.",
            '''(float[1,3,64,64] x) => (float[1,3,128,128] out) {
                r = Resize <mode = "cubic"> (x, , scales)
                out = Clip(r, low, high)
            }''',
            ordinary=[{"x": uniform(1, 3, 64, 64, high=255)}],
            rare=[{"x": steps(1, 3, 64, 64)}],
            tempting=[("Clip(r, low, high)", "Identity(r)")],
            scales=np.float32([1, 1, 2, 2]), low=np.float32(0), high=np.float32(255),
        )

``tempting`` is a list of textual replacements that turn the model into the wrong one. ``checked`` verifies that both
agree on ordinary inputs and differ on each rare one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import numpy_helper, parser

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

ORDINARY, DIFFERENT = 1e-4, 1e-3
"""Largest difference on ordinary inputs, and smallest on rare ones, relative to the largest value of an output."""


@dataclass(frozen=True, slots=True)
class Trap:
    """A model on which a tempting rewrite is wrong.

    Attributes:
        temptation: What the rewrite would do, and why it is wrong.
        model: The model.
        wrong: The model after the tempting rewrite.
        ordinary: Inputs on which both agree.
        rare: Legal inputs on which they differ.
    """

    temptation: str
    model: onnx.ModelProto
    wrong: onnx.ModelProto
    ordinary: Sequence[Feeds]
    rare: Sequence[Feeds]


def trap(
    temptation: str, text: str, *, ordinary: Sequence[Feeds], rare: Sequence[Feeds],
    tempting: Sequence[tuple[str, str]], opset: int = 17, domains: str = "", **constants: npt.ArrayLike,
) -> Trap:  # fmt: skip
    """Return a trap.

    Args:
        temptation: As ``Trap``.
        text: The graph in ONNX's text format, from its inputs on, without a name.
        ordinary: As ``Trap``.
        rare: As ``Trap``.
        tempting: Replacements in the text that make the wrong model; each must occur.
        opset: Version of the standard operators.
        domains: More domains, as ``, "com.microsoft" : 1``.
        **constants: Weights and constants by name, as arrays of NumPy.
    """
    other = text
    for old, new in tempting:
        if old not in other:
            raise ValueError(f"'{old}' does not occur")
        other = other.replace(old, new)
    model, wrong = (_parsed(graph, opset, domains, constants) for graph in (text, other))
    return Trap(temptation, model, wrong, ordinary, rare)


def _parsed(text: str, opset: int, domains: str, constants: Mapping[str, npt.ArrayLike]) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}{domains}]> g {text}')
    used = {name for node in model.graph.node for name in _reads(node)}
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items() if name in used]
    model.graph.initializer.extend(tensors)
    return model


def _reads(node: onnx.NodeProto) -> list[str]:
    inner = [read for attribute in node.attribute for body in attribute.g.node for read in _reads(body)]
    results = [value.name for attribute in node.attribute for value in attribute.g.output]
    return [*node.input, *inner, *results]


def outputs(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> list[list[Array]]:
    """Return the outputs of a model for each set of inputs, as ONNX Runtime computes them without its optimiser."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(feed)) for feed in feeds]


def apart(first: Sequence[Array], second: Sequence[Array]) -> float:
    """Return the largest difference of two lists of outputs, relative to the largest finite value of each output."""
    return max((_apart(one, other) for one, other in zip(first, second, strict=True)), default=0.0)


def _apart(one: Array, other: Array) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return np.inf
    if one.dtype.kind in "OSU":
        return 0.0 if np.array_equal(one, other) else np.inf
    first, second = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(first) & np.isfinite(second)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        return np.inf
    gap = np.abs(first - second)[finite].max(initial=0.0)
    return float(gap / (np.abs(first[finite]).max(initial=0.0) + 1e-30)) if gap else 0.0


def checked(made: Trap) -> str:
    """Return what is wrong with a trap; empty if it is one."""
    onnx.checker.check_model(made.model, full_check=False)
    for name, feeds, fine in (
        ("ordinary", made.ordinary, lambda gap: gap <= ORDINARY),
        ("rare", made.rare, lambda gap: gap >= DIFFERENT),
    ):
        pairs = zip(outputs(made.model, feeds), outputs(made.wrong, feeds), strict=True)
        gaps = [apart(first, second) for first, second in pairs]
        if not gaps or not all(map(fine, gaps)):
            return f"differences on {name} inputs: {gaps}"
    return ""


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    """Return normally distributed numbers in float32."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0) -> Array:
    """Return uniformly distributed numbers in float32."""
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def whole(*shape: int, low: int = 0, high: int = 100, seed: int = 0) -> Array:
    """Return integers from ``low`` to ``high`` - 1 in int64."""
    return np.random.default_rng(seed).integers(low, high, shape, np.int64)
