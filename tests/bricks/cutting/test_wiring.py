"""Keys of sequences: what they depend on, and what they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dlbricks.bricks.cutting.sequences import make_sequence, sequences
from dlbricks.bricks.graph.model_graph import ModelGraph
from dlbricks.bricks.layer import LayerSequence

Parse = Callable[[str], ModelGraph]


def whole(graph: ModelGraph) -> LayerSequence:
    return make_sequence(graph, graph.live)


KEYS = {
    "names": ("(float[4] x, float[4] w) => (float[4] y) { t = Mul(x, w) y = Relu(t) }",
              "(float[4] in, float[4] wb) => (float[4] out) { [n] q = Mul(in, wb) [m] out = Relu(q) }"),
    "a square and a product": ("(float[4] x, float[4] z) => (float[4] y) { y = Mul(x, x) }",
                               "(float[4] x, float[4] z) => (float[4] y) { y = Mul(x, z) }"),
    "shared weights": ("(float[4] x, float[4] w, float[4] w2) => (float[4] y) { t = Mul(x, w) y = Mul(t, w) }",
                       "(float[4] x, float[4] w, float[4] w2) => (float[4] y) { t = Mul(x, w) y = Mul(t, w2) }"),
    "where a skip joins": ("(float[4] x, float[4] z) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, x) }",
                           "(float[4] x, float[4] z) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, t) }",
                           "(float[4] x, float[4] z) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, z) }"),
    "small constants": ("(float[4] x) => (float[4] y) <float[1] c = {2}> { y = Pow(x, c) }",
                        "(float[4] x) => (float[4] y) <float[1] c = {3}> { y = Pow(x, c) }"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_of_what_is_computed_and_not_of_names(parse_graph: Parse, kind: str) -> None:
    keys = {whole(parse_graph(f"a {text}")).key for text in KEYS[kind]}
    assert len(keys) == (1 if kind == "names" else len(KEYS[kind]))


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("names", (("x",), ("w",), ("y",))),
        ("a square and a product", (("x",), (), ("y",))),
        ("small constants", (("x",), (), ("y",))),
    ],
)
def test_ends_of_a_sequence(parse_graph: Parse, kind: str, ends: tuple[tuple[str, ...], ...]) -> None:
    found = whole(parse_graph(f"a {KEYS[kind][0]}"))
    assert (found.inputs, found.weights, found.outputs) == ends


def test_an_exposed_interior_value_makes_another_brick(parse_graph: Parse) -> None:
    hidden = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) y = Tanh(t) }")
    exposed = parse_graph("a (float[4] x) => (float[4] t, float[4] y) { t = Relu(x) y = Tanh(t) }")
    assert make_sequence(hidden, (0, 1)).key != make_sequence(exposed, (0, 1)).key
    assert make_sequence(exposed, (0, 1)).outputs == ("t", "y")
    # The single layers are the same bricks: each exposes its only output.
    assert make_sequence(hidden, (0,)).key == make_sequence(exposed, (0,)).key


def test_a_dead_end_exposes_all_its_outputs(parse_graph: Parse) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) { p, q = Split <num_outputs = 2> (x) y = Relu(x) }")
    assert make_sequence(graph, (0,)).outputs == ("p", "q")


def test_an_output_that_nothing_reads_is_not_exposed(parse_graph: Parse) -> None:
    graph = parse_graph(
        "a (float[1,2,4] x) => (float[1,2,4] y) { p, i = MaxPool <kernel_shape = [1]> (x) y = Relu(p) }"
    )
    assert make_sequence(graph, (0,)).outputs == ("p",)


@pytest.mark.parametrize("granularity", [1, 2, 3])
def test_sequences_are_the_windows_in_order(parse_graph: Parse, granularity: int) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Relu(u) }")
    found = sequences(graph, granularity)
    assert [index for sequence in found for index in sequence.layers] == [0, 1, 2]
    if granularity == 1:
        assert found[0].key == found[2].key != found[1].key
