"""Reports as frames, JSON and Markdown: what the command line writes, from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dlbricks
import pytest
from dlbricks.errors import UsageError

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
        ("estimate", "--stack", stack): dlbricks.to_json(estimates),
        ("estimate", "--stack", stack, "--explain", "--layers"): dlbricks.to_json(estimates[0], explain=True),
        ("compare",): dlbricks.to_json(dlbricks.compare(models, store=store)),
        ("advise",): dlbricks.to_json(dlbricks.advise(models, store=store)),
        ("kernels", "--stack", stack): dlbricks.to_json(dlbricks.kernels(models, store=store, stack=stack)),
        ("analyze", "--stack", stack): dlbricks.to_json(dlbricks.analyze(models, store=store, stack=stack)),
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

    whole, layers = dlbricks.frame(estimates), dlbricks.frame(estimates, inner=True)

    assert list(whole["name"]) == [models[0].name]
    assert whole["coverage.sequences"][0] == 1.0
    assert whole["ci95_ms_low"][0] <= whole["estimate_ms"][0] <= whole["ci95_ms_high"][0]
    assert whole["missing"].str.len()[0] == 0
    assert layers["layer.latency_ms"].sum() == pytest.approx(estimates[0].sequential_ms)
    assert len(layers) == len(estimates[0].sequences) == 6
    assert len(dlbricks.frame(dlbricks.compare(models, store=store), inner=True)) == 4, "one for each unique brick"


def test_what_was_decomposed_and_measured_is_recorded(models: list[dlbricks.ModelSource]) -> None:
    made = dlbricks.generate(models, granularity=1, out="suite")
    with dlbricks.Store.open("dlbricks.db") as store:
        forecast = dlbricks.run("suite", store=store, dry_run=True)
        nothing = dlbricks.estimate([], store=store)

    assert dlbricks.to_json(made)["unique"] == dlbricks.frame(made)["unique"][0] == made.unique
    assert dlbricks.to_json(forecast)["remaining"] == forecast.remaining
    assert dlbricks.frame(forecast).empty, "a row for each failure, of which there is none"
    assert dlbricks.to_json(nothing) == {"schema": 1, "results": [], "sweeps": []}


def test_bricks_that_agree_have_no_row(models: list[dlbricks.ModelSource]) -> None:
    suite = dlbricks.generate(models, granularity=1, out="suite").suite
    assert suite is not None

    found = dlbricks.check_agreement(suite, "onnxruntime", against="onnxruntime")

    assert dlbricks.frame(found).empty
    assert dlbricks.to_json(found)["backend"] == "onnxruntime"


@pytest.mark.parametrize("thing", [None, "report", 1.5, [1, 2]])
def test_what_is_no_report_is_refused(thing: Any) -> None:
    with pytest.raises(UsageError, match="is no report"):
        dlbricks.frame(thing)
