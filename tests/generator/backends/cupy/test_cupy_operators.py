"""What is known of CuPy's operators without a GPU: where they read, and what they refuse."""

from __future__ import annotations

import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.cupy.kernel_call import POINTWISE, node_of
from dlbricks.generator.backends.cupy.raw_kernels import MOVERS, POOLINGS


def test_an_operator_stands_in_one_room():
    assert not MOVERS.keys() & POINTWISE.keys()
    assert not MOVERS.keys() & POOLINGS.keys()
    assert not POINTWISE.keys() & POOLINGS.keys()


def test_several_operators_are_refused(skeleton_of):
    model = skeleton_of("(float[3,4] x) => (float[4,3] y) { a = Relu(x) y = Transpose(a) }")

    with pytest.raises(UnsupportedBrick, match="Relu beside Transpose"):
        node_of(model)
