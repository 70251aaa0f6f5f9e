"""Structures written without an exporter: BERT-base, GPT-2 and ViT-B/16 as from PyTorch, and the CNNs of onnx."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ...errors import ModelNotFound
from ..skeleton import Skeleton, mark_weight
from .writer import GraphWriter, constant_bytes

# Common parts of the three built-in transformers, in the form of PyTorch's ONNX exporter. The forms matter: ONNX
# Runtime finds GELU, scaled products and residual normalisation by these chains of operators.


_BLOCKS, _HEADS = 12, 12
_WIDTH, _WIDE = 768, 3072
"""Width of the residual stream, and inside the feed-forward part."""
_HEAD = _WIDTH // _HEADS


def dense(graph: GraphWriter, x: str, name: str, inputs: int, outputs: int) -> str:
    """Append a linear layer over the last axis.

    MatMul with the weight of shape (inputs, outputs), then Add of the bias.
    """
    product = graph.node("MatMul", x, graph.weight(f"{name}.weight", inputs, outputs))
    return graph.node("Add", product, graph.weight(f"{name}.bias", outputs))


def layer_norm(graph: GraphWriter, x: str, name: str, epsilon: float = 1e-12) -> str:
    """Append layer normalisation over the last axis."""
    scale, bias = (graph.weight(f"{name}.{part}", _WIDTH) for part in ("weight", "bias"))
    return graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)


def gelu(graph: GraphWriter, x: str) -> str:
    """Append the exact GELU: x / 2 · (1 + erf(x / √2))."""
    erf = graph.node("Erf", graph.node("Div", x, graph.constant(math.sqrt(2.0))))
    return graph.node("Mul", graph.node("Mul", x, graph.node("Add", erf, graph.constant(1.0))), graph.constant(0.5))


def gelu_tanh(graph: GraphWriter, x: str) -> str:
    """Append the GELU of GPT-2: x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))."""
    cube = graph.node("Mul", graph.node("Pow", x, graph.constant(3.0)), graph.constant(0.044715))
    inner = graph.node("Mul", graph.node("Add", x, cube), graph.constant(math.sqrt(2.0 / math.pi)))
    gate = graph.node("Add", graph.node("Tanh", inner), graph.constant(1.0))
    return graph.node("Mul", graph.node("Mul", x, graph.constant(0.5)), gate)


def attend(graph: GraphWriter, query: str, key: str, value: str, *, mask: str | None) -> str:
    """Append multi-head attention from projected query, key and value, each (batch, tokens, hidden).

    Args:
        graph: The graph.
        query: Projected queries.
        key: Projected keys.
        value: Projected values.
        mask: Added to the scores, broadcast to (batch, heads, tokens, tokens), or None.

    Returns:
        (batch, tokens, hidden), before the output projection.
    """
    split = graph.indices(0, 0, _HEADS, _HEAD)
    key = graph.node("Transpose", graph.node("Reshape", key, split), perm=[0, 2, 3, 1])
    value = graph.node("Transpose", graph.node("Reshape", value, split), perm=[0, 2, 1, 3])
    query = graph.node("Transpose", graph.node("Reshape", query, split), perm=[0, 2, 1, 3])
    scores = graph.node("Div", graph.node("MatMul", query, key), graph.constant(math.sqrt(_HEAD)))
    if mask is not None:
        scores = graph.node("Add", scores, mask)
    context = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    context = graph.node("Transpose", context, perm=[0, 2, 1, 3])
    return graph.node("Reshape", context, graph.indices(0, 0, _WIDTH))


# BERT-base encoder (Devlin et al. 2019; published configuration ``bert-base-uncased``), with its pooler.


_BERT_VOCABULARY = 30522
_BERT_POSITIONS = 512
_SEGMENTS = 2
# GPT-2 decoder with its language-model head (Radford et al. 2019; published configuration ``gpt2``, 124M).


_MASKED = float(np.finfo(np.float32).min)


def bert_base(batch: int, *, sequence_length: int) -> Skeleton:
    """Make the encoder: ``input_ids``, ``attention_mask``, ``token_type_ids`` to hidden states and pooled output.

    Args:
        batch: Number of sequences.
        sequence_length: Tokens per sequence, at most 512.
    """
    graph = GraphWriter("bert_base")
    ids, mask, segments = (
        graph.input(name, (batch, sequence_length), TensorProto.INT64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    x = _embed(graph, ids, segments, sequence_length)
    bias = _additive_mask(graph, mask)
    for index in range(_BLOCKS):
        x = _bert_block(graph, x, f"encoder.layer.{index}", bias)
    first = graph.node("Gather", x, graph.constant(0, np.int64), axis=1)
    weight, offset = graph.weight("pooler.dense.weight", _WIDTH, _WIDTH), "pooler.dense.bias"
    pooled = graph.node("Gemm", first, weight, graph.weight(offset, _WIDTH), transB=1)
    return graph.finish(
        {
            "last_hidden_state": (x, (batch, sequence_length, _WIDTH)),
            "pooler_output": (graph.node("Tanh", pooled), (batch, _WIDTH)),
        },
        bound={"batch": batch, "sequence_length": sequence_length},
    )


def _embed(graph: GraphWriter, ids: str, segments: str, length: int) -> str:
    name = "embeddings"
    words = graph.node("Gather", graph.weight(f"{name}.word_embeddings.weight", _BERT_VOCABULARY, _WIDTH), ids)
    kinds = graph.node("Gather", graph.weight(f"{name}.token_type_embeddings.weight", _SEGMENTS, _WIDTH), segments)
    table = graph.weight(f"{name}.position_embeddings.weight", _BERT_POSITIONS, _WIDTH)
    positions = graph.node("Gather", table, graph.constant(np.arange(length)[None], np.int64))
    total = graph.node("Add", graph.node("Add", words, kinds), positions)
    return layer_norm(graph, total, f"{name}.LayerNorm")


def _additive_mask(graph: GraphWriter, mask: str) -> str:
    """Append 0 for tokens, the lowest float for padding: (batch, 1, 1, tokens)."""
    mask = graph.node("Unsqueeze", graph.node("Unsqueeze", mask, graph.indices(1)), graph.indices(2))
    padding = graph.node("Sub", graph.constant(1.0), graph.node("Cast", mask, to=TensorProto.FLOAT))
    return graph.node("Mul", padding, graph.constant(_MASKED))


def _bert_block(graph: GraphWriter, x: str, name: str, mask: str) -> str:
    query, key, value = (
        dense(graph, x, f"{name}.attention.self.{part}", _WIDTH, _WIDTH) for part in ("query", "key", "value")
    )
    context = attend(graph, query, key, value, mask=mask)
    context = dense(graph, context, f"{name}.attention.output.dense", _WIDTH, _WIDTH)
    x = layer_norm(graph, graph.node("Add", context, x), f"{name}.attention.output.LayerNorm")
    wide = gelu(graph, dense(graph, x, f"{name}.intermediate.dense", _WIDTH, _WIDE))
    narrow = dense(graph, wide, f"{name}.output.dense", _WIDE, _WIDTH)
    return layer_norm(graph, graph.node("Add", narrow, x), f"{name}.output.LayerNorm")


_GPT2_VOCABULARY = 50257
_GPT2_POSITIONS = 1024
_GPT2_EPSILON = 1e-5


def gpt2(batch: int, *, sequence_length: int) -> Skeleton:
    """Make the decoder over a whole prompt: ``input_ids`` to ``logits``; the head shares the token embedding.

    Args:
        batch: Number of sequences.
        sequence_length: Tokens per sequence, at most 1024.
    """
    graph = GraphWriter("gpt2")
    ids = graph.input("input_ids", (batch, sequence_length), TensorProto.INT64)
    table = graph.weight("wte.weight", _GPT2_VOCABULARY, _WIDTH)
    positions = graph.node(
        "Gather",
        graph.weight("wpe.weight", _GPT2_POSITIONS, _WIDTH),
        graph.constant(np.arange(sequence_length)[None], np.int64),
    )
    x = graph.node("Add", graph.node("Gather", table, ids), positions)
    # Later tokens are hidden by the lowest float, which becomes exactly 0 in Softmax.
    mask = graph.constant(np.triu(np.full((1, 1, sequence_length, sequence_length), _MASKED), k=1))
    for index in range(_BLOCKS):
        x = _gpt2_block(graph, x, f"h.{index}", (batch, sequence_length), mask)
    x = layer_norm(graph, x, "ln_f", _GPT2_EPSILON)
    logits = graph.node("MatMul", x, graph.node("Transpose", table, perm=[1, 0]))
    return graph.finish(
        {"logits": (logits, (batch, sequence_length, _GPT2_VOCABULARY))},
        bound={"batch": batch, "sequence_length": sequence_length},
    )


def _gpt2_block(graph: GraphWriter, x: str, name: str, tokens: tuple[int, int], mask: str) -> str:
    """Append a block: attention and feed-forward part, each behind its layer normalisation."""

    def linear(x: str, part: str, inputs: int, outputs: int) -> str:
        flat = graph.node("Reshape", x, graph.indices(-1, inputs))
        weight, bias = (
            graph.weight(f"{name}.{part}.weight", inputs, outputs),
            graph.weight(f"{name}.{part}.bias", outputs),
        )
        return graph.node("Reshape", graph.node("Gemm", flat, weight, bias), graph.indices(*tokens, outputs))

    inner = layer_norm(graph, x, f"{name}.ln_1", _GPT2_EPSILON)
    projected = linear(inner, "attn.c_attn", _WIDTH, 3 * _WIDTH)
    query, key, value = graph.nodes("Split", projected, graph.indices(_WIDTH, _WIDTH, _WIDTH), outputs=3, axis=2)
    context = attend(graph, query, key, value, mask=mask)
    x = graph.node("Add", linear(context, "attn.c_proj", _WIDTH, _WIDTH), x)
    inner = layer_norm(graph, x, f"{name}.ln_2", _GPT2_EPSILON)
    wide = gelu_tanh(graph, linear(inner, "mlp.c_fc", _WIDTH, _WIDE))
    return graph.node("Add", x, linear(wide, "mlp.c_proj", _WIDE, _WIDTH))


# ViT-B/16 image classifier (Dosovitskiy et al. 2021; published configuration ``vit-base-patch16-224``).

_PATCH = 16
_CLASSES = 1000


def vit_b16(batch: int, *, image_size: int) -> Skeleton:
    """Make the classifier: ``pixel_values`` (batch, 3, image_size, image_size) to ``logits`` (batch, 1000).

    Args:
        batch: Number of images.
        image_size: Height and width in pixels; a multiple of 16 uses every pixel.
    """
    patches = (image_size // _PATCH) ** 2
    graph = GraphWriter("vit_b16")
    pixels = graph.input("pixel_values", (batch, 3, image_size, image_size))
    filters = graph.weight("embeddings.patch.weight", _WIDTH, 3, _PATCH, _PATCH)
    x = graph.node(
        "Conv", pixels, filters, graph.weight("embeddings.patch.bias", _WIDTH),
        kernel_shape=[_PATCH, _PATCH], strides=[_PATCH, _PATCH],
    )  # fmt: skip
    x = graph.node("Transpose", graph.node("Reshape", x, graph.indices(batch, _WIDTH, patches)), perm=[0, 2, 1])
    token = graph.node("Expand", graph.weight("embeddings.cls_token", 1, 1, _WIDTH), graph.indices(batch, 1, _WIDTH))
    x = graph.node("Concat", token, x, axis=1)
    x = graph.node("Add", x, graph.weight("embeddings.position_embeddings", 1, patches + 1, _WIDTH))
    for index in range(_BLOCKS):
        x = _vit_block(graph, x, f"encoder.layer.{index}")
    x = layer_norm(graph, x, "layernorm")
    first = graph.node("Gather", x, graph.constant(0, np.int64), axis=1)
    head = graph.weight("classifier.weight", _CLASSES, _WIDTH), graph.weight("classifier.bias", _CLASSES)
    logits = graph.node("Gemm", first, *head, transB=1)
    return graph.finish({"logits": (logits, (batch, _CLASSES))}, bound={"batch": batch, "image_size": image_size})


def _vit_block(graph: GraphWriter, x: str, name: str) -> str:
    inner = layer_norm(graph, x, f"{name}.layernorm_before")
    query, key, value = (
        dense(graph, inner, f"{name}.attention.{part}", _WIDTH, _WIDTH) for part in ("query", "key", "value")
    )
    context = attend(graph, query, key, value, mask=None)
    x = graph.node("Add", dense(graph, context, f"{name}.attention.output", _WIDTH, _WIDTH), x)
    inner = layer_norm(graph, x, f"{name}.layernorm_after")
    wide = gelu(graph, dense(graph, inner, f"{name}.intermediate", _WIDTH, _WIDE))
    return graph.node("Add", dense(graph, wide, f"{name}.output", _WIDE, _WIDTH), x)


# The nine classic CNNs that ship inside the onnx wheel, as skeletons.
#
# The files (``onnx/backend/test/data/light``) are networks of the ONNX model zoo with ConstantOfShape nodes in place of
# large weights. These, and the remaining small float parameters, become weight inputs: trained statistics do not match
# synthetic filters (ShuffleNet has variances of 1e-14).


LIGHT_FILES = {
    "alexnet": "light_bvlc_alexnet.onnx",
    "densenet121": "light_densenet121.onnx",
    "inception_v1": "light_inception_v1.onnx",
    "inception_v2": "light_inception_v2.onnx",
    "resnet50": "light_resnet50.onnx",
    "shufflenet": "light_shufflenet.onnx",
    "squeezenet": "light_squeezenet.onnx",
    "vgg19": "light_vgg19.onnx",
    "zfnet512": "light_zfnet512.onnx",
}
"""Zoo name to the file's name in the onnx wheel."""

_IR_VERSION = 10  # the first with metadata on value infos, for the role of a weight
_SHAPE_SLOTS = {("Reshape", 1), ("ConstantOfShape", 0)}  # operand slots of these files that want values, not weights


def light(name: str, batch: int) -> Skeleton:
    """Return the skeleton of one light model, rebuilt for ``batch`` images (the files are written for one).

    Raises:
        ModelNotFound: The installed onnx package lacks its test data.
    """
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / LIGHT_FILES[name]
    if not path.is_file():
        raise ModelNotFound(
            f"zoo model '{name}' is not in the installed onnx package ({path})",
            remedy="install the onnx wheel from PyPI, which carries its test data",
        )
    source = onnx.load(path)
    graph = source.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    shaping = {node.input[slot] for node in graph.node for op, slot in _SHAPE_SLOTS if node.op_type == op}
    filled = {  # ConstantOfShape outputs: their shape is the value of the operand
        node.output[0]: tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist())
        for node in graph.node
        if node.op_type == "ConstantOfShape" and node.output[0] not in shaping
    }
    nodes = [node for node in graph.node if node.output[0] not in filled]
    used = {value: None for node in nodes for value in node.input}
    weights = [
        mark_weight(helper.make_tensor_value_info(value, TensorProto.FLOAT, _shape(value, filled, tensors)))
        for value in used
        if value in filled or (value in tensors and value not in shaping)
    ]
    inputs = [_with_batch(value, batch) for value in graph.input if value.name not in tensors]
    outputs = [_with_batch(value, batch) for value in graph.output]
    activations = {value.name for value in inputs} | {value for node in nodes for value in node.output}
    batched = {node.input[1] for node in nodes if node.op_type == "Reshape" and node.input[0] in activations}
    targets = [_target(tensors[value], batch if value in batched else 1) for value in used if value in shaping]
    model = helper.make_model(
        helper.make_graph(nodes, name, [*inputs, *weights], outputs, initializer=targets),
        opset_imports=source.opset_import,
        ir_version=_IR_VERSION,
    )
    return Skeleton(model, bound={"batch": batch}, weight_bytes=constant_bytes(model))


def _shape(value: str, filled: dict[str, tuple[int, ...]], tensors: dict[str, TensorProto]) -> tuple[int, ...]:
    return filled[value] if value in filled else tuple(tensors[value].dims)


def _with_batch(value: onnx.ValueInfoProto, batch: int) -> onnx.ValueInfoProto:
    value.type.tensor_type.shape.dim[0].dim_value = batch
    return value


def _target(tensor: TensorProto, batch: int) -> TensorProto:
    """Return a Reshape target for ``batch`` images: the leading 1 in these files is the batch."""
    sizes = numpy_helper.to_array(tensor).copy()
    if sizes[0] == 1:
        sizes[0] = batch
    return numpy_helper.from_array(sizes, tensor.name)
