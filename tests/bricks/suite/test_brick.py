"""Bricks as files: deterministic, nameless, and giving back their own key."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from dlbricks.bricks.cutting.sequences import make_sequence, sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.layer import Cost
from dlbricks.bricks.suite.brick import Carried, build_brick, carried_by, load_brick, signature_in, signature_of
from dlbricks.errors import BrokenModel, DlbricksError, InvalidSequence, TamperedBrick
from dlbricks.models import find_models
from dlbricks.models.skeleton import Skeleton, is_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

Parse = Callable[..., ModelGraph]
DrawModel = Callable[[st.DataObject], onnx.ModelProto]

CHAIN = (
    "secret (float[1,3,8,8] secret_in, float[4,3,3,3] w_secret) => (float[1,4,6,6] secret_out)"
    "{ [secret_node] t = Conv(secret_in, w_secret) secret_out = Relu(t) }"
)


@given(data=st.data(), granularity=st.integers(1, 5), connected=st.booleans())
def test_a_brick_gives_back_its_key_and_its_bytes(
    draw_model: DrawModel, data: st.DataObject, granularity: int, connected: bool
) -> None:
    graph = build_graph(Skeleton(draw_model(data)))
    for sequence in sequences(graph, granularity, connected=connected):
        brick = build_brick(graph, sequence)
        assert brick.key == sequence.key
        assert load_brick(brick.model, expected=sequence.key) == brick
        again = build_graph(Skeleton(onnx.ModelProto.FromString(brick.model)))
        assert build_brick(again, make_sequence(again, again.live)) == brick


def test_what_a_brick_holds(parse_graph: Parse) -> None:
    graph = parse_graph(CHAIN)
    brick = build_brick(graph, make_sequence(graph, (0, 1)))
    model = onnx.ModelProto.FromString(brick.model)
    onnx.checker.check_model(model, full_check=True)
    assert b"secret" not in brick.model
    assert [(value.name, is_weight(value)) for value in model.graph.input] == [("x0", False), ("w0", True)]
    assert [value.name for value in model.graph.output] == ["v1"]
    assert [value.name for value in model.graph.value_info] == ["v0"]
    assert (model.opset_import[0].version, model.ir_version) == (21, 10)
    assert brick.operators == ("Conv", "Relu")
    assert (brick.layers, brick.weight_bytes, brick.input_bytes, brick.output_bytes) == (2, 432, 768, 576)
    assert brick.cost is not None
    assert brick.cost.macs == 4 * 36 * 27
    assert brick.cost == sum((layer.cost or Cost() for layer in graph.layers), Cost())


def test_opsets_do_not_matter_where_the_meaning_is_the_same(parse_graph: Parse) -> None:
    bricks = {
        build_brick(graph, make_sequence(graph, graph.live))
        for opset in (9, 11, 13, 17, 21)
        for graph in [parse_graph(CHAIN, opset)]
    }
    assert len(bricks) == 1


def test_small_constants_travel_with_the_brick(parse_graph: Parse) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) <float[1] c = {2}> { t = Pow(x, c) y = Mul(t, c) }")
    model = onnx.ModelProto.FromString(build_brick(graph, make_sequence(graph, (0, 1))).model)
    assert [tensor.name for tensor in model.graph.initializer] == ["c0"]
    assert [list(node.input) for node in model.graph.node] == [["x0", "c0"], ["v0", "c0"]]


def test_only_live_layers_can_be_in_a_brick(parse_graph: Parse) -> None:
    graph = parse_graph("a (float[2,2] x, float[4] z) => (float[2,2] y) { s = Shape(x) y = Reshape(z, s) }")
    assert graph.live == (1,)
    sequence = make_sequence(graph, (1,))
    with pytest.raises(InvalidSequence, match="folded"):
        build_brick(graph, type(sequence)((0,), "", (), (), ()))


def test_another_network_under_the_name_is_tampered(parse_graph: Parse) -> None:
    graph = parse_graph(CHAIN)
    one, other = (build_brick(graph, make_sequence(graph, (index,))) for index in (0, 1))
    with pytest.raises(TamperedBrick, match=one.key):
        load_brick(other.model, expected=one.key)


@given(st.binary(max_size=200))
def test_garbage_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(BrokenModel) as caught:
        load_brick(data)
    assert "\n" not in str(caught.value)


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_file_is_never_taken_for_its_brick(parse_graph: Parse, data: st.DataObject) -> None:
    graph = parse_graph(CHAIN)
    brick = build_brick(graph, make_sequence(graph, (0, 1)))
    position = data.draw(st.integers(0, len(brick.model) - 1))
    damaged = bytearray(brick.model)
    damaged[position] ^= data.draw(st.integers(1, 255))
    if data.draw(st.booleans()):
        damaged = damaged[:position]  # cut off, in place of changed
    try:
        loaded = load_brick(bytes(damaged), expected=brick.key)
    except DlbricksError:
        return
    # What is left are changes without a meaning: another name for a value, metadata.
    assert (loaded.key, loaded.operators, loaded.cost) == (brick.key, brick.operators, brick.cost)


def test_whatever_breaks_while_a_brick_is_read_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise NotImplementedError("a new kind")

    monkeypatch.setattr("dlbricks.bricks.suite.brick._is_sound", broken)

    with pytest.raises(BrokenModel, match="brick k could not be read: NotImplementedError: a new kind"):
        load_brick(b"", expected="k")


def test_a_constant_of_another_size_or_in_another_file_is_refused(parse_graph: Parse) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) <float[1] c = {2}> { y = Pow(x, c) }")
    model = onnx.ModelProto.FromString(build_brick(graph, make_sequence(graph, (0,))).model)
    tensor = model.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[1:]
    with pytest.raises(BrokenModel, match="do not fill their shape"):
        load_brick(model.SerializeToString())
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(BrokenModel, match="another file"):
        load_brick(model.SerializeToString())


@pytest.mark.parametrize("opset", [11, 19])
def test_a_pool_in_a_body_keeps_its_key(opset: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,1,4,4] x) => (float[2,1,4,2] y) {{
        y = Scan<num_scan_inputs=1, body = b (float[1,4,4] i) => (float[1,4,2] o) {{
            o = AveragePool<kernel_shape=[2], strides=[2]>(i) }}>(x) }}"""
    graph = build_graph(Skeleton(onnx.parser.parse_model(text)))

    brick = build_brick(graph, make_sequence(graph, (0,)))

    assert load_brick(brick.model, expected=brick.key).key == brick.key


# The signature of a sequence in its model is that of its brick -----------------------------------------------------


@pytest.mark.parametrize("model", ["shufflenet", "bert_base"])
@pytest.mark.parametrize("granularity", [1, 3])
def test_a_sequence_has_the_signature_of_its_brick(model: str, granularity: int) -> None:
    (source,) = find_models([model])
    graph = build_graph(source.skeleton())
    parts = sequences(graph, granularity)[:60]

    for part in parts:
        assert signature_in(graph, part) == signature_of(build_brick(graph, part))


def test_kernels_and_strides_are_reported_of_convolutions_and_poolings() -> None:
    (source,) = find_models(["shufflenet"])
    graph = build_graph(source.skeleton())

    first, *_, pool = [signature_in(graph, part) for part in sequences(graph, 1)[:4]]

    assert (first.inputs, first.outputs) == ("float[1,3,224,224]", "float[1,24,112,112]")
    assert first.weights.split()[0] == "float[24,3,3,3]"
    assert (first.kernel, first.strides) == (pool.kernel, pool.strides) == ("3x3", "2x2")


def test_what_a_brick_carries_of_its_model_is_counted(parse_graph: Parse) -> None:
    graph = parse_graph(
        """g (float[1, 4] x, float[4, 2] t) => (float[a, b] y) <float[4] s = {1, 2, 3, 4}, int64[2] shape = {4, 1}> {
            m = Mul(x, s)
            r = Reshape(m, shape)
            y = Concat<axis = 1>(r, t)
        }"""
    )

    carried = carried_by(build_brick(graph, part) for part in sequences(graph, 1))

    assert carried == Carried(4, ())


def test_texts_and_numbers_of_other_domains_are_told_and_names_of_tensors_do_not_leave() -> None:
    value = helper.make_tensor("a secret name", onnx.TensorProto.FLOAT, [1], [0.5])
    node = helper.make_node(
        "Own", ["x"], ["y"], domain="own", kind="a text", value=value, texts=["b", "c"], table=[0.5, 2.0]
    )
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    graph = build_graph(Skeleton(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)))

    (part,) = sequences(graph, 1)
    brick = build_brick(graph, part)

    assert carried_by([brick]) == Carried(3, ("a text", "b", "c", "own"))
    assert b"secret" not in brick.model
    assert load_brick(brick.model, expected=part.key).key == part.key


TFIDF = (
    '(string[3] x) => (float[2] y) {y = TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1, '
    'max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1], pool_strings = ["se", "cret"], '
    "weights = [0.5, 0.25]>(x)}"
)


@pytest.mark.parametrize(
    ("graph", "carried"),
    [
        (
            '(string[2] x) => (string[2] y) <string[2] c = {"se", "cret"}> {y = StringConcat(x, c)}',
            Carried(0, ("cret", "se")),
        ),
        (TFIDF, Carried(2, ("TF", "cret", "se"))),
    ],
)
def test_constant_texts_and_lists_of_numbers_are_told(parse_graph: Parse, graph: str, carried: Carried) -> None:
    parsed = parse_graph(f"g {graph}")

    assert carried_by([build_brick(parsed, sequences(parsed, 1)[0])]) == carried


def test_small_tables_that_are_looked_up_are_weights_and_do_not_leave(parse_graph: Parse) -> None:
    graph = parse_graph(
        """g (int64[2] i) => (float[2, 4] y) <float[3, 4] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            e = Gather(table, i)
            y = Relu(e)
        }"""
    )

    brick = build_brick(graph, sequences(graph, 1)[0])

    assert carried_by([brick]) == Carried(0, ())
    assert not onnx.ModelProto.FromString(brick.model).graph.initializer
