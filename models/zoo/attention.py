"""The parts that the three built-in transformers share, written as PyTorch's ONNX exporter writes them.

The forms matter: ONNX Runtime finds GELU, scaled products and residual normalisation by these chains of operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .writer import GraphWriter

__all__ = ["TransformerConfig", "attend", "dense", "gelu", "gelu_tanh", "layer_norm"]


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of a transformer.

    Attributes:
        layers: Blocks.
        hidden: Width of the residual stream.
        heads: Attention heads; they share ``hidden`` evenly.
        intermediate: Width inside the feed-forward part.
        epsilon: Added to the variance by layer normalisation.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    epsilon: float = 1e-12

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


def dense(graph: GraphWriter, x: str, name: str, inputs: int, outputs: int) -> str:
    """A linear layer over the last axis: MatMul with the weight of shape (inputs, outputs), then Add of the bias."""
    product = graph.node("MatMul", x, graph.weight(f"{name}.weight", inputs, outputs))
    return graph.node("Add", product, graph.weight(f"{name}.bias", outputs))


def layer_norm(graph: GraphWriter, x: str, name: str, config: TransformerConfig) -> str:
    """Layer normalisation over the last axis."""
    scale, bias = (graph.weight(f"{name}.{part}", config.hidden) for part in ("weight", "bias"))
    return graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=config.epsilon)


def gelu(graph: GraphWriter, x: str) -> str:
    """The exact GELU: x / 2 · (1 + erf(x / √2))."""
    erf = graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2.0))))
    return graph.node("Mul", graph.node("Mul", x, graph.node("Add", erf, graph.constant(1.0))), graph.constant(0.5))


def gelu_tanh(graph: GraphWriter, x: str) -> str:
    """GPT-2's GELU: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    cube = graph.node("Mul", graph.node("Pow", x, graph.constant(3.0)), graph.constant(0.044715))
    inner = graph.node("Mul", graph.node("Add", x, cube), graph.constant(math.sqrt(2.0 / math.pi)))
    gate = graph.node("Add", graph.node("Tanh", inner), graph.constant(1.0))
    return graph.node("Mul", graph.node("Mul", x, graph.constant(0.5)), gate)


def attend(graph: GraphWriter, query: str, key: str, value: str, *, config: TransformerConfig, mask: str | None) -> str:
    """Multi-head attention from projected query, key and value, each (batch, tokens, hidden).

    Args:
        graph: Where the operators are appended.
        query: Projected queries.
        key: Projected keys.
        value: Projected values.
        config: Sizes.
        mask: Added to the scores, broadcast to (batch, heads, tokens, tokens); None for none.

    Returns:
        (batch, tokens, hidden), before the output projection.
    """
    split = graph.indices(0, 0, config.heads, config.head)
    key = graph.node("Transpose", graph.node("Reshape", key, split), perm=[0, 2, 3, 1])
    value = graph.node("Transpose", graph.node("Reshape", value, split), perm=[0, 2, 1, 3])
    query = graph.node("Transpose", graph.node("Reshape", query, split), perm=[0, 2, 1, 3])
    scores = graph.node("Div", graph.node("MatMul", query, key), graph.constant(math.sqrt(config.head)))
    if mask is not None:
        scores = graph.node("Add", scores, mask)
    context = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    context = graph.node("Transpose", context, perm=[0, 2, 1, 3])
    return graph.node("Reshape", context, graph.indices(0, 0, config.hidden))
