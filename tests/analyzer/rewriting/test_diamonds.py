"""No walk over a graph takes longer than its size: chains of diamonds, whose paths double with each, end at once.

A walk without a memory of where it was takes 2^60 steps here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from dlbricks.analyzer.rewriting.engines import ENGINES
from dlbricks.analyzer.rewriting.recording import Values
from dlbricks.analyzer.rewriting.rewrite import RewriteGraph
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.constructor.interventions import quotient_of
from dlbricks.generator.backends.onnxruntime.executed_nodes import TRAITS
from dlbricks.generator.decomposition.origins import GraphOperator, match
from dlbricks.models.normal import normalise
from dlbricks.models.skeleton import Skeleton

DIAMONDS = 60
LIMIT_S = 20
"""Far more than any of these takes; a doubling walk would never end."""

ENGINE_S = 1.0
"""Seconds for one engine."""

PAIRS = {
    "roots": "l{0} = Sqrt(v{0}) r{0} = Abs(v{0}) v{1} = Mul(l{0}, r{0})",
    "activations": "l{0} = Erf(v{0}) r{0} = Add(v{0}, one) v{1} = Mul(l{0}, r{0})",
    "sums": "l{0} = ReduceMean<axes=[1]>(v{0}) r{0} = Sub(v{0}, l{0}) v{1} = Mul(r{0}, r{0})",
    "casts": "l{0} = Cast<to=11>(v{0}) r{0} = Cast<to=1>(l{0}) v{1} = Add(v{0}, r{0})",
    "views": "l{0} = Transpose<perm=[1,0]>(v{0}) r{0} = Transpose<perm=[1,0]>(l{0}) v{1} = Add(v{0}, r{0})",
    "products": "l{0} = MatMul(v{0}, w) r{0} = Softmax(v{0}) v{1} = Add(l{0}, r{0})",
}
"""Diamonds of several kinds, each from value ``v{0}`` to ``v{1}``."""


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """Fail a walk that does not end."""

    def late(*_: object) -> None:
        pytest.fail(f"not done after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def model(kind: str, *, constant: bool) -> onnx.ModelProto:
    """A chain of diamonds of one kind, computed of the model's input, or of constants alone."""
    chain = " ".join(PAIRS[kind].format(number, number + 1) for number in range(DIAMONDS))
    first, last = (
        ("v0 = Sqrt(k)", f"y = Add(x, v{DIAMONDS})") if constant else ("v0 = Relu(x)", f"y = Relu(v{DIAMONDS})")
    )
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> diamonds (float[4,4] x) => (float[4,4] y)'
        f"<float one = {{1}}> {{{first} {chain} {last}}}"
    )
    made = onnx.parser.parse_model(text)
    half = np.full((4, 4), 0.5, np.float32)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(half, name) for name in ("w", "k"))
    return made


def graph_of(made: onnx.ModelProto) -> ModelGraph:
    return build_graph(Skeleton(normalise(made).model))


@pytest.mark.parametrize("engine", [*ENGINES])
@pytest.mark.parametrize("kind", PAIRS)
def test_engines_end_in_a_chain_of_diamonds(kind: str, engine: str):
    made = model(kind, constant=False)
    x = np.random.default_rng(0).uniform(0.1, 1, (4, 4)).astype(np.float32)
    values = Values(RewriteGraph(made), [{"x": x}, {"x": x / 2}])

    begun = time.process_time()
    ENGINES[engine][0](values, time.perf_counter() + ENGINE_S)

    assert time.process_time() - begun < 3 * ENGINE_S  # its share of the time, and no more than one step longer


def test_a_chain_of_diamonds_is_cut_and_contracted():
    graph = graph_of(model("roots", constant=False))
    parts = tuple(sequences(graph, 4))

    assert sum(len(part.own) for part in parts) == 3 * DIAMONDS + 2
    assert quotient_of(graph, parts).order


@pytest.mark.parametrize("kind", ["Sqrt", "com.microsoft.nchwc.ReorderInput"])
def test_operators_that_were_put_in_are_matched(kind: str):
    before = [GraphOperator("a", "Relu", ("x",), ("a",)), GraphOperator("y", "Exp", ("a",), ("y",))]
    put_in = [GraphOperator("", "Relu", ("x",), ("t0",))]
    for number in range(DIAMONDS):
        put_in += [
            GraphOperator("", kind, (f"t{number}",), (f"l{number}",)),
            GraphOperator("", "Abs", (f"t{number}",), (f"r{number}",)),
            GraphOperator("", "Mul", (f"l{number}", f"r{number}"), (f"t{number + 1}",)),
        ]
    put_in.append(GraphOperator("y", "Exp", (f"t{DIAMONDS}",), ("y",)))

    origins = match(before, put_in, TRAITS)

    assert origins[-1] == frozenset({0, 1}) or origins[-1] == frozenset({1})
