"""Small decoders of text as exporters write them: one file with a cache, a merged file, and a builder's file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE, VOCABULARY, POSITIONS = 2, 16, 50, 256
WIDTH = HEADS * SIZE
FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
MICROSOFT = "com.microsoft"
PARTS = ("key", "value")

Shape = Sequence[int | str]


class Draft:
    """The nodes and constants of a graph."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._chance = np.random.default_rng(0)
        self._number = 0

    def op(self, kind: str, *inputs: str, into: str = "", domain: str = "", **attributes) -> str:
        """Add a node; the name of its first output."""
        self._number += 1
        names = [into or f"v{self._number}"]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, name=f"n{self._number}", **attributes))
        return names[0]

    def fixed(self, name: str, value) -> str:
        """Add a constant with its values."""
        self.constants.setdefault(name, numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """Add a random constant."""
        if name not in self.constants:
            self.fixed(name, self._chance.normal(0, 0.2, shape).astype(np.float32))
        return name

    def nodes_made(self) -> list[onnx.NodeProto]:
        """Take the nodes of a branch."""
        nodes, self.nodes = self.nodes, []
        return nodes


def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def caches(layers: int, stem: str, *shape: int | str) -> list[onnx.ValueInfoProto]:
    return [value(f"{stem}.{i}.{part}", FLOAT, *shape) for i in range(layers) for part in PARTS]


def model(draft: Draft, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]):
    graph = helper.make_graph(draft.nodes, "decoder", inputs, outputs, [*draft.constants.values()])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _embedded(draft: Draft) -> tuple[str, str]:
    """Embeddings of tokens and positions, and the mask to add to scores."""
    words = draft.op("Gather", draft.weight("table", VOCABULARY, WIDTH), "input_ids")
    places = draft.op("Gather", draft.weight("places", POSITIONS, WIDTH), "position_ids")
    numbers = draft.op("CumSum", "attention_mask", draft.fixed("last_axis", np.array(1)))  # positions, from 1
    key = draft.op("Unsqueeze", numbers, draft.fixed("head_axes", np.array([1, 2])))
    query = draft.op("Unsqueeze", "position_ids", draft.fixed("key_axes", np.array([1, 3])))
    later = draft.op("Greater", key, draft.op("Add", query, draft.fixed("next", np.array(1))))
    lowest = draft.fixed("lowest", np.float32(-1e9))
    return draft.op("Add", words, places), draft.op("Mul", draft.op("Cast", later, to=FLOAT), lowest)


def _attended(draft: Draft, layer: int, x: str, mask: str, presents: Sequence[str], *, cached: bool) -> str:
    """Attention over the cache and the new tokens, written out."""
    heads = {}
    for part in ("query", *PARTS):
        projected = draft.op("MatMul", x, draft.weight(f"w_{part}{layer}", WIDTH, WIDTH))
        split = draft.op("Reshape", projected, draft.fixed("split", np.array([0, 0, HEADS, SIZE])))
        heads[part] = draft.op("Transpose", split, perm=[0, 2, 1, 3])
    for part, present in zip(PARTS, presents, strict=True):
        if cached:
            heads[part] = draft.op("Concat", f"past_key_values.{layer}.{part}", heads[part], into=present, axis=2)
        else:
            heads[part] = draft.op("Identity", heads[part], into=present)
    turned = draft.op("Transpose", heads["key"], perm=[0, 1, 3, 2])
    scores = draft.op("Add", draft.op("MatMul", heads["query"], turned), mask)
    mixed = draft.op("MatMul", draft.op("Softmax", scores, axis=-1), heads["value"])
    joined = draft.op(
        "Reshape", draft.op("Transpose", mixed, perm=[0, 2, 1, 3]), draft.fixed("join", np.array([0, 0, WIDTH]))
    )
    return draft.op("Add", x, draft.op("MatMul", joined, draft.weight(f"w_out{layer}", WIDTH, WIDTH)))


def _decoded(draft: Draft, *, logits: str, present: str, cached: bool) -> None:
    x, mask = _embedded(draft)
    for layer in range(draft.layers):
        names = [f"{present}.{layer}.{part}" for part in PARTS]
        x = _attended(draft, layer, x, mask, names, cached=cached)
    draft.op("MatMul", x, draft.weight("head", WIDTH, VOCABULARY), into=logits)


def _signature(layers: int, sequence: str, past: str, total: str, batch: str):
    tokens = [value("input_ids", INT64, batch, sequence), value("attention_mask", INT64, batch, total)]
    places = value("position_ids", INT64, batch, sequence)
    return (
        [*tokens, places, *caches(layers, "past_key_values", batch, HEADS, past, SIZE)],
        [
            value("logits", FLOAT, batch, sequence, VOCABULARY),
            *caches(layers, "present", batch, HEADS, total, SIZE),
        ],
    )


def one_file(
    layers: int = 1,
    *,
    sequence: str = "sequence_length",
    past: str = "past_sequence_length",
    total: str = "past_sequence_length + sequence_length",
    batch: str = "batch_size",
) -> onnx.ModelProto:
    """A decoder in one file: its cache is input and output, and empty before a prompt."""
    draft = Draft(layers)
    _decoded(draft, logits="logits", present="present", cached=True)
    return model(draft, *_signature(layers, sequence, past, total, batch))


def merged(layers: int = 1) -> onnx.ModelProto:
    """A decoder whose branch for a prompt reads no cache."""
    draft = Draft(layers)
    branches = {}
    inputs, outputs = _signature(layers, "sequence_length", "past_sequence_length", "total", "batch_size")
    for branch, cached in (("then", True), ("else", False)):
        _decoded(draft, logits=f"{branch}_logits", present=f"{branch}_present", cached=cached)
        names = [f"{branch}_{output.name}" for output in outputs]
        made = [helper.make_empty_tensor_value_info(name) for name in names]
        branches[f"{branch}_branch"] = helper.make_graph(draft.nodes_made(), branch, [], made)
    names = [output.name for output in outputs]
    draft.nodes.append(helper.make_node("If", ["use_cache_branch"], names, name="optimum::if", **branches))
    return model(draft, [*inputs, value("use_cache_branch", TensorProto.BOOL, 1)], outputs)


def built(
    layers: int = 1, *, bits: int = 0, block: int = 16, shared: bool = False, packed: bool = False
) -> onnx.ModelProto:
    """A decoder as onnxruntime-genai's builder writes it: its operators, and no positions among its inputs.

    Args:
        layers: Layers.
        bits: Bits of the weights; 0: float32.
        block: Weights that share a scale.
        shared: Past and present are one buffer.
        packed: One product makes queries, keys and values; the size of a head has a name in caches.
    """
    draft = Draft(layers)
    kv_heads = HEADS // 2

    def product(x: str, name: str, rows: int, columns: int) -> str:
        if not bits:
            return draft.op("MatMul", x, draft.weight(name, rows, columns))
        blocks = -(-rows // block)
        draft.fixed(f"{name}_q", np.full((columns, blocks, block * bits // 8), 0x77, np.uint8))
        draft.fixed(f"{name}_scales", np.full(columns * blocks, 0.05, np.float32))
        return draft.op(
            "MatMulNBits", x, f"{name}_q", f"{name}_scales",
            domain=MICROSOFT, K=rows, N=columns, bits=bits, block_size=block, accuracy_level=4,
        )  # fmt: skip

    ones = draft.op("ReduceSum", "attention_mask", draft.fixed("axis", np.array([1])))
    last = draft.op("Cast", draft.op("Sub", ones, draft.fixed("one", np.array([1]))), to=INT32)
    length = draft.op("Gather", draft.op("Shape", "attention_mask"), draft.fixed("where", np.array(1)), axis=0)
    total = draft.op("Cast", length, to=INT32)
    x = draft.op("Gather", draft.weight("table", VOCABULARY, WIDTH), "input_ids")
    angles = np.arange(POSITIONS)[:, None] * np.geomspace(1, 1e-3, SIZE // 2)
    draft.fixed("cosines", np.cos(angles).astype(np.float32))
    draft.fixed("sines", np.sin(angles).astype(np.float32))
    y = draft.op("SimplifiedLayerNormalization", x, draft.weight("scale", WIDTH), axis=-1, epsilon=1e-6, stash_type=1)
    for layer in range(layers):
        sizes = {"query": WIDTH, "key": kv_heads * SIZE, "value": kv_heads * SIZE}
        if packed:
            operands = [product(y, f"w_packed{layer}", WIDTH, sum(sizes.values())), "", ""]
        else:
            operands = [product(y, f"w_{part}{layer}", WIDTH, size) for part, size in sizes.items()]
        pasts = [f"past_key_values.{layer}.{part}" for part in PARTS]
        mixed = f"mixed{layer}"
        draft.nodes.append(
            helper.make_node(
                "GroupQueryAttention", [*operands, *pasts, last, total, "cosines", "sines"],
                [mixed, *(f"present.{layer}.{part}" for part in PARTS)],
                domain=MICROSOFT, name=f"attention{layer}", num_heads=HEADS, kv_num_heads=kv_heads, do_rotary=1,
            )
        )  # fmt: skip
        out = product(mixed, f"w_out{layer}", WIDTH, WIDTH)
        y, before, x = f"normal{layer}", x, f"sum{layer}"
        draft.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization", [before, out, "scale"], [y, "", "", x],
                domain=MICROSOFT, name=f"norm{layer}", epsilon=1e-6,
            )
        )  # fmt: skip
    draft.op("MatMul", y, draft.weight("head", WIDTH, VOCABULARY), into="logits")
    length, head = "past_sequence_length", "kv_cache_dim" if packed else SIZE
    inputs = [
        value("input_ids", INT64, "batch_size", "sequence_length"),
        value("attention_mask", INT64, "batch_size", "total_sequence_length"),
        *caches(layers, "past_key_values", "batch_size", kv_heads, length, head),
    ]
    present = length if shared else "total_sequence_length"
    outputs = [
        value("logits", FLOAT, "batch_size", "sequence_length", VOCABULARY),
        *caches(layers, "present", "batch_size", kv_heads, present, head),
    ]
    return model(draft, inputs, outputs)
