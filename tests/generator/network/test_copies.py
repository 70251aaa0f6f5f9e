"""Heads and tails: copies that compute the same, with weights of their own."""

import numpy as np
import onnx
import pytest
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.copies import chain_input, copied, ordinary
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models.skeleton import mark_weight
from onnx import helper


def _network(text: str, weights: tuple[str, ...] = ()):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> g {text}')
    for value in model.graph.input:
        if value.name in weights:
            mark_weight(value)
    return synthetic_network(model)


def _outputs(network):
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", {}))
    executable = backend.prepare(network, settings)
    try:
        executable.run()
        return executable.outputs()
    finally:
        executable.close()


def _single(network):
    """One copy, run as it stands but with its own memory."""
    import dataclasses

    return dataclasses.replace(copied(network, 1), shared=False)


def _several(network, copies, **options):
    import dataclasses

    return dataclasses.replace(copied(network, copies, **options), shared=False)


def test_a_head_computes_what_the_brick_computes():
    network = _network("(float[4,300] x, float[300,300] w) => (float[4,300] y) {a = MatMul(x, w) y = Relu(a)}", ("w",))

    assert np.allclose(_outputs(_single(network))[0], _outputs(network)[0])


def test_every_copy_has_weights_of_other_values():
    network = _network("(float[4,300] x, float[300,300] w) => (float[4,300] y) {y = MatMul(x, w)}", ("w",))

    tail = copied(network, 5)

    arrays = list(tail.weights.values())
    assert len(arrays) == 5
    packed = {array.tobytes() for array in arrays}
    assert len(packed) == 5, "a runtime would share what is equal"
    assert all(np.array_equal(np.sort(array, axis=None), np.sort(arrays[0], axis=None)) for array in arrays)
    assert not any(np.shares_memory(one, other) for one in arrays for other in arrays if one is not other)


def test_a_chain_hands_the_result_of_each_copy_to_the_next():
    network = _network("(float[8,8] x) => (float[8,8] y) {y = Sigmoid(x)}")
    expected = network.feeds["x"]
    for _ in range(4):
        expected = 1 / (1 + np.exp(-expected))

    assert chain_input(network, _outputs(network)[0]) == "x"
    assert np.allclose(_outputs(_several(network, 4, chained="x"))[0], expected, atol=1e-5)


def test_without_a_chain_all_copies_read_the_same_input():
    network = _network("(float[8,8] x) => (float[8,8] y) {y = Sigmoid(x)}")

    assert np.allclose(_outputs(_several(network, 4))[0], _outputs(network)[0])


def test_a_result_of_another_shape_chains_nothing():
    network = _network("(float[8,4] x) => (float[4,8] y) {y = Transpose(x)}")

    assert chain_input(network, _outputs(network)[0]) is None


def test_captured_values_of_bodies_are_renamed():
    value = helper.make_tensor_value_info
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "t", [], [value("t", 1, [4])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "e", [], [value("e", 1, [4])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    graph = helper.make_graph([node], "g", [value("c", 9, []), value("x", 1, [4])], [value("y", 1, [4])])
    network = synthetic_network(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))

    assert np.allclose(_outputs(_several(network, 3))[0], _outputs(network)[0])


@pytest.mark.parametrize(
    ("values", "fine"),
    [([0.0, 1.0, -3.5], True), ([1e-40, 1.0], False), ([np.inf, 1.0], False), ([np.nan], False)],
)
def test_values_that_slow_arithmetic_down_are_not_ordinary(values, fine):
    assert ordinary(np.array(values, dtype=np.float32)) is fine


def test_integers_are_ordinary_and_text_is_not():
    assert ordinary(np.array([1, 2]))
    assert not ordinary(np.array(["a"]))
