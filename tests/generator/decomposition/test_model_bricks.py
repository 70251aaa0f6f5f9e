"""What is said of a fused cut: layers that bricks hold apart, and those that a runtime eliminates."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from dlbricks.bricks.cutting.fused import fused_sequences
from dlbricks.bricks.graph.executed import ExecutedModel, Layouts
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.cutter import Cut, CutModel, Cutter
from dlbricks.generator.decomposition.model_bricks import model_bricks
from dlbricks.models import ModelSource
from dlbricks.models.skeleton import Skeleton

DIAMOND = "(float[4] x) => (float[4] y) {a = Relu(x) b = Exp(a) c = Sqrt(a) d = Add(b, c) e = Identity(d) y = Neg(e)}"


class _Fixed(Cutter):
    """Cuts a model as a runtime would have it that executes its first two layers and the sum as one."""

    def __init__(self, cut: Cut, model: onnx.ModelProto) -> None:
        super().__init__(cut)
        source = build_graph(Skeleton(model))
        origins = (frozenset({0, 1, 3}), frozenset({2}), frozenset({5}))
        self._executed = ExecutedModel("diamond", source, source, origins, frozenset({4}), {}, Layouts())

    def __call__(self, source: ModelSource) -> CutModel:
        executed = self._executed
        return CutModel(executed.source, executed.source, tuple(fused_sequences(executed, 1)), executed)


def test_layers_that_bricks_hold_apart_are_named_with_the_reason(skeleton_of: Callable[[str], onnx.ModelProto]) -> None:
    with _Fixed(Cut(1, graph="fused"), skeleton_of(DIAMOND)) as cutter:
        found = model_bricks(ModelSource("diamond", None, None), cutter)

    assert found.error is None
    assert [parts.layer for parts in found.apart] == ["Relu_0, Exp_1, Add_3"]
    assert "wait for its own result" in found.apart[0].reason
    assert found.eliminated == {"Identity": 1}
    assert found.sequences == 4  # Relu and Exp, Sqrt, Add, Identity and Neg


def test_of_another_graph_there_is_nothing_to_say(skeleton_of: Callable[[str], onnx.ModelProto]) -> None:
    with _Fixed(Cut(1, graph="runtime"), skeleton_of(DIAMOND)) as cutter:
        found = model_bricks(ModelSource("diamond", None, None), cutter)

    assert (found.apart, found.eliminated) == ((), {})


def test_a_graph_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no graph 'executed'"):
        Cut(1, graph="executed").check()
