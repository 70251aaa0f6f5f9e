"""Bricks of ONNX's own node tests: every operator, at the newest opset, with the outputs that ONNX expects."""

from __future__ import annotations

import random
import warnings

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from onnx import numpy_helper

from ..rebuild import rebuilt, reference

_LEFT_OUT = (
    "bernoulli",  # random
    "training_dropout",
    "maxpool_2d_same",  # the reference swaps asymmetric pads; ONNX Runtime runs them in test_canonical_execution.py
    "scan_sum",  # the reference does not run the source either
    "expanded",  # bodies of the same operators
)


def _as_constants(model: onnx.ModelProto, inputs: list[np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with the small later inputs as constants: what decides shapes is known then."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.input[:]
    feeds = {}
    for position, (value, array) in enumerate(zip(model.graph.input, inputs, strict=False)):
        if position and array.size <= 16 and array.ndim <= 1 and array.dtype.kind in "iufb":
            copy.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            copy.graph.input.append(value)
            feeds[value.name] = array
    return copy, feeds


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_bricks_give_the_outputs_of_the_node_tests_and_keep_their_keys(thorough: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    if not thorough:
        cases = random.Random(11).sample(cases, 400) + [case for case in cases if "loop" in case.name]
    canonical, wrong, keys = 0, [], set()
    for case in cases:
        if not case.data_sets or any(word in case.name for word in _LEFT_OUT):
            continue
        arrays, wanted = case.data_sets[0]
        if any(not isinstance(array, np.ndarray) for array in (*arrays, *wanted)):
            continue
        model, feeds = _as_constants(case.model, arrays)
        model = normalise(model).model
        graph = build_graph(Skeleton(model))
        parts = sequences(graph, 1)
        for part in parts:
            if part.key not in keys and "stft" not in case.name:  # of which onnx infers another shape without onesided
                keys.add(part.key)
                load_brick(build_brick(graph, part).model, expected=part.key)
        if any(layer.state is not LayerState.FOLDED and layer.canonical is None for layer in graph.layers):
            continue
        canonical += 1
        for one, other in zip(rebuilt(model, graph, parts, feeds, reference), wanted, strict=True):
            exact = other.dtype.kind not in "fc"
            if one.shape != other.shape or not (
                np.array_equal(one, other)
                if exact
                else np.allclose(one, other, rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True)
            ):
                wrong.append(case.name)

    assert wrong == []
    assert canonical > (900 if thorough else 150)
    assert len(keys) > (900 if thorough else 150)
