"""Types of the results of a runtime's own operators: what the runtime itself makes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from decoders import built
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.inference.shapes import infer_types
from dlbricks.models.binding import apply, plan
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from onnx import helper

QUERY = "float[1,3,16] q, float[1,3,8] k, float[1,3,8] v, float[1,1,5,8] pk, float[1,1,5,8] pv, int32[1] last"
CASES = {
    "RMS": "(float[2,3,8] x, float[8] w) => (y, f) {y, f = SimplifiedLayerNormalization<axis=-1>(x, w)}",
    "skip": "(float[2,3,8] x, float[2,3,8] s, float[8] w) => (y, z)"
    " {y, _, _, z = com.microsoft.SkipSimplifiedLayerNormalization(x, s, w)}",
    "skip with bias": "(float[2,3,8] x, float[2,3,8] s, float[8] w, float[8] b) => (y)"
    " {y = com.microsoft.SkipLayerNormalization(x, s, w, b)}",
    "rotary": "(float[2,4,3,8] x, int64[2,3] i, float[16,4] c, float[16,4] s) => (y)"
    " {y = com.microsoft.RotaryEmbedding(x, i, c, s)}",
    "bits": "(float[2,3,40] x, uint8[16,3,8] w, float[48] s) => (y)"
    " {y = com.microsoft.MatMulNBits<K=40, N=16, bits=4, block_size=16>(x, w, s)}",
    "rows of bits": "(uint8[16,2,8] w, int64[2,3] i, float[16,2,1] s) => (y)"
    " {y = com.microsoft.GatherBlockQuantized<block_size=16, quantize_axis=2, gather_axis=0>(w, i, s)}",
    "transposed product": "(float[2,3,8] x, float[2,16,8] w) => (y) {y = com.microsoft.FusedMatMul<transB=1>(x, w)}",
    "broadcast product": "(float[2,8,3] x, float[8,16] w) => (y) {y = com.microsoft.FusedMatMul<transA=1>(x, w)}",
    "heads": "(float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,5,4] pk, float[2,2,5,4] pv) => (y, ok, ov)"
    " {y, ok, ov = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v, , , , pk, pv)}",
    "heads across": "(float[2,3,8] q, float[2,2,7,4] k, float[2,2,7,4] v) => (y)"
    " {y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v)}",
    "packed": "(float[2,3,8] x, float[8,24] w, float[24] b) => (y) {y = com.microsoft.Attention<num_heads=2>(x, w, b)}",
    "groups": f"({QUERY}) => (y, ok, ov) <int32 total = {{8}}>"
    " {y, ok, ov = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, k, v, pk, pv, last, total)}",
    "groups in one buffer": f"({QUERY.replace('1,5,8', '1,9,8')}) => (y, ok, ov) <int32 total = {{8}}>"
    " {y, ok, ov = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, k, v, pk, pv, last, total)}",
    "packed groups": "(float[1,3,32] q, float[1,1,5,8] pk, float[1,1,5,8] pv, int32[1] last) => (y, ok, ov)"
    " <int32 total = {8}>"
    " {y, ok, ov = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, , , pk, pv, last, total)}",
    "behind it": "(float[2,3,8] x, float[8] w) => (z) <int64[2] all = {0, -1}>"
    " {y = SimplifiedLayerNormalization(x, w) s = Shape(y) f = Reshape(y, all) t = Transpose(f) z = Reshape(t, s)}",
    "activation": "(float[2,8] x, float[8] b) => (z)"
    " {y = com.microsoft.BiasGelu(x, b) u = com.microsoft.QuickGelu(y) z = com.microsoft.FastGelu(u, b)}",
}


def parsed(text: str) -> onnx.ModelProto:
    """A model without the types of what it computes."""
    head, _, rest = text.partition("=> (")
    names, _, rest = rest.partition(")")
    typed = ", ".join(f"float[n_{name.strip()}] {name.strip()}" for name in names.split(","))
    text = f'<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]> g {head} => ({typed}) {rest}'
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.output[:] = ["" if name == "_" else name for name in node.output]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("name", CASES)
def test_types_are_those_that_the_runtime_makes(name: str) -> None:
    model = parsed(CASES[name])
    session = ort.InferenceSession(model.SerializeToString())
    feeds = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        fill = 7 if value.name == "last" else 1  # seven positions before the last one
        feeds[value.name] = np.full(shape, fill, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    made = dict(zip([value.name for value in model.graph.output], session.run(None, feeds), strict=True))

    types = infer_types(model).types

    assert {name: types[name].shape for name in made} == {name: array.shape for name, array in made.items()}
    assert {types[name].dtype for name in made} == {"float"}


UNKNOWN = {
    "K": "(float[2,3,39] x, uint8[16,3,8] w, float[48] s) => (y)"
    " {y = com.microsoft.MatMulNBits<K=40, N=16, bits=4, block_size=16>(x, w, s)}",
    "fit": "(float[3,8] x, float[9,4] w) => (y) {y = com.microsoft.FusedMatMul(x, w)}",
    "vector": "(float[8] x, float[8,4] w) => (y) {y = com.microsoft.FusedMatMul(x, w)}",
    "total": f"({QUERY}, int32 total) => (ok)"
    " {y, ok, ov = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, k, v, pk, pv, last, total)}",
    "packed": "(float[2,3,2,3,4] q) => (y) {y = com.microsoft.MultiHeadAttention<num_heads=2>(q)}",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_inputs_do_not_tell_stays_unknown(name: str) -> None:
    model = parsed(UNKNOWN[name])

    assert model.graph.output[0].name not in infer_types(model).types


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(("past", "new"), [(0, 8), (8, 1)])
def test_a_builders_decoder_decomposes_whole_without_an_execution(bits: int, past: int, new: int) -> None:
    sizes = {"batch_size": 1, "sequence_length": new, "past_sequence_length": past, "total_sequence_length": past + new}
    normal = normalise(built(2, bits=bits))
    apply(normal.model, plan(normal.model, dims=sizes))

    def executed(*_: object) -> None:
        raise AssertionError("the runtime is asked")

    graph = build_graph(Skeleton(normal.model), oracle=executed)

    assert {layer.state.value for layer in graph.layers} == {"live", "folded"}
    assert all(layer.cost is not None for layer in graph.layers if layer.state.value == "live")
    assert graph.types["present.1.key"].shape == (1, 1, past + new, 16)
