"""Layers of a model that compute something together: a view that finds them, and a draft that changes the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.constants import decode_constant
from ...bricks.graph.graph import ModelGraph
from ...bricks.layer import DEQUANTIZE, Layer, LayerState, Operand, Role
from ...errors import ModelError
from ...models.subgraphs import attribute_of, plain_domain, reads

Array = npt.NDArray[Any]

ELEMENTWISE = frozenset(
    {"Abs", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
     "Neg", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh"}
)  # fmt: skip
"""Operators of one input that treat every element by itself."""


@dataclass(frozen=True, slots=True)
class Match:
    """Layers that compute something together.

    Attributes:
        layers: Their indices, ascending.
        value: What they make.
        reads: What they make it of, in an order that the rewrite knows.
        form: Which of several forms they have.
        broken_by: Layers or outputs beyond them that read a value in their midst, by name.
        numbers: Constants that the rewrite needs, by name.
        twin: For repeated work: the value that already holds the same.
    """

    layers: tuple[int, ...]
    value: str
    reads: tuple[str, ...]
    form: str = ""
    broken_by: tuple[str, ...] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    twin: str = ""


class View:
    """A model's graph as patterns see it: only what is computed at inference counts.

    Args:
        graph: The model's own graph.
        contents: Returns what a large constant holds, by its name, None where that is not known.
    """

    def __init__(self, graph: ModelGraph, contents: Callable[[str], Array | None] | None = None) -> None:
        self.graph = graph
        self._contents = contents
        self._outputs = frozenset(graph.outputs)
        self._decoded: dict[bytes, Array] = {}

    def live(self, *operators: str) -> Iterator[Layer]:
        """Live layers with one of these operators of ONNX's own, in the model's order."""
        for index in self.graph.live:
            layer = self.graph.layers[index]
            if layer.op_type in operators and not layer.domain:
                yield layer

    def maker(self, value: str, *operators: str) -> Layer | None:
        """The live layer that makes a value; None where there is none, or it has another operator."""
        index = self.graph.producer(value)
        if index is None:
            return None
        layer = self.graph.layers[index]
        fits = layer.state is LayerState.LIVE and not layer.domain and layer.op_type in operators
        return layer if fits else None

    def readers(self, value: str, *operators: str) -> list[Layer]:
        """The layers that read a value, of all operators where none is named."""
        found = [self.graph.layers[index] for index in self.graph.consumers(value)]
        return [reader for reader in found if not operators or (reader.op_type in operators and not reader.domain)]

    def is_output(self, value: str) -> bool:
        """Whether the model hands the value out."""
        return value in self._outputs

    def shape(self, value: str) -> tuple[int, ...] | None:
        """Its shape; None where it is not known."""
        found = self.graph.types.get(value)
        return None if found is None else found.shape

    def dtype(self, value: str) -> str | None:
        """Its element type; None where it is not known."""
        found = self.graph.types.get(value)
        return None if found is None else found.dtype

    def number(self, layer: Layer, slot: int) -> float | None:
        """The one number that a constant input holds, everywhere the same; None for anything else."""
        array = self.array(layer, slot)
        if array is None or not array.size or array.dtype.kind not in "fiu":
            return None
        first = float(array.flat[0])
        return first if bool((array == array.flat[0]).all()) else None

    def array(self, layer: Layer, slot: int) -> Array | None:
        """The values of a small constant input; None for anything else."""
        if slot >= len(layer.operands):
            return None
        operand = layer.operands[slot]
        if operand.role is not Role.CONSTANT or operand.data is None:
            return None
        if operand.data not in self._decoded:
            self._decoded[operand.data] = np.asarray(decode_constant(operand.data))
        return self._decoded[operand.data]

    def content(self, layer: Layer, slot: int) -> Array | None:
        """The values of a constant input, of a large one too where they are known; None for anything else."""
        operand = self.weight(layer, slot)
        if operand is None or operand.data is not None or self._contents is None:
            return self.array(layer, slot)
        return self._contents(operand.value)

    def weight(self, layer: Layer, slot: int) -> Operand | None:
        """A constant input, small or large; None for what is computed."""
        if slot >= len(layer.operands):
            return None
        operand = layer.operands[slot]
        return operand if operand.role in {Role.CONSTANT, Role.WEIGHT} else None

    def is_constant(self, layer: Layer) -> bool:
        """Whether a layer computes constants only; conversions of quantised weights may be left to the runtime."""
        reads = any(operand.role is Role.ACTIVATION for operand in layer.operands)
        live = layer.state is LayerState.LIVE and layer.op_type == DEQUANTIZE
        return layer.state is LayerState.FOLDED or (live and not reads)

    def attribute(self, layer: Layer, name: str) -> Any:
        """An attribute as the source has it; None where it is not given."""
        return attribute_of(layer.node, name)

    def broken_by(self, layers: Collection[int], value: str) -> tuple[str, ...]:
        """What reads a value in the midst of some layers from beyond them.

        Args:
            layers: The layers.
            value: What they make together, which anybody may read.
        """
        found: dict[str, None] = {}
        for index in layers:
            for name in self.graph.layers[index].outputs:
                if not name or name == value:
                    continue
                if self.is_output(name):
                    found[f"output {name}"] = None
                for reader in self.graph.consumers(name):
                    if reader not in layers:
                        found[self.graph.layers[reader].name] = None
        return tuple(found)

    def match(
        self,
        layers: Iterable[int],
        value: str,
        reads: Iterable[str],
        *,
        form: str = "",
        numbers: Mapping[str, float] | None = None,
        twin: str = "",
    ) -> Match:
        """What was found, with what breaks it."""
        members = tuple(sorted(set(layers)))
        return Match(members, value, tuple(reads), form, self.broken_by(set(members), value), numbers or {}, twin)


# A model that is being changed: values are made anew under their names, and what nobody reads any more goes.


_MICROSOFT = "com.microsoft"


class ModelDraft:
    """A model under change.

    Args:
        model: It is changed in place.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._nodes = list(model.graph.node)
        self._names = {name for node in self._nodes for name in (*node.input, *node.output)}
        self._names |= {value.name for value in model.graph.input} | {tensor.name for tensor in model.graph.initializer}
        self._makers = {name: node for node in self._nodes for name in node.output if name}

    @property
    def opset(self) -> int:
        """Of ONNX's own operators."""
        return next((entry.version for entry in self.model.opset_import if not plain_domain(entry.domain)), 1)

    def node(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> onnx.NodeProto:
        """A node of one output, which gets a new name where it has none; ``domain`` is one of the attributes."""
        name = output or self.fresh(operator.lower())
        label = self.fresh(f"rewritten_{operator}")
        made: onnx.NodeProto = helper.make_node(operator, list(inputs), [name], name=label, **attributes)
        if made.domain == _MICROSOFT and not any(entry.domain == _MICROSOFT for entry in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(_MICROSOFT, 1))
        return made

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        number = 0
        while f"{stem}_{number}" in self._names:
            number += 1
        self._names.add(f"{stem}_{number}")
        return f"{stem}_{number}"

    def constant(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], stem: str) -> str:
        """A new constant; its name."""
        name = self.fresh(stem)
        self.model.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def initializer(self, name: str) -> onnx.TensorProto | None:
        """A constant of the model by its name."""
        return next((tensor for tensor in self.model.graph.initializer if tensor.name == name), None)

    def maker(self, value: str) -> onnx.NodeProto:
        """The node that makes a value.

        Raises:
            ModelError: There is none.
        """
        if value not in self._makers:
            raise ModelError(f"no node of the model makes '{value}'")
        found: onnx.NodeProto = self._makers[value]
        return found

    def redefine(self, value: str, nodes: Sequence[onnx.NodeProto]) -> None:
        """Have other nodes make a value; all that read it go on to do so.

        Args:
            value: A value that a node makes.
            nodes: Their last makes the value; what they read may stand behind it in the model.
        """
        before = self.maker(value)
        slot = list(before.output).index(value)
        before.output[slot] = self.fresh("replaced")
        self._makers[before.output[slot]] = before
        place = next(index for index, node in enumerate(self._nodes) if node is before) + 1
        self._nodes[place:place] = nodes
        self._makers |= {name: node for node in nodes for name in node.output if name}

    def forget_type(self, value: str) -> None:
        """Drop what the model states of a value's type, which is another one now."""
        _keep(self.model.graph.value_info, {info.name for info in self.model.graph.value_info} - {value})

    def finish(self) -> onnx.ModelProto:
        """The model in topological order, without what nobody reads.

        Raises:
            ModelError: Nodes wait for each other.
        """
        graph = self.model.graph
        wanted, needed = [value.name for value in graph.output], set[int]()
        while wanted:
            node = self._makers.get(wanted.pop())
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                wanted += reads(node)
        kept = _ordered([node for node in self._nodes if id(node) in needed])
        del graph.node[:]
        graph.node.extend(kept)
        read = {name for node in kept for name in reads(node)} | {value.name for value in graph.output}
        _keep(graph.initializer, read)
        made = {name for node in kept for name in node.output}
        _keep(graph.value_info, made)
        return self.model


def _keep(entries: object, names: set[str]) -> None:
    """Drop the entries of a repeated field whose names are not wanted."""
    assert isinstance(entries, Sequence)  # noqa: S101  # protobuf's containers have no common type
    for position in reversed(range(len(entries))):
        if entries[position].name not in names:
            del entries[position]  # type: ignore[attr-defined]


def _ordered(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Nodes so that each stands behind those that it reads from, otherwise in the order given."""
    import networkx as nx

    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from(
        (makers[name], index) for index, node in enumerate(nodes) for name in reads(node) if name in makers
    )
    try:
        return [nodes[index] for index in nx.lexicographical_topological_sort(graph)]
    except nx.NetworkXUnfeasible as error:
        raise ModelError("a rewrite made nodes that wait for each other") from error
