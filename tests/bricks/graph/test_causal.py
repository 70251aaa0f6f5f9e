"""Causal attention: whose scores are masked, how a brick of them is known, and what it reads."""

import dataclasses

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.suite.brick import Brick, build_brick, load_brick
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import find_models
from dlbricks.models.skeleton import hides_future, is_causal
from onnx import numpy_helper

SIZE = 40
"""Of its square no skeleton keeps the values."""

COMPARED = """
    shape = Shape(x) count = Gather(shape, two) range = Range(zero, count, one)
    rows = Unsqueeze(range, one_axis) columns = Unsqueeze(range, zero_axis)
    earlier = LessOrEqual(columns, rows) seen = Cast<to=9>(mask) both = And(earlier, seen)
    added = Where(both, nothing, low) scores = Add(x, added)
"""
STORED = "seen = Cast<to=9>(mask) both = And(stored, seen) scores = Where(both, x, low)"
MULTIPLIED = """
    triangle = Trilu<upper=0>(ones) later = Sub(unit, triangle) added = Mul(later, low) scores = Add(x, added)
"""
FILLED = "full = Expand(low, square) added = Trilu<upper=1>(full, one) sum = Add(x, added) scores = Identity(sum)"
CONSTANT = "scores = Add(x, hiding)"


def constants(size: int) -> dict[str, np.ndarray]:
    hidden = np.triu(np.full((1, 1, size, size), np.finfo(np.float32).min), 1)
    return {
        "zero": np.array(0), "one": np.array(1), "two": np.array(2), "zero_axis": np.array([0]),
        "one_axis": np.array([1]), "square": np.array([size, size]), "ones": np.ones((size, size), np.float32),
        "unit": np.array(1, np.float32), "nothing": np.array(0, np.float32), "low": np.array(-1e9, np.float32),
        "stored": np.tri(size, dtype=bool), "every": np.ones((size, size), bool), "hiding": hidden.astype(np.float32),
        "bias": np.tri(size, dtype=np.float32)[None, None],
    }  # fmt: skip


def graph_of(body: str, path, *, size: int = SIZE, heads: int = 2, axis: int = -1) -> ModelGraph:
    shape = f"[1,{heads},{size},{size}]"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float{shape} x, int64[{size},{size}] mask) => (float{shape} y)'
        f"{{ {body} p = Softmax<axis={axis}>(scores) y = Relu(p) }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in constants(size).items() if name in read
    )
    onnx.save(model, path)
    (source,) = find_models([path])
    return build_graph(source.skeleton())


def softmax(graph: ModelGraph) -> Brick:
    (part,) = (part for part in sequences(graph, 1) if graph.layers[part.layers[0]].op_type == "Softmax")
    return build_brick(graph, part)


@pytest.mark.parametrize("size", [8, SIZE])
@pytest.mark.parametrize("body", [COMPARED, STORED, MULTIPLIED, FILLED, CONSTANT])
def test_scores_behind_a_causal_mask_are_found_however_it_is_spelt(tmp_path, body, size):
    assert graph_of(body, tmp_path / "m.onnx", size=size).causal == {"scores"}


@pytest.mark.parametrize(
    "body",
    [
        "scores = Relu(x)",
        "seen = Cast<to=9>(mask) both = And(every, seen) scores = Where(both, x, low)",
        "seen = Cast<to=9>(mask) scores = Where(seen, x, low)",
        "scores = Add(x, bias)",
        "high = Less(x, nothing) scores = Where(high, x, low)",
        "scores = Where(stored, x, nothing)",
        COMPARED.replace("LessOrEqual(columns, rows)", "LessOrEqual(near, one)").replace(
            "earlier =", "apart = Sub(columns, rows) near = Abs(apart) earlier ="
        ),
        COMPARED.replace("LessOrEqual(columns, rows)", "Less(columns, later)").replace(
            "earlier =", "later = Add(rows, two) earlier ="
        ),
        "masked = Add(x, hiding) scores = ReduceSum<keepdims=1>(masked, one_axis)",
    ],
)
def test_other_scores_are_not(tmp_path, body):
    assert graph_of(body, tmp_path / "m.onnx", heads=1).causal == frozenset()


def test_a_softmax_over_another_axis_reads_no_masked_scores(tmp_path):
    assert graph_of(CONSTANT, tmp_path / "m.onnx", axis=2).causal == frozenset()


def test_a_brick_of_masked_scores_is_another_brick_and_gives_itself_back(tmp_path):
    graph = graph_of(COMPARED, tmp_path / "m.onnx")
    masked, plain = softmax(graph), softmax(dataclasses.replace(graph, causal=frozenset()))

    assert masked.key != plain.key
    assert load_brick(masked.model, expected=masked.key) == masked
    assert load_brick(plain.model, expected=plain.key) == plain
    marks = [
        len(value.metadata_props)
        for brick in (masked, plain)
        for value in onnx.ModelProto.FromString(brick.model).graph.input
    ]
    assert marks == [1, 0]


def test_a_brick_that_makes_its_own_mask_reads_scores_as_they_come(tmp_path):
    graph = graph_of(COMPARED, tmp_path / "m.onnx")
    (whole,) = sequences(graph, 99)
    brick = build_brick(graph, whole)

    assert load_brick(brick.model, expected=whole.key).key == brick.key
    assert not any(map(is_causal, onnx.ModelProto.FromString(brick.model).graph.input))


def test_a_brick_reads_scores_of_which_those_still_to_come_are_hidden(tmp_path):
    graph = graph_of(STORED, tmp_path / "m.onnx")
    masked, plain = (
        synthetic_network(onnx.ModelProto.FromString(softmax(one).model))
        for one in (graph, dataclasses.replace(graph, causal=frozenset()))
    )

    (scores,), (others,) = masked.feeds.values(), plain.feeds.values()
    seen = np.broadcast_to(np.tri(SIZE, dtype=bool), scores.shape)
    assert hides_future(scores)
    assert scores[~seen].max() == np.finfo(np.float32).min
    np.testing.assert_array_equal(scores[seen], others[seen])


def test_a_mark_on_what_no_softmax_reads_changes_nothing(tmp_path):
    """Nothing in a brick's file may change what is measured and not its key."""
    graph = graph_of(CONSTANT, tmp_path / "m.onnx")
    relu = build_brick(graph, sequences(graph, 1)[-1])
    model = onnx.ModelProto.FromString(relu.model)
    model.graph.input[0].metadata_props.add(key="values", value="causal")

    assert load_brick(model.SerializeToString(), expected=relu.key).key == relu.key
    (values,) = synthetic_network(model).feeds.values()
    (plain,) = synthetic_network(onnx.ModelProto.FromString(relu.model)).feeds.values()
    np.testing.assert_array_equal(values, plain)


@pytest.mark.parametrize(
    ("values", "hides"),
    [
        (np.tri(3, dtype=bool), True),
        (np.tri(3, 5, 2, dtype=bool), True),
        (np.tri(3, 5, dtype=bool), False),
        (np.tri(1, 4, dtype=bool), False),
        (np.tri(5, 3, dtype=bool), False),
        (np.ones((3, 3), bool), False),
        (np.triu(np.full((2, 3, 3), -np.inf), 1), True),
        (np.triu(np.full((3, 3), -100.0), 1), False),
        (np.full((3, 3), -1e9), False),
        (np.tri(3, dtype=np.int64), False),
        (np.array(-1e9), False),
    ],
)
def test_what_hides_what_is_still_to_come(values, hides):
    assert hides_future(values) is hides
