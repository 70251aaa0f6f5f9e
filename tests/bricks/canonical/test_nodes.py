"""Canonical forms of ONNX's own node tests: every operator, at the newest opset, with the outputs that ONNX expects."""

from __future__ import annotations

import random
import warnings
from collections import Counter

import numpy as np
import onnx
import pytest
from dlbricks.bricks.canonical import CANONICAL_OPSET
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.layer import LayerState, Role
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

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


def _outputs(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """What a model computes from inputs of a node test; None where its form is not all canonical."""
    model = normalise(model).model
    graph = build_graph(Skeleton(model))
    nodes, constants, opsets = [], [], {"": CANONICAL_OPSET}
    for layer in graph.layers:
        if layer.state is LayerState.FOLDED:
            node = layer.node
        elif layer.canonical is None:
            return None
        else:
            node = onnx.NodeProto()
            node.CopyFrom(layer.canonical)
            opsets.update({domain: max(version, opsets.get(domain, 0)) for domain, version in layer.canonical_opsets})
            for slot, operand in enumerate(layer.operands):
                if operand.role is Role.CONSTANT:
                    constants.append(onnx.TensorProto.FromString(operand.data))
                    node.input[slot] = constants[-1].name = f"{layer.index}.{slot}"
        nodes.append(node)
    inputs = [value for value in model.graph.input if value.name in feeds]
    outputs = [helper.make_empty_tensor_value_info(value.name) for value in model.graph.output]
    proto = helper.make_graph(nodes, "g", inputs, outputs, [*constants, *model.graph.initializer])
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return ReferenceEvaluator(helper.make_model(proto, ir_version=10, opset_imports=imports)).run(None, feeds)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_canonical_forms_give_the_outputs_of_the_node_tests(thorough: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    if not thorough:
        cases = random.Random(11).sample(cases, 400)
    seen: Counter[str] = Counter()
    wrong = []
    for case in cases:
        if not case.data_sets or any(word in case.name for word in _LEFT_OUT):
            continue
        arrays, wanted = case.data_sets[0]
        if any(not isinstance(array, np.ndarray) for array in (*arrays, *wanted)):
            seen["not arrays"] += 1
            continue
        found = _outputs(*_as_constants(case.model, arrays))
        if found is None:
            seen["not canonical"] += 1
            continue
        seen["canonical"] += 1
        for one, other in zip(found, wanted, strict=True):
            exact = other.dtype.kind not in "fc"
            if one.shape != other.shape or not (
                np.array_equal(one, other)
                if exact
                else np.allclose(one, other, rtol=case.rtol, atol=max(case.atol, 1e-6), equal_nan=True)
            ):
                wrong.append(case.name)

    assert wrong == []
    assert seen["canonical"] > (900 if thorough else 150)
