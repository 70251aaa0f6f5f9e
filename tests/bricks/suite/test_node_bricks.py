"""Every brick of ONNX's own node tests keeps its key when it is read back."""

from __future__ import annotations

import random
import warnings

import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.errors import DlbricksError
from dlbricks.models import find_models


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_bricks_of_the_node_tests_read_back_under_their_own_key(thorough, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    if not thorough:
        cases = random.Random(3).sample(cases, 400) + [case for case in cases if "loop" in case.name]
    path = tmp_path / "model.onnx"
    keys: set[str] = set()
    wrong: list[str] = []
    for case in cases:
        path.write_bytes(case.model.SerializeToString())
        (source,) = find_models([path])
        graph = build_graph(source.skeleton())
        for sequence in sequences(graph, 1):
            if sequence.key not in keys:
                keys.add(sequence.key)
                try:
                    load_brick(build_brick(graph, sequence).model, expected=sequence.key)
                except DlbricksError as error:
                    wrong.append(f"{case.name}: {error}")

    assert wrong == []
    assert len(keys) > (2500 if thorough else 400)
