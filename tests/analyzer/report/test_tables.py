"""Answers as table, Markdown, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from dlbricks.analyzer.report.answers.resources import _option_lines
from dlbricks.analyzer.report.tables import Answer, Column, Format, printable, render

ROWS = [
    {"name": "squeezenet", "ms": 12.5, "coverage": {"macs": 1.0}, "missing": []},
    {"name": "b", "ms": None, "coverage": {"macs": 0.25}, "missing": ["k1", "k2"]},
]
COLUMNS = [
    Column("name", "model"),
    Column("ms", "ms", lambda value: f"{value:.2f}"),
    Column("coverage.macs", "macs", lambda value: f"{value:.0%}"),
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
    answer = Answer([{"a": number, "deep": [{"b": (number,)}]}], columns=[Column("a", "a")])

    assert json.loads(render(answer, "json"))["results"] == [{"a": None, "deep": [{"b": [None]}]}]
    assert render(answer, "table").splitlines()[-1] == "-"
    assert next(csv.DictReader(io.StringIO(render(answer, "csv")))) == {"a": "", "deep": "1"}


def test_csv_quotes_what_needs_it_and_fills_missing_keys() -> None:
    rows = [{"name": 'a,"b"', "x": 1}, {"name": "c", "y": 2.5}]

    parsed = list(csv.DictReader(io.StringIO(render(Answer(rows), "csv"))))

    assert parsed == [{"name": 'a,"b"', "x": "1", "y": ""}, {"name": "c", "x": "", "y": "2.5"}]


def test_no_results_still_answer() -> None:
    assert json.loads(render(Answer([]), "json")) == {"schema": 1, "results": []}
    assert render(Answer([], columns=COLUMNS, summary=["nothing"])) == "nothing\n"


def test_a_name_cannot_drive_the_terminal() -> None:
    name = "\x1b[2Jevil\nline"
    answer = Answer([{"name": name}], columns=[Column("name", "model")], summary=["", f"{name}: skipped"])

    assert render(answer).splitlines()[-4:] == [r"\x1b[2Jevil\nline", "", "", r"\x1b[2Jevil\nline: skipped"]
    assert r"\x1b[2Jevil\nline" in render(answer, "csv")
    assert "\x1b" not in render(answer, "json")
    assert json.loads(render(answer, "json"))["results"] == [{"name": name}]
    assert printable("größe 層") == "größe 層"


def test_a_name_that_is_no_unicode_is_written_all_the_same() -> None:
    answer = Answer([{"name": "bad\udcff.onnx"}], columns=[Column("name", "model")])

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


def test_the_record_is_what_json_holds() -> None:
    answer = Answer([{"a": math.nan, "b": (1, 2)}], totals={"c": {3}})

    assert answer.to_json() == json.loads(render(answer, "json"))


def test_markdown_is_a_table_with_the_lines_below_it() -> None:
    columns = [*COLUMNS, Column("ms", "spare", spare=True)]

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
    answer = Answer([{"name": name}], columns=[Column("name", "model")], summary=["```", f"{name}: skipped"])

    _, _, row, blank, *rest = render(answer, "markdown").splitlines()

    assert row == r"| a\|b\<img src=x\>\`\[c\](d)\\n\# e |"
    assert not blank
    assert rest == ["````text", "```", r"a|b<img src=x>`[c](d)\n# e: skipped", "````"]


def test_options_are_shown_where_devices_differ() -> None:
    lines = _option_lines(
        "own", {"cpu": {"a": "on", "b": "1"}, "cuda": {"a": "off", "c": "2"}, "npu": {"a": "on", "b": "1"}}
    )

    assert [*lines] == [
        "options of own, with their defaults: a=on b=1",
        "options of own on cuda, beside these: a=off c=2",
        "options that own has not on cuda: b",
    ]
    assert [*_option_lines("none", {"cpu": {}})] == []


def test_what_does_not_fit_is_wrapped_and_spare_columns_are_left_out() -> None:
    rows = [{"key": "k" * 12, "ms": 1.5, "ci": (1.25, 1.75), "reason": "it is too large for this machine " * 5}]
    columns = [
        Column("key", "brick"),
        Column("ms", "latency of it in ms", lambda value: f"{value:.3f}", bounds="ci"),
        Column("ms", "again", spare=True),
        Column("reason", "reason"),
    ]

    wide, narrow = (render(Answer(rows, columns=columns), width=width).splitlines() for width in (300, 60))

    assert len(wide) == 3
    assert "1.500 ± 0.25  " in wide[2]
    assert "again" in wide[0]
    assert max(map(len, narrow)) <= 60
    assert not any("again" in line for line in narrow)
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
