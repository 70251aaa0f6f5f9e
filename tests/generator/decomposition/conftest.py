"""Models written as text, and what a runtime executes together of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dlbricks.bricks.graph.executed import ExecutedModel
from dlbricks.models import ModelSource, find_models

Operators = Callable[[ExecutedModel, tuple[int, ...]], str]


@pytest.fixture
def written(tmp_path: Path, model_file: Callable[..., Path]) -> Callable[..., ModelSource]:
    return lambda graph, weights: find_models([model_file(tmp_path / "model.onnx", graph, weights)])[0]


@pytest.fixture
def operators() -> Operators:
    """The operators of some layers of a model, in order."""
    return lambda found, layers: " ".join(found.source.layers[index].op_type for index in layers)
