"""What a constant input is: a weight, whose values no key holds, or a constant, whose values decide shape or work.

One rule and two tables. The rule: a constant of up to 16 elements is a CONSTANT (Pow by 2 costs a sixteenth of Pow
by 0.37, and fusions look at scalars), a larger one a WEIGHT. ``_PARAMETERS`` names the slots that are weights
whatever their size: a suite holds no weights of its models. ``_DECIDING`` names the slots whose values decide shape,
legality or work and are constants whatever their size.
"""

from __future__ import annotations

from ..layer import Role

__all__ = ["CONSTANT_ELEMENTS", "constant_role", "is_deciding"]

CONSTANT_ELEMENTS = 16
"""Constants of up to this many elements enter the key with their values (docs/architecture.md)."""

_PARAMETERS: dict[tuple[str, str], frozenset[int]] = {
    ("", op_type): frozenset(slots)
    for op_type, slots in {
        "BatchNormalization": (1, 2, 3, 4),
        "Conv": (1, 2),
        "ConvInteger": (1,),
        "ConvTranspose": (1, 2),
        "DeformConv": (1, 3),
        "DequantizeLinear": (0, 1),
        "GRU": (1, 2, 3, 5),
        "Gemm": (0, 1, 2),
        "GroupNormalization": (1, 2),
        "InstanceNormalization": (1, 2),
        "LSTM": (1, 2, 3, 5, 6, 7),
        "LayerNormalization": (1, 2),
        "MatMul": (0, 1),
        "MatMulInteger": (0, 1),
        "PRelu": (1,),
        "QLinearConv": (1, 3, 4, 6, 8),
        "QLinearMatMul": (0, 1, 3, 4, 6),
        "QuantizeLinear": (1,),
        "RMSNormalization": (1,),
        "RNN": (1, 2, 3, 5),
        "SimplifiedLayerNormalization": (1,),
    }.items()
} | {
    ("com.microsoft", op_type): frozenset(slots)
    for op_type, slots in {
        "Attention": (1, 2),
        "BiasGelu": (1,),
        "DequantizeLinear": (0, 1),
        "DynamicQuantizeLSTM": (1, 2, 3, 7, 8, 10),
        "DynamicQuantizeMatMul": (1, 2, 4),
        "EmbedLayerNormalization": (2, 3, 4, 5, 6),
        "FastGelu": (1,),
        "FusedConv": (1, 2),
        "FusedGemm": (0, 1, 2),
        "FusedMatMul": (0, 1),
        "GatherBlockQuantized": (0, 2),
        "MatMulIntegerToFloat": (1, 2, 3, 6),
        "MatMulNBits": (1, 2),
        "MultiHeadAttention": (3,),
        "NhwcConv": (1, 2),
        "QAttention": (1, 2, 3, 4),
        "QGemm": (1, 3, 4, 6, 7),
        "QLinearAdd": (1, 4, 6),
        "QLinearAveragePool": (1, 3),
        "QLinearConcat": (0,),
        "QLinearConv": (1, 3, 4, 6, 8),
        "QLinearGlobalAveragePool": (1, 3),
        "QLinearLeakyRelu": (1, 3),
        "QLinearMul": (1, 4, 6),
        "QLinearReduceMean": (1, 3),
        "QLinearSigmoid": (1, 3),
        "QLinearSoftmax": (1, 3),
        "QLinearWhere": (2, 5, 7),
        "QuantizeLinear": (1,),
        "SkipGroupNorm": (1, 2),
        "SkipLayerNormalization": (2, 3, 4),
        "SkipSimplifiedLayerNormalization": (2, 3),
        "TransposeMatMul": (0, 1),
    }.items()
}
"""Weights, biases, scales of normalisation and quantisation by (domain, operator). Zero points are not here:
runtimes choose kernels by them."""

_PARAMETERS["com.microsoft.nchwc", "Conv"] = _PARAMETERS["", "Conv"]

_DECIDING: dict[str, frozenset[int]] = {
    op_type: frozenset(slots)
    for op_type, slots in {
        "AffineGrid": (1,),
        "Attention": (6,),
        "BlackmanWindow": (0,),
        "CenterCropPad": (1,),
        "Col2Im": (1, 2),
        "Compress": (1,),
        "ConstantOfShape": (0,),
        "CumSum": (1,),
        "DFT": (1, 2),
        "Expand": (1,),
        "GRU": (4,),
        "HammingWindow": (0,),
        "HannWindow": (0,),
        "LSTM": (4,),
        "Loop": (0,),
        "MaxUnpool": (2,),
        "MelWeightMatrix": (0, 1, 2, 3, 4),
        "NonMaxSuppression": (2, 3, 4),
        "OneHot": (1,),
        "Pad": (1, 3),
        "RNN": (4,),
        "Range": (0, 1, 2),
        "ReduceL1": (1,),
        "ReduceL2": (1,),
        "ReduceLogSum": (1,),
        "ReduceLogSumExp": (1,),
        "ReduceMax": (1,),
        "ReduceMean": (1,),
        "ReduceMin": (1,),
        "ReduceProd": (1,),
        "ReduceSum": (1,),
        "ReduceSumSquare": (1,),
        "Reshape": (1,),
        "Resize": (1, 2, 3),
        "ReverseSequence": (1,),
        "STFT": (1, 3),
        "SequenceAt": (1,),
        "Slice": (1, 2, 3, 4),
        "Split": (1,),
        "SplitToSequence": (1,),
        "Squeeze": (1,),
        "Tile": (1, 2),
        "TopK": (1,),
        "Trilu": (1,),
        "Unsqueeze": (1,),
        "Upsample": (1,),
    }.items()
}


def is_deciding(domain: str, op_type: str, slot: int) -> bool:
    """Whether the values of an input decide shape, legality or work of an operator of ONNX's own domain."""
    return not domain and slot in _DECIDING.get(op_type, ())


def constant_role(domain: str, op_type: str, slot: int, *, known: bool, elements: int) -> Role:
    """The role of a constant input.

    Args:
        domain: The operator's domain, empty for ONNX's own.
        op_type: The operator.
        slot: The input slot.
        known: Whether the constant's values are known.
        elements: How many elements it has.

    Returns:
        ``Role.CONSTANT`` or ``Role.WEIGHT``.
    """
    if not known or slot in _PARAMETERS.get((domain, op_type), ()):
        return Role.WEIGHT
    if elements <= CONSTANT_ELEMENTS or is_deciding(domain, op_type, slot):
        return Role.CONSTANT
    return Role.WEIGHT
