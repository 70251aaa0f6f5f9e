"""The table of operators is what the code says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from dlbricks.bricks.costs import FORMULAS

TOP = Path(__file__).resolve().parents[2]


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")  # what PyTorch has is asked of its operators' modules
    monkeypatch.syspath_prepend(TOP / "benchmarks")
    return importlib.import_module("operators")


def test_the_page_is_what_the_code_and_the_run_say(operators: ModuleType) -> None:
    for page in operators.PAGES:
        text = (TOP / page).read_text()
        assert operators.rendered(text, TOP) == text, f"{page}: run python benchmarks/operators.py"


def test_every_formula_is_in_the_table(operators: ModuleType) -> None:
    text = (TOP / operators.PAGES[0]).read_text()

    for domain, operator in FORMULAS:
        section = text.partition(f"### {domain or 'ai.onnx'}\n")[2].partition("\n### ")[0]
        assert f"| {operator} |" in section, (domain, operator)


def test_a_formula_that_is_gone_is_seen(operators: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (TOP / operators.PAGES[0]).read_text()
    monkeypatch.delitem(FORMULAS, ("", "Conv"))

    assert operators.rendered(text, TOP) != text


def test_what_decomposes_was_counted(operators: ModuleType) -> None:
    counts = json.loads((TOP / "docs/results/operators.json").read_text())["operators"]

    assert all(one["decomposed"] <= one["layers"] for one in counts.values())
    assert all(one.get("measured", 0) <= one.get("bricks", 0) for one in counts.values())
    assert sum(one["decomposed"] for one in counts.values()) >= 0.95 * sum(one["layers"] for one in counts.values())


def test_of_every_class_of_files_nearly_all_layers_decompose(operators: ModuleType) -> None:
    found = json.loads((TOP / operators.classes.RESULT).read_text())["classes"]

    assert list(found) == [name for name in operators.classes.CLASSES if name in found]
    assert {"language models", "swept shapes", "control flow", "custom operators"} <= found.keys()
    assert "quantised and low-precision files" in found
    for name, rows in found.items():
        for row in rows:
            assert row["decomposed"] + sum(row["reasons"].values()) == row["layers"], name
            assert row["decomposed"] >= 0.95 * row["layers"], (name, row["graph"])


def test_reasons_are_told_without_the_names_of_a_model(operators: ModuleType) -> None:
    assert operators.classes._plain("output 'secret' has no static type (int64[2, k], from Loop 'mine') | x") == (
        "output … has no static type (int64[…], from Loop …)   x"
    )
