"""Caches that are extended in place: what is read and what is written is one buffer, in models and in packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from computing import by_name
from dlbricks.bricks.graph.boundary import BOTH
from dlbricks.generator.network.network import file_network, shared_buffers, synthetic_network
from dlbricks.generator.network.packed import PackedBrick, pack
from onnx import TensorProto, helper

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def attention(past: int | str, present: int | str) -> onnx.ModelProto:
    """One query, four heads of 16 over two of keys and values."""
    value = helper.make_tensor_value_info
    inputs = [value("q", FLOAT, [1, 1, 64]), value("k", FLOAT, [1, 1, 32]), value("v", FLOAT, [1, 1, 32])]
    inputs += [value(f"past_{part}", FLOAT, [1, 2, past, 16]) for part in "kv"]
    inputs += [value("last", INT32, [1]), value("total", INT32, [])]
    node = helper.make_node(
        "GroupQueryAttention", [one.name for one in inputs], ["y", "present_k", "present_v"],
        domain="com.microsoft", num_heads=4, kv_num_heads=2,
    )  # fmt: skip
    outputs = [value("y", FLOAT, [1, 1, 64])] + [value(f"present_{part}", FLOAT, [1, 2, present, 16]) for part in "kv"]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(
    ("past", "present", "shared"), [(1024, 1024, True), ("most", "most", True), (1023, 1024, False), ("a", "b", False)]
)
def test_a_cache_is_extended_in_place_where_both_are_declared_alike(past, present, shared):
    found = shared_buffers(attention(past, present).graph)

    assert found == ({"present_k": "past_k", "present_v": "past_v"} if shared else {})


def test_a_whole_model_writes_to_the_memory_that_it_reads(tmp_path: Path):
    path = tmp_path / "step.onnx"
    onnx.save(attention(1024, 1024), path)
    network = file_network(path, overrides={})
    before = {name: array.copy() for name, array in network.feeds.items()}

    found = by_name(network)

    for part in "kv":
        present, past = found[f"present_{part}"], network.feeds[f"past_{part}"]
        np.testing.assert_array_equal(present, past)
        np.testing.assert_array_equal(past[:, :, :-1], before[f"past_{part}"][:, :, :-1])
        np.testing.assert_array_equal(past[:, :, -1].reshape(-1), network.feeds[part].reshape(-1))  # the new position


@pytest.mark.parametrize("boundary", ["", BOTH])
def test_so_does_a_brick_wherever_it_stands(boundary):
    brick = synthetic_network(attention(1024, 1024))

    network = pack([PackedBrick(brick, boundary=boundary)]).network

    assert network.shared == {f"0.0/present_{part}": f"0.0/past_{part}" for part in "kv"}
    found = by_name(network)
    for part in "kv":
        np.testing.assert_array_equal(found[f"0.0/present_{part}"], network.feeds[f"0.0/past_{part}"])
