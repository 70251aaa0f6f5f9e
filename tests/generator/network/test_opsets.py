"""Versions of operator sets at which operators mean the same."""

from __future__ import annotations

import onnx
from dlbricks.bricks.canonical import ANY
from dlbricks.generator.network.packed import common_ranges, opset_ranges


def softmax_at(version: int) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {version}]>'
    return onnx.parser.parse_model(f"{header} g (float[2,40] x) => (float[2,40] y) {{y = Softmax(x)}}")


def test_operators_mean_the_same_over_a_range_of_versions() -> None:
    assert opset_ranges(softmax_at(9))[""] == (1, 11)
    assert opset_ranges(softmax_at(12))[""] == (11, 13)
    assert opset_ranges(softmax_at(21))[""][0] == 13


def test_ranges_that_share_no_version_have_nothing_in_common() -> None:
    assert common_ranges({"": (8, ANY)}, {"": (1, 11), "com.example": (2, 3)}) == {"": (8, 11), "com.example": (2, 3)}
    assert common_ranges({"": (1, 11)}, {"": (11, 13)}) is None
