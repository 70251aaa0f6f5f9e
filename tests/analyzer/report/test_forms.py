"""Layers are described in the same words in every table, and tables of layers fit their width."""

from __future__ import annotations

from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimates import estimates_answer
from dlbricks.analyzer.report.forms import form_cells, form_columns, kernel_of, shapes_of
from dlbricks.analyzer.report.tables import WIDTH, Answer, render
from dlbricks.constructor.form import Form
from dlbricks.constructor.result import Coverage, Estimate, SequenceLatency


def _form(**changes: object) -> Form:
    known = {
        "inputs": "float[1,144,56,56] float[1,32,56,56]", "weights": "float[32,144,1,1]",
        "outputs": "float[1,32,56,56]", "strides": "2x2", "kernel": "3x3",
        "source_layers": ("/block/conv", "/block/add"),
    }  # fmt: skip
    return Form(**(known | changes))  # type: ignore[arg-type]


def test_kernels_have_their_stride_where_it_is_not_one() -> None:
    assert kernel_of("3x3", "1x1") == "3x3"
    assert kernel_of("3x3", "2x2") == "3x3/2"
    assert kernel_of("3x3 1x5", "2x1 1x1") == "3x3/2x1+1x5"
    assert kernel_of("", "") == ""


def test_shapes_are_float_where_nothing_else_is_said() -> None:
    assert shapes_of("float[1,3]", "int64[]") == "1x3 → int64 scalar"
    assert shapes_of("", "float[2]") == "- → 2"
    assert shapes_of("float[1] float[2] float[3]", "float[6]") == "1, 2, and 1 more → 6"


def test_the_node_of_a_runtime_stands_beside_the_layers_of_the_source() -> None:
    own = form_cells(["Conv", "Add"], ["/block/conv", "/block/add"], _form())
    executed = form_cells(["FusedConv"], ["getitem_24_nchwc"], _form(kernels=("com.microsoft.nchwc.Conv", "Reorder")))

    assert (own["layer"], own["node"], own["ran"]) == ("/block/conv, /block/add", None, None)
    assert (executed["layer"], executed["node"]) == ("/block/conv, /block/add", "getitem_24_nchwc")
    assert executed["ran"] == "nchwc.Conv, and 1 more"
    assert [column.title for column in form_columns([own])] == ["operators", "kernel", "shapes", "layer"]
    assert [column.title for column in form_columns([own, executed])][-2:] == ["runtime's node", "ran by"]
    assert form_cells(["Reorder"], ["put_in"], _form(source_layers=()))["layer"] is None


def test_tables_of_layers_fit_whatever_their_names() -> None:
    name = "/model/layers.0/attention/self_attn_with_a_long_name/q_proj/MatMul"
    part = SequenceLatency(
        0, "key", (0, 1), ("a_node_of_the_runtime_with_a_long_name",), ("Conv", "BatchNormalization", "Relu"),
        latency_ms=1.0, ci95_ms=(0.9, 1.1), form=_form(source_layers=(name, name), kernels=("k" * 90,)),
    )  # fmt: skip
    entry = Estimate(name="m", granularity=1, coverage=Coverage(1.0, None), sequences=(part,), path=(part,))

    text = render(estimates_answer(Estimates((entry,)), explain=True))

    assert "MatMul" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_columns_of_words_are_narrowed_the_widest_first() -> None:
    row = form_cells(["Conv"], ["n" * 60], _form(source_layers=("s " * 30, "t " * 20)))

    lines = render(Answer([row], columns=form_columns([row]))).splitlines()

    assert max(map(len, lines)) == WIDTH
