"""Work of the operators that ONNX Runtime makes when it fuses and lays out a graph."""

from __future__ import annotations

import math

from ..cost import Cost
from .attention import rotary_embedding
from .call import Call, Formula, UnknownCostError
from .elementwise import ACTIVATIONS, per_element, times
from .linear import biased, convolution, product
from .movement import move
from .normalization import layer_norm, rms_norm, softmax
from .pooling import average_pool, global_average_pool, global_max_pool, max_pool
from .resampling import resize

__all__ = ["FORMULAS"]

_MICROSOFT = "com.microsoft"
_NCHWC = "com.microsoft.nchwc"


def _activation(call: Call) -> Cost:
    """Work of the activation that an operator names, on all its output elements; none named is none."""
    name = call.attribute("activation", "")
    if not name:
        return Cost()
    if name not in ACTIVATIONS:
        raise UnknownCostError(f"activation {name}")
    return times(ACTIVATIONS[name][1], call.output().elements)


def fused_conv(call: Call) -> Cost:
    """Macs, bias as Conv; a summand Z adds one per output element; then the activation.

    In every layout the filter's first dimension is Cout; blocked layouts count their padding channels.
    """
    return Cost(macs=convolution(call), additions=biased(call, 2) + biased(call, 3)) + _activation(call)


def fused_gemm(call: Call) -> Cost:
    """``macs = M N K``, C one addition per output element; then the activation."""
    macs = product(call, transposed=bool(call.attribute("transA", 0)))
    return Cost(macs=macs, additions=biased(call, 2)) + _activation(call)


def bias_gelu(call: Call) -> Cost:
    """``gelu(a + b)``: one addition, then Gelu (erf) per element."""
    return times(ACTIVATIONS["Gelu"][1] + Cost(additions=1), call.output().elements)


def fast_gelu(call: Call) -> Cost:
    """``gelu(x + bias)`` in tanh form; the bias may be absent."""
    return times(ACTIVATIONS["FastGelu"][1] + Cost(additions=int(call.has(1))), call.output().elements)


def bias_softmax(call: Call) -> Cost:
    """One addition per element, then Softmax."""
    return softmax(call) + Cost(additions=call.input(0).elements)


def skip_layer_norm(call: Call) -> Cost:
    """``LayerNormalization(input + skip + bias)``: one addition per element for the skip and one for the bias."""
    n = call.input(0).elements
    return layer_norm(_without_skip(call)) + Cost(additions=n * (2 if call.has(4) else 1))


def skip_rms_norm(call: Call) -> Cost:
    """``RMSNormalization(input + skip + bias)``: one addition per element for the skip and one for the bias."""
    n = call.input(0).elements
    return rms_norm(call) + Cost(additions=n * (2 if call.has(3) else 1))


def _without_skip(call: Call) -> Call:
    """The normalisation inside a SkipLayerNormalization: input, gamma and, where given, beta."""
    return Call(call.node, (call.operands[0], *call.operands[2:4]), call.outputs)


def embed_layer_norm(call: Call) -> Cost:
    """Two or three embedding rows added per token, then LayerNormalization over the hidden width."""
    out = call.output()
    n, tokens = out.elements, math.prod(out.shape[:-1])
    embeddings = 2 if call.has(4) else 1
    return Cost(additions=(embeddings + 4) * n + tokens, multiplications=3 * n, divisions=4 * tokens)


def microsoft_group_norm(call: Call) -> Cost:
    """As GroupNormalization (attribute ``groups``); SiLU on top where ``activation`` is 1."""
    data = call.input(0)
    groups = call.require("groups")
    r = data.shape[0] * groups
    n = data.elements
    gate = n if call.attribute("activation", 0) else 0
    return Cost(additions=4 * n + r, multiplications=3 * n + gate, divisions=4 * r, exponentials=gate)


def bias_add(call: Call) -> Cost:
    """``x + bias + skip``: 2 additions per element."""
    return Cost(additions=2 * call.output().elements)


FORMULAS: dict[tuple[str, str], Formula] = {
    (_MICROSOFT, "BiasAdd"): bias_add,
    (_MICROSOFT, "BiasGelu"): bias_gelu,
    (_MICROSOFT, "BiasSoftmax"): bias_softmax,
    (_MICROSOFT, "EmbedLayerNormalization"): embed_layer_norm,
    (_MICROSOFT, "ExpandDims"): move,
    (_MICROSOFT, "FastGelu"): fast_gelu,
    (_MICROSOFT, "FusedConv"): fused_conv,
    (_MICROSOFT, "FusedGemm"): fused_gemm,
    (_MICROSOFT, "GatherND"): move,
    (_MICROSOFT, "Gelu"): per_element(*ACTIVATIONS["Gelu"]),
    (_MICROSOFT, "GroupNorm"): microsoft_group_norm,
    (_MICROSOFT, "NhwcFusedConv"): fused_conv,
    (_MICROSOFT, "NhwcMaxPool"): max_pool,
    (_MICROSOFT, "Pad"): move,
    (_MICROSOFT, "QuickGelu"): per_element(*ACTIVATIONS["QuickGelu"]),
    (_MICROSOFT, "RotaryEmbedding"): rotary_embedding,
    (_MICROSOFT, "SkipLayerNormalization"): skip_layer_norm,
    (_MICROSOFT, "SkipSimplifiedLayerNormalization"): skip_rms_norm,
    (_MICROSOFT, "Trilu"): move,
    (_NCHWC, "AveragePool"): average_pool,
    (_NCHWC, "Conv"): fused_conv,
    (_NCHWC, "GlobalAveragePool"): global_average_pool,
    (_NCHWC, "GlobalMaxPool"): global_max_pool,
    (_NCHWC, "MaxPool"): max_pool,
    (_NCHWC, "ReorderInput"): move,
    (_NCHWC, "ReorderOutput"): move,
    (_NCHWC, "Upsample"): resize,
}
