"""BERT-base encoder (Devlin et al. 2019; published configuration ``bert-base-uncased``), with its pooler."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..skeleton import Skeleton
from .attention import TransformerConfig, attend, dense, gelu, layer_norm
from .writer import GraphWriter

__all__ = ["bert_base"]

_VOCABULARY = 30522
_POSITIONS = 512
_SEGMENTS = 2
_MASKED = float(np.finfo(np.float32).min)


def bert_base(batch: int, *, sequence_length: int) -> Skeleton:
    """The encoder: ``input_ids``, ``attention_mask``, ``token_type_ids`` to hidden states and pooled output.

    Args:
        batch: Sequences.
        sequence_length: Tokens of each, at most 512.
    """
    config = TransformerConfig()
    graph = GraphWriter("bert_base")
    ids, mask, segments = (
        graph.input(name, (batch, sequence_length), TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = _embed(graph, ids, segments, sequence_length, config)
    bias = _additive_mask(graph, mask)
    for index in range(config.layers):
        x = _block(graph, x, f"encoder.layer.{index}", bias, config)
    first = graph.node("Gather", x, graph.constant(0, np.int64), axis=1)
    weight, offset = graph.weight("pooler.dense.weight", config.hidden, config.hidden), "pooler.dense.bias"
    pooled = graph.node("Gemm", first, weight, graph.weight(offset, config.hidden), transB=1)
    return graph.finish(
        {
            "last_hidden_state": (x, (batch, sequence_length, config.hidden)),
            "pooler_output": (graph.node("Tanh", pooled), (batch, config.hidden)),
        },
        bound={"batch": batch, "sequence_length": sequence_length},
    )


def _embed(graph: GraphWriter, ids: str, segments: str, length: int, config: TransformerConfig) -> str:
    name, width = "embeddings", config.hidden
    words = graph.node("Gather", graph.weight(f"{name}.word_embeddings.weight", _VOCABULARY, width), ids)
    kinds = graph.node("Gather", graph.weight(f"{name}.token_type_embeddings.weight", _SEGMENTS, width), segments)
    table = graph.weight(f"{name}.position_embeddings.weight", _POSITIONS, width)
    positions = graph.node("Gather", table, graph.constant(np.arange(length)[None], np.int64))
    total = graph.node("Add", graph.node("Add", words, kinds), positions)
    return layer_norm(graph, total, f"{name}.LayerNorm", config)


def _additive_mask(graph: GraphWriter, mask: str) -> str:
    """0 where a token counts, the lowest float where it is padding: (batch, 1, 1, tokens)."""
    mask = graph.node("Unsqueeze", graph.node("Unsqueeze", mask, graph.indices(1)), graph.indices(2))
    padding = graph.node("Sub", graph.constant(1.0), graph.node("Cast", mask, to=TensorProto.FLOAT))
    return graph.node("Mul", padding, graph.constant(_MASKED))


def _block(graph: GraphWriter, x: str, name: str, mask: str, config: TransformerConfig) -> str:
    width = config.hidden
    query, key, value = (
        dense(graph, x, f"{name}.attention.self.{part}", width, width) for part in ("query", "key", "value")
    )
    context = attend(graph, query, key, value, config=config, mask=mask)
    context = dense(graph, context, f"{name}.attention.output.dense", width, width)
    x = layer_norm(graph, graph.node("Add", context, x), f"{name}.attention.output.LayerNorm", config)
    wide = gelu(graph, dense(graph, x, f"{name}.intermediate.dense", width, config.intermediate))
    narrow = dense(graph, wide, f"{name}.output.dense", config.intermediate, width)
    return layer_norm(graph, graph.node("Add", narrow, x), f"{name}.output.LayerNorm", config)
