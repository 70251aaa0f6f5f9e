"""ViT-B/16 image classifier (Dosovitskiy et al. 2021; published configuration ``vit-base-patch16-224``)."""

from __future__ import annotations

import numpy as np

from ..skeleton import Skeleton
from .attention import TransformerConfig, attend, dense, gelu, layer_norm
from .writer import GraphWriter

__all__ = ["vit_b16"]

_PATCH = 16
_CLASSES = 1000


def vit_b16(batch: int, *, image_size: int) -> Skeleton:
    """The classifier: ``pixel_values`` (batch, 3, image_size, image_size) to ``logits`` (batch, 1000).

    Args:
        batch: Images.
        image_size: Height and width in pixels; a multiple of 16 uses every pixel.
    """
    config = TransformerConfig()
    width, patches = config.hidden, (image_size // _PATCH) ** 2
    graph = GraphWriter("vit_b16")
    pixels = graph.input("pixel_values", (batch, 3, image_size, image_size))
    filters = graph.weight("embeddings.patch.weight", width, 3, _PATCH, _PATCH)
    x = graph.node(
        "Conv", pixels, filters, graph.weight("embeddings.patch.bias", width),
        kernel_shape=[_PATCH, _PATCH], strides=[_PATCH, _PATCH],
    )  # fmt: skip
    x = graph.node("Transpose", graph.node("Reshape", x, graph.indices(batch, width, patches)), perm=[0, 2, 1])
    token = graph.node("Expand", graph.weight("embeddings.cls_token", 1, 1, width), graph.indices(batch, 1, width))
    x = graph.node("Concat", token, x, axis=1)
    x = graph.node("Add", x, graph.weight("embeddings.position_embeddings", 1, patches + 1, width))
    for index in range(config.layers):
        x = _block(graph, x, f"encoder.layer.{index}", config)
    x = layer_norm(graph, x, "layernorm", config)
    first = graph.node("Gather", x, graph.constant(0, np.int64), axis=1)
    head = graph.weight("classifier.weight", _CLASSES, width), graph.weight("classifier.bias", _CLASSES)
    logits = graph.node("Gemm", first, *head, transB=1)
    return graph.finish({"logits": (logits, (batch, _CLASSES))}, bound={"batch": batch, "image_size": image_size})


def _block(graph: GraphWriter, x: str, name: str, config: TransformerConfig) -> str:
    width = config.hidden
    inner = layer_norm(graph, x, f"{name}.layernorm_before", config)
    query, key, value = (
        dense(graph, inner, f"{name}.attention.{part}", width, width) for part in ("query", "key", "value")
    )
    context = attend(graph, query, key, value, config=config, mask=None)
    x = graph.node("Add", dense(graph, context, f"{name}.attention.output", width, width), x)
    inner = layer_norm(graph, x, f"{name}.layernorm_after", config)
    wide = gelu(graph, dense(graph, inner, f"{name}.intermediate", width, config.intermediate))
    return graph.node("Add", dense(graph, wide, f"{name}.output", config.intermediate, width), x)
