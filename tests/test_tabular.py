"""Reports as frames, JSON and Markdown: what the command line writes, from Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import dlbricks
import pytest
from dlbricks.errors import UsageError
from dlbricks.tabular import fields, record_of

DISABLED = {"optimization": "disabled"}


@pytest.fixture
def models(branches: Path) -> list[dlbricks.ModelSource]:
    return dlbricks.find_models([branches.name])


@pytest.fixture
def store(models: list[dlbricks.ModelSource]) -> Any:
    """``dlbricks.db`` with the bricks and the model in two ways, on its own."""
    dlbricks.generate(models, granularity=1, out="suite")
    with dlbricks.Store.open("dlbricks.db") as store:
        for options in ({}, DISABLED):
            dlbricks.run("suite", store=store, models=models, options=options, visits=6, processes=1)
        yield store


def stack_of(store: dlbricks.Store, options: dict[str, str]) -> str:
    (key,) = (key for key, stack in store.stacks().items() if options.items() <= dict(stack.options).items())
    return key


@pytest.mark.slow
def test_json_is_what_the_command_prints(
    models: list[dlbricks.ModelSource], store: dlbricks.Store, cli: Callable[..., Any]
) -> None:
    stack, name = stack_of(store, DISABLED), models[0].path
    estimates = dlbricks.estimate(models, store=store, stack=stack)

    records = {
        ("estimate", "--stack", stack): estimates.to_json(),
        ("estimate", "--stack", stack, "--explain", "--layers"): estimates.to_json(explain=True),
        ("compare",): dlbricks.compare(models, store=store).to_json(),
        ("advise",): dlbricks.advise(models, store=store).to_json(),
        ("kernels", "--stack", stack): dlbricks.kernels(models, store=store, stack=stack).to_json(),
        ("analyze", "--stack", stack): dlbricks.analyze(models, store=store, stack=stack).to_json(),
    }

    for (command, *options), record in records.items():
        assert cli(command, name, *options, "--json").json == record
    markdown = dlbricks.to_markdown(dlbricks.compare(models, store=store))
    assert cli("compare", name, "--format", "markdown").out == markdown
    assert markdown.startswith("| model | other side |")


@pytest.mark.slow
def test_frames_are_flat(models: list[dlbricks.ModelSource], store: dlbricks.Store) -> None:
    stack = stack_of(store, DISABLED)
    estimates = dlbricks.estimate(models, store=store, stack=stack)

    whole, layers = estimates.frame(), estimates.frame(inner=True)

    assert list(whole["name"]) == [models[0].name]
    assert whole["coverage.sequences"][0] == 1.0
    assert whole["ci95_ms_low"][0] <= whole["estimate_ms"][0] <= whole["ci95_ms_high"][0]
    assert whole["missing"].str.len()[0] == 0
    assert layers["layer.latency_ms"].sum() == pytest.approx(estimates.rows[0].sums.sequential_ms)
    assert len(layers) == len(estimates.rows[0].parts.sequences) == 6
    assert len(dlbricks.compare(models, store=store).frame(inner=True)) == 4, "one for each unique brick"


def test_what_was_decomposed_and_measured_is_recorded(models: list[dlbricks.ModelSource]) -> None:
    made = dlbricks.generate(models, granularity=1, out="suite")
    with dlbricks.Store.open("dlbricks.db") as store:
        forecast = dlbricks.run("suite", store=store, dry_run=True)
        nothing = dlbricks.estimate([], store=store)

    assert made.to_json()["unique"] == made.frame()["unique"][0] == made.unique
    assert forecast.to_json()["remaining"] == forecast.remaining
    assert forecast.frame().empty, "a row for each failure, of which there is none"
    assert nothing.to_json() == {"schema": 1, "results": [], "sweeps": []}


def test_bricks_that_agree_have_no_row(models: list[dlbricks.ModelSource]) -> None:
    suite = dlbricks.generate(models, granularity=1, out="suite").suite
    assert suite is not None

    found = dlbricks.check_agreement(suite, "onnxruntime", against="onnxruntime")

    assert found.frame().empty
    assert found.to_json()["backend"] == "onnxruntime"


@pytest.mark.parametrize(
    "name",
    ["advise", "analyze", "check_agreement", "compare", "confirm", "estimate", "generate", "history", "kernels",
     "library_plans", "measure", "report", "reproduce", "run", "tokens"],
)  # fmt: skip
def test_what_every_function_returns_has_the_same_habits(name: str) -> None:
    function = getattr(dlbricks, name)
    kind = function.__globals__[function.__annotations__["return"]]

    assert issubclass(kind, dlbricks.Tabular)
    assert {"rows", "complete", "frame", "to_json"} <= {*dir(kind)}


def test_every_result_names_the_function_that_writes_it() -> None:
    for name in dlbricks.__all__:
        kind = getattr(dlbricks, name)
        if not isinstance(kind, type) or not issubclass(kind, dlbricks.Tabular) or kind is dlbricks.Tabular:
            continue
        module, function = kind.ANSWER.rsplit(".", 1)
        write = getattr(import_module(f"dlbricks.analyzer.{module}"), function)

        assert next(iter(write.__annotations__.values())) == kind.__name__


@pytest.mark.parametrize("thing", [None, "report", 1.5, [1, 2]])
def test_what_is_no_report_is_refused(thing: Any) -> None:
    with pytest.raises(UsageError, match="is not a result of dlbricks"):
        dlbricks.to_markdown(thing)


@dataclass
class Inner:
    """A value with a record, as results hold them."""

    ms: float

    def record(self) -> dict[str, float]:
        return {"inner_ms": self.ms}


@dataclass
class Outer:
    """A result with nested values."""

    name: str
    first: Inner | None
    rest: tuple[Inner, ...] = ()


def test_a_field_reaches_into_a_result_and_nested_results_become_records() -> None:
    names = fields("name ms=first.ms first rest")

    assert record_of(Outer("a", Inner(1.5), (Inner(2.0), Inner(3.0))), names) == {
        "name": "a",
        "ms": 1.5,
        "first": {"inner_ms": 1.5},
        "rest": [{"inner_ms": 2.0}, {"inner_ms": 3.0}],
    }
    assert record_of(Outer("b", None), names) == {"name": "b", "ms": None, "first": None, "rest": ()}
