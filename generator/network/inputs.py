"""Seeded inputs that are legal for the operators that read them.

For each graph input the consumers are asked (``legality``), looking through operators that only move or convert
data: token ids that pass a Cast and an Unsqueeze on their way to a Gather stay within the embedding table.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ...bricks.graph.causal import SOFTMAX
from ...bricks.operators import ELEMENTWISE, MOVES, VIEWS, Trait, having
from ...errors import BrokenModel, UnsupportedModel
from ...models.skeleton import KEPT_ELEMENTS, given_value, hide_future, is_causal
from ...models.subgraphs import (
    all_graphs,
    all_nodes,
    attribute_of,
    constant_tensors,
    declared_shape,
    infer_shapes,
    static_shapes,
)
from ...models.user_inputs import InputType, numpy_type
from .legality import ONES, POSITIVE, Domain, DomainKind, Site, domain_of

# Pools of seeded random values, tiled into inputs of any size at the speed of a copy.
#
# Drawing a normal deviate costs about 10 ns, so that the inputs of one brick could cost more than timing it. A
# latency does not depend on which random value stands where, so a pool is drawn once per process and tiled.


POOL = 65_537
"""Elements of a pool: prime, so that rows of common lengths do not repeat each other."""

SMALLEST = 2.0**-6
"""Smallest magnitude of a float: normal in every float type down to float8e4m3fn, so that no input is a denormal."""

FEW = 16
"""Inputs of up to so many elements may be scales, limits or shapes, so that each element counts."""

_TYPICAL = 0.5

Array = npt.NDArray[Any]


@lru_cache(maxsize=8)
def normal(seed: int) -> npt.NDArray[np.float32]:
    """Return a pool of standard normal values; none is nearer to zero than ``SMALLEST``."""
    values = np.random.default_rng([seed, 1]).standard_normal(POOL, dtype=np.float32)
    near_zero = np.abs(values) < SMALLEST
    values[near_zero] = np.copysign(np.float32(SMALLEST), values[near_zero])
    values.flags.writeable = False
    return values


@lru_cache(maxsize=8)
def _fractions(seed: int) -> npt.NDArray[np.float64]:
    values = np.random.default_rng([seed, 2]).random(POOL)
    values.flags.writeable = False
    return values


def positive(seed: int) -> npt.NDArray[np.float32]:
    """|N(0, 1)| + 1/2: a legal denominator, logarithm, root and variance."""
    return np.abs(normal(seed)) + np.float32(0.5)


def uniform(seed: int, low: float, high: float) -> npt.NDArray[np.float64]:
    """Uniform in [low, high)."""
    return low + _fractions(seed) * (high - low)


def integers(seed: int, low: int, high: int) -> npt.NDArray[np.int64]:
    """Return uniform integers in [low, high); ``low`` alone for an empty range."""
    return low + np.floor(_fractions(seed) * max(high - low, 1)).astype(np.int64)


def typical(values: Array) -> Array:
    """Return the value nearest to one half of a vector of floats, as an array without axes."""
    return np.array(values[np.abs(values - values.dtype.type(_TYPICAL)).argmin()])


def fill(shape: tuple[int, ...], pool: Array, *, offset: int) -> Array:
    """Repeat a pool into a new C-contiguous array of a shape, beginning at an offset."""
    size = math.prod(shape)
    out = np.empty(size, dtype=pool.dtype)
    start = offset % len(pool)
    head, tail = pool[start : start + size], pool[: min(start, max(0, size - (len(pool) - start)))]
    done = len(head) + len(tail)
    out[: len(head)], out[len(head) : done] = head, tail
    while done < size:
        count = min(size - done, done)
        out[done : done + count] = out[:count]
        done += count
    return out.reshape(shape)


Shapes = Mapping[str, tuple[int, ...]]
"""Shapes by value."""

_RESHAPING = VIEWS | having(Trait.CASTS)
"""Keep every element, in order: exact values go through."""

_MOVING = MOVES | having(Trait.PASSES)
"""Keep elements as they are: a range goes through, and one value for all."""

_POSITIVE_KEEPING = _MOVING | having(Trait.POSITIVE)
"""Make positive values of positive values."""

_PASSING = _POSITIVE_KEEPING | having(Trait.INDEXES)
"""What is asked of their outputs may be asked of their inputs."""

_WORDS = ("brick", "layer", "suite", "stack", "", "model", "graph")


def make_inputs(
    model: onnx.ModelProto, types: Sequence[InputType], *, seed: int = 0, copies: int = 1, alike: bool = False
) -> list[dict[str, Array]]:
    """Make one array per graph input, for each copy of a network.

    Args:
        model: The graph that reads them. Large constants may lack their values.
        types: The inputs wanted.
        seed: Equal seeds make equal inputs, on every machine.
        copies: Number of copies in an unrolled network; their random inputs differ.
        alike: Give all elements of a random floating-point input of more than ``FEW`` elements one value.

    Returns:
        For each copy arrays by name, in the order of ``types``. An input that is marked with the user's own value
        (``given_value``) has that. Arrays are C-contiguous; those of one value are read-only views of it.
    """
    consumers = _Consumers(model, types)
    given = {value.name: array for value in model.graph.input if (array := given_value(value)) is not None}
    feeds: list[dict[str, Array]] = [{} for _ in range(copies)]
    for position, (name, dtype, shape) in enumerate(types):
        if name in given:
            for arrays in feeds:
                arrays[name] = given[name].copy()
            continue
        pool, ordered = _values(numpy_type(dtype), consumers.domain(name, integer="int" in dtype), seed)
        masked = consumers.behind_mask(name)
        if alike and not ordered and not masked and pool.dtype.kind == "f" and math.prod(shape) > FEW:
            for arrays in feeds:
                arrays[name] = np.broadcast_to(typical(pool), shape)
            continue
        for copy, arrays in enumerate(feeds):
            # Exact values stand in order; random ones begin somewhere else in every input of every copy.
            offset = 0 if ordered else zlib.crc32(f"{position}/{copy}".encode())
            arrays[name] = fill(shape, pool, offset=offset)
            if masked:
                hide_future(arrays[name])
    return feeds


class _Consumers:
    """Readers of each value, in the graph and in its subgraphs."""

    def __init__(self, model: onnx.ModelProto, types: Sequence[InputType]) -> None:
        self._model = model
        self._reads: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        for node in all_nodes(model.graph.node):
            for slot, value in enumerate(node.input):
                self._reads.setdefault(value, []).append((node, slot))
        self._causal = {value.name for value in model.graph.input if is_causal(value)}
        self._types = types
        self._shapes: tuple[Shapes, Shapes] | None = None
        self._found: dict[str, tuple[Domain, ...]] = {}
        self._constants = {
            name: numpy_helper.to_array(tensor)
            for graph in all_graphs(model.graph)
            for name, tensor in constant_tensors(graph).items()
            if math.prod(tensor.dims) <= KEPT_ELEMENTS and tensor.data_location != onnx.TensorProto.EXTERNAL
        }

    def domain(self, name: str, *, integer: bool) -> Domain | None:
        """Return the values that all consumers of a graph input accept; None: any value of its type."""
        asked = sorted(self._asked(name), key=lambda domain: domain.kind)
        if not asked:
            return ONES if integer and "mask" in name.lower() else None
        first = asked[0]
        if first.kind is DomainKind.RANGE:
            ranges = [domain for domain in asked if domain.kind is DomainKind.RANGE]
            low, high = max(domain.low for domain in ranges), min(domain.high for domain in ranges)
            return Domain(DomainKind.RANGE, low=low, high=high)
        return first

    def behind_mask(self, name: str) -> bool:
        """Return True if a graph input has scores marked as causally masked that a Softmax reads."""
        return name in self._causal and any(
            node.op_type == SOFTMAX and not slot for node, slot in self._reads.get(name, ())
        )

    def _asked(self, value: str) -> tuple[Domain, ...]:
        """Return what the readers of a value ask of it, directly or through operators that pass values on."""
        pending = [(value, False)]
        while pending:
            name, followed = pending.pop()
            if followed:
                self._found[name] = tuple(dict.fromkeys(self._collect(name)))  # once each: paths double at every fork
            elif name not in self._found:
                self._found[name] = ()  # a graph has no cycles; broken ones must not hang
                outputs = [output for node, _ in self._reads.get(name, ()) for output in _passed_on(node)]
                pending += [(name, True), *((output, False) for output in outputs)]
        return self._found[value]

    def _collect(self, value: str) -> Iterator[Domain]:
        for node, slot in self._reads.get(value, ()):
            shapes, sizes = self._known_shapes()
            asked = domain_of(Site(node, slot, shapes, self._constants, sizes))
            if asked is not None:
                yield asked
                continue
            outputs = _passed_on(node)
            for domain in (domain for output in outputs for domain in self._found[output]):
                passed = self._through(node, slot, domain)
                if passed is not None:
                    yield passed
            if outputs and node.op_type == "Cast" and _cast_to_mask(node):
                yield ONES

    def _through(self, node: onnx.NodeProto, slot: int, domain: Domain) -> Domain | None:
        """Return the demand on an input that a demand on the node's output implies."""
        op = node.op_type
        if domain.kind is DomainKind.EXACT:
            if slot == 0 and (op in _RESHAPING or (op in _MOVING and len({*domain.values}) == 1)):
                return domain
            if op == "Concat":
                return self._part(node, slot, domain)
            return ONES
        if domain.kind is DomainKind.RANGE:
            return domain if op in _MOVING and (slot == 0 or op == "Concat") else ONES
        if domain.kind is DomainKind.POSITIVE:
            return POSITIVE if op in _POSITIVE_KEEPING else None
        return domain if op in _MOVING or domain.kind is DomainKind.ONES else None

    def _part(self, node: onnx.NodeProto, slot: int, domain: Domain) -> Domain:
        """Return the part of a concatenated vector that comes from one input."""
        known_shapes, _ = self._known_shapes()
        shapes = [known_shapes.get(name) for name in node.input]
        if any(shape is None or len(shape) != 1 for shape in shapes):
            return ONES
        lengths = [shape[0] for shape in shapes if shape]
        start = sum(lengths[:slot])
        return Domain(DomainKind.EXACT, values=domain.values[start : start + lengths[slot]])

    def _known_shapes(self) -> tuple[Shapes, Shapes]:
        if self._shapes is None:
            self._shapes = _all_shapes(self._model, self._types)
        return self._shapes


def _all_shapes(model: onnx.ModelProto, types: Sequence[InputType]) -> tuple[Shapes, Shapes]:
    """Return the shapes of all values: declared, inferred, or implied by declared outputs.

    The second result has values with unknown dimensions, too, with 0 for each.

    A shape that an input decides (the end of a Range) cannot be inferred; the declared output shows it.
    """
    bound = deepcopy(model)
    input_shapes = {name: shape for name, _, shape in types}
    for value in bound.graph.input:
        if value.name in input_shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in input_shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    produced = {name for node in bound.graph.node for name in node.output if name}
    declared = {value.name for value in (*bound.graph.value_info, *bound.graph.output)}
    if not produced <= declared:
        # Where inference fails (an operator unknown to ONNX), what is declared must do.
        with contextlib.suppress(BrokenModel, UnsupportedModel):
            bound = infer_shapes(bound)
    shapes = static_shapes(bound.graph)
    for node in reversed(bound.graph.node):
        read = [name for name in node.input[: 1 if node.op_type == "CastLike" else None] if name]
        output_shape = shapes.get(node.output[0]) if node.output and node.op_type in ELEMENTWISE else None
        if output_shape is not None and all(shapes.get(name) != output_shape for name in read):
            shapes |= {name: output_shape for name in read if name not in shapes}
    return shapes, {value.name: declared_shape(value.type) for value in bound.graph.value_info}


def _values(dtype: np.dtype[Any], domain: Domain | None, seed: int) -> tuple[Array, bool]:
    """Return the values of a domain, or the type's default, to be repeated; and if the first must come first."""
    if dtype.kind in "OUS":
        return np.array(_WORDS, dtype=object), False
    if domain is not None and domain.kind is DomainKind.EXACT:
        return np.array(domain.values or (0,), dtype=np.float64).astype(dtype), True
    if domain is not None and domain.kind is DomainKind.SPARSE:
        return _sparse(_pool(dtype, None, seed).astype(dtype), int(domain.low), int(domain.high), seed), True
    if domain is not None and domain.kind is DomainKind.ONES and dtype.kind in "iub":
        return np.ones(1, dtype=dtype), False
    return _pool(dtype, domain, seed).astype(dtype), False


def _sparse(pool: Array, count: int, size: int, seed: int) -> Array:
    """Return zeros, with so many elements of a pool at random places."""
    values = np.zeros(size, pool.dtype)
    places = np.random.default_rng([seed, 3]).permutation(size)[:count]
    values[places] = fill((len(places),), np.where(pool == 0, np.ones_like(pool), pool), offset=0)
    return values


def _pool(dtype: np.dtype[Any], domain: Domain | None, seed: int) -> Array:
    kind = domain.kind if domain else None
    if dtype == np.bool_:
        return integers(seed, 0, 2) if kind is DomainKind.MIXED else np.ones(1)
    if dtype.kind in "iu" or "int" in dtype.name:
        return integers(seed, *_integer_bounds(dtype, domain))
    if domain and kind is DomainKind.RANGE:
        return uniform(seed, domain.low, domain.high)
    values = positive(seed) if kind is DomainKind.POSITIVE else normal(seed)
    return values + 1j * values[::-1] if dtype.kind == "c" else values


def _integer_bounds(dtype: np.dtype[Any], domain: Domain | None) -> tuple[int, int]:
    """Lowest value and end of a range of integers; wide ones default to small positive numbers."""
    if domain and domain.kind is DomainKind.RANGE:
        return int(domain.low), int(domain.high)
    if domain or dtype.itemsize > 2:
        return 1, 8
    low, high = _integer_range(dtype)
    return low, high + 1


def _integer_range(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type, 2 and 4 bits included."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return int(limits.min), int(limits.max)
    bits = int(dtype.name.lstrip("uint"))
    return (0, 2**bits - 1) if dtype.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _passed_on(node: onnx.NodeProto) -> list[str]:
    """Return the outputs whose demands an operator passes on to its inputs."""
    if node.op_type not in _PASSING:
        return []
    outputs = node.output[:1] if node.op_type == "TopK" else node.output  # its indices are other values
    return [output for output in outputs if output]


def _cast_to_mask(node: onnx.NodeProto) -> bool:
    """Return True for a cast to floating point or truth values: integers that become these are masks."""
    kind = onnx.TensorProto.DataType.Name(attribute_of(node, "to", 0)).lower()
    return kind in {"float", "double", "float16", "bfloat16", "bool"}
