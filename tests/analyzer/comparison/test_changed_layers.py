"""What differs between two files, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

Node = tuple[str, str, Sequence[str], str]
"""Name, operator, inputs, output."""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a model of some nodes."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((128, 128), np.float32), name) for name in ("v", "w")]

    def make(name: str, *nodes: Node) -> Path:
        made = [helper.make_node(op, inputs, [output], name=own) for own, op, inputs, output in nodes]
        x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [128, 128]) for name in ("x", "y"))
        graph = helper.make_graph(made, name, [x], [y], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, tmp_path / f"{name}.onnx")
        return tmp_path / f"{name}.onnx"

    return make


@pytest.mark.slow
def test_layers_that_changed_appeared_and_vanished_are_told_apart(write, cli):
    first, last = ("first", "MatMul", ("x", "v"), "a"), ("last", "MatMul", ("c", "w"), "y")
    old = write("old", first, ("act", "Erf", ("a",), "b"), ("gone", "Sin", ("b",), "c"), last)
    new = write("new", first, ("act", "Tanh", ("a",), "b"), ("more", "Sigmoid", ("b",), "d"),
                ("again", "Sigmoid", ("d",), "c"), last)  # fmt: skip

    done = cli("compare", old, new, "--layers", "--budget", "20s", "--json")

    rows = {row["kind"]: row for row in done.json["results"][0]["layers"]}
    assert set(rows) == {"changed", "appeared", "vanished"}
    assert (rows["changed"]["old_operators"], rows["changed"]["new_operators"]) == (["Erf"], ["Tanh"])
    assert rows["changed"]["layer"] == "act"
    assert (rows["appeared"]["new_operators"], rows["appeared"]["count"]) == (["Sigmoid"], 2)
    assert rows["appeared"]["old_ms"] == 0
    assert (rows["vanished"]["old_operators"], rows["vanished"]["new_ms"]) == (["Sin"], 0)
    for row in rows.values():
        assert row["effect_ms"] == pytest.approx(row["new_ms"] - row["old_ms"])
    assert done.json["results"][0]["layers"] == sorted(rows.values(), key=lambda row: -abs(row["effect_ms"]))


@pytest.mark.slow
def test_equal_files_have_no_changed_layers(write, cli):
    first, last = ("first", "MatMul", ("x", "v"), "a"), ("last", "MatMul", ("a", "w"), "y")

    done = cli("compare", write("old", first, last), write("new", first, last), "--layers", "--budget", "20s")

    assert "2 sequences of the executed graphs are equal in both files, and none differs" in done.out


@pytest.mark.slow
def test_a_runtime_that_reports_fusions_is_cut_along_them(write, cli):
    pytest.importorskip("openvino")
    first, last = ("first", "MatMul", ("x", "v"), "a"), ("last", "MatMul", ("b", "w"), "y")
    old, new = (
        write("old", first, ("act", "Sin", ("a",), "b"), last),
        write("new", first, ("act", "Relu", ("a",), "b"), last),
    )

    done = cli("compare", old, new, "--layers", "--backend", "openvino", "--budget", "10s", "--json")

    fused = [row for row in done.json["results"][0]["layers"] if row["new_operators"]]
    assert [row["new_operators"] for row in fused] == [["MatMul", "Relu"]]
