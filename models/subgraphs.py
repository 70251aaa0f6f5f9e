"""The bodies of control-flow operators: iteration, captured outer values, renaming; also domains and shapes."""

from __future__ import annotations

import heapq
import os
import resource
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, checker, shape_inference

from ..errors import BrokenModel, UnsupportedModel
from .time_limit import require_time

# Names in a model, which may be invalid text in a broken file, and domains of operators.


_STANDARD = frozenset({"", "ai.onnx"})
"""Spellings of ONNX's own domain."""


def require_text(*names: object) -> None:
    """Check that names are text; the protobuf parser returns bytes for invalid UTF-8.

    Raises:
        BrokenModel: A name is not text; the message shows it.
    """
    for name in names:
        if type(name) is not str:
            raise BrokenModel(f"the name {name!r} is not UTF-8")


def plain_domain(domain: str) -> str:
    """Return a domain in one spelling: empty for ONNX's own."""
    return "" if domain in _STANDARD else domain


def is_standard(node: NodeProto) -> bool:
    """Return True if a node is one of ONNX's own operators."""
    return node.domain in _STANDARD


def is_constant(node: NodeProto) -> bool:
    """Return True if a node is ONNX's own Constant."""
    return node.op_type == "Constant" and is_standard(node)


def constant_tensors(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the dense tensors of a graph's initializers and Constant nodes by name, without its subgraphs."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        value = attribute_of(node, "value") if is_constant(node) else None
        if value is not None and node.output:
            tensors[node.output[0]] = value
    return tensors


def kind_of(node: NodeProto) -> str:
    """Return the operator of a node; outside ONNX's own domain with the domain and a dot before it."""
    return node.op_type if node.domain in _STANDARD else f"{node.domain}.{node.op_type}"


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return the values of a node's attributes by name; text is ``str``."""
    return {attribute.name: _attribute_value(attribute) for attribute in node.attribute}


def attribute_of(node: NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute, or the default if the node lacks it; text is ``str``."""
    return next((_attribute_value(attribute) for attribute in node.attribute if attribute.name == name), default)


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


# Shapes that a graph states, or that ONNX's inference finds.


Shape = tuple[int, ...]

_INFERENCE_BYTES = 256 << 20
"""Bytes that shape inference may take, plus a multiple of the model's size."""
_COPIES = 16
"""That multiple: parsed models are several times larger than their files."""
_MOST_SCOPE = 100_000_000
"""Limit on ``_scope_work``: about 20 s."""


def infer_shapes(model: ModelProto, *, strict: bool = False, propagate: bool = True) -> ModelProto:
    """Return a copy of a model with all types that ONNX's shape inference finds, also in bodies.

    ONNX follows the values of a list as one object per element, for every list of known length: a file of 140 bytes can
    state a list of 2^40. If memory does not suffice, no values are followed.

    Args:
        model: The model; not changed.
        strict: Refuse values that cannot be inferred, instead of leaving them without a type.
        propagate: Follow the values of shapes too.

    Raises:
        BrokenModel: Inference refuses the model as a whole.
        UnsupportedModel: Inference would take minutes, or more memory than any real model.
        MemoryError: The process has a memory limit, and reached it.
        OutOfTime: The time of the command is up (``time_limit``).
    """
    if (work := _scope_work(model.graph)) > _MOST_SCOPE:
        raise UnsupportedModel(
            f"its control flow is too large to analyse: bodies see {work} values, more than {_MOST_SCOPE}"
        )
    data = model.SerializeToString()
    data = _with_defaults(model) if b"STFT" in data else data
    more = _INFERENCE_BYTES + _COPIES * len(data)
    for follow in (True, False) if propagate else (False,):
        infer = partial(shape_inference.infer_shapes, data, strict_mode=strict, data_prop=follow)
        try:
            inferred = _RESERVE.run(infer, more)
        except _TooMuch:
            continue
        except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError) as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BrokenModel(
                f"shape inference refuses the model: {first}", remedy="check it with onnx.checker"
            ) from error
        require_time("inferring shapes")
        return inferred
    raise UnsupportedModel("shape inference needs more memory for it than for any real model")


def _with_defaults(model: ModelProto) -> bytes:
    """Return a model as bytes, with the defaults of ``state_defaults`` in its nodes."""
    stated = ModelProto()
    stated.CopyFrom(model)
    for node in all_nodes(stated.graph.node):
        state_defaults(node)
    data: bytes = stated.SerializeToString()
    return data


def state_defaults(node: NodeProto) -> None:
    """State a default that ONNX's inference gets wrong: a STFT that does not say so is one-sided."""
    if node.op_type == "STFT" and attribute_of(node, "onesided") is None:
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _scope_work(graph: GraphProto, outer: int = 0) -> int:
    """Return how many names shape inference copies: the names that each body sees, over all bodies."""
    visible, work = outer + len(graph.initializer) + len(graph.input), 0
    for node in graph.node:
        for body in bodies(node):
            work += visible + _scope_work(body, visible)
        visible += len(node.output)
    return work


class _TooMuch(MemoryError):  # never reaches a caller: inference took more than it may, and the process could have more
    """Inference reached its own limit of memory."""


class _Reserve:
    """Addresses that inference reserved and gave back: the allocator keeps them, for the next one.

    Without this account every inference that reaches its limit would move the limit of the next one up.
    """

    def __init__(self) -> None:
        self._kept = 0
        self._thread: ThreadPoolExecutor | None = None
        self._owner = 0

    def run(self, work: Callable[[], ModelProto], more: int) -> ModelProto:
        """Return the result of a function that may take only so many bytes more.

        It runs in a thread with a stack that is allocated in advance: at the limit the stack of the main thread could
        not grow, and a signal would end the process. The thread stays: a thread that begins when memory is short ends
        before it reports its start, and its creator waits for ever.

        Raises:
            _TooMuch: It took more.
            MemoryError: The process has a memory limit, and reached it.
        """
        try:
            _reserved_bytes()
        except (OSError, ValueError, IndexError):  # not Linux
            return work()

        def limited() -> ModelProto:
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            most_data = resource.getrlimit(resource.RLIMIT_DATA)[0]
            before, data_bytes = _reserved_bytes()
            limit = before - self._kept + more
            nearer = soft == resource.RLIM_INFINITY or soft > limit
            roomy = most_data == resource.RLIM_INFINITY or most_data - data_bytes > more
            if nearer:
                resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
            try:
                return work()
            except MemoryError as error:
                self._kept += max(0, _reserved_bytes()[0] - before)
                if nearer and roomy:
                    raise _TooMuch from error
                raise
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

        if self._thread is None or self._owner != os.getpid():  # a forked process has no thread but its first
            self._thread, self._owner = ThreadPoolExecutor(1), os.getpid()
        try:
            future = self._thread.submit(limited)
        except RuntimeError as error:
            self._thread = None
            raise MemoryError("no thread can be started") from error
        return future.result()


def _reserved_bytes() -> tuple[int, int]:
    """Return the bytes of all addresses, and of those with private data."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(pages[0]) * resource.getpagesize(), int(pages[5]) * resource.getpagesize()


_RESERVE = _Reserve()


def declared_shape(kind: TypeProto) -> Shape:
    """Return the dimensions that a tensor's type states; dynamic ones count as 0."""
    return tuple([dim.dim_value for dim in kind.tensor_type.shape.dim])


def static_shape(kind: TypeProto) -> Shape | None:
    """Return the shape of a tensor; None if it is not a tensor, or rank or dimensions are unknown."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    stated = all(dim.HasField("dim_value") for dim in kind.tensor_type.shape.dim)
    return declared_shape(kind) if stated else None


def static_shapes(graph: GraphProto) -> dict[str, Shape]:
    """Return the shapes of all values that a graph states, by name, including initializers."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        shape = static_shape(value.type)
        if shape is not None:
            shapes[value.name] = shape
    return shapes


_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def may_have_bodies(node: onnx.NodeProto) -> bool:
    """Return True if an operator can have bodies: ONNX's control flow, and operators of other domains."""
    return node.op_type in _CONTROL_FLOW or not is_standard(node)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among a node's attributes, by attribute name."""
    if not may_have_bodies(node):
        return
    for attribute in sorted(node.attribute, key=lambda attribute: str(attribute.name)):  # bytes in a damaged file
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes, each before the nodes of its bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body.node)


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all nested bodies."""
    yield graph
    for node in all_nodes(graph.node):
        yield from bodies(node)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove initializers that neither a node nor an output reads."""
    read = {name for node in graph.node for name in reads(node)} | {value.name for value in graph.output}
    remaining_tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(remaining_tensors)


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes that some values need, in their order; each node must follow the nodes that it reads from."""
    needed_values, needed_nodes = set(outputs), []
    for node in reversed(nodes):
        if not needed_values.isdisjoint(name for name in node.output if name):
            needed_nodes.append(node)
            needed_values.update(reads(node))
    return needed_nodes[::-1]


def given_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the inputs and constants of a graph."""
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return every name that a graph itself defines; other names in it refer to outer values."""
    return given_names(graph) | {name for node in graph.node for name in node.output}


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that a node reads, including captures of its bodies."""
    return [name for name in (*node.input, *captures(node)) if name]


def captures(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the distinct names of the outer values that a node's bodies read, in reading order."""
    if not may_have_bodies(node):
        return ()
    return tuple(dict.fromkeys(name for body in bodies(node) for name in outer_values(body)))


def outer_values(body: onnx.GraphProto) -> tuple[str, ...]:
    """Return the distinct names of the outer values that a body and nested ones read, in reading order."""
    captured_names: dict[str, None] = {}
    _collect(body, (), captured_names)
    return tuple(captured_names)


Scopes = tuple[set[str], ...]
"""Names that a body sees, by the graph that defines them: a copy for each body would take quadratic time."""


def sees(scopes: Scopes, name: str) -> bool:
    """Return True if one of the graphs defines a name."""
    return any(name in scope for scope in scopes)


def _collect(body: onnx.GraphProto, outer: Scopes, captured_names: dict[str, None]) -> None:
    defined_names = given_names(body)
    scopes = (*outer, defined_names)
    for node in body.node:
        for name in node.input:
            if name and not sees(scopes, name):
                captured_names.setdefault(name)
        for inner in bodies(node):
            _collect(inner, scopes, captured_names)
        defined_names.update(node.output)
    for value in body.output:  # a body may return a captured value directly
        if value.name and not sees(scopes, value.name):
            captured_names.setdefault(value.name)


def in_order(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes so that each value is computed before it is read, in the given order as far as possible.

    Nodes that depend on each other in a circle are missing in the result.
    """
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    waits, readers = [0] * len(nodes), defaultdict[int, list[int]](list)
    for index, node in enumerate(nodes):
        for maker in {makers[name] for name in reads(node) if name in makers}:
            waits[index] += 1
            readers[maker].append(index)
    ready = [index for index, number in enumerate(waits) if not number]
    ordered_nodes = []
    while ready:
        index = heapq.heappop(ready)
        ordered_nodes.append(nodes[index])
        for reader in readers[index]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return ordered_nodes


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename values in a node and its bodies, in place; values of a body with the same name are kept."""
    node.input[:] = [names.get(value, value) for value in node.input]
    node.output[:] = [names.get(value, value) for value in node.output]
    for body in bodies(node):
        inside = own_names(body)
        outer = {name: other for name, other in names.items() if name not in inside}
        for inner in body.node:
            rename(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def contains_operator(node: onnx.NodeProto, operators: frozenset[str]) -> bool:
    """Return True if a node, or any node of its bodies, is one of the named operators."""
    return any(inner.op_type in operators for inner in all_nodes([node]))
