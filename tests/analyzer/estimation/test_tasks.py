"""What would measure what is missing is what the runtime can do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dlbricks.analyzer.estimation.tasks import Tasks, default_options
from dlbricks.constructor.choice import Choice, Query
from dlbricks.constructor.remedies import Task
from dlbricks.db import Conditions, Stack
from dlbricks.generator.backends.registry import get, names
from dlbricks.generator.decomposition.cut import Cut


def tasks(lab, backend: str, query: Query | None = None, *, stored: str | None = None, **options: str) -> Tasks:
    """Tasks of a stack that nothing is stored of, or with bricks in a cache state."""
    if stored is None:
        return Tasks(lab.store, None, query or Query(backend=backend), Cut(1))
    effective = get(backend).resolve("cpu", options)
    stack = Stack(backend, "cpu", (), tuple(sorted(effective.items())))
    choice = Choice("system", stack.key, lab.system, stack, Conditions(1, stored), 1)
    return Tasks(lab.store, choice, Query(), Cut(1))


def all_of(found: Tasks, source) -> Iterator[Task]:
    """All of them."""
    for task in (
        found.truth(source),
        found.measure(source),
        found.measure(source, cache="model"),
        found.measure(source, cache="8MiB"),
        found.measure(source, graph="runtime"),
        found.measure(source, graph="runtime", cache="model"),
        found.measure(source, graph="fused"),
    ):
        if task is not None:
            yield task


@pytest.mark.parametrize("stored", [None, "hot", "cold", "model", "8MiB"])
@pytest.mark.parametrize("name", [name for name in names() if "cpu" in get(name).devices])
def test_no_task_asks_a_runtime_for_what_it_refuses(lab, fork, name, stored):
    backend = get(name)
    found = list(all_of(tasks(lab, name, stored=stored), fork))

    assert all(task.backend == name for task in found)
    assert len(found) >= 2
    if not backend.in_turn(default_options(name, "cpu")):
        # ``run`` measures at reuse distances where no cache state is given.
        assert not any(task.cache == "model" for task in found)
        assert all(task.cache for task in found)
    if backend.graph != "runtime":
        assert {task.graph for task in found} == {"source"}


def test_a_runtime_that_only_takes_turns_is_asked_for_no_graph(lab, fork):
    found = tasks(lab, "mxnet", Query(backend="mxnet", cache="model"))

    assert found.measure(fork).cache != "hot"
    assert found.measure(fork, cache="model").cache == "model"
    assert found.measure(fork, graph="runtime") is None


def test_a_runtime_that_shows_what_it_fuses_is_asked_for_units_where_these_are_cut(lab, fork):
    units = Tasks(lab.store, None, Query(backend="openvino"), Cut(1, graph="fused"))
    layers = tasks(lab, "openvino", Query(backend="openvino"))

    assert (units.measure(fork).graph, units.measure(fork).backend) == ("fused", "openvino")
    assert units.measure(fork, graph="runtime") is None
    assert layers.measure(fork, graph="fused", algorithms=("unfused", "extended")) is None


def test_options_decide_whether_a_runtime_runs_bricks_in_turn(lab, fork):
    eager, compiled = (tasks(lab, "torch", stored="model", mode=mode) for mode in ("eager", "compile"))

    assert eager.measure(fork, cache="model").cache == "model"
    assert compiled.measure(fork, cache="model") is None
    assert compiled.measure(fork, cache="128MiB") is None
    assert compiled.measure(fork).cache == "hot"
    assert compiled.truth(fork).cache == "hot"


def test_the_graph_that_an_eager_runtime_executes_is_the_model_s_own(lab, fork):
    eager, compiled = (tasks(lab, "torch", stored="hot", mode=mode) for mode in ("eager", "compile"))

    assert eager.measure(fork, graph="runtime") == eager.measure(fork)
    assert compiled.measure(fork, graph="runtime") is None


def test_a_runtime_that_does_all_is_asked_for_all(lab, fork):
    found = tasks(lab, "onnxruntime", stored="hot")

    executed = found.measure(fork, graph="runtime", cache="model")
    assert (executed.graph, executed.cache) == ("runtime", "model")


def test_a_stack_whose_runtime_is_not_known_here_is_asked_as_before(lab, fork):
    found = tasks(lab, "elsewhere", Query(backend="elsewhere", cache="model"))

    assert (found.measure(fork).backend, found.measure(fork).cache) == ("elsewhere", "model")
