"""The commands that are printed are ones that the code takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dlbricks.analyzer.estimation.commands import Commands, default_options
from dlbricks.analyzer.estimation.selection import Query
from dlbricks.constructor.choice import Choice
from dlbricks.db import Conditions, Stack
from dlbricks.generator.backends.base import GraphBackend
from dlbricks.generator.backends.registry import get, names
from dlbricks.generator.backends.requirements import in_turn
from dlbricks.generator.decomposition.cutter import Cut


def commands(lab, backend: str, query: Query | None = None, *, stored: str | None = None, **options: str) -> Commands:
    """Commands of a stack that nothing is stored of, or with bricks in a cache state."""
    if stored is None:
        return Commands(lab.store, None, query or Query(backend=backend), Cut(1))
    effective = get(backend).resolve("cpu", options)
    stack = Stack(backend, "cpu", (), tuple(sorted(effective.items())))
    choice = Choice("system", stack.key, lab.system, stack, Conditions(1, stored), 1)
    return Commands(lab.store, choice, Query(), Cut(1))


def printed(found: Commands, source) -> Iterator[str]:
    """All of them."""
    for command in (
        found.truth(source),
        found.examine(source),
        found.measure(source),
        found.measure(source, cache="model"),
        found.measure(source, cache="8MiB"),
        found.measure(source, graph="runtime"),
        found.measure(source, graph="runtime", cache="model"),
        found.measure(source, graph="fused"),
    ):
        if command is not None:
            yield command


@pytest.mark.parametrize("stored", [None, "hot", "cold", "model", "8MiB"])
@pytest.mark.parametrize("name", [name for name in names() if "cpu" in get(name).devices])
def test_no_command_asks_a_runtime_for_what_it_refuses(lab, fork, name, stored):
    backend = get(name)
    found = list(printed(commands(lab, name, stored=stored), fork))

    assert all(f"--backend {name}" in command for command in found)
    assert len(found) >= 2
    if not in_turn(backend, default_options(name, "cpu")):
        # ``run`` measures at reuse distances where no cache state is given.
        assert not any("--cache model" in command or "--data" in command for command in found)
        assert all("--cache" in command for command in found)
    if not isinstance(backend, GraphBackend):
        assert not any("--graph" in command for command in found)


def test_a_runtime_that_only_takes_turns_is_asked_for_no_graph_and_no_single_layers(lab, fork):
    found = commands(lab, "mxnet", Query(backend="mxnet", cache="model"))

    assert "--cache hot" not in found.measure(fork)
    assert "--cache model" in found.measure(fork, cache="model")
    assert found.examine(fork) is found.measure(fork, graph="runtime") is None


def test_a_runtime_that_shows_what_it_fuses_is_asked_for_units_where_these_are_cut(lab, fork):
    units = Commands(lab.store, None, Query(backend="openvino"), Cut(1, graph="fused"))
    layers = commands(lab, "openvino", Query(backend="openvino"))

    assert "--graph fused --backend openvino" in units.measure(fork)
    assert units.measure(fork, graph="runtime") is None
    assert layers.measure(fork, graph="fused", algorithms=("unfused", "extended")) is None


def test_options_decide_whether_a_runtime_runs_bricks_in_turn(lab, fork):
    eager, compiled = (commands(lab, "torch", stored="model", mode=mode) for mode in ("eager", "compile"))

    assert "--cache model" in eager.measure(fork, cache="model")
    assert "--data" in eager.examine(fork)
    assert compiled.measure(fork, cache="model") is compiled.examine(fork) is None
    assert compiled.measure(fork, cache="128MiB") is None
    assert "--cache hot" in compiled.measure(fork)
    assert "--cache hot" in compiled.truth(fork)


def test_the_graph_that_an_eager_runtime_executes_is_the_model_s_own(lab, fork):
    eager, compiled = (commands(lab, "torch", stored="hot", mode=mode) for mode in ("eager", "compile"))

    assert eager.measure(fork, graph="runtime") == eager.measure(fork)
    assert compiled.measure(fork, graph="runtime") is None


def test_a_runtime_that_does_all_is_asked_for_all(lab, fork):
    found = commands(lab, "onnxruntime", stored="hot")

    assert "--data" in found.examine(fork)
    assert "--graph runtime" in found.measure(fork, graph="runtime", cache="model")
    assert found.measure(fork, graph="runtime", cache="model").count("--cache model") == 1


def test_a_stack_whose_runtime_is_not_known_here_is_asked_as_before(lab, fork):
    found = commands(lab, "elsewhere", Query(backend="elsewhere", cache="model"))

    assert "--backend elsewhere --cache model" in found.measure(fork)
