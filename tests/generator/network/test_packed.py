"""Packed networks: every brick runs in every pass, as it does alone, on legal values, with weights of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from computing import by_name, operators, settings
from dlbricks.bricks.graph.boundary import FRESH, HALF
from dlbricks.errors import BackendError
from dlbricks.generator.backends.base import NodeTimes
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.network.network import Network, read_network, synthetic_network
from dlbricks.generator.network.packed import (
    PackedBrick,
    PackedNetwork,
    crossing,
    grouped,
    merge,
    pack,
    reads_any_value,
    set_apart,
    split,
)
from dlbricks.models import find_models
from dlbricks.models.skeleton import hides_future, mark_causal

MODELS = ("squeezenet", "shufflenet", "inception_v1", "bert_base")


@pytest.fixture(scope="module")
def bricks(tmp_path_factory: pytest.TempPathFactory):
    """The networks of the bricks of a model, by model and graph."""
    known: dict[tuple[str, str], list[Network]] = {}

    def make(name: str, graph: str) -> list[Network]:
        if (name, graph) not in known:
            folder = tmp_path_factory.mktemp("suite") / "suite"
            suite = generate(find_models([name]), granularity=1, out=folder, graph=graph).suite
            networks = [synthetic_network(read_network(suite.brick_path(key)), seed=7) for key in suite.keys]
            known[name, graph] = [replace(network, as_is=graph == "runtime") for network in networks]
        return known[name, graph]

    return make


def profile(packed: PackedNetwork, passes: int) -> NodeTimes:
    executable = OrtBackend().prepare_packed(packed.network, settings())
    for _ in range(passes):
        executable.run()
    found = executable.end()
    executable.close()
    return found


def packs(networks: list[Network], copies: int = 1) -> Iterator[tuple[list[int], PackedNetwork]]:
    for places in grouped(networks):
        yield places, pack([PackedBrick(networks[place], copies) for place in places])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("graph", ["source", "fused", "runtime"])
def test_every_brick_runs_in_every_pass_with_the_operators_that_it_has_alone(bricks, name, graph):
    networks = bricks(name, graph)
    if graph != "runtime":
        alone = [operators(OrtBackend().optimised(network, settings())) for network in networks]
        together: dict[int, Network] = {}
        for places in grouped(networks):
            chosen = [networks[place] for place in places]
            found = split(OrtBackend().optimised(merge(chosen), settings()), chosen)
            together.update(zip(places, found, strict=True))
        networks = [together[place] for place in range(len(networks))]
        assert [operators(network) for network in networks] == alone
    seen = set()
    for places, packed in packs(networks):
        found = profile(packed, 3)
        assert found.times.shape == (3, len(found.names))
        assert {*found.names} >= {*packed.nodes, *packed.idle}
        nodes = {node.name: node.op_type for node in packed.network.model.graph.node}
        for member, place in enumerate(places):
            own = [nodes[name] for name, owner in packed.nodes.items() if owner == member]
            assert own == operators(networks[place])
            seen.add(place)
        run = dict.fromkeys(packed.nodes[name] for name in found.names if name in packed.nodes)
        assert list(run) == list(range(len(places)))  # in the order of the members
    assert seen == set(range(len(networks)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_brick_computes_in_a_pack_what_it_computes_alone(bricks, name):
    networks = bricks(name, "runtime")
    for places, packed in packs(networks):
        model = onnx.ModelProto()
        model.CopyFrom(packed.network.model)
        produced = {node.output[0] for node in model.graph.node if node.name.endswith(":producer")}
        wanted = [f"{member}.0/{value}" for member, place in enumerate(places) for value in networks[place].outputs]
        shown = [*wanted, *produced]
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(value) for value in shown)
        inside = by_name(replace(packed.network, model=model, outputs=(*packed.network.outputs, *shown)))
        for member, place in enumerate(places):
            network = networks[place]
            feeds = {name: inside.get(f"{member}.0/{name}", array) for name, array in network.feeds.items()}
            assert {name: array.shape for name, array in feeds.items()} == {
                name: array.shape for name, array in network.feeds.items()
            }
            weights = {name: packed.network.weights[f"{member}.0/{name}"] for name in network.weights}
            assert all(sorted(own.ravel()) == sorted(network.weights[name].ravel()) for name, own in weights.items())
            for value, expected in by_name(replace(network, feeds=feeds, weights=weights)).items():
                found = inside[f"{member}.0/{value}"]
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=str(operators(network)))
                assert np.isfinite(found).all()


def test_copies_and_bricks_with_equal_weights_have_them_apart(skeleton_of):
    texts = (f"(float[{rows},64] x, float[64,64] w) => (float[{rows},64] y) {{y = MatMul(x, w)}}" for rows in (4, 8))
    networks = [synthetic_network(skeleton_of(text)) for text in texts]
    assert np.array_equal(networks[0].weights["w"], networks[1].weights["w"])

    packed = pack([PackedBrick(networks[0], copies=2), PackedBrick(networks[1])])

    values = [packed.network.weights[f"{place}/w"] for place in ("0.0", "0.1", "1.0")]
    assert len({value.tobytes() for value in values}) == 3
    assert all(sorted(networks[0].weights["w"].ravel()) == sorted(value.ravel()) for value in values)
    assert sorted(packed.nodes.values()) == [0, 0, 1]
    assert len(packed.idle) == 3


def showing(packed: PackedNetwork, name: str) -> Network:
    """The network with one more output."""
    model = onnx.ModelProto()
    model.CopyFrom(packed.network.model)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return replace(packed.network, model=model, outputs=(*packed.network.outputs, name))


def test_layout_changes_at_the_edges_are_not_counted(skeleton_of):
    network = synthetic_network(skeleton_of("(float[4] x) => (float[4] y) {a = Neg(x) y = Exp(a)}"))

    assert crossing(network, [0]) == ("a",)
    apart = set_apart(network, [0], {"a": np.zeros(4, np.float32)})

    packed = pack([replace(apart, copies=2), PackedBrick(network)])

    assert {name.rpartition("/")[0] for name in packed.uncounted} == {"0.0/edges", "0.1/edges"}
    assert sorted(packed.nodes.values()) == [0, 0, 1, 1]
    assert [*apart.network.feeds] == ["a"]
    assert {*apart.edges.feeds} == {"x"}
    onnx.checker.check_model(apart.network.self_contained())


@pytest.mark.parametrize(
    ("graph", "name", "legal"),
    [
        ("(float[40] x) => (float[40] y) {y = Log(x)}", "x", lambda array: array > 0.1),
        ("(float[40] x) => (float[40] y) {y = Acosh(x)}", "x", lambda array: array > 1),
        ("(float[40] x) => (float[40] y) {y = Atanh(x)}", "x", lambda array: np.abs(array) < 1),
        ("(float[9,40] x, int64[32] i) => (float[32,40] y) {y = Gather(x, i)}", "i", lambda array: array < 9),
        ("(int64[40] x) => (float[40] y) {y = Cast<to=1>(x)}", "x", lambda array: array >= 0),
    ],
)
@pytest.mark.parametrize("alike", [False, True])
def test_what_producers_write_is_legal(skeleton_of, graph, name, legal, alike):
    packed = pack([PackedBrick(synthetic_network(skeleton_of(graph), alike=alike))])
    fed = packed.network.feeds.get(f"0.0/{name}")

    assert legal(by_name(showing(packed, f"0.0/{name}"))[f"0.0/{name}"] if fed is None else fed).all()


def test_integers_that_differ_are_fed_and_numbers_are_written(skeleton_of):
    graph = "(float[9,40] x, int64[32] i, float[4] few) => (float[32,40] y, float[4] z) {y = Gather(x, i) z = Neg(few)}"
    network = synthetic_network(skeleton_of(graph))

    packed = pack([PackedBrick(network)])

    assert {name for name in packed.network.feeds if name.startswith("0.0/")} == {"0.0/i", "0.0/few"}
    np.testing.assert_array_equal(packed.network.feeds["0.0/i"], network.feeds["i"])
    producers = [node for node in packed.network.model.graph.node if node.op_type == "Expand"]
    assert [node.output[0] for node in producers] == ["0.0/x"]


def test_what_decides_the_time_of_a_selection_is_written_as_it_is(skeleton_of):
    network = synthetic_network(
        skeleton_of("(float[9,40] x) => (float[9,5] y, int64[9,5] i) <int64[1] k = {5}> {y, i = TopK(x, k)}")
    )

    packed = pack([PackedBrick(network)])

    assert np.unique(network.feeds["x"]).size > 300
    np.testing.assert_array_equal(by_name(showing(packed, "0.0/x"))["0.0/x"], network.feeds["x"])


def test_inputs_that_a_pack_writes_anew_need_no_values(skeleton_of):
    graph = "(float[3,40] x, float[4] few, int64[3] i, float[3,40] w0) => (float[3,40] y, float[4] z, float[3,40] rows)"
    model = skeleton_of(graph + "{y = Relu(x) z = Neg(few) rows = Gather(w0, i)}")

    drawn, alike = synthetic_network(model), synthetic_network(model, alike=True)

    assert np.unique(alike.feeds["x"]).size == 1
    assert alike.feeds["x"].strides == (0, 0)
    one, other = (pack([PackedBrick(network)]).network.brick.graph for network in (drawn, alike))
    assert [(node.op_type, *node.output) for node in one.node] == [(node.op_type, *node.output) for node in other.node]
    for name in ("few", "i"):
        np.testing.assert_array_equal(alike.feeds[name], drawn.feeds[name])


def test_values_matter_that_a_pack_keeps_or_that_decide_a_time(skeleton_of):
    cached, relu = onnx.parser.parse_model(GROUPED), skeleton_of(RELU)
    topk = skeleton_of("(float[9,40] x) => (float[9,5] y, int64[9,5] i) <int64[1] k = {5}> {y, i = TopK(x, k)}")

    assert reads_any_value(relu, "")
    assert reads_any_value(relu, FRESH)
    assert not any([reads_any_value(relu, HALF), reads_any_value(topk, ""), reads_any_value(cached, "")])


def at_opset(graph: str, version: int) -> Network:
    return synthetic_network(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {version}]> g {graph}'))


SOFTMAX = "(float[2,40] x) => (float[2,40] y) {y = Softmax(x)}"
RELU = "(float[2,40] x) => (float[2,40] y) {y = Relu(x)}"


def test_huge_weights_are_shared_by_copies(skeleton_of):
    model = skeleton_of("(int64[3] x, float[1048576,64] w0) => (float[3,64] y) {y = Gather(w0, x)}")

    packed = pack([PackedBrick(synthetic_network(model), copies=2)])

    first, second = packed.network.weights.values()
    assert first is second


def test_what_means_the_same_at_no_version_goes_into_packs_apart(skeleton_of):
    for graph in (
        "(float[2,4] x) => (seq(float[1,4]) y) {y = SplitToSequence<axis=0>(x)}",
        "(string[4] x) => (string[4] y) {y = Identity(x)}",
    ):  # what is no tensor of numbers runs alone
        assert grouped([synthetic_network(skeleton_of(graph)), at_opset(RELU, 21)]) == [[1]]
    networks = [at_opset(SOFTMAX, 9), at_opset(SOFTMAX, 21), at_opset(RELU, 7), at_opset(SOFTMAX, 12)]

    groups = grouped(networks)

    assert sorted(place for places in groups for place in places) == [0, 1, 2, 3]
    assert len(groups) == 3
    for places in groups:
        pack([PackedBrick(networks[place]) for place in places])
    with pytest.raises(BackendError, match="without a common version"):
        pack([PackedBrick(network) for network in networks])


def test_a_value_that_two_bricks_share_is_named():
    networks = [at_opset(RELU, 21), at_opset(RELU, 21)]
    together = merge(networks)
    merged = onnx.ModelProto()
    merged.CopyFrom(together.model)
    for node in merged.graph.node:
        node.input[0] = "0.0/x"
    merged.graph.node[1].input[0] = merged.graph.node[0].output[0]

    with pytest.raises(BackendError, match="for two bricks"):
        split(replace(together, model=merged), networks)


CACHE = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,200,256] past, float[1,1,256] new) => (float[1,201,256] present, float[1,1,256] y) {
    present = Concat<axis=1>(past, new)
    y = ReduceMean<axes=[1]>(present)
}
"""


def test_masked_scores_are_written_from_one_matrix_for_all_heads():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[1,3,20,24] x) => (float[1,3,20,24] y) {y = Softmax(x)}'
    )
    mark_causal(model.graph.input[0])

    packed = pack([PackedBrick(synthetic_network(model), copies=2)])

    scores = by_name(showing(packed, "0.1/x"))["0.1/x"]
    assert hides_future(scores)
    assert np.unique(scores).size == 2
    assert [array.shape for array in packed.network.feeds.values()] == [(20, 24)] * 2
    assert len(packed.nodes) == len(packed.idle) == 2


@pytest.mark.parametrize(
    ("boundary", "fed", "kept"),
    [("", [], []), ("given", ["past"], []), ("kept", [], ["present"]), ("given-kept", ["past"], ["present"])],
)
def test_at_a_models_boundary_nothing_writes_large_inputs_and_large_outputs_stay(boundary, fed, kept):
    brick = synthetic_network(onnx.parser.parse_model(CACHE))

    packed = pack([PackedBrick(brick, copies=2, boundary=boundary)])

    graph = packed.network.model.graph
    names = [f"0.{copy}/" for copy in range(2)]
    assert {name for name in packed.network.feeds if name.endswith("past")} == {
        prefix + name for prefix in names for name in fed
    }
    assert {value.name for value in graph.output if not value.name.endswith("shape of")} == {
        prefix + name for prefix in names for name in kept
    }
    written = {node.output[0] for node in graph.node if node.op_type == "Expand"}
    assert written == {prefix + name for prefix in names for name in ("past", "new") if name not in fed}
    assert len({id(packed.network.feeds[prefix + name]) for prefix in names for name in fed}) == 2 * len(fed)
    assert len(packed.idle) == 2 * (2 - len(kept))
    found = by_name(packed.network)
    for prefix in names:
        for name in kept:
            np.testing.assert_array_equal(found[prefix + name][:, :-1], packed.network.feeds.get(
                prefix + "past", np.broadcast_to(found[prefix + name][:, :1, :1], (1, 200, 256))
            ))  # fmt: skip
    assert sorted(profile(packed, 2).names) == sorted(node.name for node in graph.node)


GROUPED = """
<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]>
g (float[1,1,64] q, float[1,1,31,16] key, float[1,1,31,16] value, int32[1] last, int32 total)
    => (float[1,1,32] y, float[1,1,32,16] keys, float[1,1,32,16] values)
{
    y, keys, values = com.microsoft.GroupQueryAttention<num_heads: int = 2, kv_num_heads: int = 1>(
        q, , , key, value, last, total
    )
}
"""


def test_a_cache_is_not_written_before_since_the_runtime_would_extend_it_in_its_own_memory():
    """ONNX Runtime takes a longer cache to be as long, and writes it over one that it may overwrite."""
    brick = synthetic_network(onnx.parser.parse_model(GROUPED))

    packed = pack([PackedBrick(brick, copies=2)])

    written = {node.output[0] for node in packed.network.model.graph.node if node.op_type == "Expand"}
    assert written == {"0.0/q", "0.1/q"}
    assert len(packed.network.feeds["0.0/key"]) == 1
    assert len(profile(packed, 2).names) == len(packed.network.model.graph.node)


def test_bricks_run_in_the_given_order_and_uncounted_copies_before(skeleton_of):
    networks = [synthetic_network(skeleton_of(f"(float[8,40] x) => (float[8,40] y) {{y = {op}(x)}}"))
                for op in ("Neg", "Abs", "Exp", "Sin", "Cos")]  # fmt: skip
    first, second, third, fourth, fifth = map(PackedBrick, networks)

    packed = pack([
        replace(first, twice="alone"), replace(second, twice="alone"), replace(third, copies=2, twice="together"),
        replace(fourth, twice="together"), replace(fifth, twice="often"),
    ])  # fmt: skip

    run = [name for name in profile(packed, 2).names if "producer" not in name and "shape of" not in name]
    alone, together = ["0.-1/0", "0.0/0", "1.-1/0", "1.0/0"], ["2.-1/0", "3.-1/0", "2.0/0", "2.1/0", "3.0/0"]
    often = ["4.-4/0", "4.-3/0", "4.-2/0", "4.-1/0", "4.0/0"]
    assert run == [*alone, *together, *often]
    assert {*packed.nodes} == {name for name in run if ".-" not in name}
    assert not packed.uncounted


def test_several_threads_write_together_what_one_would_write(skeleton_of):
    graph = "(float[8,40] x, float[40] row) => (float[8,40] y, float[40] z) {y = Add(x, row) z = Neg(row)}"
    network = synthetic_network(skeleton_of(graph))

    alone, together = pack([PackedBrick(network)]), pack([PackedBrick(network)], threads=2)

    kinds = {node.output[0]: node.op_type for node in together.network.model.graph.node if "producer" in node.name}
    assert kinds == {"0.0/x": "Add", "0.0/row": "Expand"}  # a single row has nothing to share
    for name in kinds:
        np.testing.assert_array_equal(*(by_name(showing(one, name))[name] for one in (alone, together)))


@pytest.mark.parametrize(
    ("body", "together"), [("d = Identity(c) t = Neg(s)", False), ("", True)], ids=["with nodes", "empty"]
)
def test_what_has_nodes_in_a_body_runs_alone(body, together):
    """The profile of a pack would note each of them, and so they would take longer."""
    network = at_opset(
        "(float[4] x) => (float[4] y) <int64 n = {3}> { y = Loop(n, , x) <body = b (int64 i, bool c, float[4] s)"
        f" => ({'bool c, float[4] s' if together else 'bool d, float[4] t'}) {{ {body} }}> }}",
        17,
    )

    assert bool(grouped([network])) is together


def test_half_of_the_large_inputs_are_written_before_everything_else():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[128,256] a, float[128,256] b) => (float[128,256] y)'
        " {y = Add(a, b)}"
    )

    packed = pack([PackedBrick(synthetic_network(model), boundary=HALF)])

    (add,) = (node for node in packed.network.model.graph.node if node.op_type == "Add")
    (expand,) = (node for node in packed.network.model.graph.node if node.op_type == "Expand")
    (given,) = {*add.input} - {*expand.output}
    assert packed.network.feeds[given].shape == (128, 256)


def test_a_fresh_input_is_written_just_before_to_memory_of_its_own():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[128,256] x) => (float[128,256] y) {y = Softmax(x)}'
    )

    graph = pack([PackedBrick(synthetic_network(model), copies=2, boundary=FRESH)]).network.model.graph

    written = {node.output[0] for node in graph.node if node.op_type == "Expand"}
    assert written == {"0.0/x", "0.1/x"} <= {value.name for value in graph.output}
