"""Bricks along PyTorch's views: what an operator reads in a brick lies in memory as in the model."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest
from computing import settings
from dlbricks.bricks.cutting.fused import copied_layers, fused_sequences, fused_units
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.constructor.interventions import quotient_of
from dlbricks.db.values import NATIVE
from dlbricks.errors import UsageError
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.network.network import read_network, synthetic_network
from dlbricks.models import find_models
from executing import executed_model
from working import UNPINNED

torch = pytest.importorskip("torch")

SPLIT = (
    "(float[1,6,12] x) => (float[1,6,4] y)"
    "<int64[4] heads = {1,6,2,2}, int64[3] whole = {1,6,4}>"
    "{q, k, v = Split<axis=2, num_outputs=3>(x)"
    " a = Reshape(q, heads) b = Transpose<perm=[0,2,1,3]>(a)"
    " c = Reshape(k, heads) d = Transpose<perm=[0,2,3,1]>(c)"
    " e = Reshape(v, heads) f = Transpose<perm=[0,2,1,3]>(e)"
    " g = MatMul(b, d) h = Softmax(g) i = MatMul(h, f)"
    " j = Transpose<perm=[0,2,1,3]>(i) y = Reshape(j, whole)}"
)
CASES = {
    "attention: three views of one product, two readers": (
        SPLIT,
        ["Split+Reshape+Transpose+Reshape+Transpose+MatMul", "Softmax", "Split+Reshape+Transpose+MatMul",
         "Transpose+Reshape"],
    ),
    "a view of views for two readers": (
        ("(float[4,6] x) => (float[3,4] y, float[3,4] z) <int64[1] a = {0}, int64[1] b = {3}, int64[1] c = {1}>"
        "{s = Slice(x, a, b, c) t = Transpose(s) y = Neg(t) z = Abs(t)}"),
        ["Slice+Transpose+Neg", "Slice+Transpose+Abs"],
    ),
    "a view that the model hands out": (
        "(float[4,6] x) => (float[6,4] t, float[6,4] y) {t = Transpose(x) y = Neg(t)}",
        ["Transpose+Neg"],
    ),
    "parts along the first axis are in order": (
        "(float[4,6] x) => (float[2,6] y, float[2,6] z) {a, b = Split<axis=0, num_outputs=2>(x) y = Neg(a) z = Abs(b)}",
        ["Split", "Neg", "Abs"],
    ),
    "a view of a constant is a constant": (
        ("(float[2,3] x) => (float[2,4] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,8,7,6}>"
        "{t = Transpose(w) y = MatMul(x, t)}"),
        ["MatMul"],
    ),
    "a value repeated along an axis": (
        "(float[4,1] x, float[4,6] z) => (float[4,6] y) <int64[2] s = {4,6}> {e = Expand(x, s) y = Mul(e, z)}",
        ["Expand+Mul"],
    ),
}  # fmt: skip


def strides(network) -> dict[str, list[tuple[int, ...]]]:
    """Of each node, by its first output: the strides of the activations that it reads, along axes that are any."""
    from dlbricks.generator.backends.torch.torch_graph import translated

    found = {}

    def observe(node, inputs, _) -> None:
        read = [tensor for name, tensor in zip(node.input, inputs, strict=True) if name in computed]
        found[node.output[0]] = [
            tuple(step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1) for tensor in read
        ]
        computed.update(node.output)

    computed = {*network.feeds}
    translated(network, float_type=torch.float32, device="cpu", channels_last=False, observe=observe)
    return found


def check(executed, tmp_path, model) -> list[str]:
    """Compare every operator that is no view with the model; return the operators of each brick."""
    source, parts = executed.source, fused_sequences(executed, 1)
    assert sorted(index for part in parts for index in part.own) == list(source.live)
    assert len(quotient_of(source, tuple(parts)).order) == len(parts)
    assert not fused_units(executed).reasons
    in_model = strides(synthetic_network(model.skeleton().model))
    views = {index for origin in executed.origins for index in origin - {max(origin)}}
    seen: dict[str, tuple[list[str], list[list[tuple[int, ...]]]]] = {}
    for part in parts:
        if part.key not in seen:
            path = tmp_path / "brick.onnx"
            path.write_bytes(build_brick(source, part).model)
            by_output = strides(synthetic_network(read_network(path)))
            nodes = onnx.load(path).graph.node
            seen[part.key] = [node.op_type for node in nodes], [by_output[node.output[0]] for node in nodes]
        kinds, read = seen[part.key]
        assert kinds == [source.layers[index].op_type for index in part.layers]
        for index, found in zip(part.layers, read, strict=True):
            if index not in views:
                assert found == in_model[source.layers[index].outputs[0]], source.layers[index].name
    return ["+".join(source.layers[index].op_type for index in part.layers) for part in parts]


@pytest.mark.parametrize("case", CASES)
def test_each_reader_has_the_views_that_it_reads(source, tmp_path, case):
    text, expected = CASES[case]
    model = source(text, opset=18)

    executed = executed_model(model, backend="torch", options=UNPINNED)

    assert Counter(check(executed, tmp_path, model)) == Counter(expected)


def test_what_several_readers_read_is_copied_for_each(source):
    executed = executed_model(source(SPLIT, opset=18), backend="torch", options=UNPINNED)

    (split,) = copied_layers(executed)
    assert executed.source.layers[split].op_type == "Split"
    assert [part.copies for part in fused_sequences(executed, 1) if part.copies] == [(split,)]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", ["gpt2", "vit_b16", "shufflenet"])
def test_operators_of_whole_models_read_memory_as_in_the_model(tmp_path, name):
    (model,) = find_models([name])
    executed = executed_model(model, backend="torch", options=UNPINNED)

    assert check(executed, tmp_path, model)


def test_compiled_it_is_cut_along_its_own_graph(skeleton_of):
    backend = TorchBackend()
    network = synthetic_network(skeleton_of("(float[4] x0) => (float[4] v0) {v0 = Relu(x0)}"))

    assert backend.graph_at("cpu", NATIVE, {}) == "fused"
    assert backend.graph_at("cpu", NATIVE, {"mode": "compile"}) == "source"
    with pytest.raises(UsageError, match="TorchInductor does not report what it fuses; use --graph source"):
        backend.fused_graph(network, settings(backend, mode="compile"))
