"""The ModelGraph: a model as a DAG of layers with a type on every edge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ...models.skeleton import Skeleton, is_weight
from ...models.subgraphs import captures
from ..canonical import LayerSignature
from ..canonical.form import hash_signature
from ..inference.shapes import ShapeOracle, infer_types, stated_types
from ..layer import Layer, LayerState, TensorType
from .assembly import Assembly
from .causal import causal_scores
from .control import ControlFlow, write_out

if TYPE_CHECKING:
    import networkx as nx


CAPTURE = "capture"
"""Slot of an edge to a layer whose body reads the value, instead of the layer itself."""


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model, layer by layer; built once by ``build_graph`` and not changed afterwards.

    Attributes:
        layers: All operators of the model in file order: live, folded and skipped.
        live: Indices of the live layers, ascending.
        inputs: The model's activation inputs and their types (None for one that is no static tensor).
        outputs: The model's outputs, in order.
        types: Every value with a known type.
        weight_bytes: Bytes of the source's constants.
        bound: What binding fixed: dimension to value.
        idle: For each layer that is not live what is known of it, free of names.
        salt: What else enters every key; empty for the graph of a model, the stack and instruction set of a graph
            that a runtime executes.
        identity: The key of the model's own graph, where this is that graph prepared as a runtime takes it.
        control: The model's control flow, and what became of it.
        causal: Values that a Softmax reads behind a causal mask (``causal.py``).
        overridable: Constants that a caller may override: runtimes fold and pack none, so the model is another one.
    """

    layers: tuple[Layer, ...]
    live: tuple[int, ...]
    inputs: Mapping[str, TensorType | None]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    weight_bytes: int
    bound: Mapping[str, int]
    idle: Mapping[int, LayerSignature]
    salt: str = ""
    identity: str = ""
    control: tuple[ControlFlow, ...] = ()
    causal: frozenset[str] = frozenset()
    overridable: frozenset[str] = frozenset()

    @cached_property
    def graph(self) -> nx.MultiDiGraph[int]:
        """The DAG, frozen; made on first use.

        Nodes are layer indices with attribute ``layer``. There is an edge from producer to consumer for every input
        slot that reads a layer's output, with key ``(value, slot)`` and attributes ``value``, ``slot`` (of the
        source node, or ``CAPTURE``) and ``type`` (None where unknown).
        """
        return _wire(self.layers, self.types)

    @cached_property
    def _producers(self) -> dict[str, int]:
        return {name: layer.index for layer in self.layers for name in layer.node.output if name}

    @cached_property
    def _consumers(self) -> dict[str, tuple[int, ...]]:
        consumers: dict[str, dict[int, None]] = {}
        for layer in self.layers:
            if layer.state is not LayerState.FOLDED:
                for name in (*layer.node.input, *captures(layer.node)):
                    if name:
                        consumers.setdefault(name, {})[layer.index] = None
        return {name: tuple(indices) for name, indices in consumers.items()}

    def producer(self, value: str) -> int | None:
        """Index of the layer that makes a value; None for an input or a constant of the model."""
        return self._producers.get(value)

    def consumers(self, value: str) -> tuple[int, ...]:
        """Indices of the layers that read a value at inference, ascending; folded layers read nothing then."""
        return self._consumers.get(value, ())

    @cached_property
    def key(self) -> str:
        """Content key of the whole model: its layers, their wiring and the outputs, free of names.

        Models that differ in the values of weights only have one key: it identifies ground truth.
        """
        if self.identity:
            return self.identity
        numbers: dict[str, int] = {}

        def number(name: str) -> int:
            return numbers.setdefault(name, len(numbers)) if name else -1

        inputs = [[number(name), _spell(found)] for name, found in self.inputs.items()]
        layers = [
            [
                layer.key or hash_signature(self.idle[layer.index]),
                [number(name) for name in (*layer.node.input, *captures(layer.node))],
                [number(name) for name in layer.node.output],
            ]
            for layer in self.layers
        ]
        description: list[object] = [inputs, layers, [number(name) for name in self.outputs]]
        if self.salt:
            description.append(self.salt)
        if self.overridable:
            description.append(["overridable", sorted(numbers[name] for name in self.overridable if name in numbers)])
        return hashlib.sha256(json.dumps(description, separators=(",", ":")).encode()).hexdigest()


def _spell(found: TensorType | None) -> tuple[str, tuple[int, ...]] | None:
    return None if found is None else (found.dtype, found.shape)


def build_graph(
    skeleton: Skeleton,
    *,
    oracle: ShapeOracle | None = None,
    salt: str = "",
    dequantise: bool = False,
    identity: str = "",
) -> ModelGraph:
    """Turn a skeleton into a ModelGraph.

    Control flow whose course is known is written out first, where the skeleton says so (``control``). Every operator
    becomes a layer that is live, folded or skipped; none is dropped. A layer that cannot be a brick
    is skipped with its reason; only a model that is broken as a whole is an error.

    Args:
        skeleton: The model without its weights, bound to static input shapes.
        oracle: Finds types by one execution, where shape inference is not enough (``shapes.ShapeOracle``).
        salt: Names the stack and instruction set of a graph that a runtime executes. Such a graph is taken as it is:
            it states the type of every value, nothing of it is folded, and no layer is brought to another form. The
            salt enters the keys, so that they never meet those of a model's own graph.
        dequantise: Keep DequantizeLinear of constants as layers (``folding.fold``).
        identity: The key that it is to have (``ModelGraph.identity``).

    Raises:
        BrokenModel: The graph is not a graph (undefined or doubly defined values, nodes out of order), or shape
            inference refuses it.
    """
    written = write_out(skeleton)
    if salt:
        inference = stated_types(written.model)
    else:
        inference = infer_types(written.model, oracle=oracle, dequantise=dequantise)
    assembly = Assembly(written.model, inference, as_is=bool(salt))
    layers = assembly.layers
    source = written.model.graph
    inputs = {
        value.name: inference.types.get(value.name)
        for value in source.input
        if not is_weight(value) and not inference.constants.known(value.name)
    }
    return ModelGraph(
        layers=layers,
        live=tuple(layer.index for layer in layers if layer.state is LayerState.LIVE),
        inputs=inputs,
        outputs=tuple(value.name for value in source.output),
        types=inference.types,
        weight_bytes=skeleton.weight_bytes,
        bound=dict(skeleton.bound),
        idle=assembly.idle,
        salt=salt,
        identity=identity,
        control=written.control,
        causal=causal_scores(source, inference.types, inference.constants),
        overridable=skeleton.overridable,
    )


def _wire(layers: tuple[Layer, ...], types: Mapping[str, TensorType]) -> nx.MultiDiGraph[int]:
    import networkx as nx  # 150 ms, which a caller that never asks for the DAG need not wait for

    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
    graph.add_nodes_from((layer.index, {"layer": layer}) for layer in layers)
    producers: dict[str, int] = {}
    for layer in layers:
        reads: list[tuple[str, int | str]] = [(name, slot) for slot, name in enumerate(layer.node.input)]
        reads.extend((name, CAPTURE) for name in captures(layer.node))
        for name, slot in reads:
            producer = producers.get(name)
            if producer is not None:
                found = types.get(name)
                graph.add_edge(producer, layer.index, (name, slot), value=name, slot=slot, type=found)
        for name in layer.node.output:
            if name:
                producers[name] = layer.index
    nx.freeze(graph)
    return graph


# The graph that a runtime executes for a model, and which of the model's layers each of its layers is.


@dataclass(frozen=True, slots=True)
class Layouts:
    """Which layers of an executed graph work in a layout of the runtime's own, and which change the layout.

    Attributes:
        changes: Operators that bring a value into such a layout, or out of it.
        domains: Domains whose operators all work in one.
        prefixes: How the names of other operators that work in one begin.
        flags: Attributes that mark any operator as working in one, where they are not 0.
    """

    changes: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()

    def is_change(self, layer: Layer, origin: frozenset[int]) -> bool:
        """Whether a layer changes the layout of what it reads; so does any transposition that the runtime put in."""
        return layer.kind in self.changes or (layer.op_type == "Transpose" and not origin)

    def is_own(self, layer: Layer) -> bool:
        """Whether a layer works in a layout of the runtime's own."""
        flagged = any(attribute.name in self.flags and attribute.i for attribute in layer.node.attribute)
        return layer.domain in self.domains or flagged or layer.op_type.startswith(self.prefixes)


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedModel:
    """What a runtime executes for a model.

    Attributes:
        name: The model.
        source: Its own graph.
        graph: The graph that is executed, fused and laid out; its salt binds its keys to a stack and instruction set.
        origins: For each layer of ``graph`` the layers of ``source`` that it came from, by index; empty for what the
            runtime put in (layout changes). They may name folded layers that the runtime does execute.
        eliminated: Live layers of ``source`` that no layer of ``graph`` came from: the runtime has nothing to do for
            them.
        duplicated: Layers of ``source`` that several layers of ``graph`` came from, with the number of these.
        layouts: How the runtime's own layouts show in ``graph``.
    """

    name: str
    source: ModelGraph
    graph: ModelGraph
    origins: tuple[frozenset[int], ...]
    eliminated: frozenset[int]
    duplicated: Mapping[int, int]
    layouts: Layouts
