"""The one form of rewrite, and the graph that it changes.

A rewrite says: these values can be computed by these nodes from values upstream. Rewrites compose: of two rewrites of
one value the first counts, and unread nodes are dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...errors import ModelError
from ...models.subgraphs import attributes_of, in_order, needed, plain_domain, reads

Array = npt.NDArray[Any]

MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""

_OLDEST_IR, _NEWEST_IR = 8, 10


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """Nodes that compute values of a model in another way.

    Attributes:
        kind: Recognised pattern, ``engine: name``.
        values: The values that the nodes compute, under their old names.
        nodes: The new nodes. They read values upstream of ``values``, and constants.
        constants: The new constants by name.
        exact: Those that were computed, before rounding to their type.
        replaces: Names of the old nodes that are no longer needed.
        saving_ns: Predicted saving in nanoseconds, for ranking only.
        note: Details for people.
    """

    kind: str
    values: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
    saving_ns: float = 0.0
    note: str = ""
    exact: Mapping[str, Array] = field(default_factory=dict)


class Draft:
    """Collects the nodes and constants of one rewrite.

    Args:
        graph: The graph that it is for.
    """

    def __init__(self, graph: RewriteGraph) -> None:
        self._graph, self.opset = graph, graph.opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.exact: dict[str, Array] = {}

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """Add a constant and return its name; numbers in double precision are rounded to the type here only."""
        name, numbers = self._graph.fresh("constant"), np.asarray(array)
        self.constants[name] = np.asarray(numbers, dtype)
        if numbers.dtype == np.float64 and self.constants[name].dtype != np.float64:
            self.exact[name] = numbers
        return name

    def op(self, operator: str, *inputs: str, to: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node of one output and return the output's name; leave out attributes that are None."""
        return self.ops(operator, inputs, (to or self._graph.fresh(operator.lower()),), domain=domain, **attributes)[0]

    def ops(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Add a node of several outputs and return their names."""
        present_attributes = {name: value for name, value in attributes.items() if value is not None}
        label = self._graph.fresh(f"rewritten_{operator}")
        self.nodes.append(
            helper.make_node(operator, list(inputs), list(outputs), name=label, domain=domain, **present_attributes)
        )
        return outputs

    def copy(self, node: onnx.NodeProto, inputs: Mapping[str, str], *, to: str) -> str:
        """Add a copy of a node with other inputs, by their old names, and another first output."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = self._graph.fresh(f"rewritten_{node.op_type}")
        copy.input[:] = [inputs.get(name, name) for name in node.input]
        copy.output[0] = to
        self.nodes.append(copy)
        return to

    def reshape(self, value: str, shape: Sequence[int], *, to: str = "") -> str:
        """Add a Reshape to a static shape."""
        return self.op("Reshape", value, self.constant(list(shape), np.int64), to=to)

    def finish(self, value: str, target: str) -> None:
        """Name the last result as the target: rename its node's output, or add an Identity if no node made it."""
        for node in self.nodes:
            for slot, name in enumerate(node.output):
                if name == value and value != target:
                    node.output[slot] = target
                    return
        self.op("Identity", value, to=target)

    def rewrite(
        self,
        kind: str,
        values: Iterable[str],
        replaces: Iterable[str],
        saving_ns: float,
        note: str = "",
    ) -> Rewrite:
        """Return the rewrite."""
        replaced = tuple(dict.fromkeys(replaces))
        return Rewrite(kind, tuple(values), tuple(self.nodes), self.constants, replaced, saving_ns, note, self.exact)


def pick(draft: Draft, x: str, index: Array, axis: int, *, to: str = "") -> str:
    """Add the selection of some indices along an axis: a Slice for evenly spaced ones, else a Gather."""
    steps = np.unique(np.diff(index))
    if len(index) > 1 and len(steps) == 1 and steps[0]:
        end = index[-1] + np.sign(steps[0])
        bounds = (index[0], end if end >= 0 else np.iinfo(np.int64).min, axis, steps[0])
        return draft.op("Slice", x, *(draft.constant([number], np.int64) for number in bounds), to=to)
    return draft.op("Gather", x, draft.constant(index, np.int64), axis=axis, to=to)


class RewriteGraph:
    """A model as engines see it: nodes in order, constants as arrays, producers and readers of each value.

    Args:
        model: The model with all of its weights. Constant nodes become constants.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = model.graph
        self.model = model
        self.opsets = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in self.constants]
        self.outputs = list(graph.output)
        self.given = frozenset(value.name for value in self.inputs)
        self.wanted = tuple(value.name for value in self.outputs)
        self.nodes: list[onnx.NodeProto] = []
        self._used = {name for node in graph.node for name in (*node.input, *node.output, node.name)}
        self._used |= self.given | set(self.constants)
        self._numbers = count()
        for node in graph.node:
            if (array := _constant_of(node)) is not None and node.output[0] not in self.wanted:
                self.constants[node.output[0]] = array
            else:
                self.nodes.append(node)
        self._name_nodes()
        self.producer = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.reads = [tuple(dict.fromkeys(reads(node))) for node in self.nodes]
        self.readers: defaultdict[str, list[int]] = defaultdict(list)
        for index, names in enumerate(self.reads):
            for name in names:
                self.readers[name].append(index)
        self.attributes = [attributes_of(node) for node in self.nodes]

    def _name_nodes(self) -> None:
        seen = set[str]()
        for index, node in enumerate(self.nodes):
            if not node.name or node.name in seen:
                copy = onnx.NodeProto()
                copy.CopyFrom(node)
                copy.name = self.fresh(node.op_type)
                self.nodes[index] = copy
            seen.add(self.nodes[index].name)

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return int(self.opsets.get("", 17))

    def fresh(self, stem: str) -> str:
        """Return a name that nothing has."""
        while (name := f"{stem}__{next(self._numbers)}") in self._used:
            pass
        return name

    def maker(self, value: str) -> onnx.NodeProto | None:
        """Return the node that makes a value; None for inputs and constants."""
        index = self.producer.get(value)
        return None if index is None else self.nodes[index]

    def name(self, index: int) -> str:
        """Return a node's name."""
        return str(self.nodes[index].name)

    def names(self, indices: Iterable[int]) -> tuple[str, ...]:
        """Return the names of nodes in the order of the graph."""
        return tuple(self.name(index) for index in sorted(indices))

    def removable(self, region: Collection[int], value: str, *, read: Collection[str] = ()) -> list[int]:
        """Return the nodes of a region that nobody needs once a value is computed without them.

        Args:
            region: Indices of nodes.
            value: The value that is computed in another way.
            read: Values that the new nodes read.
        """
        gone = set[int]()
        for index in sorted(region, reverse=True):
            if all(
                name == value
                or (name not in self.wanted and name not in read and gone.issuperset(self.readers.get(name, ())))
                for name in self.nodes[index].output
                if name
            ):
                gone.add(index)
        return sorted(gone)

    def unneeded(self, values: Collection[str], read: Iterable[str]) -> list[int]:
        """Return the nodes that nobody needs once some values are computed from others.

        Args:
            values: Values that are computed in another way.
            read: Values that the new nodes read.
        """
        needed, waiting, seen = set[int](), [*self.wanted, *read], set(values)
        waiting = [name for name in waiting if name not in seen]
        while waiting:
            name = waiting.pop()
            index = self.producer.get(name)
            if name in seen or index is None:
                continue
            seen.add(name)
            if index not in needed:
                needed.add(index)
                waiting += [read for read in self.reads[index] if read not in seen]
        return [index for index in range(len(self.nodes)) if index not in needed]

    def build(self, rewrites: Iterable[Rewrite] = (), outputs: Sequence[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
        """Return the model with some rewrites applied.

        Args:
            rewrites: Of two that compute the same value the first is applied.
            outputs: Outputs in place of the model's own.

        Raises:
            ModelError: New nodes depend on each other in a circle.
        """
        taken, added, constants = set[str](), list[onnx.NodeProto](), dict(self.constants)
        for rewrite in rewrites:
            if taken.isdisjoint(rewrite.values):
                taken.update(rewrite.values)
                added += rewrite.nodes
                constants.update(rewrite.constants)
        nodes = [_renamed(node, taken) for node in self.nodes]
        graph_outputs = list(outputs) or self.outputs
        needed_nodes = needed(ordered([*nodes, *added]), [value.name for value in graph_outputs])
        read = {name for node in needed_nodes for name in reads(node)} | {value.name for value in graph_outputs}
        tensors = [
            numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
            for name, array in constants.items()
            if name in read
        ]
        graph = helper.make_graph(needed_nodes, self.model.graph.name or "model", self.inputs, graph_outputs, tensors)
        opsets = {
            **self.opsets,
            **{domain: 1 for node in needed_nodes if (domain := plain_domain(node.domain)) not in self.opsets},
        }
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()])
        model.metadata_props.extend(self.model.metadata_props)  # applications read labels and sizes there
        model.doc_string, model.producer_name = self.model.doc_string, self.model.producer_name
        model.ir_version = min(max(self.model.ir_version, _OLDEST_IR), _NEWEST_IR)
        return model


def _constant_of(node: onnx.NodeProto) -> Array | None:
    """Return the value of a Constant node of numbers; None for any other node."""
    if node.op_type != "Constant" or plain_domain(node.domain) or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        return numpy_helper.to_array(attribute.t)
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if attribute.name not in kinds:
        return None
    return np.array(helper.get_attribute_value(attribute), kinds[attribute.name])


def _renamed(node: onnx.NodeProto, taken: Collection[str]) -> onnx.NodeProto:
    """Return a node with new names for outputs that other nodes compute now."""
    if not any(name in taken for name in node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [f"{name}__replaced" if name in taken else name for name in node.output]
    return copy


def ordered(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes so that each value is computed before it is read; raises ``ModelError`` for a circle."""
    sorted_nodes = in_order(nodes)
    if len(sorted_nodes) < len(nodes):
        raise ModelError("new nodes of several rewrites depend on each other in a circle")
    return sorted_nodes
