"""What analyses read of single layers."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.findings.subject import is_depthwise
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.models import find_models

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'


@pytest.mark.parametrize(
    ("layer", "data", "filters", "found"),
    [
        ("Conv<group=8>", "1,8,6,6", "8,1,3,3", True),
        ("Conv<group=8>", "1,8,6,6", "16,1,3,3", True),
        ("Conv<group=4>", "1,8,6,6", "8,2,3,3", False),
        ("Conv<group=4>", "1,8,6,6", "8,2,1,1", False),
        ("Conv", "1,8,6,6", "4,8,3,3", False),
        ("Conv", "1,1,6,6", "4,1,3,3", False),
        ("ConvTranspose", "1,64,6,6", "64,1,2,2", False),
        ("ConvTranspose<group=8>", "1,8,6,6", "8,1,2,2", False),
        ("com.microsoft.NhwcFusedConv<group=8>", "1,6,6,8", "8,3,3,1", True),
        ("com.microsoft.NhwcFusedConv<group=4>", "1,6,6,8", "8,1,1,2", False),
        ("com.microsoft.NhwcFusedConv", "1,6,6,8", "4,1,1,8", False),
    ],
)
def test_a_depthwise_convolution_reads_one_channel_of_several(
    tmp_path: Path, layer: str, data: str, filters: str, found: bool
) -> None:
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[{data}] x, float[{filters}] w) => (float y) {{y = {layer}(x, w)}}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "model.onnx")
    (source,) = find_models([tmp_path / "model.onnx"])

    (read,) = build_graph(source.skeleton()).layers

    assert is_depthwise(read) == found


def test_quantised_convolutions_count_as_others(tmp_path: Path) -> None:
    text = (
        f"{HEAD} g (uint8[1,8,6,6] x, uint8[8,1,3,3] w, float s, uint8 z) => (uint8[1,8,4,4] y)"
        " {y = QLinearConv<group=8>(x, s, z, w, s, z, s, z)}"
    )
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    (source,) = find_models([tmp_path / "model.onnx"])

    (read,) = build_graph(source.skeleton()).layers

    assert is_depthwise(read)
