"""Static types: inference, folding, what the file says, and the oracle, in that order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import pytest
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.inference.shapes import infer_types
from dlbricks.bricks.layer import LayerState, TensorType
from dlbricks.errors import BrokenModel
from dlbricks.models.skeleton import Skeleton


def _parse(text: str, opset: int = 17, imports: str = "", ir: int = 8) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}{imports}]> {text}')


def test_every_value_has_a_type() -> None:
    model = _parse(
        "g (float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[a, b, c, d] y) { c = Conv(x, w) y = Relu(c) }"
    )

    inference = infer_types(model)

    assert inference.types["c"] == TensorType("float", (1, 4, 6, 6))
    assert inference.types["y"] == TensorType("float", (1, 4, 6, 6))
    assert inference.unknown == {}


def test_inference_wins_over_what_the_file_says() -> None:
    model = _parse("g (float[2, 3] x) => (float[9, 9] y) <float[7, 7] h> { h = Relu(x) y = Neg(h) }")

    types = infer_types(model).types

    assert types["h"].shape == (2, 3)
    assert types["y"].shape == (2, 3)


def test_what_the_file_says_helps_where_inference_does_not() -> None:
    model = _parse(
        "g (float[2, 3] x) => (float[] y) <float[5, 7] h> { h = custom.Mix(x) y = Relu(h) }", imports=', "custom" : 1'
    )

    graph = build_graph(Skeleton(model))

    assert [layer.state for layer in graph.layers] == [LayerState.LIVE, LayerState.LIVE]
    assert graph.types["y"].shape == (5, 7)


@pytest.mark.parametrize(("attributes", "bins"), [("", 9), ("<onesided = 1>", 9), ("<onesided = 0>", 16)])
def test_a_spectrum_that_does_not_say_so_is_one_sided(attributes: str, bins: int) -> None:
    """As the specification and runtimes have it; ONNX's own inference takes it as two-sided."""
    model = _parse(
        "g (float[1, 64, 1] x, float[16] w) => (float[a, b, c, d] y) <int64 hop = {8}>"
        f" {{ s = STFT{attributes}(x, hop, w) y = Neg(s) }}"
    )

    assert infer_types(model).types["y"].shape == (1, 7, bins, 2)


def test_folding_helps_inference() -> None:
    """Data propagation gives up on these operators; the folded values, put back in, do not."""
    model = _parse(
        """g (float[2, 3, 4] x) => (float[] y) <int64[2] ones = {1, 1}, int64 axis = {0}> {
            s = Shape(x)
            p = ReduceProd<axes = [0], keepdims = 1>(s)
            q = Tile(p, rep)
            m = Where(yes, q, one)
            y = Reshape(x, m)
        }"""
    )
    model.graph.initializer.extend(
        [
            onnx.helper.make_tensor("rep", onnx.TensorProto.INT64, [1], [1]),
            onnx.helper.make_tensor("yes", onnx.TensorProto.BOOL, [1], [True]),
            onnx.helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1]),
        ]
    )

    inference = infer_types(model)

    assert inference.types["y"].shape == (24,)


def test_the_oracle_is_asked_once_for_what_is_missing() -> None:
    model = _parse("g (float[2, 3] x) => (float[] y) { n = NonZero(x) t = Transpose(n) y = GatherND(x, t) }")
    asked: list[Sequence[str]] = []

    def oracle(_: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        asked.append(tuple(names))
        return {
            "n": TensorType("int64", (2, 6)),
            "t": TensorType("int64", (6, 2)),
            "y": TensorType("float", (6,)),
            "x": TensorType("float", (99,)),  # not asked for, not believed
        }

    graph = build_graph(Skeleton(model), oracle=oracle)

    assert asked == [("n", "t", "y")]
    assert [layer.state for layer in graph.layers] == [LayerState.LIVE] * 3
    assert graph.types["x"].shape == (2, 3)


def test_an_oracle_s_shapes_are_consistent_whatever_the_file_states() -> None:
    """The file states shapes for other values of ``n`` than those that the oracle executes with."""
    model = _parse(
        "g (int64 n) => (int64[5] y) <int64 zero = {0}, int64 one = {1}> { r = Range(zero, n, one) y = Neg(r) }"
    )
    known = TensorType("int64", (3,))

    assert infer_types(model).types["y"] == TensorType("int64", (5,))
    found = infer_types(model, oracle=lambda _model, names: dict.fromkeys(names, known)).types
    assert (found["r"], found["y"]) == (known, known)
    assert infer_types(model, oracle=lambda _model, _names: {}).types["y"] == TensorType("int64", (5,))


def test_an_attribute_of_another_type_leaves_the_type_open() -> None:
    model = _parse("g (float[1, 3, 8, 8] x) => (y) <float[4, 3, 3, 3] w> { r = Relu(x) y = Conv(r, w) }")
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("pads", "text"))

    assert "y" not in infer_types(model).types


def test_what_the_oracle_does_not_know_is_skipped() -> None:
    model = _parse("g (float[2, 3] x) => (float[] y) { n = NonZero(x) y = Cast<to = 1>(n) z = Relu(x) }")

    graph = build_graph(Skeleton(model), oracle=lambda _model, _names: {})

    assert [layer.state.value for layer in graph.layers] == ["skipped", "skipped", "live"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n = NonZero(x) y = Neg(n)", "output 'n' has no static type (int64[2, ?])"),
        ("n = SequenceConstruct(x) y = SequenceAt(n, zero)", "output 'n' is a sequence: bricks read and write tensors"),
        ("n = Optional(x) y = OptionalGetElement(n)", "output 'n' is an optional: bricks read and write tensors"),
        ("n = Mystery(x) y = Relu(n)", "unknown operator ai.onnx:Mystery: 'n'"),
        ("n = custom.Mystery(x) y = Relu(n)", "unknown operator custom:Mystery: 'n'"),
        ("n = Reshape(x, free) y = Relu(n)", "input 'free' has no static type (int64[k])"),
    ],
)
def test_unknown_types_are_reported_with_their_reason(text: str, reason: str) -> None:
    model = _parse(
        f"g (float[2, 3] x, int64[k] free) => (float[] y) <int64 zero = {{0}}> {{ {text} }}", imports=', "custom" : 1'
    )

    layer = build_graph(Skeleton(model)).layers[0]

    assert layer.state is LayerState.SKIPPED
    assert reason in layer.reason
    assert layer.key == ""


def test_the_model_is_not_changed() -> None:
    model = _parse(
        "g (float[2, 3] x) => (float[9, 9] y) <float[7, 7] h> { s = Shape(x) h = Relu(x) y = Reshape(h, s) }"
    )
    before = model.SerializeToString()

    infer_types(model)

    assert model.SerializeToString() == before


def test_initializers_of_old_models_have_types() -> None:
    model = _parse(
        "g (float[2, 3] x) => (float[] y) <float[3, 4] k = {1,1,1,1,1,1,1,1,1,1,1,1}> { y = MatMul(x, k) }", ir=3
    )

    assert infer_types(model).types["y"].shape == (2, 4)


def test_a_model_that_inference_refuses_is_broken() -> None:
    model = _parse("g (float[2, 3] x) => (float[] y) { y = Relu(x) }")
    model.graph.node[0].domain = "never.imported"

    with pytest.raises(BrokenModel, match="shape inference refuses the model"):
        infer_types(model)


def test_the_oracle_is_not_asked_where_all_is_known() -> None:
    def oracle(_: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        pytest.fail(f"asked for {names}")

    infer_types(_parse("g (float[2, 3] x) => (float[] y) { y = Relu(x) }"), oracle=oracle)


def test_shape_arithmetic_of_every_block_of_a_deep_model_is_followed() -> None:
    """ONNX's inference does not follow a Reshape within shape arithmetic: each block waits for the one before it."""
    blocks = "".join(
        f"s{i} = Shape(x{i}) b{i} = Gather(s{i}, zero) t{i} = Reshape(b{i}, one) p{i} = Concat<axis = 0>(t{i}, rest) "
        f"x{i + 1} = Reshape(x{i}, p{i}) "
        for i in range(24)
    )
    model = _parse(
        f"g (float[2, 12] x0) => (float[] y) <int64 zero = {{0}}, int64[1] one = {{1}}, int64[2] rest = {{3, 4}}> "
        f"{{ {blocks} y = Relu(x24) }}"
    )

    def oracle(_: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        raise AssertionError(names)

    assert infer_types(model, oracle=oracle).types["y"] == TensorType("float", (2, 3, 4))
