"""Packed networks: many bricks in one benchmark network, so that one execution visits each of them once.

*Producers* write the inputs of a brick just before it runs, like the previous layer in a model. *Consumers* read only
the shape of its outputs, so that their memory is free again. Producers only write: they expand a scalar, or one matrix
for masked scores. A producer that copied an input would read memory that a model does not read, and an Identity is not
executed at all. Inputs are copied all the same if their values decide a time (TopK, NonMaxSuppression). Layout changes
at the edges of a brick form a separate network. Next to the brick, their inputs and outputs would evict the brick's own
data, which a model finds in the caches. With several threads, producers add two vectors along different axes. All
threads share this work as they share the layers of a model, so that each core reads partly its own results. Between two
visits of a weight all other bricks run, as in a model. The network runs without optimisation, which would fold
consumers and merge producers.

``merge`` and ``split`` let a runtime optimise many bricks in one session: as parts of one network that share nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.canonical import ANY, versions_around
from ...bricks.graph.activations import LARGE_BYTES
from ...bricks.graph.boundary import BOTH, FRESH, FRESH_KEPT, GIVEN, HALF, KEPT, half_of
from ...bricks.operators import Trait, having
from ...errors import BackendError
from ...models.skeleton import hide_future, hides_future
from ...models.subgraphs import all_nodes, bodies, plain_domain, reads
from .inputs import FEW, typical
from .network import HUGE_BYTES, Network, add_copy, add_value, distinct, extended_caches, shared_buffers

# Versions of operator sets at which operators mean the same: networks that share one can be put into one network.


def opset_ranges(model: onnx.ModelProto) -> dict[str, tuple[int, int]]:
    """Return the versions of each domain at which all nodes keep their meaning: the first, and the first invalid one.

    Bricks of executed graphs have the versions of their operators' last change, which differ from brick to brick. Most
    of them keep their meaning at a version that all allow.
    """
    imported = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    ranges: dict[str, tuple[int, int]] = {}
    for node in all_nodes(model.graph.node):
        domain = plain_domain(node.domain)
        low, high = ranges.get(domain, (1, ANY))
        since, until = versions_around(domain, node.op_type, imported.get(domain, 1))
        ranges[domain] = max(low, since), min(high, until)
    return ranges


def common_ranges(
    ranges: Mapping[str, tuple[int, int]], added: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]] | None:
    """Return the versions of each domain that both allow; None if a domain lacks a common version."""
    merged = dict(ranges)
    for domain, (low, high) in added.items():
        allowed = merged.get(domain, (low, high))
        merged[domain] = max(low, allowed[0]), min(high, allowed[1])
    return merged if all(low < high for low, high in merged.values()) else None


Array = npt.NDArray[Any]

PACKING = 7
"""Version of the rules that fill packs. 1: a table counted whole although few rows are read, and equal weights were
shared. 2: one thread alone wrote the inputs of bricks, for any number of threads. 3: weights alone filled a pack, so
that it touched up to twice as much as its models, and layout changes at the edges of a brick ran beside it. 4: classes
were twice apart, and packs touched from 0.7 times as much as their class. 5: bricks ran in the reverse of the given
order, and found code and the memory of large activations cold that models use in each layer; packs that come from
memory had few copies. 6: in these, caches and outputs that stay still came between bricks and the memory that they
share. In the first runs of 7 tables, ConvTranspose and activations above 128 MiB ran twice too, packs touched up to
1.15 times their class, bricks without weights ran only twice in packs that stream, and copies of long computations
filled packs."""

ALONE, TOGETHER, OFTEN = "alone", "together", "often"
"""Ways to run a brick before it counts (``PackedBrick``)."""

_OFTEN = 4
"""Uses after which a last-level cache holds data from memory (an AMD EPYC: 430, 380, 320, 265, 217, 204 us)."""

_SPAN = 32
"""Elements that a thread writes at once: of fewer, finding the next ones costs more than writing them."""

_SHARED_BYTES = 4096
"""Smaller weights are never rotated: their place in memory hardly matters, and they may be parameters."""

_LOOKED_AT = 64
"""Number of elements that are compared to find equal weights of one shape."""

_UNREAD = "unread"
"""Input of the extra consumer in a pack without other consumers."""

_FRAME: Mapping[str, tuple[int, int]] = {"": (8, ANY)}
"""Operator sets that producers and consumers need: Expand exists since version 8."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedBrick:
    """A brick of a pack.

    Attributes:
        network: The brick, in the form that the runtime executes, without the layout changes at its edges.
        copies: Number of copies in the pack, each with separate weights unless they are huge.
        edges: These layout changes, as a separate network; None for a brick without them.
        boundary: One of ``BOUNDARY`` for a brick with cold inputs or outputs; empty for any other. Cold large inputs
            (all, or half of them) are inputs of the pack, written before everything else, or they are written just
            before to separate memory. Cold large outputs stay.
        twice: ``alone`` or ``together``: another copy runs before, and does not count. It touches memory and code that
            are cold otherwise, just before, or with the copies of neighbours. ``often``: several do, just before.
            Empty: none does.
    """

    network: Network
    copies: int = 1
    edges: Network | None = None
    boundary: str = ""
    twice: str = ""

    @property
    def networks(self) -> tuple[Network, ...]:
        """The brick, and the layout changes at its edges if there are any."""
        return (self.network,) if self.edges is None else (self.network, self.edges)

    @property
    def given(self) -> Collection[str]:
        """Inputs that nothing writes before they are read.

        A cache is one: a runtime would write its extension into the memory of a value that nothing else reads.
        """
        caches = {past for network in self.networks for past, _ in extended_caches(network.brick.graph)}
        if self.boundary not in {GIVEN, BOTH, HALF}:
            return caches
        return caches | (half_of(self._large) if self.boundary == HALF else self._large.keys())

    @property
    def fresh(self) -> Collection[str]:
        """Inputs that are written to memory that nothing else uses, just before they are read."""
        return self._large.keys() if self.boundary in {FRESH, FRESH_KEPT} else ()

    @property
    def _large(self) -> Mapping[str, int]:
        """Bytes of the large inputs that none of the networks makes."""
        made = {name for network in self.networks for name in network.outputs}
        sizes = {name: array.nbytes for network in self.networks for name, array in network.feeds.items()}
        return {name: size for name, size in sizes.items() if size >= LARGE_BYTES and name not in made}

    @property
    def kept(self) -> Mapping[str, onnx.ValueInfoProto]:
        """Outputs that stay, by name.

        An output that extends a cache in place always stays, in one buffer with the cache.
        """
        extending = {name for network in self.networks for name in shared_buffers(network.brick.graph)}
        read = {name for network in self.networks for name in network.feeds}
        values = [value for network in self.networks for value in network.brick.graph.output if value.name not in read]
        large = self.boundary in {KEPT, BOTH, FRESH_KEPT}
        return {
            value.name: value for value in values if value.name in extending or (large and _bytes(value) >= LARGE_BYTES)
        }


@dataclass(frozen=True, slots=True, eq=False)
class PackedNetwork:
    """A packed network, with the brick of each node.

    Attributes:
        network: The network, to be run without optimisation.
        nodes: Index of the brick, by the name of each counted node.
        uncounted: Index of the brick, by the name of each node of the layout changes at its edges. Copies that run
            before are in neither.
        idle: Names of the consumers, at least one. They do nothing: their time in the profile, less their real time,
            is the profiler's cost per node.
    """

    network: Network
    nodes: Mapping[str, int]
    uncounted: Mapping[str, int]
    idle: tuple[str, ...]


def grouped(networks: Sequence[Network]) -> list[list[int]]:
    """Return the indices of networks that can share a pack, in the fewest groups for ONNX's operators.

    Networks that no pack can hold are left out and run alone: operators older than the producers' operators, strings,
    and outputs other than tensors. So are networks with nodes in bodies: the profile of a pack notes each of these
    nodes too, and a loop of short nodes then takes several times its latency.
    """
    ranges = [opset_ranges(network.brick) for network in networks]
    waiting = sorted(
        filter(lambda index: _can_be_packed(networks[index]), range(len(networks))),
        key=lambda index: (ranges[index].get("", (1, ANY))[1], index),
    )
    groups: list[tuple[dict[str, tuple[int, int]], list[int]]] = []
    for index in waiting:
        for together, indices in groups:
            merged = common_ranges(together, ranges[index])
            if merged is not None:
                together.update(merged)
                indices.append(index)
                break
        else:
            alone = common_ranges(_FRAME, ranges[index])
            if alone is not None:
                groups.append((alone, [index]))
    return [sorted(indices) for _, indices in groups]


def pack(members: Sequence[PackedBrick], *, threads: int = 1) -> PackedNetwork:
    """Put bricks into one network, each between producers and consumers, in the given order.

    Equal weights are rotated, each by one more place. ONNX Runtime stores packed weights with equal bytes once, and the
    second brick would find them warm. Huge ones are not: they are warm nowhere.

    A producer writes floating-point inputs, with one value that is legal for every element. Integers and inputs of few
    elements are inputs of the pack and keep the values of the brick's network.

    Raises:
        BackendError: They share no version of an operator set (see ``grouped``).
    """
    builder = _PackBuilder([network for member in members for network in member.networks], threads=threads)
    nodes: dict[str, int] = {}
    uncounted: dict[str, int] = {}
    idle: list[str] = []
    for index, copy in reversed([*_executions(members)]):  # a runtime begins with the nodes that were added last
        member = members[index]
        for network, mark, owners in zip(member.networks, ("", "edges/"), (nodes, uncounted), strict=False):
            prefix = f"{index}.{copy}/{mark}"
            valued = _valued(network.brick)
            for name, array in network.feeds.items():
                if name in member.given:
                    builder.feed(prefix + name, array.copy())  # each copy of a brick reads separate memory
                else:
                    written = builder.produce(prefix + name, array, valued=valued)
                    if written and name in member.fresh:
                        builder.give(helper.make_empty_tensor_value_info(name), prefix + name)
            spliced = builder.splice(network, prefix, copy=copy)
            owners.update(dict.fromkeys(spliced if copy >= 0 else (), index))
            for value in network.outputs:
                if value in member.kept:
                    builder.give(member.kept[value], prefix + value)
                else:
                    idle.append(builder.consume(prefix + value))
    if not idle:  # every output stays
        builder.feed(_UNREAD, np.zeros(1, np.float32))
        idle.append(builder.consume(_UNREAD))
    return PackedNetwork(builder.network(), nodes, uncounted, tuple(idle))


def reads_any_value(model: onnx.ModelProto, boundary: str) -> bool:
    """Return True if a pack writes all floating-point inputs of a brick, so that their own values do not matter.

    Args:
        model: The brick.
        boundary: As in ``PackedBrick``.
    """
    return boundary not in {GIVEN, BOTH, HALF} and not _valued(model) and not any(extended_caches(model.graph))


def _valued(model: onnx.ModelProto) -> bool:
    """Return True if the time of an operator depends on the values that it reads."""
    return not having(Trait.VALUED).isdisjoint(node.op_type for node in all_nodes(model.graph.node))


def _executions(members: Sequence[PackedBrick]) -> Iterator[tuple[int, int]]:
    """Yield the place of each brick and the number of its copy in the order of execution; those below 0 do not count.

    Neighbours that run twice together all run once before any of them counts: as long ago as in a layer of a model.
    """

    def run_of(index: int) -> tuple[str, int]:
        twice = members[index].twice
        return twice, 0 if twice == TOGETHER else index

    for (twice, _), run in groupby(range(len(members)), key=run_of):
        places = list(run)
        before = _OFTEN if twice == OFTEN else 1 if twice else 0
        yield from ((index, -number) for number in range(before, 0, -1) for index in places)
        yield from ((index, copy) for index in places for copy in range(members[index].copies))


def merge(networks: Sequence[Network]) -> Network:
    """Merge networks into one. They share nothing: each keeps its inputs, weights and outputs.

    Raises:
        BackendError: They share no version of an operator set (see ``grouped``).
    """
    builder = _PackBuilder(networks)
    for index, network in enumerate(networks):
        prefix = f"{index}.0/"
        for name, array in network.feeds.items():
            builder.feed(prefix + name, array)
        builder.splice(network, prefix)
        for value in network.brick.graph.output:
            builder.give(value, prefix + value.name)
    return replace(builder.network(), as_is=False)


def repeated(network: Network, *, unroll: int) -> Network:
    """Return a network in executed form as ``unroll`` copies that share nothing; equal weights are rotated."""
    if unroll == 1:
        return network
    copies = [
        replace(network, weights={name: distinct(array, copy) for name, array in network.weights.items()})
        if copy else network
        for copy in range(unroll)
    ]  # fmt: skip
    return replace(merge(copies), as_is=True, unroll=unroll)


def split(optimised: Network, networks: Sequence[Network]) -> list[Network]:
    """Split an optimised network into the parts that ``merge`` put together, with their inputs and outputs.

    Raises:
        BackendError: A node belongs to several of them, or to none.
    """
    graph = optimised.brick.graph
    producer = {value: number for number, node in enumerate(graph.node) for value in node.output if value}
    owner: dict[int, int] = {}
    for index, network in enumerate(networks):
        waiting = [f"{index}.0/{value}" for value in network.outputs]
        while waiting:
            number = producer.get(waiting.pop())
            if number is None or owner.get(number) == index:
                continue
            if number in owner:
                raise BackendError("the runtime computes one value for two bricks")
            owner[number] = index
            waiting += reads(graph.node[number])
    if len(owner) != len(graph.node):
        raise BackendError("the runtime executes a node that no brick needs")
    return [_part(optimised, network, index, owner) for index, network in enumerate(networks)]


def _part(optimised: Network, network: Network, index: int, owner: Mapping[int, int]) -> Network:
    """Return the nodes of one network with the values that they read."""
    source = optimised.brick
    prefix = f"{index}.0/"
    nodes = [node for number, node in enumerate(source.graph.node) if owner[number] == index]
    read = {value for node in nodes for value in reads(node)} | {prefix + value for value in network.outputs}
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    model.graph.name = "brick"
    outputs = [value for value in source.graph.output if value.name.startswith(prefix)]
    model.graph.input.extend(value for value in source.graph.input if value.name in read)
    model.graph.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in read)
    model.graph.node.extend(nodes)
    model.graph.output.extend(outputs)
    return replace(
        optimised,
        model=model,
        weights={name: array for name, array in optimised.weights.items() if name in read},
        feeds={name: array for name, array in optimised.feeds.items() if name in read},
        outputs=tuple(value.name for value in outputs),
    )


# Layout changes at the edges of a brick, apart from it.


def crossing(network: Network, edges: Collection[int]) -> tuple[str, ...]:
    """Return the values between a brick's own nodes and the layout changes at its edges."""
    nodes = network.brick.graph.node
    own = [node for index, node in enumerate(nodes) if index not in edges]
    written = {value for index in edges for value in nodes[index].output if value}
    read = {value for index in edges for value in reads(nodes[index])}
    into = [value for node in own for value in reads(node) if value in written]
    out_of = [value for node in own for value in node.output if value in read]
    return tuple(dict.fromkeys([*into, *out_of]))


def showing(network: Network, values: Sequence[str]) -> Network:
    """Return a network with some of its values as its outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(network.brick)
    del model.graph.output[:]
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, values))
    return replace(network, model=model, outputs=tuple(values))


def set_apart(network: Network, edges: Collection[int], arrays: Mapping[str, Array]) -> PackedBrick:
    """Return a brick with the layout changes at its edges set apart.

    Args:
        network: The brick.
        edges: Indices of the layout changes in ``network.brick.graph.node``; not all of its nodes.
        arrays: The values of ``crossing``.
    """
    own = [index for index in range(len(network.brick.graph.node)) if index not in edges]
    return PackedBrick(_nodes_of(network, own, arrays), edges=_nodes_of(network, sorted(edges), arrays))


def _nodes_of(network: Network, indices: Sequence[int], arrays: Mapping[str, Array]) -> Network:
    """Return some nodes of a network as a network; values between them and other nodes are inputs and outputs."""
    source = network.brick
    nodes = [source.graph.node[index] for index in indices]
    made = {value for node in nodes for value in node.output if value}
    read = {value for node in nodes for value in reads(node)}
    types = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    }
    inputs = [value for value in source.graph.input if value.name in read]
    inputs += [value for name, value in types.items() if name in read and name not in made]
    outputs = {value.name: value for value in source.graph.output if value.name in made}
    outputs |= {name: value for name, value in types.items() if name in made and name not in outputs}
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    model.graph.name = "brick"
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    model.graph.output.extend(outputs.values())
    model.graph.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in read)
    feeds = {**network.feeds, **arrays}
    return replace(
        network,
        model=model,
        weights={name: array for name, array in network.weights.items() if name in read},
        feeds={value.name: feeds[value.name] for value in inputs if value.name in feeds},
        outputs=tuple(outputs),
    )


class _PackBuilder:
    """A network in the making."""

    def __init__(self, networks: Sequence[Network], *, threads: int = 1) -> None:
        self._threads = threads
        together = dict(_FRAME)
        for network in networks:
            merged = common_ranges(together, opset_ranges(network.brick))
            if merged is None:
                raise BackendError("bricks of operator sets without a common version cannot be in one network")
            together = merged
        self._model = onnx.ModelProto(ir_version=max((network.brick.ir_version for network in networks), default=10))
        self._model.opset_import.extend(helper.make_opsetid(domain, low) for domain, (low, _) in together.items())
        self._model.graph.name = "pack"
        self._weights: dict[str, Array] = {}
        self._feeds: dict[str, Array] = {}
        self._looks = Counter[tuple[str, tuple[int, ...], bytes]]()

    def feed(self, name: str, array: Array) -> None:
        """Add an input."""
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._model.graph.input.append(helper.make_tensor_value_info(name, element, array.shape))
        self._feeds[name] = array

    def produce(self, name: str, array: Array, *, valued: bool) -> bool:
        """Add a producer that writes a value just before it is read; an input if no single value is legal for all.

        Args:
            name: Name of the value.
            array: A legal value.
            valued: True to write exactly this one, since time depends on it.

        Returns:
            True if a producer writes it.
        """
        value = _common_value(array)
        if value is None:
            self.feed(name, array)
            return False
        axis = _split_axis(array) if self._threads > 1 else None
        if valued:
            self._expand(name, f"{name}:own", array, array.shape)
        elif hides_future(array):
            value = np.full(array.shape[-2:], value)
            hide_future(value)
            self._expand(name, f"{name}:one", value, array.shape)
        elif axis is not None:
            self._add_vectors(name, value, array.shape, axis)
        else:
            self._expand(name, f"{value.dtype}:{value}", value, array.shape)
        return True

    def _expand(self, name: str, source: str, value: Array, shape: tuple[int, ...]) -> None:
        """Write a value from the input that it repeats."""
        if source not in self._feeds:
            self.feed(source, value)
        sizes = numpy_helper.from_array(np.array(shape, dtype=np.int64), f"{name}:shape")
        self._model.graph.initializer.append(sizes)
        self._model.graph.node.append(helper.make_node("Expand", [source, sizes.name], [name], name=f"{name}:producer"))

    def _add_vectors(self, name: str, value: Array, shape: tuple[int, ...], axis: int) -> None:
        """Write a value as the sum of itself along the axes before ``axis`` and of nothing along the others."""
        outer, inner = (*shape[:axis], *(1 for _ in shape[axis:])), (*(1 for _ in shape[:axis]), *shape[axis:])
        vectors = np.full(outer, value), np.zeros(inner, value.dtype)
        names = [f"{vector.dtype}:{vector.flat[0]}:{vector.shape}" for vector in vectors]
        for vector_name, vector in zip(names, vectors, strict=True):
            if vector_name not in self._feeds:
                self.feed(vector_name, vector)
        self._model.graph.node.append(helper.make_node("Add", names, [name], name=f"{name}:producer"))

    def splice(self, network: Network, prefix: str, *, copy: int = 0) -> list[str]:
        """Add a network's nodes and weights under new names; returns the names of the nodes."""
        graph = network.brick.graph
        for tensor in graph.initializer:
            if tensor.name in network.weights:
                array = network.weights[tensor.name]
                turned = self._places(array, copy)
                self._weights[prefix + tensor.name] = distinct(array, turned) if turned else array
        added = add_copy(self._model.graph, graph, prefix.__add__)
        for number, node in enumerate(added):
            node.name = f"{prefix}{number}"
        return [node.name for node in added]

    def _places(self, array: Array, copy: int) -> int:
        """Return by how many places to rotate: one for each equal weight before, of copies or of weights of one value.

        No cache holds a huge weight, shared or not.
        """
        if array.nbytes < _SHARED_BYTES:
            return copy
        if array.nbytes >= HUGE_BYTES:
            return 0
        look = (array.dtype.str, array.shape, array.reshape(-1)[:_LOOKED_AT].tobytes())
        self._looks[look] += 1
        return self._looks[look] - 1

    def consume(self, value: str) -> str:
        """Add a reader of a value's shape; returns its name."""
        result = f"{value}:shape of"
        self._model.graph.node.append(helper.make_node("Shape", [value], [result], name=result))
        self._model.graph.output.append(helper.make_empty_tensor_value_info(result))
        return result

    def give(self, value: onnx.ValueInfoProto, name: str) -> None:
        """Make a value an output."""
        add_value(self._model.graph.output, value, name)

    def network(self) -> Network:
        return Network(
            model=self._model,
            path=None,
            weights=self._weights,
            feeds=self._feeds,
            outputs=tuple(value.name for value in self._model.graph.output),
            as_is=True,
            shared=shared_buffers(self._model.graph),
        )


def _common_value(array: Array) -> Array | None:
    """Return a scalar that is legal for every element of an input; None if the position of elements matters."""
    if array.size <= FEW or not array.ndim:
        return None
    flat = array.reshape(-1)
    if array.dtype.kind == "f":
        return typical(flat[:4096])
    if array.dtype.kind in "iub" and bool((flat == flat[0]).all()):
        return np.array(flat[0])
    return None


def _split_axis(array: Array) -> int | None:
    """Return the axis that splits an input among threads, each with whole spans; None if no axis fits."""
    if array.dtype not in {np.dtype(np.float32), np.dtype(np.float64)}:
        return None  # only these two types have a sum in every runtime
    spans = (axis for axis in range(array.ndim - 1, 0, -1) if math.prod(array.shape[axis:]) >= _SPAN)
    axis = next(spans, None)
    return axis if axis is not None and math.prod(array.shape[:axis]) > 1 else None


def _can_be_packed(network: Network) -> bool:
    """Return True if a network reads and writes tensors of numbers only, and no body has nodes."""
    values = (*network.brick.graph.input, *network.brick.graph.output)
    kinds = {value.type.WhichOneof("value") for value in values}
    strings = any(value.type.tensor_type.elem_type == onnx.TensorProto.STRING for value in values)
    inner = any(body.node for node in network.brick.graph.node for body in bodies(node))
    return kinds <= {"tensor_type", None} and not strings and not inner


def _bytes(value: onnx.ValueInfoProto) -> int:
    """Return the bytes of a tensor with a declared shape; 0 for any other."""
    kind = value.type.tensor_type
    sizes = [dim.dim_value for dim in kind.shape.dim]
    return math.prod(sizes) * helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize if sizes else 0
