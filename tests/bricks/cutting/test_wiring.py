"""Keys of sequences: what they depend on, and what they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dlbricks.bricks.cutting.wiring import make_sequence, sequences
from dlbricks.bricks.graph.graph import ModelGraph
from dlbricks.bricks.sequence import LayerSequence

Parse = Callable[[str], ModelGraph]


def whole(graph: ModelGraph) -> LayerSequence:
    return make_sequence(graph, graph.live)


def test_names_do_not_matter(parse_graph: Parse) -> None:
    one = parse_graph("a (float[4] x, float[4] w) => (float[4] y) { t = Mul(x, w) y = Relu(t) }")
    other = parse_graph("b (float[4] in, float[4] wb) => (float[4] out) { [n] q = Mul(in, wb) [m] out = Relu(q) }")
    assert whole(one).key == whole(other).key
    assert whole(one).inputs == ("x",)
    assert whole(one).weights == ("w",)
    assert whole(one).outputs == ("y",)


def test_a_square_is_not_a_product(parse_graph: Parse) -> None:
    square = parse_graph("a (float[4] x, float[4] z) => (float[4] y) { y = Mul(x, x) }")
    product = parse_graph("a (float[4] x, float[4] z) => (float[4] y) { y = Mul(x, z) }")
    assert whole(square).key != whole(product).key
    assert whole(square).inputs == ("x",)


def test_shared_weights_are_not_two_weights(parse_graph: Parse) -> None:
    text = "a (float[4] x, float[4] w, float[4] w2) => (float[4] y) {{ t = Mul(x, w) y = Mul(t, {}) }}"
    assert whole(parse_graph(text.format("w"))).key != whole(parse_graph(text.format("w2"))).key


def test_an_exposed_interior_value_makes_another_brick(parse_graph: Parse) -> None:
    hidden = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) y = Tanh(t) }")
    exposed = parse_graph("a (float[4] x) => (float[4] t, float[4] y) { t = Relu(x) y = Tanh(t) }")
    assert make_sequence(hidden, (0, 1)).key != make_sequence(exposed, (0, 1)).key
    assert make_sequence(exposed, (0, 1)).outputs == ("t", "y")
    # The single layers are the same bricks: each exposes its only output.
    assert make_sequence(hidden, (0,)).key == make_sequence(exposed, (0,)).key


def test_where_a_skip_joins_matters(parse_graph: Parse) -> None:
    from_input = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, x) }")
    from_middle = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, t) }")
    from_outside = parse_graph("a (float[4] x, float[4] z) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Sub(u, z) }")
    assert len({whole(graph).key for graph in (from_input, from_middle, from_outside)}) == 3


def test_a_dead_end_exposes_all_its_outputs(parse_graph: Parse) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) { p, q = Split <num_outputs = 2> (x) y = Relu(x) }")
    assert make_sequence(graph, (0,)).outputs == ("p", "q")


def test_an_output_that_nothing_reads_is_not_exposed(parse_graph: Parse) -> None:
    graph = parse_graph(
        "a (float[1,2,4] x) => (float[1,2,4] y) { p, i = MaxPool <kernel_shape = [1]> (x) y = Relu(p) }"
    )
    assert make_sequence(graph, (0,)).outputs == ("p",)


def test_small_constants_are_part_of_the_key_and_weights_are_not(parse_graph: Parse) -> None:
    text = "a (float[4] x) => (float[4] y) <float[1] c = {{{}}}> {{ y = Pow(x, c) }}"
    assert whole(parse_graph(text.format("2"))).key != whole(parse_graph(text.format("3"))).key
    assert whole(parse_graph(text.format("2"))).weights == ()


@pytest.mark.parametrize("granularity", [1, 2, 3])
def test_sequences_are_the_windows_in_order(parse_graph: Parse, granularity: int) -> None:
    graph = parse_graph("a (float[4] x) => (float[4] y) { t = Relu(x) u = Tanh(t) y = Relu(u) }")
    found = sequences(graph, granularity)
    assert [index for sequence in found for index in sequence.layers] == [0, 1, 2]
    if granularity == 1:
        assert found[0].key == found[2].key != found[1].key
