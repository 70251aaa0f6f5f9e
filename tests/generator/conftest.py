"""Tiny models in skeleton form, written in ONNX's text format."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest
from dlbricks.models.skeleton import mark_weight

SkeletonOf = Callable[..., onnx.ModelProto]


@pytest.fixture(scope="session")
def skeleton_of() -> SkeletonOf:
    """Parse ``(inputs) => (outputs) {nodes}``; graph inputs whose names begin with w are weights."""

    def parse(graph: str, *, domains: str = "") -> onnx.ModelProto:
        model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21{domains}]> brick {graph}')
        for value in model.graph.input:
            if value.name.startswith("w"):
                mark_weight(value)
        return model

    return parse
