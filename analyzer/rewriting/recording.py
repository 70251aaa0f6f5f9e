"""The engines' view of a graph: recorded values, predicted costs, regions, and parts of it as functions.

Runs inside the search process only: it executes the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ...bricks.operators import (
    BODIES,
    ELEMENTWISE,
    MOVES,
    RANDOM,
    RECURRENT,
    UNMOVED,
    Kind,
    ShapedBy,
    Trait,
    having,
    named,
    operator_of,
    shaped_by,
)
from ...generator.backends.onnxruntime.refusals import clear_refusal
from ...generator.backends.onnxruntime.session import WORDING
from ...models.subgraphs import attribute_of, infer_shapes, plain_domain
from .rewrite import MICROSOFT, Array, Draft, Rewrite, RewriteGraph

_T = TypeVar("_T")

Feeds = Mapping[str, Array]

_CALL_NS, _BODY_NS = 1500.0, 50_000.0
_ELEMENT_NS, _SPECIAL_NS, _POWER_NS, MOVED_NS = 0.35, 1.5, 8.0, 1.2
_PLACED_NS, _SCATTERED_NS, _SHORT = 3.0, 15.0, 16
MACS_PER_NS, _THIN_MACS_PER_NS, _TAP_NS, _SAMPLE_NS = 20.0, 6.0, 0.3, 100.0
"""Rough rates of one core, for ranking only."""
_UNPACKED = 2.0
"""Time of a convolution with computed weights, which have no blocked layout, relative to one with constants."""

_UNREADABLE = ("bfloat16", "float8", "float4", "int4")
"""Element types that NumPy lacks."""

_LENGTH_BYTES = 4
"""Bytes of the smallest integer that holds every length of an axis."""

_SMALL = 1024
"""Elements of a value that is kept for every shape."""

_MOST_BYTES = 3_000_000_000
"""Limit on the recorded values of all inputs together."""


_libraries = list[str]()
_entries = dict[str, str]()


def configure(libraries: Sequence[str], *, denormal_as_zero: bool) -> None:
    """Set the options of all sessions of this process. The search process calls this once, before the first session.

    Args:
        libraries: Libraries of custom operators.
        denormal_as_zero: Treat denormal numbers as zero.
    """
    _libraries[:] = libraries
    _entries.update({"session.set_denormal_as_zero": "1"} if denormal_as_zero else {})


def session(
    model: onnx.ModelProto | bytes | str, *, optimised: bool = True, threads: int = 1, write: Path | None = None
) -> Any:
    """Load a model with ONNX Runtime on the CPU; ``write`` gets the graph that it executes."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    for library in _libraries:
        options.register_custom_ops_library(library)
    for key, value in _entries.items():
        options.add_session_config_entry(key, value)
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    if write is not None:
        options.optimized_model_filepath = str(write)
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    spell = partial(clear_refusal, lambda: _structure(source), onnxruntime.__version__)
    with WORDING.translating(spell=spell):
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _structure(source: bytes | str) -> onnx.ModelProto:
    """Return a model without its external data."""
    if isinstance(source, str):
        return onnx.load(source, load_external_data=False)
    return onnx.load_from_string(source)


def recorder(model: onnx.ModelProto) -> Callable[[Feeds], dict[str, Array]]:
    """Return a function that runs a model and returns its inputs and outputs by name."""
    runner = session(model, optimised=False)
    input_names = {value.name for value in model.graph.input}
    names = [value.name for value in runner.get_outputs() if not any(kind in value.type for kind in _UNREADABLE)]

    def record(feed: Feeds) -> dict[str, Array]:
        inputs = {name: array for name, array in feed.items() if name in input_names}
        outputs = zip(names, runner.run(names, inputs), strict=True)
        return {**inputs, **{name: value for name, value in outputs if isinstance(value, np.ndarray)}}

    return record


def predicted_ns(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> float:  # noqa: PLR0911  # a table
    """Return a rough cost of a node on one core in nanoseconds; only good for ranking."""
    shape = shapes.get(node.output[0]) if node.output else None
    if shape is None:
        return _CALL_NS
    size = float(np.prod(shape)) if shape else 1.0
    reads = [shapes.get(name) for name in node.input]
    kind = node.op_type
    if kind in BODIES:
        return _BODY_NS
    if kind in UNMOVED | named(Kind.MEASURE):
        return 1000.0
    if kind == "Conv" and len(reads) > 1 and reads[1]:
        taps = float(np.prod(reads[1][1:]))
        alone = reads[1][1] == 1 and reads[0] and reads[0][1] > 1
        depthwise = size * float(np.prod(reads[1][2:])) * _TAP_NS if alone else 0.0
        rate = MACS_PER_NS if len(shape) < 5 else _THIN_MACS_PER_NS  # no blocked kernels for volumes
        return 2 * _CALL_NS + size * taps / rate + size * _TAP_NS + depthwise
    if kind == "ConvTranspose" and reads[0] and reads[1]:
        columns = float(np.prod(reads[0])) / reads[0][1] * float(np.prod(reads[1][1:]))
        return 2 * _CALL_NS + columns * reads[0][1] / MACS_PER_NS + columns * MOVED_NS
    if kind in {"FusedMatMul", "Gemm", "MatMul"} and reads[0] and reads[1]:
        depth = max(1.0, math.sqrt(math.prod(reads[0]) * math.prod(reads[1][-2:]) / max(size, 1.0)))
        depth = float(reads[0][-1]) if kind == "MatMul" else depth
        rows = size / max(shape[-1] if shape else 1, 1)
        if min(shape[-2:], default=0) == 1 and math.prod(reads[1][:-2]) > 1:  # each sample is a call
            return _CALL_NS + size * depth / _THIN_MACS_PER_NS + math.prod(shape[:-2]) * _SAMPLE_NS
        return _CALL_NS + size * depth / (MACS_PER_NS if rows > 4 else _THIN_MACS_PER_NS) + size * _TAP_NS
    if kind == "Einsum" and len(reads) == 2 and reads[0] and reads[1]:
        depth = math.sqrt(math.prod(reads[0]) * math.prod(reads[1]) / max(size, 1.0))
        moved = size + math.prod(reads[0]) + math.prod(reads[1])
        return 4 * _CALL_NS + size * depth / MACS_PER_NS + moved * MOVED_NS
    if kind in RECURRENT and len(reads) > 2 and reads[0] and reads[2]:
        weights = float(np.prod(reads[1] or ())) + float(np.prod(reads[2]))
        return float(np.prod(reads[0][:2])) * (weights / _THIN_MACS_PER_NS + _CALL_NS)
    if kind in ELEMENTWISE:
        row = operator_of(node)
        special = row.each is not None and (row.each[1].exponentials or row.each[1].divisions)
        return _CALL_NS + size * (_POWER_NS if Trait.SLOW in row.traits else _SPECIAL_NS if special else _ELEMENT_NS)
    if kind in {"ScatterElements", "ScatterND"} and len(reads) > 2 and reads[1] and reads[2]:
        return _CALL_NS + size * MOVED_NS + float(np.prod(reads[2])) + _SCATTERED_NS * float(np.prod(reads[1]))
    single = kind == "Expand" and reads[0] and reads[0][-1] < shape[-1] < _SHORT
    moved_ns = _POWER_NS if kind == "GridSample" else _PLACED_NS if single else MOVED_NS
    if kind in {"Gather", "GatherElements"} and reads[0]:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        after = reads[0][axis % len(reads[0]) + 1 :] if kind == "Gather" else ()
        return _CALL_NS + size * (moved_ns + _PLACED_NS / float(np.prod(after)))
    return float(_CALL_NS + size * moved_ns) + (float(np.prod(reads[0])) * _TAP_NS if reads and reads[0] else 0.0)


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that compute one value from a few others.

    Attributes:
        reads: The values that are not constant, the latest first.
        nodes: Indices of the nodes, ascending.
    """

    reads: tuple[str, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The changing sizes of a dynamic model, and the values that depend on them.

    Attributes:
        changing: Axes of each value that do not have the same size for every input.
        plain: Values with only fixed sizes and sizes of inputs, by ONNX's own inference.
        sized: Values that are computed from changing sizes.
        unsure: Sized values that are not known to be sums of products of sizes, for example the smaller of two sizes.
            A property at the tried sizes need not hold at others.
        lengths: Sized values that consist of lengths of axes.
    """

    changing: Mapping[str, frozenset[int]] = field(default_factory=dict)
    plain: frozenset[str] = frozenset()
    sized: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    lengths: frozenset[str] = frozenset()


_SAME_SIZES = (having(Trait.COUNTS) & MOVES) | {"Cast"}
"""Operators that move sizes and change none."""


def is_sum_of_sizes(
    node: onnx.NodeProto,
    kinds: Mapping[str, np.dtype[Any]],
    sized: Collection[str],
    changing: Callable[[str], frozenset[int]],
    lengths: set[str],
) -> bool:
    """Return True if a result is a sum of products of sizes: indices are constant, and no digits are lost.

    Args:
        node: The node.
        kinds: Element types of values.
        sized: Values that are computed from sizes.
        changing: Returns the changing axes of a value.
        lengths: Values that consist of lengths of axes: 32 bits hold each length, but not every product. The result is
            added if it consists of lengths too.
    """
    x, wide = node.input[0], {np.dtype(np.int64)}
    whole = all(kinds[name] in wide for name in (x, node.output[0]) if name in kinds)
    whole = whole and (node.op_type != "Cast" or attribute_of(node, "to") == onnx.TensorProto.INT64)
    if node.op_type in _SAME_SIZES and all(name in lengths for name in node.input if name in sized):
        lengths.update(node.output)
        types = [kinds[name] for name in (x, node.output[0]) if name in kinds]
        whole = all(kind.kind == "i" and kind.itemsize >= _LENGTH_BYTES for kind in types)
    plain = node.op_type in {"Add", "Concat", "Identity", "Mul", "Neg", "Sub"}
    constant = not any(name in sized for name in node.input[1:])
    return node.op_type in having(Trait.COUNTS) and whole and (plain or (constant and not changing(x)))


class Values:
    """A graph with the values that it computes on several inputs.

    Args:
        graph: The graph.
        feeds: Inputs; the first are typical ones, and must run.
        others: Inputs of other shapes; empty for a static model.

    Attributes:
        runs: Values by name for each of the feeds.
        others: Values by name at each other shape. Large values that also depend on contents have only the right type
            and shape.
        other: The first of ``others``; empty for a static model.
    """

    def __init__(self, graph: RewriteGraph, feeds: Sequence[Feeds], others: Sequence[Feeds] = ()) -> None:
        self.graph = graph
        self.runs: list[dict[str, Array]] = []
        self.refusals = list[str]()
        self.recordable = [onnx.ValueInfoProto(name=name) for node in graph.nodes for name in node.output if name]
        record = recorder(graph.build((), self.recordable))
        for feed in feeds:
            self.runs.append(record(feed))
            if sum(value.nbytes for value in self.runs[-1].values()) * (len(self.runs) + 1) > _MOST_BYTES:
                break
        self.others = [self._of_types(record(feed)) for feed in others]
        self.other = self.others[0] if self.others else {}
        arrays = {**self.runs[0], **graph.constants}
        self.shapes = {name: value.shape for name, value in arrays.items()}
        self.dtypes = {name: value.dtype for name, value in arrays.items()}
        self.costs = [
            0.0
            if self._is_fused(index)
            else predicted_ns(node, self.shapes)
            * (_UNPACKED if node.op_type == "Conv" and not self.is_constant(node.input[1]) else 1)
            for index, node in enumerate(graph.nodes)
        ]
        self.total_ns = sum(self.costs)

    def _of_types(self, run: dict[str, Array]) -> dict[str, Array]:
        """Return the values of a run, the large ones without their contents."""
        return {
            name: array
            if name in self.of_shapes or array.size <= _SMALL
            else np.broadcast_to(np.zeros((), array.dtype), array.shape)
            for name, array in run.items()
        }

    def _is_fused(self, index: int) -> bool:
        """Return True if the runtime fuses a node into the convolution before it."""
        node = self.graph.nodes[index]
        if node.op_type not in having(Trait.FUSES) or not node.input:
            return False
        maker = self.graph.maker(node.input[0])
        alone = len(self.graph.readers[node.input[0]]) == 1 and node.input[0] not in self.graph.wanted
        return maker is not None and maker.op_type == "Conv" and alone

    def target(self, value: str) -> list[int]:
        """Return a value's shape for a Reshape: -1 for the dimension that changes in a dynamic model."""
        shape, other = self.shapes[value], self.other.get(value)
        if other is None or other.ndim != len(shape):
            return list(shape)
        changed = [axis for axis, (size, another) in enumerate(zip(shape, other.shape, strict=True)) if size != another]
        return [-1 if changed == [axis] else size for axis, size in enumerate(shape)]

    def shape_of_copies(self, draft: Draft, node: onnx.NodeProto, sizes: Mapping[int, int]) -> str:
        """Write the shape for an Expand with other sizes along some axes of its result, and return its name.

        Axes that are not copied keep the size of the input. Sizes that change in a dynamic model are read as before.
        """
        value, source = node.output[0], node.input[0]
        new_sizes, read = list[int](), list[bool]()
        for axis, size in enumerate(self.shapes[value]):
            pairs = list[tuple[int, int]]()
            for run in (self.runs[0], self.other):
                if value in run and (source in run or source in self.graph.constants):
                    shape = run.get(source, self.graph.constants.get(source)).shape  # type: ignore[union-attr]
                    ahead = run[value].ndim - len(shape)
                    pairs.append((shape[axis - ahead] if axis >= ahead else 1, run[value].shape[axis]))
            copied = any(before != after for before, after in pairs)
            new_sizes.append(sizes.get(axis, size if copied else 1))
            read.append(axis not in sizes and copied and len({after for _, after in pairs}) > 1)
        constant = draft.constant(new_sizes, np.int64)
        return draft.op("Where", draft.constant(read, np.bool_), node.input[1], constant) if any(read) else constant

    def viewed(self, draft: Draft, node: onnx.NodeProto, x: str, sizes: Mapping[int, int], *, to: str = "") -> str:
        """Write a view of another value with other sizes along some axes of its result, and return its name.

        Sizes that change in a dynamic model are read as before.
        """
        index = self.graph.producer[node.output[0]]
        if node.op_type in {"Squeeze", "Unsqueeze"} and (len(node.input) > 1 or "axes" in self.graph.attributes[index]):
            return draft.copy(node, {node.input[0]: x}, to=to or self.graph.fresh("view"))
        shape = self.constant(node.input[1]) if node.op_type == "Reshape" else np.array(self.target(node.output[0]))
        if shape is not None:
            return draft.reshape(x, [sizes.get(axis, int(size)) for axis, size in enumerate(shape)], to=to)
        rank = len(self.shapes[node.output[0]])
        mask = draft.constant([axis in sizes for axis in range(rank)], np.bool_)
        numbers = draft.constant([sizes.get(axis, 0) for axis in range(rank)], np.int64)
        return draft.op("Reshape", x, draft.op("Where", mask, numbers, node.input[1]), to=to)

    def is_float(self, value: str) -> bool:
        """Return True if a value is recorded and of a floating-point type."""
        return value in self.dtypes and self.dtypes[value].kind == "f"

    @cached_property
    def of_shapes(self) -> frozenset[str]:
        """Values that depend on constants and on the shapes of inputs alone, and on no contents of inputs."""
        content_free, wild = set(self.graph.constants), set[str]()  # wild: values whose shape depends on contents
        for index, node in enumerate(self.graph.nodes):
            operands = node.input[1:] if node.op_type in shaped_by(ShapedBy.OTHERS) else node.input
            unknown = not content_free.issuperset(filter(None, operands))
            by_operands = unknown and node.op_type not in shaped_by(ShapedBy.SHAPES)
            of_contents = node.op_type in shaped_by(ShapedBy.CONTENTS)
            of_contents |= plain_domain(node.domain) not in {"", MICROSOFT}
            if not wild.isdisjoint(self.graph.reads[index]) or by_operands or of_contents:
                wild.update(node.output)
            of_shape = node.op_type in {"Shape", "Size"} and node.input[0] not in wild
            trains = node.op_type == "Dropout" and any(node.input[2:])
            if (
                node.op_type not in RANDOM | BODIES
                and not trains
                and (of_shape or content_free.issuperset(self.graph.reads[index]))
            ):
                content_free.update(name for name in node.output if name)
        return frozenset(content_free)

    @property
    def is_dynamic(self) -> bool:
        """True if a dimension of an input is not fixed."""
        return any(None in _dims(value.type, self.shapes[value.name]) for value in self.graph.inputs)

    @cached_property
    def sizes(self) -> Sizes:
        """The changing sizes, by ONNX's own inference and not by the shapes that were tried."""
        graph = self.graph
        if not self.is_dynamic:
            return Sizes()
        types = {value.name: value.type for value in _inferred(graph)}
        symbols = {dim.dim_param for value in graph.inputs for dim in value.type.tensor_type.shape.dim} - {""}
        changing = {
            name: frozenset(axis for axis, dim in enumerate(_dims(types.get(name), shape)) if dim is None)
            for name, shape in self.shapes.items()
            if name not in graph.constants
        }
        plain = {
            name for name, shape in self.shapes.items()
            if name in types and len(dims := types[name].tensor_type.shape.dim) == len(shape)
            and all(dim.HasField("dim_value") or dim.dim_param in symbols for dim in dims)
        }  # fmt: skip
        sized, unsure, lengths = set[str](), set[str](), set[str]()
        for index, node in enumerate(graph.nodes):
            if not self.of_shapes.issuperset(filter(None, node.output)):
                continue
            measured = node.op_type in {"Shape", "Size"} and not plain_domain(node.domain)
            if changing.get(node.input[0]) if measured else not sized.isdisjoint(graph.reads[index]):
                if node.op_type == "Shape":
                    lengths.update(node.output)
                sized.update(node.output)
                sums = unsure.isdisjoint(graph.reads[index]) and is_sum_of_sizes(
                    node, self.dtypes, sized, lambda name: changing.get(name, frozenset()), lengths
                )
                if not (node.input[0] in plain if measured else sums):
                    unsure.update(node.output)
        return Sizes(changing, frozenset(plain), frozenset(sized), frozenset(unsure), frozenset(lengths))

    @cached_property
    def shape_only(self) -> frozenset[str]:
        """Values that depend on constants alone, and on shapes that do not change."""
        changing = {
            name for name in self.of_shapes & set(self.other)
            if not np.array_equal(self.other[name], self.runs[0][name])
        }  # fmt: skip
        return self.of_shapes - changing

    def constant(self, value: str) -> Array | None:
        """Return a constant's array, or a value that only depends on shapes; None for any other value."""
        if value in self.graph.constants:
            return self.graph.constants[value]
        return self.runs[0].get(value) if value in self.shape_only else None

    def is_constant(self, value: str) -> bool:
        """Return True if ``constant`` knows the value."""
        return value in self.graph.constants or value in self.shape_only

    def computed(self, node: onnx.NodeProto) -> list[str]:
        """Return the inputs of a node that are not constant, each once."""
        return list(dict.fromkeys(name for name in node.input if name and not self.is_constant(name)))

    @cached_property
    def dearest(self) -> list[int]:
        """Indices of all nodes, the most expensive first."""
        return sorted(range(len(self.graph.nodes)), key=lambda index: -self.costs[index])

    def cost_of(self, indices: Collection[int]) -> float:
        """Return the predicted nanoseconds of some nodes."""
        return sum(self.costs[index] for index in indices)

    def cost_of_new(self, draft: Draft, shapes: Mapping[str, tuple[int, ...]]) -> float:
        """Return the predicted nanoseconds of new nodes.

        Args:
            draft: The new nodes.
            shapes: Shapes of the values that they compute.
        """
        all_shapes = {**self.shapes, **shapes, **{name: array.shape for name, array in draft.constants.items()}}
        return sum(predicted_ns(node, all_shapes) for node in draft.nodes if node.op_type != "Identity")

    def attempt(self, find: Callable[..., _T], *arguments: Any) -> _T | None:
        """Return the result of a search at one place; None if a part cannot run alone, noted in ``refusals``."""
        try:
            return find(*arguments)
        except Exception as error:  # noqa: BLE001  # the runtime refuses parts in its own ways; other places go on
            self.refusals.append(f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
            return None

    def function(
        self,
        nodes: Sequence[onnx.NodeProto],
        reads: Mapping[str, npt.DTypeLike],
        outputs: Sequence[str],
        constants: Mapping[str, Array] | None = None,
    ) -> Callable[..., list[Array]]:
        """Return some nodes as a function of arrays.

        Args:
            nodes: The nodes in order.
            reads: Element type of each argument, by the name of its value.
            outputs: The values that the function returns.
            constants: Values that the nodes read, in place of the graph's own constants.
        """
        node_outputs = {name for node in nodes for name in node.output}
        read_constants = dict(constants or {})
        for node in nodes:
            for name in node.input:
                if name and name not in node_outputs and name not in reads and name not in read_constants:
                    array = self.constant(name)
                    read_constants[name] = self.runs[0][name] if array is None else array
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
            for name, dtype in reads.items()
        ]
        tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in read_constants.items()]
        output_infos = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(list(nodes), "part", inputs, output_infos, tensors)
        opsets = {**self.graph.opsets, **{plain_domain(node.domain): 1 for node in nodes if plain_domain(node.domain)}}
        opsets.update(self.graph.opsets)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()])
        model.ir_version = 8
        runner, names = session(model, optimised=False), list(reads)

        def call(*arrays: Array) -> list[Array]:
            results: list[Array] = runner.run(None, dict(zip(names, arrays, strict=True)))
            return results

        return call

    def part(
        self, region: Region, value: str, constants: Mapping[str, Array] | None = None
    ) -> Callable[..., list[Array]]:
        """Return a region as a function of its inputs."""
        nodes = [self.graph.nodes[index] for index in region.nodes]
        return self.function(nodes, {name: self.dtypes[name] for name in region.reads}, [value], constants)

    def regions(self, value: str, allowed: Callable[[int], bool], *, most_nodes: int) -> Iterator[Region]:
        """Yield the regions that end in a value and read a single other, growing backwards one node at a time.

        Args:
            value: The region's result.
            allowed: Returns True for the index of a node that may be part of it.
            most_nodes: Largest number of nodes.
        """
        graph = self.graph
        last = graph.producer.get(value)
        if last is None or not allowed(last):
            return
        nodes, front, leaves = [last], set[str](), set[str]()

        def read_by(index: int) -> None:
            for name in graph.reads[index]:
                if not self.is_constant(name):
                    maker = graph.producer.get(name)
                    (front if maker is not None and allowed(maker) else leaves).add(name)

        read_by(last)
        taken = {last}
        while True:
            if len(front) + len(leaves) == 1:
                yield Region((*front, *leaves), tuple(sorted(nodes)))
            if not front or len(nodes) >= most_nodes or len(leaves) > 1:
                return
            name = max(front, key=lambda name: graph.producer[name])
            front.discard(name)
            index = graph.producer[name]
            if index not in taken:
                taken.add(index)
                nodes.append(index)
                read_by(index)


def _inferred(graph: RewriteGraph) -> list[onnx.ValueInfoProto]:
    """Return the types that ONNX's inference finds; large constants count by their type alone."""
    model = graph.build(())
    large = [tensor for tensor in model.graph.initializer if np.prod(tensor.dims) > _SMALL]
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in large
    )
    for tensor in large:
        model.graph.initializer.remove(tensor)
    inferred_graph = infer_shapes(model).graph
    return [*inferred_graph.input, *inferred_graph.value_info, *inferred_graph.output]


def _dims(kind: onnx.TypeProto | None, shape: Sequence[int]) -> list[int | None]:
    """Return the sizes that are the same for every input; None for each other axis."""
    dims = [] if kind is None else list(kind.tensor_type.shape.dim)
    if len(dims) != len(shape):
        return [None] * len(shape)
    return [int(dim.dim_value) if dim.HasField("dim_value") else None for dim in dims]


Engine = Callable[[Values, float], list[Rewrite]]
"""Returns the rewrites that it finds in a graph. The second argument is its deadline on ``time.perf_counter``."""


def late(deadline: float) -> bool:
    """Return True if an engine's time is up."""
    return time.perf_counter() > deadline


def apart(array: Array, other: Array) -> float:
    """Return the largest difference of two arrays, relative to the largest value of the second; infinite by shape."""
    if array.shape != other.shape:
        return float("inf")
    if not other.size:
        return 0.0
    first, second = array.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(second)
    if not np.array_equal(finite, np.isfinite(first)) or not np.array_equal(
        first[~finite], second[~finite], equal_nan=True
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.abs(first[finite] - second[finite]).max() / (np.abs(second[finite]).max() + 1e-12))
