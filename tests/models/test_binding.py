"""Every dynamic dimension gets a value: given, computed, or sensible; what was bound is recorded."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from dlbricks.errors import UnboundDimension, UsageError
from dlbricks.models import find_models, require_known
from dlbricks.models.binding import Binding, apply, plan
from dlbricks.models.dimensions import DimensionKind, expression, is_certain, value_of
from dlbricks.models.skeleton import Skeleton, mark_weight
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper

Dims = list[int | str | None]


def model(*inputs: tuple[str, Dims] | tuple[str, Dims, int], outputs: dict[str, Dims] | None = None) -> ModelProto:
    values = [
        helper.make_tensor_value_info(name, kind[0] if kind else TensorProto.FLOAT, dims)
        for name, dims, *kind in inputs
    ]
    nodes = [helper.make_node("Identity", [value.name], [f"y_{value.name}"]) for value in values]
    made = [
        helper.make_tensor_value_info(f"y_{value.name}", value.type.tensor_type.elem_type, (outputs or {}).get(name))
        for value, (name, *_) in zip(values, inputs, strict=True)
    ]
    return helper.make_model(helper.make_graph(nodes, "g", values, made))


def shape(model: ModelProto, name: str) -> Dims:
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    value = next(value for value in values if value.name == name)
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in value.type.tensor_type.shape.dim
    ]


def bind(unbound: ModelProto, **options: object) -> tuple[ModelProto, Binding]:
    binding = plan(unbound, **options)  # type: ignore[arg-type]
    bound = ModelProto()
    bound.CopyFrom(unbound)
    apply(bound, binding)
    onnx.checker.check_model(bound) if all(o.type.tensor_type.HasField("shape") for o in bound.graph.output) else None
    return bound, binding


INT = TensorProto.INT64


@pytest.mark.parametrize(
    ("name", "dims", "kind", "expected"),
    [
        ("pixel_values", ["batch_size", "num_channels", "height", "width"], TensorProto.FLOAT, [1, 3, 224, 224]),
        ("x", [None, 3, None, None], TensorProto.FLOAT, [1, 3, 224, 224]),
        ("x", [None, None, None, None], TensorProto.FLOAT, [1, 3, 224, 224]),
        ("x", ["unk__617", None, None, 3], TensorProto.FLOAT, [1, 224, 224, 3]),
        ("x", ["N", "C", "H", "W"], TensorProto.FLOAT, [1, 3, 224, 224]),
        ("input_ids", ["batch", "sequence"], INT, [1, 128]),
        ("input_ids", ["input_ids_dynamic_axes_1", "input_ids_dynamic_axes_2"], INT, [1, 128]),
        ("input_ids", ["s0", "s1"], INT, [1, 128]),
        ("input_ids", [None, None], INT, [1, 128]),
        ("x", ["seq_len", "batch", 40], TensorProto.FLOAT, [128, 1, 40]),
        ("x", ["anything", 7], TensorProto.FLOAT, [1, 7]),
        ("input_values", ["batch_size", "sequence_length"], TensorProto.FLOAT, [1, 16000]),
        ("input_features", ["batch_size", "feature_size", 3000], TensorProto.FLOAT, [1, 80, 3000]),
        ("speech", ["batch_size", "feats_length", 560], TensorProto.FLOAT, [1, 128, 560]),
        ("speech", [None, None, 560], TensorProto.FLOAT, [1, 128, 560]),
        ("waveform", [None, 2, None], TensorProto.FLOAT, [1, 2, 16000]),
        ("x", ["batch", 3, "4*h", "4*w"], TensorProto.FLOAT, [1, 3, 224, 224]),
        ("x", ["batch", 3, "32*h + 1", "8*w"], TensorProto.FLOAT, [1, 3, 193, 224]),
        ("input_ids", ["batch", "2*n"], INT, [1, 128]),
        ("x", [-1, 3], TensorProto.FLOAT, [1, 3]),
        ("x", [], TensorProto.FLOAT, []),
    ],
)
def test_defaults(name: str, dims: Dims, kind: int, expected: list[int]) -> None:
    bound, _ = bind(model((name, dims, kind)))
    assert shape(bound, name) == expected


DECODER = (
    ("input_ids", ["batch_size", "sequence_length"], INT),
    ("attention_mask", ["batch_size", "past_sequence_length + sequence_length"], INT),
    ("total", ["batch_size", "total_sequence_length"], INT),
    ("past.0.key", ["batch_size", 12, "past_sequence_length", 64]),
    ("encoder_hidden_states", ["batch_size", "encoder_sequence_length", 512]),
    ("past.0.encoder.key", ["batch_size", 12, "past_encoder_sequence_length", 64]),
)


def test_a_decoder_with_names_of_an_exporter_has_sizes_that_fit() -> None:
    bound, _ = bind(
        model(
            ("attention_mask", ["s27", "s70"], INT),
            ("input_ids", ["s27", "s64"], INT),
            ("past_key_values.0.key", ["s27", 12, "s92", 64]),
            ("past_key_values.0.encoder.key", ["s27", 12, "s93", 64]),
        )
    )

    assert shape(bound, "input_ids") == [1, 1]
    assert shape(bound, "past_key_values.0.key") == [1, 12, 127, 64]
    assert shape(bound, "attention_mask") == [1, 128]
    assert shape(bound, "past_key_values.0.encoder.key") == [1, 12, 128, 64]


@pytest.mark.parametrize(
    ("label", "kind", "certain"),
    [
        ("batch_size", DimensionKind.BATCH, True),
        ("N", DimensionKind.BATCH, True),
        ("s27", DimensionKind.BATCH, True),
        ("x[0]", DimensionKind.BATCH, True),
        ("num_nodes", DimensionKind.BATCH, False),
        ("total_length", DimensionKind.TOTAL, True),
        ("height", DimensionKind.SIDE, False),
    ],
)
def test_defaults_that_somebody_has_to_be_told_of(label: str, kind: DimensionKind, certain: bool) -> None:
    assert is_certain(label, kind) is certain


def test_made_up_names_of_two_first_dimensions_may_count_different_things(tmp_path: Path) -> None:
    def assumed(*names: str) -> str:
        path = tmp_path / "model.onnx"
        path.write_bytes(model(*((f"x{place}", [name, 8]) for place, name in enumerate(names))).SerializeToString())
        return find_models([path])[0].assumed(certain=False)

    assert assumed("s27", "s27") == ""
    assert assumed("s27", "s92") == "s27=1, s92=1 assumed, since not given; set with --dim s27=N --dim s92=N"


@pytest.mark.parametrize(
    ("dims", "new", "past"),
    [
        ({}, 1, 127),
        ({"sequence_length": 16}, 16, 127),
        ({"past_sequence_length": 0}, 1, 0),
        ({"past_sequence_length": 31, "sequence_length": 4}, 4, 31),
    ],
)
def test_decoder_with_a_cache(dims: dict[str, int], new: int, past: int) -> None:
    bound, binding = bind(model(*DECODER), dims=dims)
    assert shape(bound, "input_ids") == [1, new]
    assert shape(bound, "attention_mask") == [1, past + new]
    assert shape(bound, "total") == [1, past + new]
    assert shape(bound, "past.0.key") == [1, 12, past, 64]
    assert shape(bound, "encoder_hidden_states") == [1, 128, 512]
    assert shape(bound, "past.0.encoder.key") == [1, 12, 128, 64]
    assert binding.overrides["past_sequence_length + sequence_length"] == past + new
    assert not binding.edited


def test_names_that_stand_in_arithmetic_only() -> None:
    unbound = model(("mask", ["batch", "past_sequence_length + 1"], INT), ("x", ["2*half", 3]))
    bound, binding = bind(unbound, dims={"past_sequence_length": 9, "half": 5})
    assert shape(bound, "mask") == [1, 10]
    assert shape(bound, "x") == [10, 3]
    assert binding.overrides == {"batch": 1, "past_sequence_length + 1": 10, "2*half": 10}
    assert binding.bound == {**binding.overrides, "past_sequence_length": 9, "half": 5}
    bound, binding = bind(unbound, dims={"past_sequence_length + 1": 3, "half": 5})
    assert shape(bound, "mask") == [1, 3]
    assert "past_sequence_length" not in binding.bound


def test_all_occurrences_get_the_value() -> None:
    outputs: dict[str, Dims] = {"a": ["batch", "seq"], "b": ["batch", "seq + 1"], "c": ["free", "seq - 500"]}
    unbound = model(("a", ["batch", "seq"]), ("b", ["batch", 4]), ("c", [2, 2]), outputs=outputs)
    unbound.graph.value_info.append(helper.make_tensor_value_info("v", TensorProto.FLOAT, ["seq", "seq * 2 // 3"]))
    bound, binding = bind(unbound, batch=8, dims={"seq": 32})
    assert shape(bound, "y_a") == [8, 32]
    assert shape(bound, "y_b") == [8, 33]
    assert shape(bound, "y_c") == ["free", "seq - 500"]  # negative: no dimension
    assert shape(bound, "v") == [32, 21]
    assert binding == Binding({"batch": 8, "seq": 32}, {"batch": 8, "seq": 32}, {"a": (8, 32), "b": (8, 4)})


def test_unnamed_dimensions() -> None:
    unbound = model(("x", [None, 3, None]), ("y", ["batch", 2]))
    with pytest.raises(UnboundDimension, match=r"'x\[2\]' \(axis 2 of input 'x'\).*--dim 'x\[2\]=N'"):
        plan(unbound)
    bound, binding = bind(unbound, batch=4, dims={"x[2]": 5})
    assert shape(bound, "x") == [4, 3, 5]
    assert binding.bound == {"x[0]": 4, "x[2]": 5, "batch": 4}
    assert binding.overrides == {"batch": 4}
    assert binding.edited


def test_unbound_dimensions_are_all_named() -> None:
    unbound = model(("boxes", ["batch", "num_boxes", "mystery"]), ("more", ["batch", "num_boxes"]))
    with pytest.raises(UnboundDimension, match=r"'num_boxes'.*and 1 more.*--dim 'num_boxes=N' --dim 'mystery=N'"):
        plan(unbound)


def test_sequences_are_left_alone() -> None:
    unbound = model(("x", [1]))
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n"])
    unbound.graph.input.append(sequence)
    bound, binding = bind(unbound)
    assert bound.graph.input[1] == sequence
    assert binding == Binding()


def test_contradiction() -> None:
    with pytest.raises(UsageError, match="--batch 2 and --dim batch=3 contradict"):
        plan(model(("x", ["batch"])), batch=2, dims={"batch": 3})


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({"h": 10, "2*h": 30}, r"'2\*h=30' cannot be: h=10 makes 20"),
        ({"4*h": 322}, r"'4\*h=322' cannot be: h=80 makes 320"),
        ({"4*h": 3}, "no h fits"),
        ({"2*h": 30, "4*h": 40}, "h=15 makes 60"),
        ({"past": 7, "new": 1, "past + new": 9}, "past=7 and new=1 makes 8"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(dims: dict[str, int], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        plan(model(("x", ["h", "2*h", "4*h"]), ("y", ["past", "new", "past + new"])), dims=dims)


def test_the_size_of_arithmetic_decides_its_name() -> None:
    binding = plan(model(("x", ["batch", "h", "2*h"])), dims={"2*h": 30})

    assert binding.bound == {"batch": 1, "h": 15, "2*h": 30}


def test_require_known() -> None:
    one = Skeleton(model(("x", [1])), bound={"seq": 1}, path=Path("a"))
    two = Skeleton(model(("x", [1])), bound={"x[1]": 1})
    require_known({"seq": 1, "x[1]": 1}, [one, two])
    require_known({}, [])
    with pytest.raises(UsageError, match=r"--dim sek: no model has such a dimension; there are: seq, x\[1\]"):
        require_known({"seq": 1, "sek": 1}, [one, two])
    with pytest.raises(UsageError, match="static"):
        require_known({"seq": 1}, [])


# ---------------------------------------------------------------------- arithmetic

NAMES = st.sampled_from(["a", "past_length", "b_2"])
TERMS = st.recursive(
    NAMES | st.integers(0, 99).map(str),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "//"]), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(TERMS, st.dictionaries(NAMES, st.integers(0, 50)))
def test_arithmetic_is_pythons(text: str, bound: dict[str, int]) -> None:
    parsed = expression(text)
    if parsed is None:  # a lone name or number, or no name in it
        assert not any(sign in text for sign in "+-*/") or not any(letter.isalpha() for letter in text)
        return
    try:
        expected = eval(text, {"__builtins__": {}}, dict(bound))
    except (NameError, ZeroDivisionError):
        expected = -1
    assert value_of(parsed, bound) == (expected if expected >= 0 else None)


@pytest.mark.parametrize(
    "text",
    ["", "a", "1", "a b", "a.b + 1", "f(a)", "a ** 9", "a + 1.5", "a if b else c", "a[0]", "1 + 2", "-a", "a +" * 200,
     "__import__('os') + 1", "a < b", "1if a", "(" * 190, "a + 99999999999", "\n+a", "ä + 1",
     "floor(" * 5 + "DynamicDimension.2/2" + ")" * 5],  # as Paddle2ONNX writes it: backtracking would not end
)  # fmt: skip
def test_not_arithmetic(text: str) -> None:
    assert expression(text) is None


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from([None, "batch", "seq", "past_seq", "past_seq + seq", 1, 2, 7]), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(["seq", "past_seq", "i0[1]", "i1[2]"]), st.integers(1, 9)),
)
def test_binding_is_consistent(shapes: list[Dims], dims: dict[str, int]) -> None:
    unbound = model(*((f"i{index}", given) for index, given in enumerate(shapes)))
    try:
        bound, binding = bind(unbound, dims=dims)
    except UnboundDimension:
        assert any(None in given for given in shapes)
        return
    seen: dict[str, object] = {}
    for index, given_shape in enumerate(shapes):
        for axis, (was, now) in enumerate(zip(given_shape, shape(bound, f"i{index}"), strict=True)):
            assert isinstance(now, int)
            if isinstance(was, int):
                assert now == was
            else:
                label = was or f"i{index}[{axis}]"
                assert seen.setdefault(label, now) == now == binding.bound[label]
                assert now == dims.get(label, now)
    if "past_seq + seq" in seen:
        assert seen["past_seq + seq"] == binding.bound["past_seq"] + binding.bound["seq"]


def test_weights_are_no_inputs() -> None:
    unbound = model(("x", ["batch", 3]))
    unbound.graph.input.append(mark_weight(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 5000])))
    bound, binding = bind(unbound, batch=2)
    assert binding.shapes == {"x": (2, 3)}
    assert shape(bound, "w") == [1, 5000]
