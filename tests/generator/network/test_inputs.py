"""Seeded inputs: equal for equal seeds, legal, free of denormals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from dlbricks.generator.network.inputs import make_inputs

FLOATS = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8e5m2": ml_dtypes.float8_e5m2,
}


def inputs(skeleton_of, graph, types, **options):
    return make_inputs(skeleton_of(graph), types, **options)[0]


def identity(dtype: str, size: int) -> str:
    return f"({dtype}[{size}] x0) => ({dtype}[{size}] v0) {{v0 = Identity(x0)}}"


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_finite_and_no_denormals(skeleton_of, dtype):
    array = inputs(skeleton_of, identity(dtype, 100_000), [("x0", dtype, (100_000,))])["x0"]

    smallest = float(ml_dtypes.finfo(FLOATS[dtype]).smallest_normal)
    values = np.abs(array.astype(np.float64))
    assert array.dtype == FLOATS[dtype]
    assert np.isfinite(values).all()
    assert values.min() >= smallest
    assert 0.9 < array.astype(np.float64).std() < 1.1


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int32", "int64", "uint32", "uint64"]
)
def test_narrow_integers_use_their_whole_range_and_wide_ones_are_small_and_positive(skeleton_of, dtype):
    array = inputs(skeleton_of, identity(dtype, 400_000), [("x0", dtype, (400_000,))])["x0"].astype(np.int64)

    bits = int(dtype.lstrip("uint"))
    low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if bits >= 32:
        low, high = 1, 7
    assert low <= array.min() <= low + (high - low) // 100
    assert high - (high - low) // 100 <= array.max() <= high


def test_equal_seeds_make_equal_inputs_and_others_copies_and_inputs_differ(skeleton_of):
    graph = "(float[9] x0, float[9] x1) => (float[9] v0) {v0 = Add(x0, x1)}"
    types = [("x0", "float", (9,)), ("x1", "float", (9,))]

    made, again, other = (
        [array.tobytes() for arrays in make_inputs(skeleton_of(graph), types, copies=3, seed=seed) for array in
         arrays.values()]
        for seed in (5, 5, 6)
    )  # fmt: skip

    assert made == again
    assert len({*made, *other}) == 12


@pytest.mark.parametrize(
    ("graph", "shape", "values"),
    [
        ("(int64[5000] x0, float[37,4] w0) => (float[5000,4] v0) {v0 = Gather(w0, x0)}", (5000,), range(37)),
        (
            ("(int64[500] x0, float[37,4] w0, float[5,4] w1) => (float[500,4] v2)"  # the smallest of two tables counts
            "{v0 = Gather(w0, x0) v1 = Gather(w1, x0) v2 = Add(v0, v1)}"), (500,), range(5),
        ),
        (
            ("(int64[1,6] x0, float[1,6] w1) => (float[1,6] v3) <float c0 = {1.0}, float c1 = {-3e38}>"
            "{v0 = Cast<to=1>(x0) v1 = Sub(c0, v0) v2 = Mul(v1, c1) v3 = Add(v2, w1)}"), (1, 6), [1],
        ),
        (
            ("(int64[1,6] x0, float[6,4] w0) => (float[1,6,4] v2) <int64 c0 = {1}>"
            "{v0 = CumSum(x0, c0) v1 = Sub(v0, c0) v2 = Gather(w0, v1)}"), (1, 6), [1],
        ),
    ],
    ids=["whole table", "smaller table", "mask that masks nothing", "positions from a mask"],
)  # fmt: skip
def test_indices_reach_the_whole_table_and_not_beyond(skeleton_of, graph, shape, values):
    assert set(inputs(skeleton_of, graph, [("x0", "int64", shape)])["x0"].ravel().tolist()) == {*values}


def test_conditions_are_mixed(skeleton_of):
    graph = "(bool[100] x0, float[100] x1, float[100] x2) => (float[100] v0) {v0 = Where(x0, x1, x2)}"

    array = inputs(skeleton_of, graph, [("x0", "bool", (100,))])["x0"]

    assert 20 < array.sum() < 80


@pytest.mark.parametrize(
    ("graph", "dtype", "shape"),
    [
        ("(bool[8,50] x0) => (int64[2,31] v0) {v0 = NonZero(x0)}", "bool", (8, 50)),
        ("(float[8,50] x0) => (int64[2,31] v0) {v0 = NonZero(x0)}", "float", (8, 50)),
        ("(int64[8,50] x0) => (int64[2,31] v1) {v0 = Cast<to=9>(x0) v1 = NonZero(v0)}", "int64", (8, 50)),
        ("(bool[400] x0, float[400,3] w0) => (float[31,3] v0) {v0 = Compress<axis=0>(w0, x0)}", "bool", (400,)),
        ("(bool[1200] x0, float[400,3] w0) => (float[31] v0) {v0 = Compress(w0, x0)}", "bool", (1200,)),
    ],
)
def test_as_many_elements_are_not_zero_as_are_found(skeleton_of, graph, dtype, shape):
    array = inputs(skeleton_of, graph, [("x0", dtype, shape)])["x0"]

    assert np.count_nonzero(array) == 31
    assert np.flatnonzero(array).max() > array.size // 2  # at random places


def test_selections_keep_as_much_as_they_are_declared_to_find(skeleton_of):
    unique = "(int64[900] x0) => (int64[20] v0) {v0 = Unique(x0)}"
    boxes = "(float[2,99,4] x0, float[2,5,99] x1, int64 x2) => (int64[64,3] v0) {v0 = NonMaxSuppression(x0, x1, x2)}"

    assert len(np.unique(inputs(skeleton_of, unique, [("x0", "int64", (900,))])["x0"])) == 20
    assert inputs(skeleton_of, boxes, [("x2", "int64", ())])["x2"] == 7


def test_a_denominator_behind_an_addition_is_positive(skeleton_of):
    graph = "(float[900] x0, float[900] x1) => (float[900] v1) <float c0 = {0.001}> {v0 = Add(x0, c0) v1 = Div(x1, v0)}"

    made = inputs(skeleton_of, graph, [("x0", "float", (900,)), ("x1", "float", (900,))])

    assert made["x0"].min() >= 0.5
    assert made["x1"].min() < 0


def test_what_a_subgraph_reads_counts(skeleton_of):
    graph = (
        "(bool x0, int64[300] x1, float[3,2] w0) => (float[300,2] v0)"
        "{v0 = If<then_branch = t () => (float[300,2] a) {a = Gather(w0, x1)},"
        " else_branch = e () => (float[300,2] b) {b = Gather(w0, x1)}>(x0)}"
    )

    made = inputs(skeleton_of, graph, [("x0", "bool", ()), ("x1", "int64", (300,))])

    assert set(made["x1"].tolist()) == {0, 1, 2}
    assert made["x0"].item() is True


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (70_000, 3)])
def test_any_shape_is_filled(skeleton_of, shape):
    kind = f"float[{','.join(map(str, shape))}]" if shape else "float"
    graph = f"({kind} x0) => ({kind} v0) {{v0 = Neg(x0)}}"

    array = inputs(skeleton_of, graph, [("x0", "float", shape)])["x0"]

    assert array.shape == shape
    assert array.flags.c_contiguous


def test_a_number_that_is_compared_with_a_constant_is_that_constant(skeleton_of):
    graph = """(int64 rate, int64[3] mask) => (bool v0, bool[3] v1)
        <int64 limit = {16000}, int64 zero = {0}> {v0 = Equal(rate, limit) v1 = Equal(zero, mask)}"""

    found = inputs(skeleton_of, graph, [("rate", "int64", ()), ("mask", "int64", (3,))])

    assert found["rate"].tolist() == 16000
    assert found["mask"].tolist() != [0, 0, 0]  # a mask masks nothing


def test_inputs_lead_to_the_shapes_that_outputs_are_declared_to_have(skeleton_of):
    """What only an input decides is found by no inference, but by the model's outputs."""
    window = "(int32 x0) => (float[10] v0) {a = Cast<to = 1>(x0) b = Range(z, a, o) c = Mul(b, a) v0 = Cos(c)}"
    window = window.replace("=> (float[10] v0)", "=> (float[10] v0) <float z = {0}, float o = {1}>")
    reduced = (
        "(float[2,0,4] x0, int64[1] x1) => (float[2,1,4] v0) {a = ReduceSum(x0, x1) b = Sqrt(a) v0 = CastLike(b, x0)}"
    )

    assert inputs(skeleton_of, window, [("x0", "int32", ())])["x0"] == 10
    found = inputs(skeleton_of, reduced, [("x0", "float", (2, 0, 4)), ("x1", "int64", (1,))])
    assert found["x1"].tolist() == [1]


def test_lengths_that_are_sorted_on_their_way_to_a_recurrence_are_the_whole_sequence(skeleton_of):
    graph = """(float[9,n,3] x, int32[2] lengths, float[1,12,3] w1, float[1,12,4] w2) => (float[9,1,2,4] y)
        <int64[1] two = {2}> {
            wide = Cast<to=7>(lengths) sorted, order = TopK<axis=0>(wide, two)
            steps = Cast<to=6>(sorted) y = GRU<hidden_size=4>(x, w1, w2, , steps) }"""

    made = inputs(skeleton_of, graph, [("x", "float", (9, 2, 3)), ("lengths", "int32", (2,))])

    assert made["lengths"].tolist() == [9, 9]


def test_what_is_asked_of_a_value_reaches_the_input_through_thousands_of_operators_and_forks(skeleton_of):
    steps = [f"a{i + 1} = Mul(a{i}, a{i}) " for i in range(3000)]
    graph = f"(float[4] a0) => (float[4] y) {{ {''.join(steps)} y = Sqrt(a3000) }}"

    array = inputs(skeleton_of, graph, [("a0", "float", (4,))])["a0"]

    assert (array > 0).all()
