"""Writes one model, node by node, and asks the fault that is planted in it how its places are written."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

OPSET = 17
"""The first with LayerNormalization."""

_BLOCK = 16
"""Channels that the runtime's blocked convolutions take at once with AVX-512."""


@dataclass(frozen=True)
class Fault:
    """A way to write a place of a model badly.

    Attributes:
        kind: The missed optimisation.
        place: The place, as the architectures name it in ``Net.at``.
        write: Writes the place from the net, the plain writer, and the place's values.
        both: The clean twin has this place as well, written well (``Net.faulty`` selects); otherwise the twin has the
            architecture's plain form.
        threads: Threads for measuring the cost; 0: all cores.
    """

    kind: str
    place: str
    write: Callable[..., Any]
    both: bool = False
    threads: int = 1


def stable(*words: object) -> int:
    """Return the same number for the same words, on every machine."""
    return zlib.crc32("/".join(map(str, words)).encode())


class Net:
    """Append-only builder of one model; every method that writes a node returns the name of the value it makes.

    Args:
        name: Name of the architecture; it decides the weights, so that twins have equal ones.
        naming: Seed of the nodes' names; equal for twins.
        fault: The fault; None for none.
        faulty: Plant the fault; otherwise this is the clean twin.
        sites: Number of places with the fault, counted from the first.

    ``planted`` has the layers at the places of the fault: its own, or the clean twin's in their place.
    """

    def __init__(self, name: str, naming: str, fault: Fault | None, *, faulty: bool, sites: int) -> None:
        self._name = name
        self._style = _STYLES[stable(naming) % len(_STYLES)]
        self._fault = fault
        self._sites = sites
        self._scope: list[str] = []
        self._names: Counter[str] = Counter()
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[str] = []
        self._exposed: list[str] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._planting = False
        self._shared: dict[tuple[object, ...], str] | None = None
        self.faulty = faulty
        self.planted: list[str] = []
        self.shapes: dict[str, Shape] = {}
        self.lanes: dict[str, Array] = {}

    # Places -----------------------------------------------------------------------------------------------------

    def at(self, place: str, plain: Callable[..., Any], *what: Any) -> Any:
        """Write a place: by the fault if it is planted here, else plainly."""
        fault = self._fault
        if fault is None or fault.place != place or self._sites == 0:
            return plain(self, *what)
        self._sites -= 1
        self._planting, before = True, self._planting
        made = (plain if not self.faulty and not fault.both else fault.write)(self, *what)
        self._planting = before
        return made

    def edge(self, value: str) -> str:
        """Write the edge between two blocks: nothing without a fault."""
        return str(self.at("edge", lambda _, unchanged: unchanged, value))

    @contextmanager
    def scope(self, *names: object) -> Iterator[None]:
        """Within a part of the model; names of nodes and weights show it."""
        self._scope += map(str, names)
        yield
        del self._scope[-len(names) :]

    @contextmanager
    def innocent(self) -> Iterator[None]:
        """Write layers of a fault's place that are not part of the fault."""
        before, self._planting = self._planting, False
        yield
        self._planting = before

    # Values -----------------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> str:
        """Add an input of the model."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return self._known(name, shape)

    def constant(self, role: str, array: Any, *, replaceable: bool = False) -> str:
        """Add a constant; a replaceable one is an input as well, like every constant before IR version 4."""
        value = np.asarray(array)
        place = (*self._scope, role, value.tobytes())
        if self._shared is not None and place in self._shared:
            return self._shared[place]
        name = self._unique(".".join([*self._scope, role]))
        self._initializers[name] = numpy_helper.from_array(value, name)
        if replaceable:
            self._inputs.append(helper.make_tensor_value_info(name, self._initializers[name].data_type, value.shape))
        if self._shared is not None:
            self._shared[place] = name
        return self._known(name, value.shape)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Equal constants of one role in one scope are one constant."""
        self._shared = {}
        yield
        self._shared = None

    def drawn(self, role: str, shape: Shape, scale: float = 1.0, centre: float = 0.0) -> Array:
        """Draw normal values that depend on the architecture, the scope and the role alone."""
        rng = np.random.default_rng(stable(self._name, *self._scope, role))
        return (centre + scale * rng.standard_normal(shape)).astype(np.float32)

    def weight(self, role: str, array: Array) -> str:
        """Add a filter or matrix; a place for faults."""
        return str(self.at("weight", Net.constant, role, array))

    def lanes_of(self, value: str) -> Array:
        """Return the real channels of a value; the others are zeros or unread."""
        return self.lanes.get(value, np.ones(self.shapes[value][1], bool))

    def width(self, count: int) -> int:
        """Return the number of channels for a wanted number; a place for faults."""
        return count - 1 if self._uneven else count

    def channels(self, count: int) -> Array:
        """Return the channels of a value; the clean twin of uneven ones has some more, which are zeros."""
        wide = -(-count // _BLOCK) * _BLOCK if self._uneven and not self.faulty else count
        return np.arange(wide) < count

    @contextmanager
    def uneven(self, *counts: int) -> Iterator[None]:
        """Mark layers with this number of channels as planted, if they do not fill blocks because of a fault."""
        before = self._planting
        self._planting |= self._uneven and any(count % _BLOCK for count in counts)
        yield
        self._planting = before

    @property
    def _uneven(self) -> bool:
        return self._fault is not None and self._fault.place == "channels"

    # Nodes ------------------------------------------------------------------------------------------------------

    def op(self, operator: str, *inputs: str, shape: Shape | None = None, **attributes: Any) -> str:
        """Add an operator with one output of this shape; None: the broadcast shape of its inputs."""
        return self.ops(operator, *inputs, shapes=[shape], **attributes)[0]

    def ops(self, operator: str, *inputs: str, shapes: Sequence[Shape | None], **attributes: Any) -> list[str]:
        """Add an operator with several outputs."""
        name, outputs = self._style(self._names, self._scope, operator, len(shapes))
        self._nodes.append(helper.make_node(operator, inputs, outputs, name=name, **attributes))
        if self._planting:
            self.planted.append(name)
        for output, shape in zip(outputs, shapes, strict=True):
            found = np.broadcast_shapes(*(self.shapes[one] for one in inputs)) if shape is None else shape
            self._known(output, found)
            if inputs and inputs[0] in self.lanes and len(found) > 1 and len(self.lanes[inputs[0]]) == found[1]:
                self.lanes[output] = self.lanes[inputs[0]]
        return outputs

    def reshape(self, value: str, *shape: int) -> str:
        """To another shape, written as a constant."""
        return self.op("Reshape", value, self.constant("shape", np.array(shape, np.int64)), shape=shape)

    def transpose(self, value: str, *perm: int) -> str:
        """With its axes in another order."""
        return self.op("Transpose", value, shape=tuple(self.shapes[value][axis] for axis in perm), perm=perm)

    def matmul(self, left: str, right: str) -> str:
        """Add a matrix product."""
        rows, columns = self.shapes[left], self.shapes[right]
        batch = np.broadcast_shapes(rows[:-2], columns[:-2])
        return self.op("MatMul", left, right, shape=(*batch, rows[-2], columns[-1]))

    def concat(self, values: Sequence[str], axis: int) -> str:
        """Side by side along an axis."""
        shapes = [self.shapes[one] for one in values]
        total = sum(shape[axis] for shape in shapes)
        made = self.op("Concat", *values, shape=(*shapes[0][:axis], total, *shapes[0][axis + 1 :]), axis=axis)
        if axis == 1:
            self.lanes[made] = np.concatenate([self.lanes_of(one) for one in values])
        return made

    def scalar(self, value: float, dtype: Any = np.float32) -> str:
        """Add a constant number."""
        return self.constant("value", np.array(value, dtype))

    def output(self, value: str) -> None:
        """Hand a value out; the clean twin has the same one."""
        self._outputs.append(value)

    def expose(self, value: str) -> None:
        """Hand a value out that the clean twin has not; after all outputs that it has."""
        self._exposed.append(value)

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        outputs = [*self._outputs, *self._exposed]
        graph = helper.make_graph(
            self._nodes,
            "main_graph",
            self._inputs,
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in outputs],
            initializer=list(self._initializers.values()),
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)

    def _known(self, name: str, shape: Shape) -> str:
        self.shapes[name] = tuple(int(size) for size in shape)
        return name

    def _unique(self, stem: str) -> str:
        self._names[stem] += 1
        return stem if self._names[stem] == 1 else f"{stem}_{self._names[stem] - 1}"


# How exporters name nodes and the values that they make. --------------------------------------------------------------

_Style = Callable[[Counter[str], Sequence[str], str, int], tuple[str, list[str]]]


def _pathlike(seen: Counter[str], scope: Sequence[str], operator: str, count: int) -> tuple[str, list[str]]:
    stem = "/" + "/".join([*scope, operator])
    seen[stem] += 1
    name = stem if seen[stem] == 1 else f"{stem}_{seen[stem] - 1}"
    return name, [f"{name}_output_{index}" for index in range(count)]


def _tensors(seen: Counter[str], scope: Sequence[str], operator: str, count: int) -> tuple[str, list[str]]:
    stem = "/".join(["model", *scope, operator.lower()])
    seen[stem] += 1
    name = f"{stem}_{seen[stem]}"
    return name, [f"{name}:{index}" for index in range(count)]


def _numbered(seen: Counter[str], _: Sequence[str], operator: str, count: int) -> tuple[str, list[str]]:
    seen[""] += 1
    name = f"{operator}_{seen['']}"
    return name, [f"t{seen['']}_{index}" for index in range(count)]


def _plain(seen: Counter[str], _: Sequence[str], operator: str, count: int) -> tuple[str, list[str]]:
    seen[operator] += 1
    seen[""] += 1
    return f"node_{operator.lower()}_{seen[operator]}", [f"val_{seen['']}_{index}" for index in range(count)]


_STYLES: tuple[_Style, ...] = (_pathlike, _tensors, _numbered, _plain)
