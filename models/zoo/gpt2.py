"""GPT-2 decoder with its language-model head (Radford et al. 2019; published configuration ``gpt2``, 124M)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ..skeleton import Skeleton
from .attention import TransformerConfig, attend, gelu_tanh, layer_norm
from .writer import GraphWriter

__all__ = ["gpt2"]

_VOCABULARY = 50257
_POSITIONS = 1024
_MASKED = float(np.finfo(np.float32).min)


def gpt2(batch: int, *, sequence_length: int) -> Skeleton:
    """The decoder over a whole prompt: ``input_ids`` to ``logits``; the head shares the token embedding.

    Args:
        batch: Sequences.
        sequence_length: Tokens of each, at most 1024.
    """
    config = TransformerConfig(epsilon=1e-5)
    graph = GraphWriter("gpt2")
    ids = graph.input("input_ids", (batch, sequence_length), TensorProto.INT64)
    table = graph.weight("wte.weight", _VOCABULARY, config.hidden)
    positions = graph.node(
        "Gather",
        graph.weight("wpe.weight", _POSITIONS, config.hidden),
        graph.constant(np.arange(sequence_length)[None], np.int64),
    )
    x = graph.node("Add", graph.node("Gather", table, ids), positions)
    # Later tokens are hidden by the lowest float, of which softmax makes exact zeros.
    mask = graph.constant(np.triu(np.full((1, 1, sequence_length, sequence_length), _MASKED), k=1))
    decoder = _Decoder(graph, config, (batch, sequence_length), mask)
    for index in range(config.layers):
        x = decoder.block(x, f"h.{index}")
    x = layer_norm(graph, x, "ln_f", config)
    logits = graph.node("MatMul", x, graph.node("Transpose", table, perm=[1, 0]))
    return graph.finish(
        {"logits": (logits, (batch, sequence_length, _VOCABULARY))},
        bound={"batch": batch, "sequence_length": sequence_length},
    )


@dataclass(frozen=True, slots=True)
class _Decoder:
    """What all blocks share: the graph, the sizes, (batch, tokens) and the causal mask."""

    graph: GraphWriter
    config: TransformerConfig
    tokens: tuple[int, int]
    mask: str

    def block(self, x: str, name: str) -> str:
        """Masked attention and feed-forward part, each behind its layer normalisation."""
        graph, config, width = self.graph, self.config, self.config.hidden
        inner = layer_norm(graph, x, f"{name}.ln_1", config)
        projected = self._linear(inner, f"{name}.attn.c_attn", width, 3 * width)
        query, key, value = graph.nodes("Split", projected, graph.indices(width, width, width), outputs=3, axis=2)
        context = attend(graph, query, key, value, config=config, mask=self.mask)
        x = graph.node("Add", self._linear(context, f"{name}.attn.c_proj", width, width), x)
        inner = layer_norm(graph, x, f"{name}.ln_2", config)
        wide = gelu_tanh(graph, self._linear(inner, f"{name}.mlp.c_fc", width, config.intermediate))
        return graph.node("Add", x, self._linear(wide, f"{name}.mlp.c_proj", config.intermediate, width))

    def _linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        """GPT-2's linear layer, which the exporter writes as Gemm over flattened tokens."""
        graph = self.graph
        flat = graph.node("Reshape", x, graph.indices(-1, inputs))
        weight, bias = graph.weight(f"{name}.weight", inputs, outputs), graph.weight(f"{name}.bias", outputs)
        return graph.node("Reshape", graph.node("Gemm", flat, weight, bias), graph.indices(*self.tokens, outputs))
