"""What is known of CuPy's operators without a GPU: where they read, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cupy.call import attributes_of, node_of
from dlbricks.generator.backends.cupy.movers import MOVERS, nearest
from dlbricks.generator.backends.cupy.pointwise import POINTWISE
from dlbricks.generator.backends.cupy.pooling import POOLINGS, Window, windows
from dlbricks.generator.network.network import synthetic_network
from onnx import helper
from onnx.reference import ReferenceEvaluator


@pytest.mark.parametrize("rounded", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("how", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize("target", [3, 8, 10])
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


@pytest.mark.parametrize(("automatic", "pads"), [("SAME_UPPER", (0, 1)), ("SAME_LOWER", (1, 0)), ("VALID", (0, 0))])
def test_a_pooling_may_pad_of_its_own(automatic, pads):
    found = windows({"kernel_shape": [3], "strides": [2], "auto_pad": automatic}, (6,), (3 if sum(pads) else 2,))

    assert found == (Window(6, 3 if sum(pads) else 2, 3, 2, 1, *pads),)


def test_a_pooling_is_padded_as_it_says():
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 2, 1], dilations=[2, 1])

    assert windows(attributes_of(node), (9, 8), (8, 8)) == (
        Window(9, 8, 3, 1, 2, 1, 2),
        Window(8, 8, 2, 1, 1, 0, 1),
    )


def test_an_operator_stands_in_one_room():
    assert not MOVERS.keys() & POINTWISE.keys()
    assert not MOVERS.keys() & POOLINGS.keys()
    assert not POINTWISE.keys() & POOLINGS.keys()


def test_several_operators_are_refused(skeleton_of):
    model = skeleton_of("(float[3,4] x) => (float[4,3] y) { a = Relu(x) y = Transpose(a) }")

    with pytest.raises(UnsupportedBrick, match="Relu beside Transpose"):
        node_of(model)
