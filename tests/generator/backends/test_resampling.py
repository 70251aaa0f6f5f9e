"""Which elements a resized axis is made of, held against ONNX's own evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.generator.backends.resampling import nearest
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
