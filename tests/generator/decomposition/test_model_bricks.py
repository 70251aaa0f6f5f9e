"""What is said of a fused cut: layers that bricks hold apart, and those that a runtime eliminates."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from dlbricks.bricks.cutting.fused import fused_sequences
from dlbricks.bricks.decomposition import Decomposition
from dlbricks.bricks.graph.model_graph import ExecutedModel, Layouts, build_graph
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.generate import GenerateRow, generate
from dlbricks.models import ModelSource
from dlbricks.models.skeleton import Skeleton

DIAMOND = "(float[4] x) => (float[4] y) {a = Relu(x) b = Exp(a) c = Sqrt(a) d = Add(b, c) e = Identity(d) y = Neg(e)}"
EXECUTED = "(float[4] x) => (float[4] y) {a = Relu(x) d = Sqrt(a) y = Neg(d)}"


def fused(skeleton: onnx.ModelProto, executed_skeleton: onnx.ModelProto, cut: Cut, folder: Path) -> GenerateRow:
    """A model as a runtime would have it that executes its first two layers and the sum as one."""
    graph = build_graph(Skeleton(skeleton))
    origins = (frozenset({0, 1, 3}), frozenset({2}), frozenset({5}))
    after = build_graph(Skeleton(executed_skeleton))
    executed = ExecutedModel("diamond", graph, after, origins, frozenset({4}), {}, Layouts())
    parts = tuple(fused_sequences(executed, 1))
    model = Decomposition(ModelSource("diamond", None, None), graph, graph, parts, (), 8 << 20, executed=executed)
    (row,) = generate([model], out=folder / "suite", settings=cut).rows
    return row


def test_layers_that_bricks_hold_apart_are_named_with_the_reason(skeleton_of, tmp_path):
    found = fused(skeleton_of(DIAMOND), skeleton_of(EXECUTED), Cut(1, graph="fused"), tmp_path)

    assert found.error is None
    assert [parts.layer for parts in found.apart] == ["Relu_0, Exp_1, Add_3"]
    assert "wait for its own result" in found.apart[0].reason
    assert found.eliminated == {"Identity": 1}
    assert found.sequences == 4  # Relu and Exp, Sqrt, Add, Identity and Neg
    other = fused(
        skeleton_of(DIAMOND), skeleton_of(EXECUTED), Cut(1), tmp_path
    )  # of another graph there is nothing to say
    assert (other.apart, other.eliminated) == ((), {})


def test_a_graph_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no graph 'executed'"):
        Cut(1, graph="executed").check()
