"""Decoys: like the real bricks, never one of them, and nothing without the seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.suite.brick import Brick, build_brick, load_brick
from dlbricks.bricks.suite.decoys import decoys
from dlbricks.bricks.suite.suite import Suite
from dlbricks.bricks.suite.writing import write_suite
from dlbricks.errors import UsageError
from dlbricks.models.source import find_models

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = ("squeezenet", "inception_v2", "shufflenet", "densenet121", "resnet50")


@pytest.fixture(scope="module", params=[1, 3])
def bricks(request: pytest.FixtureRequest) -> dict[str, Brick]:
    found: dict[str, Brick] = {}
    for name in NAMES:
        [source] = find_models([LIGHT / f"light_{name}.onnx"])
        graph = build_graph(source.skeleton())
        for sequence in sequences(graph, request.param):
            if sequence.key not in found:
                found[sequence.key] = build_brick(graph, sequence)
    return found


def test_decoys_are_others_of_the_same_kind(bricks: dict[str, Brick]) -> None:
    found = decoys(bricks.values(), 60, "secret")
    assert len(found) == 60
    assert not found.keys() & bricks.keys()
    kinds = {brick.operators for brick in bricks.values()}
    for key, decoy in found.items():
        assert load_brick(decoy.model, expected=key) == decoy
        assert decoy.operators in kinds
        assert decoy.cost is not None


def test_only_the_seed_decides(bricks: dict[str, Brick]) -> None:
    one = decoys(bricks.values(), 20, 7)
    assert decoys(list(bricks.values())[::-1], 20, 7) == one
    assert decoys(bricks.values(), 20, 8).keys() != one.keys()


def test_every_decoy_runs(bricks: dict[str, Brick]) -> None:
    for decoy in decoys(bricks.values(), 40, "run").values():
        model = onnx.ModelProto.FromString(decoy.model)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(decoy.model, options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {value.name: np.ones(value.shape, np.float32) for value in session.get_inputs()})
        for output, value in zip(outputs, model.graph.output, strict=True):
            assert list(output.shape) == [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_a_suite_with_decoys_is_a_suite(bricks: dict[str, Brick], tmp_path: Path) -> None:
    mixed = bricks | decoys(bricks.values(), 10, "secret")
    write_suite(tmp_path / "suite", mixed, granularity=1)
    suite = Suite.open(tmp_path / "suite")
    assert len(suite.keys) == len(bricks) + 10
    for key in mixed.keys() - bricks.keys():
        assert suite.brick(key) == mixed[key]


def test_what_cannot_be_made_is_a_usage_error(parse_graph: Callable[[str], ModelGraph]) -> None:
    graph = parse_graph("a (float[2] x) => (float[2] y) { y = Relu(x) }")
    tiny = [build_brick(graph, sequence) for sequence in sequences(graph, 1)]
    assert decoys(tiny, 0, 1) == {}
    with pytest.raises(UsageError, match="0 of 3"):
        decoys(tiny, 3, 1)
    with pytest.raises(UsageError, match="-1"):
        decoys(tiny, -1, 1)
    with pytest.raises(UsageError, match="0 of 1"):
        decoys([], 1, 1)
