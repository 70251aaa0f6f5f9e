"""The outline of a graph: a ModelGraph as plain data, without what only making bricks needs.

An outline has the layers of its graph with names, operators, wiring, types and costs; it has few attributes, no values
of constants, no keys of layers and no canonical forms. It is enough to report latencies by layer, but it cannot be cut,
and no brick can be made of it: what it was cut into is written down beside it. A record is lists of numbers, and tables
of texts that they index; it may come from a file that anybody wrote, so that reading checks all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import onnx

from ...models.subgraphs import captures
from ..cost import Cost
from ..layer import Layer, LayerState, Operand, Role
from ..sequence import LayerSequence
from ..tensor import ELEMENT_BITS, TensorType
from .control import ControlFlow
from .footprint import footprint
from .graph import ModelGraph

__all__ = ["Outline", "Table", "integers", "lists", "operator_of", "outline_of", "read_sequences", "record", "texts"]

_LARGEST = 1 << 63
_ROLES = tuple(Role)
_STATES = tuple(LayerState)
_LAST = "channels_last"
"""An attribute that is kept: by it runtimes mark the layout that an operator works in."""
_SPATIAL = ("kernel_shape", "strides")
"""The others: people know convolutions by them."""

Record = dict[str, Any]
Operator = tuple[str, str, bool, tuple[int, ...], tuple[int, ...]]
T = TypeVar("T", bound=Hashable)


class Table(dict[T, int]):
    """Numbers values by first use; iterating gives them in that order."""

    def __missing__(self, value: T) -> int:
        self[value] = number = len(self)
        return number

    def numbers(self, values: Iterable[T]) -> list[int]:
        """The number of each value."""
        return [self[value] for value in values]


class Outline(ModelGraph):
    """A graph as it was written down: checked at once, its layers made when they are first asked for.

    Args:
        written: The record, from ``outline_of``.

    Attributes:
        size: Number of layers.
        footprint: Bytes that one inference touches (``graph.footprint``).
        edges: (producer, consumer) of every value.
        alone: The sequences of the graph at G = 1.

    Raises:
        ValueError: It is no record of a graph (``TypeError``, ``KeyError``, ``IndexError`` and ``AttributeError`` too).
    """

    size: int
    footprint: int
    edges: tuple[tuple[int, int], ...]
    alone: tuple[LayerSequence, ...]
    _values: list[str]
    _types: list[TensorType | None]
    _numbers: list[int]
    _inputs: list[int]
    _operands: tuple[list[int], ...]
    _operators: list[Operator]
    _costs: list[Cost | None]
    _rows: list[tuple[str, int, list[int], list[int], list[int], int, int, str]]

    def __init__(self, written: Record) -> None:
        values, names = texts(written["values"]), texts(written["names"])
        types = [None, *(_type(*entry) for entry in written["types"])]
        costs = [None, *(Cost(*integers(entry)) for entry in written["costs"])]
        operators = [
            (domain, op_type, bool(last), tuple(integers(kernel)), tuple(integers(strides)))
            for domain, op_type, last, kernel, strides in written["operators"]
        ]
        texts([word for operator in operators for word in operator[:2]])
        numbers = integers(written["value_types"], len(types))
        operands = _columns(written["operands"], len(values), len(types), len(_ROLES))
        states = integers(written["states"], len(_STATES))
        rows = zip(
            names,
            integers(written["kinds"], len(operators)),
            lists(written["reads"], len(values)),
            lists(written["writes"], len(values)),
            lists(written["fed"], len(operands[0])),
            integers(written["works"], len(costs)),
            states,
            texts(written["reasons"]),
            strict=True,
        )
        producers, consumers = (integers(written[name], len(names)) for name in ("producers", "consumers"))
        control = tuple([_flow(entry) for entry in written["control"]])
        integers([written["weight_bytes"], written["footprint"], *written["bound"].values()])
        if len(numbers) != len(values):
            raise ValueError("not every value has a type")
        vars(self).update(
            live=tuple([index for index, state in enumerate(states) if _STATES[state] is LayerState.LIVE]),
            outputs=tuple([values[number] for number in integers(written["outputs"], len(values))]),
            weight_bytes=written["weight_bytes"],
            bound=written["bound"],
            idle={},
            salt="".join(texts([written["salt"]])),
            control=control,
            key="".join(texts([written["key"]])),
            size=len(names),
            footprint=written["footprint"],
            edges=tuple(zip(producers, consumers, strict=True)),
            alone=read_sequences(written["alone"], values, len(names)),
            _values=values,
            _types=types,
            _numbers=numbers,
            _inputs=integers(written["inputs"], len(values)),
            _operands=operands,
            _operators=operators,
            _costs=costs,
            _rows=list(rows),
        )

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """Every value with a known type."""
        pairs = zip(self._values, self._numbers, strict=True)
        return {value: kind for value, number in pairs if (kind := self._types[number]) is not None}

    @cached_property
    def inputs(self) -> Mapping[str, TensorType | None]:
        """The model's activation inputs and their types."""
        return {self._values[number]: self._types[self._numbers[number]] for number in self._inputs}

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All operators of the model."""
        values, types, of_value = self._values, self._types, self._numbers
        operands = [Operand(values[v], types[t], _ROLES[r]) for v, t, r in zip(*self._operands, strict=True)]
        layers = []
        for index, (name, kind, reads, writes, fed, work, state, reason) in enumerate(self._rows):
            outputs = tuple([values[number] for number in writes])
            layer = Layer(
                index=index,
                name=name,
                node=_node(self._operators[kind], [values[number] for number in reads], outputs),
                opsets=(),
                canonical=None,
                canonical_opsets=(),
                valid_opsets=None,
                operands=tuple([operands[number] for number in fed]),
                outputs=outputs,
                output_types=tuple([types[of_value[number]] if values[number] else None for number in writes]),
                key="",
                cost=self._costs[work],
                state=_STATES[state],
                reason=reason,
            )
            layers.append(layer)
        return tuple(layers)


def outline_of(graph: ModelGraph, alone: Sequence[LayerSequence]) -> Record:
    """Write down a graph.

    Args:
        graph: The graph.
        alone: Its sequences at G = 1.
    """
    values = Table[str]()
    types = Table[TensorType | None]({None: 0})
    operators = Table[Operator]()
    operands = Table[tuple[int, int, int]]()
    costs = Table[Cost | None]({None: 0})

    def fed(operand: Operand) -> tuple[int, int, int]:
        return values[operand.value], types[operand.type], _ROLES.index(operand.role)

    layers = graph.layers
    edges = [(one.index, reader) for one in layers for value in one.outputs for reader in graph.consumers(value)]
    written: Record = {
        "key": graph.key,
        "footprint": footprint(graph),
        "producers": [producer for producer, _ in edges],
        "consumers": [consumer for _, consumer in edges],
        "salt": graph.salt,
        "weight_bytes": graph.weight_bytes,
        "bound": dict(graph.bound),
        "control": [[str(word) if isinstance(word, str) else word for word in astuple(flow)] for flow in graph.control],
        "inputs": values.numbers(graph.inputs),
        "outputs": values.numbers(graph.outputs),
        "names": [layer.name for layer in layers],
        "states": [_STATES.index(layer.state) for layer in layers],
        "reasons": [layer.reason for layer in layers],
        "kinds": operators.numbers(map(operator_of, layers)),
        "reads": [values.numbers((*layer.node.input, *captures(layer.node))) for layer in layers],
        "writes": [values.numbers(layer.outputs) for layer in layers],
        "fed": [operands.numbers(map(fed, layer.operands)) for layer in layers],
        "works": costs.numbers(layer.cost for layer in layers),
        "alone": record(alone, values),
    }
    values.numbers(graph.types)
    return written | {
        "values": list(values),
        "value_types": [types[graph.types.get(value)] for value in values],
        "types": [[kind.dtype, *kind.shape] for kind in types if kind is not None],
        "operators": [list(operator) for operator in operators],
        "operands": [list(operand) for operand in operands],
        "costs": [[getattr(cost, name) for name in Cost.__slots__] for cost in costs if cost is not None],
    }


def operator_of(layer: Layer) -> Operator:
    """What an outline keeps of an operator: domain, name, layout, kernel and strides."""
    known = {attribute.name: attribute for attribute in layer.node.attribute}
    kernel, strides = (tuple(known[name].ints) if name in known else () for name in _SPATIAL)
    return layer.domain, layer.op_type, _LAST in known and bool(known[_LAST].i), kernel, strides


def record(sequences: Sequence[LayerSequence], values: Table[str]) -> Record:
    """Write down sequences.

    Args:
        sequences: The sequences.
        values: Numbers the names of values; to be written down beside them.
    """
    keys = Table[str]()
    copies = {"copies": [list(one.copies) for one in sequences]} if any(one.copies for one in sequences) else {}
    reuse = {"reuse": [one.reuse for one in sequences]} if any(one.reuse for one in sequences) else {}
    return {
        **copies,
        **reuse,
        "layers": [list(one.layers) for one in sequences],
        "key": keys.numbers(one.key for one in sequences),
        "keys": list(keys),
        "inputs": [values.numbers(one.inputs) for one in sequences],
        "weights": [values.numbers(one.weights) for one in sequences],
        "outputs": [values.numbers(one.outputs) for one in sequences],
    }


def read_sequences(written: Record, values: Sequence[str], layers: int) -> tuple[LayerSequence, ...]:
    """Read sequences that were written down.

    Args:
        written: The record.
        values: The names that it counts in.
        layers: How many layers their graph has.

    Raises:
        ValueError: As ``Outline``.
    """
    keys, members = texts(written["keys"]), lists(written["layers"], layers)
    if not all(members):
        raise ValueError("a sequence without layers")
    named: Callable[[list[int]], tuple[str, ...]] = lambda numbers: tuple([values[number] for number in numbers])  # noqa: E731
    return tuple(
        [
            LayerSequence(
                tuple(indices), keys[key], named(inputs), named(weights), named(outputs), tuple(copies), level
            )
            for indices, key, inputs, weights, outputs, copies, level in zip(
                members,
                integers(written["key"], len(keys)),
                *(lists(written[name], len(values)) for name in ("inputs", "weights", "outputs")),
                lists(written["copies"], layers) if "copies" in written else [[] for _ in members],
                integers(written["reuse"]) if "reuse" in written else [0 for _ in members],
                strict=True,
            )
        ]
    )


def texts(column: object) -> list[str]:
    """A column of texts, checked."""
    if not isinstance(column, list) or not set(map(type, column)) <= {str}:
        raise ValueError("no list of texts")
    return column


def integers(column: object, below: int = _LARGEST) -> list[int]:
    """A column of numbers from 0 on, checked."""
    if not isinstance(column, list) or not set(map(type, column)) <= {int}:
        raise ValueError("no list of numbers")
    if column and not 0 <= min(column) <= max(column) < below:
        raise ValueError("a number counts beyond its table")
    return column


def lists(column: object, below: int) -> list[list[int]]:
    """A column of lists of numbers, checked."""
    if not isinstance(column, list) or not set(map(type, column)) <= {list}:
        raise ValueError("no list of lists")
    integers(list(chain.from_iterable(column)), below)
    return column


def _columns(rows: object, *sizes: int) -> tuple[list[int], ...]:
    """The columns of rows of numbers, checked."""
    given = lists(rows, _LARGEST)
    if set(map(len, given)) - {len(sizes)}:
        raise ValueError("a row has another length")
    return tuple(integers(list(map(itemgetter(place), given)), size) for place, size in enumerate(sizes))


def _type(dtype: str, *shape: int) -> TensorType:
    integers(list(shape))
    if dtype not in ELEMENT_BITS:
        raise ValueError("no element type")
    return TensorType(dtype, shape)


def _flow(entry: list[Any]) -> ControlFlow:
    flow = ControlFlow(*entry)
    texts([flow.name, flow.op_type, flow.how, flow.course, flow.reason])
    integers([flow.times, flow.layers])
    return flow


def _node(operator: Operator, reads: list[str], writes: tuple[str, ...]) -> onnx.NodeProto:
    domain, op_type, last, *spatial = operator
    node = onnx.NodeProto(op_type=op_type, domain=domain, input=reads, output=writes)
    if last:
        node.attribute.append(onnx.AttributeProto(name=_LAST, type=onnx.AttributeProto.INT, i=1))
    for name, sizes in zip(_SPATIAL, spatial, strict=True):
        if sizes:
            node.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS, ints=sizes))
    return node
