"""Operators of ONNX by what they do, where several stages ask for it."""

from __future__ import annotations

__all__ = ["DEQUANTIZE", "QUANTIZE", "RANDOM", "REDUCTIONS", "VIEWS"]

DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
"""From quantised values to real ones, and back: what stands around an operator of a quantised model (QDQ)."""

RANDOM = frozenset({
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
})  # fmt: skip
"""Their results differ from one inference to the next, whatever they read: nothing may compute them ahead."""

REDUCTIONS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
})  # fmt: skip
"""Reductions over the axes that their second input names."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Their result has the elements that they read, in the same order."""
