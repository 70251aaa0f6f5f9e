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
from ..canonical.roles import is_deciding
from ..inference.shapes import ShapeOracle, infer_types, stated_types
from ..layer import Layer, LayerState, TensorType
from ..operators import course_slots
from .assembly import Assembly
from .causal import causal_scores
from .control import ControlFlow, write_out

if TYPE_CHECKING:
    import networkx as nx


CAPTURE = "capture"
"""Slot of an edge to a layer with a body that reads the value."""


@dataclass(frozen=True, eq=False)
class ModelGraph:
    """A model, layer by layer; built by ``build_graph`` and not changed afterwards.

    Attributes:
        layers: All operators of the model in file order: live, folded and skipped.
        live: Indices of the live layers, ascending.
        inputs: The model's activation inputs and their types (None if not a static tensor).
        outputs: The model's outputs, in order.
        types: Every value with a known type.
        weight_bytes: Bytes of the source's constants.
        bound: Dimensions fixed by binding, with their values.
        idle: Signature of each layer that is not live.
        salt: Additional content of every key: the stack and instruction set of an executed graph; empty for a model's
            own graph.
        identity: The key of the model's own graph, if this graph is its preparation for a runtime.
        control: The model's control flow and its expansion.
        causal: Values that a Softmax reads behind a causal mask (``causal.py``).
        overridable: Constants that a caller may override. Runtimes do not fold or pack them, so they distinguish
            models.
        given: Digest of the user's own values of inputs; empty without any.
        contents: Digest of the model's file with its weights; empty for a zoo recipe.
        opened: A runtime keeps dynamic dimensions open; such a model is slower than one with fixed sizes.
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
    given: str = ""
    contents: str = ""
    opened: bool = False

    @cached_property
    def graph(self) -> nx.MultiDiGraph[int]:
        """The DAG, frozen; made on first use.

        Nodes are layer indices with attribute ``layer``. There is an edge from producer to consumer for every input
        slot that reads a layer's output. Its key is ``(value, slot)``, its attributes are ``value``, ``slot`` (of the
        source node, or ``CAPTURE``) and ``type`` (None if unknown).
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
        """Return the index of the layer that makes a value; None for an input or a constant of the model."""
        return self._producers.get(value)

    def consumers(self, value: str) -> tuple[int, ...]:
        """Return the indices of the layers that read a value at inference, ascending; folded layers do not."""
        return self._consumers.get(value, ())

    @cached_property
    def key(self) -> str:
        """Content key of the whole model: layers, wiring and outputs, without names.

        It identifies ground truth: the contents of a file and given values of inputs are part of it, since they may
        decide the time.
        """
        if self.identity:
            return self.identity
        numbers: dict[str, int] = {}

        def number(name: str) -> int:
            return numbers.setdefault(name, len(numbers)) if name else -1

        inputs = [[number(name), _spell(value_type)] for name, value_type in self.inputs.items()]
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
        if self.given:
            description.append(["given", self.given])
        if self.contents:
            description.append(["contents", self.contents])
        if self.opened:
            description.append("opened")
        return hashlib.sha256(json.dumps(description, separators=(",", ":")).encode()).hexdigest()


def deciding_inputs(graph: ModelGraph) -> tuple[str, ...]:
    """Return the inputs of a model whose values decide shapes, legality or control flow: a size, an axis, a condition.

    Inputs that only lend their shape are not among them.
    """
    makers = {name: layer for layer in graph.layers for name in layer.outputs if name}
    pending = [
        name
        for layer in graph.layers
        for slot, name in enumerate(layer.node.input)
        if name and (is_deciding(layer.domain, layer.op_type, slot) or slot < course_slots(layer.domain, layer.op_type))
    ]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        maker = makers.get(name)
        if name not in seen and maker is not None and maker.op_type not in {"Shape", "Size"}:
            pending += filter(None, maker.node.input)
        seen.add(name)
    return tuple(name for name in graph.inputs if name in seen)


def _spell(value_type: TensorType | None) -> tuple[str, tuple[int, ...]] | None:
    return None if value_type is None else (value_type.dtype, value_type.shape)


def build_graph(
    skeleton: Skeleton,
    *,
    oracle: ShapeOracle | None = None,
    salt: str = "",
    dequantise: bool = False,
    identity: str = "",
) -> ModelGraph:
    """Turn a skeleton into a ModelGraph.

    Control flow of known course is expanded first, if the skeleton requests it (``control``). Every operator becomes a
    live, folded or skipped layer. A layer that cannot be a brick is skipped with its reason; only a model that is
    broken as a whole is an error.

    Args:
        skeleton: The model without its weights, bound to static input shapes.
        oracle: Finds types by one execution, if shape inference is not enough (``shapes.ShapeOracle``).
        salt: Stack and instruction set of an executed graph. This graph is used as it is: it states the type of every
            value, nothing is folded, and layers keep their form. The salt enters the keys, so that they differ from
            keys of a model's own graph.
        dequantise: Keep DequantizeLinear of constants as layers (``shapes.fold``).
        identity: The resulting key (``ModelGraph.identity``).

    Raises:
        BrokenModel: The graph is invalid (undefined or doubly defined values, nodes out of order), or shape inference
            refuses it.
    """
    written = write_out(skeleton)
    inference = (
        stated_types(written.model) if salt else infer_types(written.model, oracle=oracle, dequantise=dequantise)
    )
    assembly = Assembly(written.model, inference, as_is=bool(salt))
    layers = assembly.layers
    source = written.model.graph
    inputs = {
        value.name: inference.types.get(value.name)
        for value in source.input
        if not is_weight(value) and not inference.constants.known(value.name)
    }
    return ModelGraph(
        layers,
        tuple(layer.index for layer in layers if layer.state is LayerState.LIVE),
        inputs,
        tuple(value.name for value in source.output),
        inference.types,
        skeleton.weight_bytes,
        dict(skeleton.bound),
        assembly.idle,
        salt,
        identity,
        written.control,
        causal_scores(source, inference.types, inference.constants),
        skeleton.overridable,
        skeleton.given,
        skeleton.contents,
        skeleton.opened,
    )


def _wire(layers: tuple[Layer, ...], types: Mapping[str, TensorType]) -> nx.MultiDiGraph[int]:
    import networkx as nx  # 150 ms, needed for the DAG only

    graph: nx.MultiDiGraph[int] = nx.MultiDiGraph()
    graph.add_nodes_from((layer.index, {"layer": layer}) for layer in layers)
    producers: dict[str, int] = {}
    for layer in layers:
        reads: list[tuple[str, int | str]] = [(name, slot) for slot, name in enumerate(layer.node.input)]
        reads.extend((name, CAPTURE) for name in captures(layer.node))
        for name, slot in reads:
            producer = producers.get(name)
            if producer is not None:
                value_type = types.get(name)
                graph.add_edge(producer, layer.index, (name, slot), value=name, slot=slot, type=value_type)
        for name in layer.node.output:
            if name:
                producers[name] = layer.index
    nx.freeze(graph)
    return graph


# The graph that a runtime executes for a model, with the origins of its layers.


@dataclass(frozen=True, slots=True)
class Layouts:
    """Marks of layers of an executed graph that use the runtime's layout or change the layout.

    Attributes:
        changes: Operators that convert a value to or from the runtime's layout.
        domains: Domains with all operators in the runtime's layout.
        prefixes: Prefixes of the names of other operators in it.
        flags: Attributes that mark an operator in it if they are not 0.
    """

    changes: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()

    def is_change(self, layer: Layer, origin: frozenset[int]) -> bool:
        """Return True if a layer changes the layout of its input, as any transposition inserted by the runtime does."""
        return layer.kind in self.changes or (layer.op_type == "Transpose" and not origin)

    def is_own(self, layer: Layer) -> bool:
        """Return True if a layer uses the runtime's layout."""
        flagged = any(attribute.name in self.flags and attribute.i for attribute in layer.node.attribute)
        return layer.domain in self.domains or flagged or layer.op_type.startswith(self.prefixes)


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedModel:
    """The graph that a runtime executes for a model.

    Attributes:
        name: The model.
        source: The model's own graph.
        graph: The executed graph, with fusions and layouts; its salt binds its keys to a stack and instruction set.
        origins: For each layer of ``graph`` the indices of the layers of ``source`` that it came from; empty for layers
            inserted by the runtime (layout changes). They may include folded layers that the runtime executes.
        eliminated: Live layers of ``source`` without a layer in ``graph``, because the runtime eliminated them.
        duplicated: Layers of ``source`` that are the origin of several layers of ``graph``, with their number.
        layouts: The marks of the runtime's layouts in ``graph``.
    """

    name: str
    source: ModelGraph
    graph: ModelGraph
    origins: tuple[frozenset[int], ...]
    eliminated: frozenset[int]
    duplicated: Mapping[int, int]
    layouts: Layouts
