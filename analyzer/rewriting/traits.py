"""What is known of operators: which work on each element alone, which move elements, which are real arithmetic."""

from __future__ import annotations

ELEMENTWISE = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Dropout", "Elu", "Equal", "Erf",
    "Exp", "FastGelu", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or",
    "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
})  # fmt: skip
"""Each element of the result depends on one element of each operand, after broadcasting."""

MOVES = frozenset({
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze",
    "Tile", "Transpose", "Trilu", "Unsqueeze",
})  # fmt: skip
"""Each element of the result is one of the operands', if the other operands (sizes, indices) are constants."""

LINEAR = frozenset({"CumSum", "Einsum", "ReduceMean", "ReduceSum"})
"""Real arithmetic that the runtime computes exactly enough; Einsum is a sum of products."""

REAL = frozenset({
    "Add", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DFT", "Div", "FusedMatMul", "Gemm",
    "GlobalAveragePool", "InstanceNormalization", "LRN", "LayerNormalization", "Log", "MatMul", "Mean", "Mul", "Neg",
    "Pow", "RMSNormalization", "Reciprocal", "ReduceL2", "ReduceSumSquare", "STFT", "SimplifiedLayerNormalization",
    "Sqrt", "Sub", "Sum",
})  # fmt: skip
"""Operators whose definition needs no stand-in."""

MULTIPLYING = frozenset({"Conv", "ConvTranspose", "FusedMatMul", "Gemm", "MatMul"})
"""Products with weights."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Moves that leave the order of elements as it is."""

STEPS = frozenset({
    "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mod", "Not", "Or", "Round", "Shrink", "Sign",
    "ThresholdedRelu", "Where", "Xor",
})  # fmt: skip
"""Functions that may jump, so that a sample of numbers may miss where."""

RISING = frozenset({
    "Atan", "Erf", "Exp", "HardSigmoid", "Identity", "LeakyRelu", "Log", "Relu", "Sigmoid", "Softplus", "Softsign",
    "Sqrt", "Tanh",
})  # fmt: skip
"""Functions that never fall, with attributes of the usual sign: they commute with a maximum."""

MAXIMA = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax"})
"""Maxima over elements."""

SCALING = frozenset({"Add", "BatchNormalization", "Cast", "Div", "Mul", "Neg", "Sub"})
"""Elementwise real arithmetic."""

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose result is another one each time; a Dropout in training is one too."""

BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators with graphs inside."""

DATA_OPERANDS = {
    "Add": None, "Concat": None, "Einsum": None, "Gemm": None, "MatMul": None, "Mul": None, "ScatterElements": (0, 2),
    "ScatterND": (0, 2), "Sub": None, "Sum": None,
}  # fmt: skip
"""Slots of operands that are data, if not the first alone; None: all. The others are sizes and indices."""

SUMS_OF_SIZES = frozenset({
    "Add", "Cast", "Concat", "Gather", "Identity", "Mul", "Neg", "ReduceProd", "ReduceSum", "Reshape", "Slice", "Split",
    "Squeeze", "Sub", "Unsqueeze",
})  # fmt: skip
"""Operators on whole sizes whose results are sums of products of sizes, so that a few sizes show all of them."""

SIZED_BY_DATA = frozenset({
    "Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Scan", "SequenceAt", "StringSplit", "Unique",
})  # fmt: skip
"""Operators whose results have shapes that depend on contents."""

SIZED_BY_SIZES = ELEMENTWISE | REAL - {"DFT", "ReduceL2", "ReduceSumSquare", "STFT"} | frozenset({
    "ArgMax", "ArgMin", "Attention", "BiasGelu", "CastLike", "Concat", "Constant", "ConvInteger", "CumSum",
    "DepthToSpace", "DequantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "Einsum", "EyeLike",
    "Flatten", "FusedConv", "FusedGemm", "GRU", "Gather", "GatherElements", "GatherND", "GlobalLpPool", "GlobalMaxPool",
    "GridSample", "GroupNormalization", "Hardmax", "LSTM", "LogSoftmax", "LpNormalization", "LpPool", "MatMulInteger",
    "MatMulIntegerToFloat", "MatMulNBits", "MaxPool", "MeanVarianceNormalization", "QAttention", "QLinearAdd",
    "QLinearAveragePool", "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
    "QLinearMatMul", "QLinearMul", "QLinearSigmoid", "QLinearSoftmax", "QuantizeLinear", "RNN", "ReverseSequence",
    "ScatterElements", "ScatterND", "Shape", "Size", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "Softmax", "SpaceToDepth", "Transpose", "Trilu",
})  # fmt: skip
"""Operators whose results have shapes that depend on the shapes of operands and on no contents."""

SIZED_BY_OPERANDS = frozenset({
    "CenterCropPad", "Expand", "OneHot", "Pad", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample",
})  # fmt: skip
"""Operators whose results have shapes that depend on the contents of operands other than the first. All operators that
are in neither table count as shaped by the contents of every operand."""
