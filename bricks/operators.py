"""Operators of ONNX by what they do, where several stages ask for it."""

from __future__ import annotations

__all__ = [
    "DEQUANTIZE",
    "GLOBAL_POOLS",
    "PARAMETERISED",
    "POINTWISE",
    "POOLS",
    "PRODUCTS",
    "QUANTIZE",
    "RANDOM",
    "RECURRENT",
    "REDUCTIONS",
    "UNMOVED",
    "VIEWS",
]

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

UNMOVED = VIEWS | {"Dropout"}
"""A runtime may do them without moving anything."""

POINTWISE = frozenset({
    "Abs", "Acos", "Add", "Asin", "Asinh", "Atan", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Mean", "Min",
    "Mish", "Mul", "Neg", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu",
})  # fmt: skip
"""Each element of the result comes from those at its place, so that a channel stays a channel."""

PARAMETERISED = frozenset({"Clip", "Dropout"})
"""Of these the further inputs are single numbers, which are not broadcast."""

PRODUCTS = frozenset({"Gemm", "MatMul"})
POOLS = frozenset({"AveragePool", "MaxPool"})
GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
