"""Networks: weights become initializers, copies stand side by side, files stay as they are."""

from __future__ import annotations

import ctypes
from mmap import PAGESIZE

import numpy as np
import onnx
import onnx_graphsurgeon
import pytest
from computing import computed, operators
from dlbricks.errors import BackendError, BrokenModel, ModelNotFound, UnboundDimension
from dlbricks.generator.network.export import to_graphsurgeon
from dlbricks.generator.network.network import Network, export_network, file_network, read_network, synthetic_network
from dlbricks.models.skeleton import is_weight
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

CONV = (
    "(float[1,4,8,8] x0, float[32,4,3,3] w0, float[32] w1) => (float[1,32,8,8] v1)"
    "{v0 = Conv<pads=[1,1,1,1]>(x0, w0, w1) v1 = Relu(v0)}"
)


@pytest.mark.parametrize("name", ["conv", "constants"])
def test_a_network_is_the_same_where_all_its_outputs_are_asked_for(skeleton_of, name):
    constants = "(float[2,3] x0, float[4,3] w0) => (float[2,4] v1) <int64[2] c = {1, 0}>"
    model = skeleton_of(CONV if name == "conv" else f"{constants} {{v0 = Transpose(w0) v1 = MatMul(x0, v0)}}")
    outputs = [value.name for value in model.graph.output]

    plain, asked = synthetic_network(model), synthetic_network(model, outputs=outputs)

    assert plain.outputs == asked.outputs
    assert plain.self_contained() == asked.self_contained()


def test_what_no_output_needs_is_left_out(skeleton_of):
    model = skeleton_of(
        "(float[2,3] x0, float[300,3] w0, float[3] w1) => (float[2,3] v1)"
        "{v0 = Gemm<transB=1>(x0, w0) v1 = Add(x0, w1) v2 = Relu(v0)}"
    )

    network = synthetic_network(model, unroll=2)

    assert operators(network) == ["Add", "Add"]
    assert [tensor.name for tensor in network.model.graph.initializer] == ["w1", "w1@1"]
    assert not network.weights


def test_copies_have_values_of_their_own_but_share_the_weights_memory(skeleton_of):
    network = synthetic_network(skeleton_of(CONV), unroll=3)

    graph = network.model.graph
    assert [node.op_type for node in graph.node] == ["Conv", "Relu"] * 3
    assert [node.input[1] for node in graph.node if node.op_type == "Conv"] == ["w0", "w0@1", "w0@2"]
    assert network.outputs == ("v1", "v1@1", "v1@2")
    assert list(network.feeds) == ["x0", "x0@1", "x0@2"]
    assert list(network.first_feeds()) == ["x0"]
    assert network.weights["w0"] is network.weights["w0@1"] is network.weights["w0@2"]
    assert network.weight_bytes == network.weights["w0"].nbytes
    onnx.checker.check_model(network.self_contained(), full_check=True)


def resident_bytes(array: np.ndarray) -> int:
    """Return how much of an array has memory: what else a process holds comes and goes."""
    begin, end = array.ctypes.data // PAGESIZE * PAGESIZE, array.ctypes.data + array.nbytes
    pages = (ctypes.c_ubyte * -(-(end - begin) // PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), pages) == 0
    return PAGESIZE * sum(page & 1 for page in bytes(pages))


def test_a_huge_table_takes_memory_for_the_rows_that_are_read(skeleton_of):
    table = "(int64[3,5] x, float[1048576,64] w0) => (float[3,5,64] y) {y = Gather(w0, x)}"

    # The first ones may get memory that the process used before, and that the allocator has to clear.
    networks = [synthetic_network(skeleton_of(table), unroll=2) for _ in range(3)]

    network = min(networks, key=lambda made: resident_bytes(next(iter(made.weights.values()))))
    (first, second) = network.weights.values()
    assert first is second
    assert resident_bytes(first) < 100 << 20 < first.nbytes
    for name in ("x", "x@1"):
        rows = first[network.feeds[name]]
        assert np.isfinite(rows).all()
        assert (rows.std(axis=-1) > 0).all()


@pytest.mark.parametrize("reader", ["another operator", "other inputs"])
def test_a_huge_table_is_whole_if_other_rows_may_be_read(skeleton_of, reader):
    lookup = "(int64[1] x, float[1048576,64] w0) => (float[1,64] y) {y = Gather(w0, x)}"
    both = (
        "(int64[1] x, float[1,64] z, float[1048576,64] w0) => (float[1,64] y, float[1,1048576] u)"
        "{y = Gather(w0, x) t = Transpose(w0) u = MatMul(z, t)}"
    )
    model = skeleton_of(both if reader == "another operator" else lookup)

    (table,) = synthetic_network(model, replacing=reader == "other inputs").weights.values()

    assert (table[:: 1 << 15].std(axis=-1) > 0).all()


def test_attributes_survive_byte_for_byte():
    odd = helper.make_node("Odd", ["x0"], ["v0"], domain="com.example", text=b"\xff\xfe", name="first")
    empty = odd.attribute.add()
    empty.name, empty.type = "nothing", onnx.AttributeProto.INTS
    kind = odd.attribute.add()
    kind.name, kind.type = "kind", onnx.AttributeProto.TYPE_PROTO
    kind.tp.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph([odd], "g", [value("x0", 1, [2])], [value("v0", 1, [2])])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 3)], ir_version=10
    )
    network = synthetic_network(model, unroll=2)

    for node in network.model.graph.node:
        assert list(node.attribute) == list(odd.attribute)
    assert {(opset.domain, opset.version) for opset in network.model.opset_import} == {("", 21), ("com.example", 3)}


def test_weights_that_alone_decide_an_output_stay_inputs(skeleton_of):
    model = skeleton_of(
        "(float[64,64] w0, float[4] x0) => (float[64,64] v0, float[4] v1) {v0 = Relu(w0) v1 = Relu(x0)}"
    )

    network = synthetic_network(model, unroll=2)

    exported = onnx.load_from_string(export_network(model))
    assert [value.name for value in exported.graph.input if not is_weight(value)] == ["w0", "x0"]
    assert not network.model.graph.initializer
    assert set(network.feeds) == {"w0", "x0", "w0@1", "x0@1"}


def test_what_a_body_alone_reads_stays(skeleton_of):
    body = helper.make_graph(
        [helper.make_node("Neg", ["v0"], ["b"])], "body", [], [helper.make_tensor_value_info("b", 1, [2, 3])]
    )
    model = skeleton_of("(float[2,3] x0, bool c) => (float[2,3] v1) { v0 = Relu(x0) v2 = Abs(x0) v1 = Neg(x0) }")
    del model.graph.node[2]
    model.graph.node.append(helper.make_node("If", ["c"], ["v1"], then_branch=body, else_branch=body))

    network = synthetic_network(model)

    assert operators(network) == ["Relu", "If"]
    assert network.model.graph.node[1] == model.graph.node[2]


def test_weights_are_initializers_large_ones_stay_outside_and_the_skeleton_is_not_changed(skeleton_of):
    model = skeleton_of(CONV)
    before = model.SerializeToString(deterministic=True)
    network = synthetic_network(model, seed=7)

    graph = network.model.graph
    external = {tensor.name for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL}
    assert [value.name for value in graph.input] == ["x0"]
    assert {tensor.name for tensor in graph.initializer} == {"w0", "w1"}
    assert external == set(network.weights) == {"w0"}
    assert network.weight_bytes == 32 * 4 * 9 * 4
    whole = network.self_contained()
    onnx.checker.check_model(whole, full_check=True)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
    np.testing.assert_array_equal(held["w0"], network.weights["w0"])
    assert operators(synthetic_network(model, outputs=["v0"])) == ["Conv"]  # what nobody asks for is dropped
    assert model.SerializeToString(deterministic=True) == before


def test_constants_of_a_large_file_keep_their_values(model_file, tmp_path):
    table = np.arange(1 << 21, dtype=np.float32)  # 8 MiB: of such files the structure alone is read elsewhere
    graph = "(float[1] x0) => (float[2097152] v1) {v1 = Add(x0, table)}"
    path = model_file(tmp_path / "table.onnx", graph, {"table": table})

    network = synthetic_network(read_network(path, values=True))

    (found,) = computed(network)
    assert np.array_equal(found, network.feeds["x0"] + table)
    assert not read_network(path).graph.initializer[0].raw_data


def test_a_file_is_bound_by_overrides_and_its_external_data_counts(model_file, tmp_path):
    graph = "(float[n,3] input) => (float[n,500] output) {output = MatMul(input, weight)}"
    path = model_file(tmp_path / "model.onnx", graph, {"weight": (3, 500)})

    network = file_network(path, overrides={"n": 7})

    assert (network.path, network.model, network.outputs) == (path, None, ("output",))
    assert network.feeds["input"].shape == (7, 3)
    assert network.weight_bytes == path.stat().st_size
    given = file_network(path, overrides={}, inputs=[("input", "float", (2, 3))])  # before the file's own
    assert given.feeds["input"].shape == (2, 3)
    with pytest.raises(UnboundDimension, match="dimension n of input input"):
        file_network(path, overrides={})
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    both = path.stat().st_size + (tmp_path / "weights.bin").stat().st_size
    assert file_network(path, overrides={"n": 1}).weight_bytes == both
    path.write_bytes(b"\x00nothing of the kind")
    with pytest.raises(BrokenModel):
        file_network(path, overrides={})
    with pytest.raises(ModelNotFound):
        file_network(tmp_path / "none.onnx", overrides={})


def test_an_exported_brick_is_equal_for_equal_seeds_and_runs_anywhere(skeleton_of):
    model = skeleton_of(CONV)

    data = export_network(model, 1)

    assert data == export_network(model, 1) != export_network(model, 2)
    exported = onnx.load_from_string(data)
    assert not any(is_weight(value) for value in exported.graph.input)
    outputs = ReferenceEvaluator(exported).run(None, {"x0": np.ones((1, 4, 8, 8), np.float32)})
    assert outputs[0].shape == (1, 32, 8, 8)


def test_a_network_beyond_a_protobuf_is_reported():
    large = np.broadcast_to(np.float32(0), (1 << 30,))  # one element in memory
    network = Network(model=onnx.ModelProto(), path=None, weights={"w0": large}, feeds={}, outputs=())

    with pytest.raises(BackendError, match="2 GiB"):
        network.self_contained()


def test_weights_beyond_a_protobuf_are_refused_before_they_are_drawn(skeleton_of):
    model = skeleton_of(
        "(float[1,4] x0, float[4,1099511627776] w0) => (float[1,1099511627776] v0) {v0 = MatMul(x0, w0)}"
    )

    with pytest.raises(BackendError, match="2 GiB"):
        export_network(model)


def test_a_brick_can_be_edited_with_graphsurgeon_and_computes_the_same(small_suite):
    brick = small_suite.brick(small_suite.keys[0])

    graph = to_graphsurgeon(brick)
    again = onnx_graphsurgeon.export_onnx(graph.cleanup().toposort())

    written = onnx.load_from_string(export_network(onnx.load_from_string(brick.model)))
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in written.graph.input}
    numbers = {name: np.linspace(0.5, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
               for name, shape in shapes.items()}  # fmt: skip
    assert [node.op for node in graph.nodes] == [node.op_type for node in written.graph.node]
    for first, second in zip(
        *(ReferenceEvaluator(model).run(None, numbers) for model in (again, written)), strict=True
    ):
        np.testing.assert_array_equal(first, second)
