"""What is known of CuPy's operators without a GPU: where they read, and what they refuse."""

from __future__ import annotations

import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cupy.call import POINTWISE, attributes_of, node_of
from dlbricks.generator.backends.cupy.operators import MOVERS, POOLINGS, PoolingWindow, windows
from onnx import helper


@pytest.mark.parametrize(("automatic", "pads"), [("SAME_UPPER", (0, 1)), ("SAME_LOWER", (1, 0)), ("VALID", (0, 0))])
def test_a_pooling_may_pad_of_its_own(automatic, pads):
    found = windows({"kernel_shape": [3], "strides": [2], "auto_pad": automatic}, (6,), (3 if sum(pads) else 2,))

    assert found == (PoolingWindow(6, 3 if sum(pads) else 2, 3, 2, 1, *pads),)


def test_a_pooling_is_padded_as_it_says():
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], pads=[1, 0, 2, 1], dilations=[2, 1])

    assert windows(attributes_of(node), (9, 8), (8, 8)) == (
        PoolingWindow(9, 8, 3, 1, 2, 1, 2),
        PoolingWindow(8, 8, 2, 1, 1, 0, 1),
    )


def test_an_operator_stands_in_one_room():
    assert not MOVERS.keys() & POINTWISE.keys()
    assert not MOVERS.keys() & POOLINGS.keys()
    assert not POINTWISE.keys() & POOLINGS.keys()


def test_several_operators_are_refused(skeleton_of):
    model = skeleton_of("(float[3,4] x) => (float[4,3] y) { a = Relu(x) y = Transpose(a) }")

    with pytest.raises(UnsupportedBrick, match="Relu beside Transpose"):
        node_of(model)
