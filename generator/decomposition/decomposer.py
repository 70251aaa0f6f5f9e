"""The work of ``decompose``: read a model, build its graphs and cut it, in this process or in several."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Self

import onnx

from ...bricks.cutting.fused import fused_sequences, fused_units
from ...bricks.cutting.sequences import sequences, windows
from ...bricks.decomposition import Decomposition, Failed, attempt, suspects
from ...bricks.graph.footprint import class_of
from ...bricks.graph.model_graph import ExecutedModel, ModelGraph, build_graph
from ...bricks.layer import ELEMENT_BITS, TensorType
from ...db.values import Runtime
from ...errors import BackendError, WorkerError, unforeseen
from ...models import ModelSource
from ...models.subgraphs import all_graphs, all_nodes
from ...models.time_limit import limited_to, model_limit_s, require_time, time_left_s
from ..backends.custom_ops import adopt, asked, files_of
from ..machine.lock import work_clock
from ..worker.client import Workers, start_worker
from ..worker.messages import NetworkFile, Place
from ..worker.serving import confine
from .cut import Cut
from .executed import ExecutedGraphs, require_parts
from .keeping import keep_decomposition

# The shape oracle: one execution in a worker finds the types that inference does not.


_MEMORY_BYTES = 8 << 30
_RUNTIME = "onnxruntime"
"""The runtime that loads the user's custom operators."""

_RUNNING = "running the model once for its shapes"


class WorkerOracle(Workers[Place]):
    """A ``ShapeOracle`` that executes a model once, with seeded weights and inputs, in a worker.

    The worker starts with the first question and ends with the context. If a model cannot be executed, or ends its
    worker, its shapes stay unknown: ``problems`` has the reason, and the layers are reported as skipped.
    """

    def __init__(self, *, timeout_s: float = 60.0) -> None:
        super().__init__(partial(start_worker, memory_bytes=_MEMORY_BYTES))
        self._place = Place(Runtime.of(_RUNTIME, options=asked()))
        self._timeout_s = timeout_s
        self.problems: list[str] = []

    def __call__(self, model: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, TensorType]:
        """Return types of the named values, without values that could not be found or that nothing needs."""
        names = _worth_running(model.graph, names)
        if not names:
            return {}
        with tempfile.TemporaryDirectory(prefix="dlbricks-oracle-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                file = NetworkFile(path=str(path), synthetic=True)
                require_time("writing the file to run")
                types = self.at(self._place).types(file, names, timeout_s=min(self._timeout_s, time_left_s()))
            except (BackendError, WorkerError) as error:
                require_time(_RUNNING)
                self.problems.append(str(error))
                return {}
        require_time(_RUNNING)
        return {
            name: TensorType(dtype, tuple(shape)) for name, (dtype, shape) in types.items() if dtype in ELEMENT_BITS
        }


def _worth_running(graph: onnx.GraphProto, names: Sequence[str]) -> list[str]:
    """Return the names without optional outputs that nothing reads, for example masks of Dropout."""
    read = {value.name for inner in all_graphs(graph) for value in inner.output}
    read.update(name for node in all_nodes(graph.node) for name in node.input)
    idle = {
        output
        for node in graph.node
        if any(output in read for output in node.output)
        for output in node.output
        if output not in read
    }
    return [name for name in names if name not in idle]


class Decomposer:
    """Cuts models one after the other; keeps its workers between models.

    Args:
        cut: How to cut.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._oracle = WorkerOracle()
        self.executed = ExecutedGraphs(cut.runtime, cut.threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._oracle.__exit__(kind, *rest)
        self.executed.__exit__(kind, *rest)

    def __call__(self, source: ModelSource) -> Decomposition:
        """Read a model and cut it.

        Raises:
            DlbricksError: The model cannot be read or bound, or the runtime cannot report the graph that it executes.
        """
        if self._cut.graph == "runtime":
            require_parts(self._cut.runtime.backend)
        problems = len(self._oracle.problems)
        skeleton = source.skeleton()
        model_graph = build_graph(skeleton, oracle=self._oracle)
        try:
            executed = (
                None if self._cut.graph == "source" else self.executed.of(source, skeleton, model_graph, self._oracle)
            )
        except BackendError as error:
            if error.remedy:
                raise  # its cause is known
            raise type(error)(f"{error.message}{suspects(source, model_graph)}") from error
        decomposition = _cut_up(source, self._cut, model_graph, executed)
        if len(self._oracle.problems) == problems:
            keep_decomposition(decomposition, self._cut)
        return decomposition

    def attempt(self, source: ModelSource) -> Decomposition | Failed:
        """Cut a model, or return why it cannot be cut."""
        return attempt(source, self)


def _cut_up(
    source: ModelSource, cut: Cut, model_graph: ModelGraph, executed: ExecutedModel | None = None
) -> Decomposition:
    graph, units = model_graph, None
    width = {"overlap": cut.overlap, "connected": cut.connected}
    if executed is not None:
        model_graph = executed.source
        graph = executed.graph if cut.graph == "runtime" else model_graph
    if executed is not None and cut.graph == "fused":
        parts, units = fused_sequences(executed, cut.granularity, **width), fused_units(executed).groups
    else:
        parts = sequences(graph, cut.granularity, **width)
    rivals = cut.granularity > 1 and cut.graph != "fused"  # windows would cut through fusions
    return Decomposition(
        source=source,
        own=model_graph,
        graph=graph,
        sequences=tuple(parts),
        units=tuple(tuple(unit) for unit in units) if units is not None else tuple((index,) for index in graph.live),
        footprint_class=class_of(graph),
        windows=tuple(windows(graph, cut.granularity, connected=cut.connected)) if rivals else (),
        executed=executed,
    )


def decomposed(
    models: Mapping[int, ModelSource], cut: Cut, jobs: int, until: float
) -> Iterator[tuple[int, Decomposition | Failed]]:
    """Yield position and result of each model as it finishes; several processes have each model's limit alone."""
    if jobs == 1 or len(models) < 2:
        with Decomposer(cut) as decomposer:
            if cut.graph == "runtime" and len(models) > 1:
                decomposer.executed.ensure_sizes([*models.values()])
            for number, (position, source) in enumerate(models.items()):
                left_s = until - work_clock()
                budget_s = left_s if number + 1 == len(models) else left_s / 2  # one model is not all of them
                with limited_to(budget_s, model_limit_s() if math.isinf(until) else math.inf):
                    result = decomposer.attempt(source)
                yield position, result
        return
    remaining = dict(models)
    try:
        yield from _in_pool(remaining, cut, min(jobs, len(remaining)))
    except BrokenProcessPool:
        # An unknown model ended its process. Each remaining model therefore gets a separate process, which
        # identifies the culprit.
        for position, source in list(remaining.items()):
            try:
                yield from _in_pool({position: source}, cut, 1)
            except BrokenProcessPool:
                yield position, Failed(source, f"model {source.name} ended the process that read it")


def _begin(libraries: Mapping[str, str]) -> None:
    """Set up a process of the pool."""
    confine()
    adopt(libraries)


def _attempt(source: ModelSource, cut: Cut, most_s: float) -> Decomposition | Failed:
    """Cut a model in a process of the pool."""
    with Decomposer(cut) as decomposer, limited_to(math.inf, most_s):
        return decomposer.attempt(source)


def _in_pool(remaining: dict[int, ModelSource], cut: Cut, jobs: int) -> Iterator[tuple[int, Decomposition | Failed]]:
    """Decompose in parallel, and remove each finished model from ``remaining``.

    Raises:
        BrokenProcessPool: A process died; the models still in ``remaining`` are undone.
    """
    # A fork server, not fork: this process may have threads. Its processes inherit what it has imported.
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    most_s = model_limit_s()  # not of the server's environment, which is as old as the first pool
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(files_of(asked()),))
    broken: BrokenProcessPool | None = None
    try:
        futures: dict[Future[Decomposition | Failed], int] = {
            pool.submit(_attempt, source, cut, most_s): position for position, source in remaining.items()
        }
        for future in as_completed(futures):
            position = futures[future]
            try:
                result = future.result()
            except BrokenProcessPool as error:
                broken = error  # keep the results of the other models
                continue
            except Exception as error:  # noqa: BLE001
                # The boundary of ``attempt`` again, for errors after it: a result that cannot be pickled.
                result = Failed(remaining[position], unforeseen(remaining[position].name, error))
            del remaining[position]
            yield position, result
    finally:
        pool.shutdown(cancel_futures=True)
    if broken is not None:
        raise broken
