"""Every value that a zoo model computes from synthetic weights is finite and no denormal number; its bricks run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np
import onnx
import onnxruntime
import pytest
from computing import computed, session
from dlbricks.bricks.cutting.sequences import make_sequence, split
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.network.synthetic.weights import synthesise
from dlbricks.models.zoo import names, structure
from dlbricks.models.zoo.recipes import ZooEntry
from onnx import helper

INSTALLED = all(find_spec(name) for name in ("torch", "transformers", "onnxscript"))
CHUNK_BYTES = 512 << 20  # of values that one execution hands out


def legal_inputs(session: onnxruntime.InferenceSession, taken: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Standard normal floats, small token numbers, and ones for everything else (masks, token types)."""
    generator = np.random.default_rng(0)
    feeds = {}
    for value in session.get_inputs():
        if value.name in taken:
            continue
        if value.type in {"tensor(float)", "tensor(float16)"}:
            numbers = generator.standard_normal(value.shape)
            feeds[value.name] = numbers.astype(np.float32 if value.type == "tensor(float)" else np.float16)
        elif value.name.endswith("input_ids"):
            feeds[value.name] = generator.integers(2, 1000, value.shape)
        else:
            feeds[value.name] = np.ones(value.shape, bool if value.type == "tensor(bool)" else np.int64)
    return feeds


def chunks(model: onnx.ModelProto) -> Iterator[list[str]]:
    """Names of all float values that depend on an input, so many at a time that they fit in memory."""
    typed = onnx.shape_inference.infer_shapes(model).graph
    sizes = {
        value.name: math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*typed.value_info, *typed.output)
        if value.type.tensor_type.elem_type in {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    }
    depending = {value.name for value in model.graph.input}
    for node in model.graph.node:
        if not depending.isdisjoint(node.input):
            depending.update(node.output)
    chunk: list[str] = []
    size = 0
    for name, elements in ((name, elements) for name, elements in sizes.items() if name in depending):
        if chunk and size + 4 * elements > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(name)
        size += 4 * elements
    yield chunk


def unhealthy_values(entry: ZooEntry) -> dict[str, str]:
    """Every float value that is not finite or holds denormal numbers, with what is wrong."""
    model = structure(entry.name).model
    public = {value.name for value in model.graph.output}
    weights = synthesise(model, seed=0)
    found, seen = {}, 0
    for chunk in chunks(model):
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        exposed.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in chunk if name not in public)
        opened = session(exposed, graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
        feeds = {**weights, **legal_inputs(opened, weights)}
        for name, array in zip(chunk, opened.run(chunk, feeds), strict=True):
            seen += 1
            magnitude = np.abs(array)
            if not np.isfinite(magnitude).all():
                found[name] = "not finite"
            elif ((magnitude > 0) & (magnitude < np.finfo(array.dtype).smallest_normal)).any():
                found[name] = "denormal"
    assert seen >= len(model.graph.node) // 2  # the rest computes indices, or constants of constants
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("entry", [entry for entry in names() if entry.extra is None], ids=lambda entry: entry.name)
def test_activations_are_finite_and_normal(entry: ZooEntry) -> None:
    assert not entry.denormals
    assert not unhealthy_values(entry)


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="torch, transformers and onnxscript are not installed")
@pytest.mark.parametrize("entry", [entry for entry in names() if entry.extra], ids=lambda entry: entry.name)
def test_activations_of_exports_are_finite_and_normal(entry: ZooEntry) -> None:
    """Exports go to the user's cache. Architectures that make denormals by themselves say so in their entry."""
    found = unhealthy_values(entry)
    if entry.denormals:
        assert set(found.values()) == {"denormal"}
    else:
        assert not found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("granularity", [1, 4])
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "densenet121", "inception_v1", "bert_base", "vit_b16"])
def test_every_brick_runs_and_is_finite(name, granularity):
    graph = build_graph(structure(name))
    windows = (make_sequence(graph, layers) for layers in split(graph, granularity))
    sequences = {sequence.key: sequence for sequence in windows}

    for sequence in sequences.values():
        brick = build_brick(graph, sequence)
        model = onnx.load_from_string(brick.model)
        network = synthetic_network(model)

        assert list(network.outputs) == [value.name for value in model.graph.output]
        assert all(np.isfinite(array).all() for array in computed(network) if array.dtype.kind == "f"), brick.operators
