"""Which elements windows and resized axes read; the latter held against ONNX's own evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.generator.backends.geometry import SlidingWindow, nearest
from dlbricks.generator.network.network import synthetic_network
from onnx.reference import ReferenceEvaluator


@pytest.mark.parametrize("rounded", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "how", ["asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"]
)
@pytest.mark.parametrize("target", [1, 3, 8, 10])
def test_a_resize_reads_where_onnx_says(how, rounded, target, skeleton_of):
    text = (
        f"(float[1,1,2,5] x) => (float[1,1,2,{target}] y) <int64[4] size = {{1,1,2,{target}}}>"
        f'{{ y = Resize<mode="nearest", coordinate_transformation_mode="{how}", nearest_mode="{rounded}">'
        "(x, , , size) }"
    )
    model = synthetic_network(skeleton_of(text)).self_contained()
    x = np.arange(10, dtype=np.float32).reshape(1, 1, 2, 5)

    found = nearest(5, target, target / 5, how, rounded)

    np.testing.assert_array_equal(x[..., found], ReferenceEvaluator(model).run(None, {"x": x})[0])


def test_a_way_to_resize_that_is_not_known_is_none():
    assert nearest(5, 10, 2.0, "tf_crop_and_resize", "floor") is None


@pytest.mark.parametrize(
    ("automatic", "begin", "end"), [("SAME_UPPER", 0, 1), ("SAME_LOWER", 1, 0), ("VALID", 0, 0), ("NOTSET", 2, 3)]
)
def test_a_window_may_pad_of_its_own(automatic, begin, end):
    given = {"strides": [2], "pads": [2, 3], "auto_pad": automatic}

    assert SlidingWindow.of(given, (6,), [3]) == SlidingWindow((3,), (2,), (1,), (begin,), (end,))


def test_a_window_is_padded_as_it_says():
    found = SlidingWindow.of({"pads": [1, 0, 2, 1], "dilations": [2, 1]}, (9, 8), (3, 2))

    assert found == SlidingWindow((3, 2), (1, 1), (2, 1), (1, 0), (2, 1))
