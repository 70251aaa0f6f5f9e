"""Features of bricks: the same for the same work, free of names, and kept for later."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.decomposition import Decomposition
from dlbricks.bricks.features import EXTENTS, features_of, keep_features, kept_features
from dlbricks.models import ModelSource

MODEL = """model (float[1, 8, 16, 16] {x}, float[8, 8, 1, 1] w, float[8, 1, 3, 3] wd) => (float[1, 8, 8, 8] y) {{
    {a} = Conv({x}, w)
    y = Conv<strides = [2, 2], pads = [1, 1, 1, 1], group = 8>({a}, wd)
}}"""


@pytest.fixture
def features(parse_graph):
    def read(text: str):
        graph = parse_graph(text)
        return [features_of(graph, part) for part in sequences(graph, 1)]

    return read


def test_names_do_not_matter(features):
    assert features(MODEL.format(x="x", a="a")) == features(MODEL.format(x="data", a="hidden"))


def test_convolutions_are_told_apart_by_what_kernels_are_written_for(features):
    pointwise, depthwise = features(MODEL.format(x="x", a="a"))

    assert (pointwise.operator, depthwise.operator) == ("Conv.1", "Conv.dw")
    assert pointwise.weight_bytes == 4 * 8 * 8
    assert pointwise.flops == 2 * 8 * 8 * 16 * 16
    assert pointwise.read_bytes == pointwise.written_bytes == 4 * 8 * 16 * 16
    assert depthwise.extents[4:] == (8, 1, 9, 2, 64, 8, 2, 0)
    assert len(pointwise.extents) == EXTENTS + 4


def test_a_kernel_larger_than_its_input_does_no_more_than_there_is(features):
    pool = "AveragePool<kernel_shape = [64, 64], pads = [29, 29, 28, 28]>"
    text = f"model (float[1, 4, 7, 7] x) => (float[1, 4, 1, 1] y) {{ y = {pool}(x) }}"

    (found,) = features(text)

    assert found.flops <= 2 * 49 * 4


@pytest.mark.parametrize(
    ("text", "operator", "run"),
    [
        ("model (float[2, 3, 4] x, float[2, 3, 4] z) => (float[2, 3, 4] y) { y = Add(x, z) }", "Add", 24),
        ("model (float[2, 3, 4] x, float[3, 4] z) => (float[2, 3, 4] y) { y = Add(x, z) }", "Add.b", 12),
        ("model (float[2, 3, 4] x, float[3, 1] z) => (float[2, 3, 4] y) { y = Add(x, z) }", "Add.b", 1),
    ],
)
def test_what_is_broadcast_is_told_apart(features, text, operator, run):
    (found,) = features(text)

    assert found.operator == operator
    assert found.extents[-2] == run


@pytest.mark.parametrize(
    ("shape", "permutation", "kind", "numbers"),
    [
        ((1, 3, 224, 224), (0, 2, 3, 1), "move", (50176, 3, 2, 1, 4096, 4)),
        ((1, 128, 16384), (0, 2, 1), "move", (16384, 128, 2, 1, 65536, 512)),
        ((2, 3, 4, 5), (3, 2, 1, 0), "mix", (5, 2, 4, 1, 16, 32)),
        ((2, 3, 4, 5, 6), (0, 3, 4, 1, 2), "mix", (30, 12, 3, 1, 8, 16)),
        ((8, 7, 8, 7, 96), (0, 1, 3, 2, 4), "block", (96, 96, 4, 96, 4, 4)),
        ((4, 1, 5), (1, 0, 2), "block", (20, 20, 1, 20, 0, 0)),
        ((2, 3, 4), (0, 1, 2), "block", (24, 24, 1, 24, 0, 0)),
    ],
)
def test_transpositions_are_told_apart_by_what_stays_together(features, shape, permutation, kind, numbers):
    result = [shape[axis] for axis in permutation]
    (found,) = features(
        f"model (float{list(shape)} x) => (float{result} y) {{ y = Transpose<perm = {list(permutation)}>(x) }}"
    )

    assert found.operator == f"Transpose.{kind}"
    assert found.extents[4 : 4 + len(numbers)] == numbers


@pytest.mark.parametrize(("axes", "result", "run"), [("[2]", "[2, 3, 1]", 1), ("[1]", "[2, 1, 4]", 4)])
def test_reductions_are_told_apart_by_what_stays_together(features, axes, result, run):
    reduce = f"int64[1] axes = {{{axes.strip('[]')}}}"
    (found,) = features(f"model (float[2, 3, 4] x) => (float{result} y) <{reduce}> {{ y = ReduceSum(x, axes) }}")

    assert found.extents[7] == run


def test_features_are_kept_by_key(parse_graph):
    graph = parse_graph(MODEL.format(x="x", a="a"))
    parts = tuple(sequences(graph, 1))
    model = Decomposition(ModelSource("m", None, None), graph, graph, parts, ((0,), (1,)), 0)

    kept = keep_features(model)

    assert set(kept) == {part.key for part in parts}
    assert {key: kept_features()[key] for key in kept} == kept
    assert all(math.isfinite(one.bytes) for one in kept.values())


def test_features_that_cannot_be_read_are_none(monkeypatch):
    def refused(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refused)

    assert kept_features() == {}
