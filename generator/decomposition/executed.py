"""The graph that a runtime executes for a model, as a ModelGraph, and the source layers of each of its layers."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from ...bricks.graph.causal import SOFTMAX
from ...bricks.graph.control import write_out
from ...bricks.graph.expansion import Expansion, ExpansionStep
from ...bricks.graph.model_graph import ExecutedModel, ModelGraph, build_graph
from ...bricks.inference.shapes import ShapeOracle
from ...bricks.layer import Layer, LayerState, Role
from ...bricks.operators import DEQUANTIZE, ELEMENTWISE, QUANTIZE, VIEWS, Trait, having
from ...db.values import Runtime, Stack, content_key
from ...errors import DlbricksError, UsageError, WorkerTimeout
from ...models import ModelSource
from ...models.cache import keep, kept
from ...models.skeleton import Skeleton, is_weight
from ...models.source import fingerprint
from ...models.subgraphs import captures, kind_of
from ...models.time_limit import require_time, time_left_s
from ...version import __version__
from ..backends.base import MADE_OF, OptimiserTraits
from ..backends.custom_ops import asked
from ..backends.registry import get, optimiser_of
from ..backends.reports import GENERATED, node_name
from ..machine.cores import physical_cores
from ..network.network import read_network
from ..worker.client import Timeouts, Workers, file_of, start_worker
from ..worker.execution.extraction import EXECUTED, stage_files
from ..worker.messages import Place
from .cut import instruction_set, runtime_salt
from .origins import GraphOperator, composed, match, sharing

# Origins by name: which layers became which node, if a runtime states the source values of each node.
#
# A runtime that rewrites a model keeps the names of some layers in each node, and forgets others: a convolution that
# a normalisation was folded into has the name of the normalisation alone. A layer without a name in any node is
# between two known layers: if all its readers went into one node, so did the layer.


def taken_names(executed: onnx.ModelProto) -> list[frozenset[str]] | None:
    """Return for each node of an executed graph the values that it was made of, and remove them from the node.

    None if the runtime does not report them (``base.Backend``).
    """
    stated = [next((said for said in node.attribute if said.name == MADE_OF), None) for node in executed.graph.node]
    if all(names is None for names in stated):
        return None
    for node, attribute in zip(executed.graph.node, stated, strict=True):
        if attribute is not None:
            node.attribute.remove(attribute)
    return [
        frozenset(name.decode() for name in names.strings) if names is not None else frozenset() for names in stated
    ]


def named_origins(source: ModelGraph, names: Sequence[Collection[str]]) -> list[frozenset[int]]:
    """Return for each node of an executed graph the source layers that it came from.

    Args:
        source: The model.
        names: The model's values that each node was made of; other names are ignored.

    Returns:
        Indices of layers; folded layers only if a node has their name. Empty for a node that the runtime inserted.
    """
    homes: dict[int, set[int]] = {}
    for number, values in enumerate(names):
        for value in values:
            if (maker := source.producer(value)) is not None:
                homes.setdefault(maker, set()).add(number)
    for index in reversed(source.live):
        if index not in homes and (home := _home_of_readers(source, index, homes)):
            homes[index] = home
    origins: list[set[int]] = [set() for _ in names]
    for index, home in homes.items():
        for number in home:
            origins[number].add(index)
    return [frozenset(origin) for origin in origins]


def _home_of_readers(source: ModelGraph, index: int, homes: dict[int, set[int]]) -> set[int]:
    """Return the nodes that all readers of a layer became; empty if these differ or the layer feeds a model output."""
    values = [value for value in source.layers[index].outputs if value]
    readers = {reader for value in values for reader in source.consumers(value)}
    distinct_homes = {frozenset(homes.get(reader, ())) for reader in readers}
    if len(distinct_homes) != 1 or not {*source.outputs}.isdisjoint(values):
        return set()
    return set(distinct_homes.pop())


# A quantised model in the form that a runtime gives it, so that bricks of it run the same kernels.
#
# * Signed values become unsigned if the runtime converts them, since its kernels on a processor need unsigned values.
#   ONNX Runtime does so on x86 if a value is quantised and converted back once. A brick that reads a signed value
#   could not be converted, and would run another kernel than the model.
# * Equal scales become one. If a file has one for each conversion, a brick would have different random scales. A
#   runtime computes with quantised values directly, in a pooling or a reshape, only if scales are equal.


_SHIFT = 128
_SCALE, _ZERO_POINT = 1, 2


def unsigned_values(source: ModelGraph, executed: ModelGraph, origins: Sequence[frozenset[int]]) -> frozenset[str]:
    """Return the values of a model that are signed bytes in its file and unsigned bytes in the executed graph.

    Args:
        source: The model.
        executed: The graph that the runtime executes for it.
        origins: For each executed layer the layers of the model that it came from.
    """
    unsigned = set()
    for layer, origin in zip(executed.layers, origins, strict=True):
        output_type = layer.output_types[0] if layer.output_types else None
        if output_type is None or output_type.dtype != "uint8":
            continue
        for index in origin:
            source_layer = source.layers[index]
            value = source_layer.outputs[0] if source_layer.outputs else ""
            was = source.types.get(value)
            readers = source.consumers(value)
            if (
                source_layer.op_type == QUANTIZE
                and source_layer.state is LayerState.LIVE
                and was is not None
                and was.dtype == "int8"
                and origin.isdisjoint(readers)
                and value not in source.outputs
                and all(source.layers[reader].op_type == DEQUANTIZE for reader in readers)
            ):
                unsigned.add(value)
    return frozenset(unsigned)


def with_unsigned(skeleton: Skeleton, values: Collection[str]) -> Skeleton:
    """Return the model with some signed values made unsigned: their zero points are shifted.

    A value stays signed if one of its zero points is missing or not constant.

    Args:
        skeleton: The model, its control flow written out.
        values: Each made by QuantizeLinear, and read by DequantizeLinear alone.
    """
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    graph = model.graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    converting = defaultdict[str, list[onnx.NodeProto]](list)
    for node in graph.node:
        quantised = (
            node.output[:1] if node.op_type == QUANTIZE else node.input[:1] if node.op_type == DEQUANTIZE else ()
        )
        for value in quantised:
            converting[value].append(node)
    turned = [
        value
        for value, nodes in converting.items()
        if value in values and all(_zero_point(node) in initializers for node in nodes)
    ]
    for node in (node for value in turned for node in converting[value]):
        zero = initializers[_zero_point(node)]
        shifted = f"{zero.name}~unsigned"
        if shifted not in initializers:
            moved = numpy_helper.to_array(zero).astype(np.int16) + _SHIFT
            graph.initializer.append(numpy_helper.from_array(moved.astype(np.uint8), shifted))
            initializers[shifted] = graph.initializer[-1]
        node.input[_ZERO_POINT] = shifted
    stale = [value for value in graph.value_info if value.name not in turned]
    del graph.value_info[:]
    graph.value_info.extend(stale)
    return replace(skeleton, model=model)


def _zero_point(node: onnx.NodeProto) -> str:
    """Return the name of a conversion's zero point; empty if it is missing."""
    return str(node.input[_ZERO_POINT]) if len(node.input) > _ZERO_POINT else ""


def with_shared_scales(skeleton: Skeleton) -> Skeleton:
    """Return the model (control flow written out) with equal scales of conversions under one name."""
    model = onnx.ModelProto()
    model.CopyFrom(skeleton.model)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    first: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    for node in model.graph.node:
        if node.op_type in {QUANTIZE, DEQUANTIZE} and node.input[_SCALE] in held:
            scale = held[node.input[_SCALE]]
            content = (scale.data_type, tuple(scale.dims), numpy_helper.to_array(scale).tobytes())
            node.input[_SCALE] = first.setdefault(content, scale.name)
    return replace(skeleton, model=model)


_KEPT = "executed"
"""Folder of the workers' answers within the cache folder."""

_FORMAT = 1
"""Version of the files that workers write; increase it when they change."""

_LOADING = "loading the model in the runtime for its executed graph"


class ExecutedGraphs(Workers[Place]):
    """Finds executed graphs of models; keeps its worker between models, and the answers in the cache folder."""

    def __init__(self, runtime: Runtime, threads: int = 1) -> None:
        super().__init__(start_worker)
        self._runtime = runtime
        # Cores decide how many threads can be bound, not which graph is executed.
        cores = len(physical_cores())
        self._threads = min(threads or cores, cores)
        self._place = Place(runtime, self._threads)

    def of(
        self, source: ModelSource, skeleton: Skeleton, model_graph: ModelGraph, oracle: ShapeOracle | None = None
    ) -> ExecutedModel:
        """Return the executed graph of a model, from the cache or from a worker that loads the model.

        Args:
            source: The model.
            skeleton: Its structure.
            model_graph: Its own graph.
            oracle: Finds the shapes of the model's own graph that inference does not.

        Raises:
            ModelError: The model cannot be read or bound.
            UsageError: The backend does not report the graph that it executes, or an option is wrong.
            BackendError: The runtime cannot load or run it.
            WorkerError: The worker died or hung.
        """
        executed = self.kept(source, skeleton, model_graph, oracle)
        if executed is not None:
            return executed
        with self._asked(source, skeleton) as (answer, stack):
            return _executed_model(source.name, skeleton, model_graph, answer, stack, oracle)

    def ensure(self, source: ModelSource) -> None:
        """Put the executed graph of a model into the cache folder if it is missing there; raises as ``of``."""
        entry = self._entry(source, self._stack())
        if entry is None or kept(_KEPT, entry) is None:
            with self._asked(source, source.skeleton()):
                pass

    def ensure_sizes(self, sources: Sequence[ModelSource]) -> None:
        """Put executed graphs of files with open dimensions into the cache folder: a file is loaded once for all sizes.

        If the runtime refuses, each is asked for on its own, with the reason.
        """
        stack = self._stack()
        missing = defaultdict[Path, list[tuple[ModelSource, str]]](list)
        for source in sources:
            if source.path is None or not source.opened:
                continue
            entry = self._entry(source, stack)
            if entry is not None and kept(_KEPT, entry) is None:
                missing[source.path].append((source, entry))
        for alike in missing.values():
            with suppress(DlbricksError):
                self._ensure_sizes(alike)

    def _ensure_sizes(self, alike: Sequence[tuple[ModelSource, str]]) -> None:
        skeletons = [source.skeleton() for source, _ in alike]
        if len(alike) < 2 or any(write_out(skeleton).rounds for skeleton in skeletons):
            return  # what is written out by its course is another file at each length
        with tempfile.TemporaryDirectory(prefix="dlbricks-executed-") as name:
            files = [file_of(source.runnable(Path(name, entry))) for source, entry in alike]
            answers = {entry: Path(name, f"{entry}-graphs") for _, entry in alike}
            for answer in answers.values():
                answer.mkdir()
            timeout_s = len(files) * Timeouts.optimising(skeletons[0].weight_bytes)
            self.at(self._place).extract(files, [*answers.values()], timeout_s=timeout_s)
            for entry, answer in answers.items():
                keep(_KEPT, entry, partial(_copy, answer))

    @contextmanager
    def _asked(self, source: ModelSource, skeleton: Skeleton) -> Iterator[tuple[Path, Stack]]:
        """Have a worker write the executed graph of a model, and keep it; yield the folder and the worker's stack."""
        written = write_out(skeleton)
        with tempfile.TemporaryDirectory(prefix="dlbricks-executed-") as name:
            folder = Path(name)
            edit = partial(_write_out, rounds=written.rounds) if written.rounds else None
            runnable = source.runnable(folder, edit=edit)
            answer = folder / "graphs"
            answer.mkdir()
            require_time("writing the file to load")
            worker = self.at(self._place)
            most_s = min(Timeouts.optimising(skeleton.weight_bytes), time_left_s())
            try:
                worker.extract([file_of(runnable)], [answer], timeout_s=most_s)
            except WorkerTimeout:
                require_time(_LOADING)
                raise
            require_time(_LOADING)
            assert worker.greeting is not None  # noqa: S101  # start_worker greets it
            stack = worker.greeting.stack
            if (entry := self._entry(source, stack)) is not None:
                keep(_KEPT, entry, lambda cache_folder: _copy(answer, cache_folder))
            yield answer, stack

    def _stack(self) -> Stack:
        return get(self._runtime.backend).stack(self._runtime.device, dict(self._runtime.options))

    def kept(
        self, source: ModelSource, skeleton: Skeleton, model_graph: ModelGraph, oracle: ShapeOracle | None = None
    ) -> ExecutedModel | None:
        """Return the executed graph of a model from the cache, or None; no worker is started.

        Raises:
            UsageError: The backend does not exist, or an option is wrong.
            BackendUnavailable: The runtime is not installed.
        """
        stack = self._stack()
        entry = self._entry(source, stack)
        answer = kept(_KEPT, entry) if entry is not None else None
        if answer is None:
            return None
        try:
            return _executed_model(source.name, skeleton, model_graph, answer, stack, oracle)
        except (DlbricksError, OSError):
            return None  # damaged: the worker is asked again

    def _entry(self, source: ModelSource, stack: Stack) -> str | None:
        """Return the name of an answer in the cache folder; None for a model that cannot be read."""
        model = fingerprint(source)
        if model is None:
            return None
        versions = [_FORMAT, __version__, onnx.__version__]
        threads = self._threads if optimiser_of(stack.backend).by_threads else 0
        return content_key([model, runtime_salt(stack, instruction_set()), threads, asked(), versions])


def require_parts(backend: str) -> None:
    """Make sure that the graph that a backend executes can be run in parts.

    Raises:
        UsageError: The backend only reports which layers it executes together.
    """
    if get(backend).graph == "fused":
        raise UsageError(
            f"backend {backend} reports what it executes, but nothing of it runs by itself",
            remedy="use --graph fused or source",
        )


def _copy(answer: Path, folder: Path) -> None:
    for path in answer.iterdir():
        shutil.copyfile(path, folder / path.name)


def _executed_model(  # noqa: PLR0917  # both callers have these values
    name: str, skeleton: Skeleton, model_graph: ModelGraph, answer: Path, stack: Stack, oracle: ShapeOracle | None
) -> ExecutedModel:
    """Read a worker's answer, and map it to the layers of the model."""
    stages = [read_network(path) for path in stage_files(answer)]
    executed = read_network(answer / EXECUTED)
    written = write_out(skeleton)
    skeleton = replace(skeleton, model=written.model, control=None)  # conversions in bodies are layers now
    before = _as_taken(skeleton, model_graph, oracle)
    names = taken_names(executed)
    salt = runtime_salt(stack, instruction_set())
    same = Skeleton(executed, bound=skeleton.bound, weight_bytes=skeleton.weight_bytes, opened=skeleton.opened)
    after = build_graph(same, salt=salt)
    traits = optimiser_of(stack.backend)
    origins = _origins(before, stages, executed, traits) if names is None else named_origins(before, names)
    origin_of_any = frozenset[int]().union(*origins)
    if unsigned := unsigned_values(before, after, origins):
        before = _as_taken(with_unsigned(skeleton, unsigned), before, oracle)
    return ExecutedModel(
        name=name,
        source=replace(before, control=written.control),
        graph=replace(
            after,
            layers=_named_as_own(before, after, origins),
            control=written.control,
            causal=after.causal | _causal(before, after, origins),
        ),
        origins=tuple(origins),
        eliminated=frozenset(before.live) - origin_of_any,
        duplicated=sharing(origins),
        layouts=traits.layouts,
    )


def _named_as_own(source: ModelGraph, executed: ModelGraph, origins: Sequence[frozenset[int]]) -> tuple[Layer, ...]:
    """Return the executed layers, those with a generated name under the name of the layer that they end with."""
    return tuple(
        layer
        if not layer.name.startswith(GENERATED)
        else replace(layer, name=source.layers[max(origin)].name if origin else f"{layer.op_type}_{layer.index}")
        for layer, origin in zip(executed.layers, origins, strict=True)
    )


def _causal(source: ModelGraph, executed: ModelGraph, origins: Sequence[frozenset[int]]) -> frozenset[str]:
    """Return the inputs of executed Softmax layers that came from a Softmax of masked scores.

    Runtimes compute masks ahead, so that the executed graph does not show their values.
    """
    masked = {index for value in source.causal for index in source.consumers(value)}
    return frozenset(
        layer.operands[0].value
        for layer, origin in zip(executed.layers, origins, strict=True)
        if layer.op_type == SOFTMAX and layer.operands and origin & masked
    )


def _as_taken(skeleton: Skeleton, graph: ModelGraph, oracle: ShapeOracle | None) -> ModelGraph:
    """Return a model's graph in the form that runtimes read: they fold conversions of quantised weights."""
    if not any(layer.op_type == DEQUANTIZE for layer in graph.layers):
        return graph
    return build_graph(with_shared_scales(skeleton), oracle=oracle, dequantise=True, identity=graph.key)


def _write_out(model: onnx.ModelProto, rounds: Sequence[Sequence[ExpansionStep]]) -> None:
    """Write out the control flow of a model with its weights, with the steps of its skeleton."""
    expansion = Expansion(model, keep_weights=True)
    for steps in rounds:
        expansion.apply(steps)


def _origins(
    source: ModelGraph, stages: list[onnx.ModelProto], executed: onnx.ModelProto, traits: OptimiserTraits
) -> list[frozenset[int]]:
    """Return the origins of the executed operators in the source, stage by stage."""
    graphs = [_operators(model) for model in (*stages, executed)]
    origins = match(_source_operators(source), graphs[0], traits, idle=_unchanged(source))
    for before, after in pairwise(graphs):
        origins = composed(origins, match(before, after, traits))
    return origins


def _source_operators(graph: ModelGraph) -> list[GraphOperator]:
    """Return the layers of a model as operators; inputs that are constant or folded are empty."""
    computed = {*graph.inputs}
    computed.update(v for layer in graph.layers if layer.state is not LayerState.FOLDED for v in layer.outputs)
    operators = []
    for layer in graph.layers:
        reads = set() if layer.state is LayerState.FOLDED else computed
        constants = [
            "" if operand.value in computed else operand.data.hex() if operand.data else operand.value
            for operand in layer.operands
        ]
        attributes = sorted(attribute.SerializeToString() for attribute in layer.node.attribute)
        detail = hashlib.sha256(repr((constants, attributes)).encode()).hexdigest()
        operators.append(replace(_operator(layer.node, node_name(layer.node), reads), detail=detail))
    return operators


def _operators(model: onnx.ModelProto) -> list[GraphOperator]:
    """Return the operators of a model in skeleton form."""
    computed = {value.name for value in model.graph.input if not is_weight(value)}
    computed.update(value for node in model.graph.node for value in node.output)
    return [_operator(node, node.name, computed) for node in model.graph.node]


def _operator(node: onnx.NodeProto, name: str, computed: set[str]) -> GraphOperator:
    reads = tuple(value if value in computed else "" for value in (*node.input, *captures(node)))
    return GraphOperator(name, kind_of(node), reads, tuple(node.output))


def _unchanged(graph: ModelGraph) -> set[int]:
    """Return the layers that return their input unchanged."""
    return {layer.index for layer in graph.layers if _is_unchanged(layer)}


def _is_unchanged(layer: Layer) -> bool:
    if (
        layer.op_type not in (VIEWS - ELEMENTWISE) | having(Trait.IDLE)
        or not layer.operands
        or layer.operands[0].role is not Role.ACTIVATION
    ):
        return False
    operand_type = layer.operands[0].type
    return operand_type is not None and layer.output_types[:1] == (operand_type,)
