"""The graph that a runtime executes for a model, as a ModelGraph, and which source layers each of its layers is."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import onnx

from ...bricks.graph.causal import SOFTMAX
from ...bricks.graph.control import write_out
from ...bricks.graph.executed import ExecutedModel
from ...bricks.graph.expansion import Expansion, Step
from ...bricks.graph.graph import ModelGraph, build_graph
from ...bricks.inference.shapes import ShapeOracle
from ...bricks.layer import Layer, LayerState, Role
from ...bricks.operators import DEQUANTIZE
from ...db.values import Stack, System
from ...errors import WorkerError
from ...models import ModelSource
from ...models.names import kind_of
from ...models.skeleton import Skeleton, is_weight
from ...models.subgraphs import captures
from ..backends.base import node_name
from ..backends.optimiser import OptimiserTraits
from ..backends.registry import optimiser_of
from ..machine.system import probe_system
from ..network.network import read_network
from ..worker.client import Timeouts, Worker
from ..worker.execution.extraction import EXECUTED, stage_files
from ..worker.requests import Extract
from ..worker.standby import start_worker
from .named import named_origins, taken_names
from .origins import Operator, composed, match, sharing
from .taken import unsigned_values, with_shared_scales, with_unsigned

__all__ = ["executed_model", "instruction_set", "runtime_salt"]

_DIGITS = 12
_UNCHANGED = frozenset({"Cast", "Expand", "Flatten", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})
"""Operators that hand on what they read where they write the type that they read."""


def instruction_set(system: System | None = None) -> str:
    """The instruction sets that runtimes choose kernels and layouts by, as one short word.

    Args:
        system: The machine; default this one.

    Returns:
        The architecture, and a digest of the instruction sets: equal on machines that are alike in these.
    """
    found = system or probe_system()
    return f"{found.architecture}-{hashlib.sha256(' '.join(found.isa).encode()).hexdigest()[:_DIGITS]}"


def runtime_salt(stack: Stack, isa: str) -> str:
    """What binds the keys of an executed graph to its stack and instruction set."""
    return f"runtime:{stack.key}:{isa}"


def executed_model(
    source: ModelSource,
    *,
    backend: str = "onnxruntime",
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    threads: int = 1,
    worker: Worker | None = None,
    oracle: ShapeOracle | None = None,
    seed: int = 0,
) -> ExecutedModel:
    """Have a worker create a model's session and write the graph that it executes, and map it to the source's layers.

    Args:
        source: The model.
        backend: Name of the runtime.
        device: One of its devices.
        options: Its own options.
        threads: Of the runtime; 0: all physical cores.
        worker: A greeted worker to ask instead; it decides backend, device, options and threads.
        oracle: Finds the shapes of the source's graph that inference does not.
        seed: Of synthetic weights and inputs.

    Raises:
        ModelError: The model cannot be read or bound.
        UsageError: The backend does not report the graph that it executes, or an option is wrong.
        BackendError: The runtime cannot load or run it.
        WorkerError: The worker died or hung.
    """
    skeleton = source.skeleton()
    with ExitStack() as resources:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="dlbricks-executed-")))
        written = write_out(skeleton)
        edit = partial(_write_out, rounds=written.rounds) if written.rounds else None
        runnable = source.runnable(folder, edit=edit)
        if worker is None:
            started = start_worker(backend, device=device, options=options, threads=threads)
            worker = resources.enter_context(started)
        if worker.greeting is None:
            raise WorkerError("the worker was not greeted", remedy="start it with Worker.start")
        results = folder / "graphs"
        results.mkdir()
        request = Extract(
            path=str(runnable.path.resolve()),
            synthetic=runnable.synthetic,
            folder=str(results),
            overrides=runnable.overrides,
            inputs=runnable.inputs,
            seed=seed,
        )
        worker.extract(request, timeout_s=Timeouts.optimising(skeleton.weight_bytes))
        stages = [read_network(path) for path in stage_files(results)]
        executed = read_network(results / EXECUTED)
        stack = worker.greeting.stack
    isa = instruction_set()
    skeleton = replace(skeleton, model=written.model, control=None)  # conversions in bodies are layers now
    before = _as_taken(skeleton, build_graph(skeleton, oracle=oracle), oracle)
    names = taken_names(executed)
    after = build_graph(
        Skeleton(executed, bound=skeleton.bound, weight_bytes=skeleton.weight_bytes), salt=runtime_salt(stack, isa)
    )
    traits = optimiser_of(stack.backend)
    origins = _origins(before, stages, executed, traits) if names is None else named_origins(before, names)
    origin_of_any = frozenset[int]().union(*origins)
    if unsigned := unsigned_values(before, after, origins):
        before = _as_taken(with_unsigned(skeleton, unsigned), before, oracle)
    return ExecutedModel(
        name=source.name,
        source=replace(before, control=written.control),
        graph=replace(after, control=written.control, causal=after.causal | _causal(before, after, origins)),
        origins=tuple(origins),
        eliminated=frozenset(before.live) - origin_of_any,
        duplicated=sharing(origins),
        layouts=traits.layouts,
    )


def _causal(source: ModelGraph, executed: ModelGraph, origins: Sequence[frozenset[int]]) -> frozenset[str]:
    """What a Softmax of the executed graph reads where that which it came from reads masked scores.

    Runtimes compute masks ahead, and what is executed does not show their values.
    """
    masked = {index for value in source.causal for index in source.consumers(value)}
    return frozenset(
        layer.operands[0].value
        for layer, origin in zip(executed.layers, origins, strict=True)
        if layer.op_type == SOFTMAX and layer.operands and origin & masked
    )


def _as_taken(skeleton: Skeleton, graph: ModelGraph, oracle: ShapeOracle | None) -> ModelGraph:
    """A model's graph as runtimes take it: conversions of quantised weights are theirs to fold."""
    if not any(layer.op_type == DEQUANTIZE for layer in graph.layers):
        return graph
    return build_graph(with_shared_scales(skeleton), oracle=oracle, dequantise=True, identity=graph.key)


def _write_out(model: onnx.ModelProto, rounds: Sequence[Sequence[Step]]) -> None:
    """Write out the control flow of a model with its weights as it was done in its skeleton."""
    expansion = Expansion(model, keep_weights=True)
    for steps in rounds:
        expansion.apply(steps)


def _origins(
    source: ModelGraph, stages: list[onnx.ModelProto], executed: onnx.ModelProto, traits: OptimiserTraits
) -> list[frozenset[int]]:
    """Origins of the executed operators in the source, stage by stage."""
    graphs = [_operators(model) for model in (*stages, executed)]
    origins = match(_source_operators(source), graphs[0], traits, idle=_unchanged(source))
    for before, after in pairwise(graphs):
        origins = composed(origins, match(before, after, traits))
    return origins


def _source_operators(graph: ModelGraph) -> list[Operator]:
    """The layers of a model; what is constant or folded feeds none of them."""
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


def _operators(model: onnx.ModelProto) -> list[Operator]:
    """The operators of a model in skeleton form."""
    computed = {value.name for value in model.graph.input if not is_weight(value)}
    computed.update(value for node in model.graph.node for value in node.output)
    return [_operator(node, node.name, computed) for node in model.graph.node]


def _operator(node: onnx.NodeProto, name: str, computed: set[str]) -> Operator:
    reads = tuple(value if value in computed else "" for value in (*node.input, *captures(node)))
    return Operator(name, kind_of(node), reads, tuple(node.output))


def _unchanged(graph: ModelGraph) -> set[int]:
    """Layers that hand on what they read."""
    return {layer.index for layer in graph.layers if _is_unchanged(layer)}


def _is_unchanged(layer: Layer) -> bool:
    if layer.op_type not in _UNCHANGED or not layer.operands or layer.operands[0].role is not Role.ACTIVATION:
        return False
    known = layer.operands[0].type
    return known is not None and layer.output_types[:1] == (known,)
