"""Elementwise regions of one value that are a function of one of the runtime's fast kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...bricks.operators import ELEMENTWISE
from .recording import Region, Values, late
from .rewrite import MICROSOFT, Array, Draft, Rewrite

_GRID: Array = np.unique(np.concatenate([
    np.linspace(-12, 12, 121), [-3, 0, 3, 6], np.array([-1, 1]) * np.array([[15.0], [100], [1e3], [1e4]]).reshape(-1, 1)
], axis=None))  # fmt: skip
"""Numbers on which regions are compared with functions: this only suggests what is then proven."""
_TOLERANCE = 5e-5
_MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A function that the runtime has a fast kernel for.

    Attributes:
        values: Computes it.
        nodes: Writes it to a name, and returns nothing.
        single: It exists in float32 only.
    """

    values: Callable[[Array], Array]
    nodes: Callable[[Draft, str, str], object]
    single: bool = False


def _erf(x: Array) -> Array:
    from scipy.special import erf

    numbers: Array = erf(x)
    return numbers


def _hard_swish(draft: Draft, x: str, to: str) -> None:
    draft.op("Mul", x, draft.op("HardSigmoid", x, alpha=1 / 6, beta=0.5), to=to)


FUNCTIONS: Mapping[str, KernelFunction] = {
    "HardSwish": KernelFunction(lambda x: x * np.clip(x / 6 + 0.5, 0, 1), _hard_swish),
    "Gelu": KernelFunction(
        lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
        lambda draft, x, to: draft.op("Gelu", x, to=to, domain=MICROSOFT), single=True,
    ),
    "FastGelu": KernelFunction(
        lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        lambda draft, x, to: draft.op("FastGelu", x, to=to, domain=MICROSOFT), single=True,
    ),
    "QuickGelu": KernelFunction(
        lambda x: x / (1 + np.exp(-np.clip(1.702 * x, -700, 700))),
        lambda draft, x, to: draft.op("QuickGelu", x, to=to, domain=MICROSOFT, alpha=1.702), single=True,
    ),
    "Square": KernelFunction(lambda x: x * x, lambda draft, x, to: draft.op("Mul", x, x, to=to)),
}  # fmt: skip
"""By name."""


def pointwise(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of elementwise regions."""
    graph, rewrites, covered = values.graph, list[Rewrite](), set[int]()
    search = _Search(values)

    def allowed(index: int) -> bool:
        return graph.nodes[index].op_type in ELEMENTWISE

    for last in reversed(range(len(graph.nodes))):
        if late(deadline):
            break
        value = graph.nodes[last].output[0]
        if last in covered or not allowed(last) or not values.is_float(value) or values.is_constant(value):
            continue
        if graph.nodes[last].op_type == "PRelu" and (halves := values.attempt(_halves, values, last)):
            rewrites.append(halves)
            continue
        regions = list(values.regions(value, allowed, most_nodes=_MOST_NODES))
        for region in sorted(regions, key=lambda region: -len(region.nodes)):
            if rewrite := values.attempt(search.rewrite, region, value):
                rewrites.append(rewrite)
                covered |= set(graph.removable(region.nodes, value))
                break
    return rewrites


def _halves(values: Values, index: int) -> Rewrite | None:
    """Return a PRelu as a sum of what is positive and what is negative.

    ONNX Runtime branches for each element, which takes eight times as long where signs are mixed; both halves are
    vectorised. One of the two is zero, so that the sum is not rounded.
    """
    node = values.graph.nodes[index]
    x, slope = node.input
    zero, draft = np.zeros((), values.dtypes[x]), Draft(values.graph)
    negative = draft.op("Mul", draft.op("Min", x, draft.constant(zero, zero.dtype)), slope)
    draft.op("Add", draft.op("Relu", x), negative, to=node.output[0])
    shapes = {output: values.shapes[x] for new in draft.nodes for output in new.output}
    saving_ns = values.cost_of([index]) - values.cost_of_new(draft, shapes)
    names = values.graph.names([index])
    return draft.rewrite("pointwise: PRelu", [node.output[0]], names, saving_ns) if saving_ns > 0 else None


class _Search:
    """Names the functions of regions; regions of one spelling are evaluated once."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._known: dict[str, str] = {}

    def rewrite(self, region: Region, value: str) -> Rewrite | None:
        """Return the rewrite of a region; None if it is no known function, or nothing is saved."""
        values, (x,) = self._values, region.reads
        gone = values.graph.removable(region.nodes, value)
        alone = len(gone) == 1 and values.graph.nodes[gone[0]].op_type in {"HardSwish", "Pow"}
        alike = values.shapes[x] == values.shapes[value] and values.dtypes[x] == values.dtypes[value]
        scalars = _scalars(values, region) if alike and (len(gone) > 1 or alone) else None
        if scalars is None:
            return None
        key = _spelling(values, region, value, scalars)
        if key not in self._known:
            self._known[key] = self._named(region, value, scalars)
        name = self._known[key]
        if not name or (FUNCTIONS[name].single and values.dtypes[value] != np.float32):
            return None
        draft = Draft(values.graph)
        FUNCTIONS[name].nodes(draft, x, value)
        if len(draft.nodes) >= len(gone) and not alone:
            return None
        shapes = {output: values.shapes[value] for node in draft.nodes for output in node.output}
        saving_ns = values.cost_of(gone) - values.cost_of_new(draft, shapes)
        return (
            draft.rewrite(f"pointwise: {name}", [value], values.graph.names(gone), saving_ns) if saving_ns > 0 else None
        )

    def _named(self, region: Region, value: str, scalars: Mapping[str, Array]) -> str:
        kind = self._values.dtypes[region.reads[0]]
        x = _GRID.astype(kind)
        y = np.broadcast_to(self._values.part(region, value, scalars)(x)[0], x.shape).astype(np.float64)
        for name, function in FUNCTIONS.items():
            expected = function.values(x.astype(np.float64))
            if (np.abs(y - expected) <= _TOLERANCE * np.maximum(1, np.abs(expected))).all():
                return name
        return ""


def _scalars(values: Values, region: Region) -> dict[str, Array] | None:
    """Return the constants of a region as scalars; None if one differs between elements."""
    scalars = {}
    outputs = {name for index in region.nodes for name in values.graph.nodes[index].output}
    for index in region.nodes:
        for name in values.graph.reads[index]:
            if name in outputs or name in region.reads:
                continue
            array = values.constant(name)
            if array is None or not array.size or (array.size > 1 and not (array == array.flat[0]).all()):
                return None
            scalars[name] = np.array(array.flat[0], array.dtype)
    return scalars


def _spelling(values: Values, region: Region, value: str, scalars: Mapping[str, Array]) -> str:
    """Return a spelling of a region that does not depend on names of values."""
    numbers: dict[str, int] = {name: number for number, name in enumerate((*region.reads, value))}
    lines = []
    for index in region.nodes:
        node = values.graph.nodes[index]
        inputs: Sequence[float] = [
            float(scalars[name]) if name in scalars else numbers.setdefault(name, len(numbers)) for name in node.input
        ]
        outputs = [numbers.setdefault(name, len(numbers)) for name in node.output]
        attributes = sorted(map(repr, values.graph.attributes[index].items()))
        lines.append((node.op_type, node.domain, attributes, inputs, outputs))
    return repr((lines, values.dtypes[value]))
