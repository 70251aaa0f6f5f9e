"""The bricks of real models run, and what they compute is finite."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.split import split
from dlbricks.bricks.cutting.wiring import make_sequence
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models.zoo import structure


@pytest.mark.sweep(3)
@pytest.mark.parametrize("granularity", [1, 4])
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "densenet121", "inception_v1", "bert_base", "vit_b16"])
def test_every_brick_runs_and_is_finite(name, granularity):
    graph = build_graph(structure(name))
    windows = (make_sequence(graph, layers) for layers in split(graph, granularity))
    sequences = {sequence.key: sequence for sequence in windows}
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))

    for sequence in sequences.values():
        brick = build_brick(graph, sequence)
        network = synthetic_network(onnx.load_from_string(brick.model))
        executable = backend.prepare(network, settings)
        executable.run()
        outputs = executable.outputs()
        executable.close()

        assert list(network.outputs) == [f.name for f in onnx.load_from_string(brick.model).graph.output]
        assert all(np.isfinite(array).all() for array in outputs if array.dtype.kind == "f"), brick.operators


def test_the_copies_of_a_real_brick_compute_what_it_computes():
    graph = build_graph(structure("shufflenet"))
    backend = OrtBackend()
    settings = Settings("cpu", 1, backend.resolve("cpu", {"pinning": "off"}))
    for layers in split(graph, 3)[:12]:
        model = onnx.load_from_string(build_brick(graph, make_sequence(graph, layers)).model)
        results = []
        for copies in (1, 4):
            network = synthetic_network(model, unroll=copies)
            executable = backend.prepare(network, settings)
            executable.run()
            results.append(network.first_outputs(executable.outputs()))
            executable.close()

        for name, array in results[0].items():
            np.testing.assert_allclose(results[1][name], array, rtol=1e-4, atol=1e-5)
