"""Answers as table, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from dlbricks.analyzer.estimation.estimates import Estimates
from dlbricks.analyzer.report.answers.estimated import estimates_answer
from dlbricks.analyzer.report.tables import (
    Answer,
    Field,
    Format,
    form_cells,
    form_columns,
    only_errors,
    printable,
    render,
)
from dlbricks.constructor.result import Coverage, Form, SequenceLatency
from flat import flat_estimate

ROWS = [
    {"name": "squeezenet", "ms": 12.5, "coverage": {"macs": 1.0}, "missing": []},
    {"name": "b", "ms": None, "coverage": {"macs": 0.25}, "missing": ["k1", "k2"]},
]
COLUMNS = [
    Field("name", "model"),
    Field("ms", "ms", lambda value: f"{value:.2f}"),
    Field("coverage.macs", "macs", lambda value: f"{value:.0%}"),
]


def test_a_table_aligns_words_left_and_figures_right() -> None:
    text = render(Answer(ROWS, columns=COLUMNS, summary=["two models"]))

    assert text.splitlines() == [
        "model          ms  macs",
        "──────────  ─────  ────",
        "squeezenet  12.50  100%",
        "b               -   25%",
        "",
        "two models",
    ]


def test_json_holds_every_key_and_the_totals_beside_the_results() -> None:
    answer = json.loads(render(Answer(ROWS, totals={"unique": 3}, columns=COLUMNS), Format.JSON))

    assert answer == {"schema": 1, "results": ROWS, "unique": 3}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_null_everywhere(number: float) -> None:
    answer = Answer([{"a": number, "deep": [{"b": (number,)}]}], columns=[Field("a")])

    assert json.loads(render(answer, "json"))["results"] == [{"a": None, "deep": [{"b": [None]}]}]
    assert render(answer, "table").splitlines()[-1] == "-"
    assert next(csv.DictReader(io.StringIO(render(answer, "csv")))) == {"a": "", "deep": "1"}


def test_csv_quotes_what_needs_it_and_fills_missing_keys() -> None:
    rows = [{"name": 'a,"b"', "x": 1}, {"name": "c", "y": 2.5}]

    parsed = list(csv.DictReader(io.StringIO(render(Answer(rows), "csv"))))

    assert parsed == [{"name": 'a,"b"', "x": "1", "y": ""}, {"name": "c", "x": "", "y": "2.5"}]


def test_no_cell_of_csv_is_a_formula() -> None:
    rows = [{"name": "=cmd()", "=key": -2.5, "none": "-", "list": ["+1", "b"]}]

    (parsed,) = csv.DictReader(io.StringIO(render(Answer(rows), "csv")))

    assert parsed == {"name": "'=cmd()", "'=key": "-2.5", "none": "-", "list": "'+1;b"}


def test_a_name_cannot_drive_the_terminal() -> None:
    name = "\x1b[2Jevil\nline"
    answer = Answer([{"name": name}], columns=[Field("name", "model")], summary=["", f"{name}: skipped"])

    assert render(answer).splitlines()[-4:] == [r"\x1b[2Jevil\nline", "", "", r"\x1b[2Jevil\nline: skipped"]
    assert r"\x1b[2Jevil\nline" in render(answer, "csv")
    assert render(Answer([{"bound": {name: 1}}]), "csv").splitlines()[0] == r"bound.\x1b[2Jevil\nline"
    assert "\x1b" not in render(answer, "json")
    assert json.loads(render(answer, "json"))["results"] == [{"name": name}]
    assert printable("größe 層") == "größe 層"


def test_a_name_that_is_no_unicode_is_written_all_the_same() -> None:
    answer = Answer([{"name": "bad\udcff.onnx"}], columns=[Field("name", "model")])

    for form in Format:
        render(answer, form).encode("utf-8")


def test_the_frame_is_flat() -> None:
    answer = Answer(ROWS, flat=[{"name": "b", "layer.ms": 1.0, "layer.ci95_ms": (0.5, 1.5)}])

    frame, inner = answer.frame(), answer.frame(inner=True)

    assert list(frame.columns) == ["name", "ms", "coverage.macs", "missing"]
    assert list(frame["missing"]) == [[], ["k1", "k2"]]
    assert frame["ms"].isna().tolist() == [False, True], "what is not known is no number"
    assert inner.to_dict("records") == [
        {"name": "b", "layer.ms": 1.0, "layer.ci95_ms_low": 0.5, "layer.ci95_ms_high": 1.5}
    ]
    assert len(Answer(ROWS).frame(inner=True)) == 2, "where there is nothing inside, results stay rows"


def test_markdown_is_a_table_with_the_lines_below_it() -> None:
    columns = [*COLUMNS, Field("ms", "spare", spare=True)]

    text = render(Answer(ROWS, columns=columns, summary=["two models", "  indented"]), "markdown", width=3)

    assert text.splitlines() == [
        "| model | ms | macs | spare |",
        "| --- | --: | --: | --: |",
        "| squeezenet | 12.50 | 100% | 12.5 |",
        "| b | - | 25% | - |",
        "",
        "```text",
        "two models",
        "  indented",
        "```",
    ]


def test_a_name_cannot_write_into_a_page() -> None:
    name = "a|b<img src=x>`[c](d)\n# e"
    answer = Answer([{"name": name}], columns=[Field("name", "model")], summary=["```", f"{name}: skipped"])

    _, _, row, blank, *rest = render(answer, "markdown").splitlines()

    assert row == r"| a\|b\<img src=x\>\`\[c\](d)\\n\# e |"
    assert not blank
    assert rest == ["````text", "```", r"a|b<img src=x>`[c](d)\n# e: skipped", "````"]


@pytest.mark.parametrize(
    ("unit", "value", "interval", "text"),
    [("share", 0.13, (0.081, 0.179), "13% ± 5%"), ("share", 0.13, (0.127, 0.133), "13% ± 0.3%"),
     ("ratio", 0.488, (0.2, 1.07), "0.488 [0.200, 1.070]"), ("ms", 12.34, (12.2, 12.48), "12.3 ± 0.1")],
)  # fmt: skip
def test_a_value_and_its_interval_have_one_unit(
    unit: str, value: float, interval: tuple[float, float], text: str
) -> None:
    answer = Answer([{"v": value, "ci": interval}], columns=[Field("v", "v", unit, interval="ci")])

    assert render(answer).splitlines()[-1] == text


def test_what_does_not_fit_is_wrapped_and_spare_columns_are_left_out() -> None:
    rows = [{"key": "k" * 12, "ms": 1.5, "ci": (1.25, 1.75), "reason": "it is too large for this machine " * 5}]
    columns = [
        Field("key", "brick"),
        Field("ms", "latency of it in ms", lambda value: f"{value:.3f}", interval="ci"),
        Field("ms", "again", spare=True),
        Field("reason"),
    ]

    wide, narrow = (render(Answer(rows, columns=columns), width=width).splitlines() for width in (300, 60))

    assert len(wide) == 3
    assert "1.500 ± 0.25  " in wide[2]
    assert "again" in wide[0]
    assert max(map(len, narrow)) <= 60
    assert [line for line in narrow if "again" in line] == [
        "Not shown, since the terminal is narrow: again. --json has"
    ]
    assert " ".join(" ".join(narrow).split()).count("large") == 5


def test_csv_has_no_lists_and_nothing_nested_in_its_cells() -> None:
    row = {
        "name": "m", "ci95_ms": (1.0, 2.0), "ratio_ci95": None, "coverage": {"macs": 1.0, "deep": {"x": 2}},
        "op_types": ("Conv", "Relu"), "missing": [{"key": "k"}],
    }  # fmt: skip

    (parsed,) = csv.DictReader(io.StringIO(render(Answer([row]), "csv")))

    assert parsed == {
        "name": "m", "ci95_ms_low": "1.0", "ci95_ms_high": "2.0", "ratio_ci95_low": "", "ratio_ci95_high": "",
        "coverage.macs": "1.0", "coverage.deep.x": "2", "op_types": "Conv;Relu", "missing": "1",
    }  # fmt: skip


# Layers are described in the same words in every table, and tables of layers fit their width -----------------------


def _form(**changes: object) -> Form:
    known = {
        "inputs": "float[1,144,56,56] float[1,32,56,56]", "weights": "float[32,144,1,1]",
        "outputs": "float[1,32,56,56]", "strides": "2x2", "kernel": "3x3",
        "source_layers": ("/block/conv", "/block/add"),
    }  # fmt: skip
    return Form(**(known | changes))  # type: ignore[arg-type]


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
    entry = flat_estimate(name="m", granularity=1, coverage=Coverage(1.0, None), sequences=(part,), path=(part,))

    piped, shown = (render(estimates_answer(Estimates((entry,)), explain=True), width=width) for width in (None, 100))

    assert piped.count(name) == 2, "whole, in one row"
    assert "MatMul" in shown
    assert name not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_what_is_piped_is_neither_wrapped_nor_cut() -> None:
    name, prose = "model/" * 40, "word " * 60 + "end"
    answer = Answer([{"name": name, "why": prose}], columns=[Field("name"), Field("why", spare=True)], summary=[prose])

    lines = render(answer).splitlines()

    assert len(lines) == 5
    assert lines[2].split("  ")[0] == name
    assert lines[-1] == prose


def test_on_a_terminal_names_are_shortened_in_the_middle_and_prose_wraps_at_words() -> None:
    name, command = f"models/{'x' * 90}/tail.onnx", f"dlbricks measure {'y' * 90}"
    answer = Answer([{"name": name}], columns=[Field("name")], summary=[f"{'word ' * 30}end: {command}; more words"])

    _, _, row, blank, *prose = render(answer, width=60).splitlines()

    assert row.startswith("models/x")
    assert row.endswith("x/tail.onnx")
    assert (len(row), row.count("…"), blank) == (60, 1, "")
    assert all(len(line) <= 60 for line in prose if "dlbricks" not in line)
    assert f"    {command};" in prose, "a command stays in one piece"
    assert " ".join(" ".join(prose).split()) == f"{'word ' * 30}end: {command}; more words"


def test_an_interval_is_not_broken_in_a_narrow_column() -> None:
    rows = [{"name": "m" * 40, "ratio": "1.00 [0.93, 1.07]"}]

    lines = render(Answer(rows, columns=[Field("name"), Field("ratio")]), width=28).splitlines()

    assert [line.split()[-1] for line in lines[2:]] == ["1.00", "0.93\N{EN DASH}1.07"]
    assert "1.00 [0.93, 1.07]" in render(Answer(rows, columns=[Field("ratio")]), width=28)


def test_lines_of_the_same_reason_become_one() -> None:
    summary = [*(f"m{n}: nothing to compare with" for n in range(18)), "a: one", "b: other", "c: same", "d: same"]
    details = ["x: missing", "  since it is", "y: missing", "  since it is", "z: missing"]
    errors = Answer([{"name": f"m{n}", "error": "needs transformers"} for n in range(4)])

    lines = render(Answer([], summary=[*summary, *details])).splitlines()

    assert lines[0] == f"{', '.join(f'm{n}' for n in range(18))}: nothing to compare with"
    assert lines[1:] == ["a: one", "b: other", "c: same", "d: same", *details]
    assert only_errors(errors) == ["m0, m1, m2, m3: needs transformers"]


def test_a_name_within_a_word_does_not_name_the_model():
    errors = Answer([{"name": "bf", "error": "no kernel in bfloat16"}, {"name": "a", "error": "dir/a.onnx: broken"}])

    assert only_errors(errors) == ["bf: no kernel in bfloat16", "dir/a.onnx: broken"]


# Numbers as they are written ---------------------------------------------------------------------------------------
