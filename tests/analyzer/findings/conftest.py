"""A model as analyses see it: that of the bench, or one that is written on the spot and given latencies."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from dlbricks.analyzer.estimation.reading import read_evidence
from dlbricks.analyzer.findings.analysed_model import AnalysedModel
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.constructor.choice import Query
from dlbricks.constructor.construction import construct
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.models import find_models
from onnx import numpy_helper


@pytest.fixture
def subject_of(bench):
    """The model of the bench, or another, as analyses see it, as if its own graph were executed."""

    def made(source=None, threads: int = 1) -> AnalysedModel:
        query, cut = Query(backend="onnxruntime", threads=threads, dtype="float32"), Cut(1)
        (model,) = decompose([source or bench.source], cut)
        return AnalysedModel(construct(model, read_evidence(bench.store, [model], query, cut)), bench.store)

    return made


@pytest.fixture
def written(tmp_path):
    """Writes a model; weights of the given shapes are ones."""

    def write(text: str, **shapes: tuple[int, ...]):
        model = onnx.parser.parse_model(text)
        arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
        onnx.save(model, tmp_path / "model.onnx")
        (source,) = find_models([tmp_path / "model.onnx"])
        return source

    return write


@pytest.fixture
def measured(bench):
    """Stores latencies of a model's bricks, by what each makes or by its operator, and the model as their sum."""

    def put(source, latencies, *, variant: str = "", **settings) -> None:
        graph, bricks, total = build_graph(source.skeleton()), {}, 0.0
        for part in sequences(graph, 1):
            layer = graph.layers[part.layers[0]]
            latency = latencies.get(layer.outputs[0], latencies.get(layer.op_type))
            if latency is not None:
                total += bricks.setdefault(part.key, latency)  # equal layers are one brick
        bench.run(ms=None if variant else total, key=graph.key, bricks=bricks, variant=variant, **settings)

    return put
