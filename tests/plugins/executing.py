"""What a runtime executes for a model, asked of a worker of a test."""

from __future__ import annotations

from collections.abc import Mapping

from dlbricks.bricks.graph.model_graph import ExecutedModel, build_graph
from dlbricks.db.values import Runtime
from dlbricks.generator.decomposition.decomposer import WorkerOracle
from dlbricks.generator.decomposition.executed import ExecutedGraphs
from dlbricks.generator.worker.client import Worker
from dlbricks.generator.worker.messages import Place
from dlbricks.models import ModelSource


class _Asking(ExecutedGraphs):
    """Asks a worker that the test keeps, whatever the cache folder holds."""

    def __init__(self, worker: Worker) -> None:
        assert worker.greeting is not None
        super().__init__(worker.greeting.stack.runtime)
        self._given = worker

    def at(self, _: Place) -> Worker:
        return self._given

    def kept(self, *_: object) -> None:
        return None


def executed_model(
    source: ModelSource,
    *,
    worker: Worker | None = None,
    backend: str = "onnxruntime",
    options: Mapping[str, str] | None = None,
) -> ExecutedModel:
    """What a runtime executes for a model."""
    graphs = ExecutedGraphs(Runtime.of(backend, "cpu", options)) if worker is None else _Asking(worker)
    skeleton = source.skeleton()
    with graphs, WorkerOracle() as oracle:
        return graphs.of(source, skeleton, build_graph(skeleton, oracle=oracle), oracle)
