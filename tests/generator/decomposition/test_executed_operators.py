"""Operators of ONNX Runtime's own: as bricks of an executed graph they get legal weights and inputs, and run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import keys_from, make_sequence, sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models.skeleton import Skeleton
from working import network

SALT = "runtime:test:test"
OPERATORS = {
    "FusedConv": "(float[1,4,8,8] x, float[8,4,3,3] w0, float[8] w1) => (float[1,8,6,6] y)"
    ' {y = com.microsoft.FusedConv<activation="Relu", kernel_shape=[3,3]>(x, w0, w1)}',
    "FusedGemm": "(float[4,8] x, float[8,16] w0, float[16] w1) => (float[4,16] y)"
    ' {y = com.microsoft.FusedGemm<activation="Relu">(x, w0, w1)}',
    "FusedMatMul": "(float[4,8] x, float[16,8] w0) => (float[4,16] y)"
    " {y = com.microsoft.FusedMatMul<transB=1, alpha=0.5>(x, w0)}",
    "SkipLayerNormalization": "(float[2,4,8] x, float[2,4,8] x1, float[8] w0, float[8] w1) => (float[2,4,8] y)"
    " {y = com.microsoft.SkipLayerNormalization(x, x1, w0, w1)}",
    "BiasGelu": "(float[2,8] x, float[8] w0) => (float[2,8] y) {y = com.microsoft.BiasGelu(x, w0)}",
    "QuickGelu": "(float[2,8] x) => (float[2,8] y) {y = com.microsoft.QuickGelu(x)}",
    "Attention, lengths": "(float[2,4,8] x, float[8,24] w0, float[24] w1, int32[2] m) => (float[2,4,8] y)"
    " {y = com.microsoft.Attention<num_heads=2>(x, w0, w1, m)}",
    "Attention, mask": "(float[2,4,8] x, float[8,24] w0, float[24] w1, int32[2,4] m) => (float[2,4,8] y)"
    " {y = com.microsoft.Attention<num_heads=2>(x, w0, w1, m)}",
    "MultiHeadAttention": "(float[2,4,8] q, float[2,4,8] k, float[2,4,8] v, int32[2] m) => (float[2,4,8] y)"
    " {y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v, , m)}",
    "EmbedLayerNormalization": "(int32[2,4] i, int32[2,4] s, float[20,8] w0, float[6,8] w1,"
    " float[2,8] w2, float[8] w3, float[8] w4)"
    " => (float[2,4,8] y, int32[2] z)"
    " {y, z = com.microsoft.EmbedLayerNormalization(i, s, w0, w1, w2, w3, w4)}",
    "GatherBlockQuantized": "(int64[3] i, uint8[20,32] w0, float[20,2] w1) => (float[3,32] y)"
    " {y = com.microsoft.GatherBlockQuantized<block_size=16, bits=8, quantize_axis=1>(w0, i, w1)}",
    "MatMulNBits": "(float[4,32] x, uint8[16,2,8] w0, float[16,2] w1) => (float[4,16] y)"
    " {y = com.microsoft.MatMulNBits<K=32,N=16,bits=4,block_size=16>(x, w0, w1)}",
    "blocked convolution": "(float[1,16,8,8] x, float[16,16,3,3] w0, float[16] w1) => (float[1,16,8,8] y)"
    " {a = com.microsoft.nchwc.ReorderInput(x)"
    ' b = com.microsoft.nchwc.Conv<kernel_shape=[3,3], pads=[1,1,1,1], activation="Relu">(a, w0, w1)'
    " c = com.microsoft.nchwc.MaxPool<kernel_shape=[1,1]>(b) y = com.microsoft.nchwc.ReorderOutput<channels=16>(c)}",
    "blocked upsampling": "(float[1,16,8,8] x) => (float[1,16,16,16] y)"
    " {y = com.microsoft.nchwc.Upsample<scales=[1,1,2,2]>(x)}",
    "blocked pooling": "(float[1,16,8,8] x) => (float[1,16,1,1] y)"
    " {a = com.microsoft.nchwc.AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)"
    " y = com.microsoft.nchwc.GlobalAveragePool(a)}",
    "QLinearAdd": "(uint8[2,8] x, float w0, uint8 w1, uint8[2,8] x1, float w2, uint8 w3, float w4, uint8 w5)"
    " => (uint8[2,8] y)"
    " {y = com.microsoft.QLinearAdd(x, w0, w1, x1, w2, w3, w4, w5)}",
    "QLinearGlobalAveragePool": "(uint8[1,4,8,8] x, float w0, uint8 w1, float w2, uint8 w3) => (uint8[1,4,1,1] y)"
    " {y = com.microsoft.QLinearGlobalAveragePool(x, w0, w1, w2, w3)}",
    "NhwcMaxPool": "(uint8[1,8,8,4] x) => (uint8[1,4,4,4] y)"
    " {y = com.microsoft.NhwcMaxPool<kernel_shape=[2,2],strides=[2,2]>(x)}",
    "DynamicQuantizeMatMul": "(float[4,8] x, uint8[8,16] w0, float w1, uint8 w2) => (float[4,16] y)"
    " {y = com.microsoft.DynamicQuantizeMatMul(x, w0, w1, w2)}",
    "SimplifiedLayerNormalization": "(float[2,8] x, float[8] w0) => (float[2,8] y)"
    " {y = SimplifiedLayerNormalization(x, w0)}",
    "RotaryEmbedding": "(float[1,4,8] x, int64[1,4] p, float[16,4] w0, float[16,4] w1) => (float[1,4,8] y)"
    " {y = com.microsoft.RotaryEmbedding<num_heads=1>(x, p, w0, w1)}",
    "GroupQueryAttention": "(float[1,4,16] q, float[1,4,16] k, float[1,4,16] v, float[1,2,0,8] pk,"
    " float[1,2,0,8] pv, int32[1] s, int32 t)"
    " => (float[1,4,16] y, float[1,2,4,8] ok, float[1,2,4,8] ov)"
    " {y, ok, ov = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=2>(q, k, v, pk, pv, s, t)}",
}


@pytest.fixture
def graph_of(skeleton_of: Callable[..., onnx.ModelProto]):
    def build(text: str, salt: str = SALT):
        model = skeleton_of(text, domains=', "com.microsoft": 1, "com.microsoft.nchwc": 1')
        for node in model.graph.node:  # a graph that is executed states the types of all values
            for value in node.output:
                if value not in {known.name for known in model.graph.output}:
                    model.graph.value_info.append(onnx.helper.make_tensor_value_info(value, 1, [1, 16, 8, 8]))
        return build_graph(Skeleton(model), salt=salt)

    return build


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_of_the_runtime_runs_on_legal_values(graph_of, worker, tmp_path, name):
    graph = graph_of(OPERATORS[name])
    sequence = make_sequence(graph, graph.live)
    brick = build_brick(graph, sequence)
    path = tmp_path / "brick.onnx"
    path.write_bytes(brick.model)

    worker.load(network("brick", path, unroll=2, as_is=True))
    worker.outputs("brick", tmp_path / "out.npz")
    worker.drop("brick")

    assert len(graph.live) == len(graph.layers)
    assert load_brick(brick.model, expected=sequence.key) == brick
    with np.load(tmp_path / "out.npz") as arrays:
        result = arrays["v0"] if len(graph.live) == 1 else arrays[f"v{len(graph.live) - 1}"]
    assert np.isfinite(result.astype(np.float64)).all()
    assert result.std() > 0


def test_the_salt_is_in_every_key_and_an_executed_graph_is_taken_as_it_is(graph_of):
    text = "(float[1,16,8,8] x) => (float[1,16,8,8] y, int64[4] n) {a = Relu(x) y = Identity(a) n = Shape(y)}"
    plain, salted, other = (graph_of(text, salt) for salt in ("", SALT, SALT + "s"))

    assert len(plain.live) == 2
    assert len(salted.live) == 3
    assert len({graph.key for graph in (plain, salted, other)}) == 3
    keys = [{sequence.key for sequence in sequences(graph, 2, overlap=True)} for graph in (plain, salted, other)]
    assert not keys[0] & keys[1]
    assert not keys[1] & keys[2]


def test_keys_of_all_windows_agree_with_the_sequences_of_a_salted_graph(graph_of):
    graph = graph_of(
        "(float[1,16,8,8] x) => (float[1,16,8,8] y) {a = Relu(x) b = Tanh(a) c = Add(a, b) y = Identity(c)}"
    )

    found = list(keys_from(graph, 0, range(1, 5)))

    assert found == [make_sequence(graph, graph.live[:end]).key for end in range(1, 5)]
