"""Pointwise by function: elementwise regions are compared with the functions of the runtime's kernels.

A region that reads one value is evaluated on a grid and fitted with a f(b x + c) + d over ``FUNCTIONS``. A region that
reads two values must be a product or a sum of such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from .form import MICROSOFT, Array, Draft, Rewrite
from .values import POINTWISE, SLOW, Region, Values, late

_UNIFORM = np.linspace(-12, 12, 481)
_FAR = np.array([15.0, 40, 80, 100, 300, 1e3, 3e3, 1e4, 1e5, 1e6])
GRID: Array = np.unique(
    np.concatenate(
        [_UNIFORM, np.linspace(-1.5, 1.5, 121), [1e-3, -1e-3], _FAR, -_FAR, np.sqrt(np.arange(1, 60)) - 4]
    ).round(4)
)
"""Numbers on which regions are evaluated: close around zero, and far out for bounds."""

_TOLERANCE = 2e-5
"""Largest difference of a fit; relative for values above 1."""

_BEGINS = ((1.0, 0.0), (0.3, 0.0), (2.0, 0.0), (1.0, 2.0))
"""Factors and shifts from which b and c are searched."""
_BENT = ("HardSwish", "QuickGelu", "Gelu", "Elu", "Softplus", "FastGelu", "Mish")
"""Functions that are flat on one side and straight on the other."""
_STEEP, _FLAT = 1e4, 1e-6
"""Slopes far out from which a function grows exponentially, and below which it is bounded."""
_FEW = 60
"""Samples on which they are searched."""

_LEAST_FINITE = 0.9
_MOST_NODES = 24


def _expit(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _erf(x: Array) -> Array:
    from scipy.special import erf

    made: Array = erf(x)
    return made


def _exp(x: Array) -> Array:
    return np.exp(np.minimum(x, 700))


Nodes = Callable[[Draft, str, tuple[float, ...]], str]
"""Adds the nodes of a function of one value and returns its result."""


def _one(operator: str, domain: str = "") -> Nodes:
    return lambda draft, x, _: draft.op(operator, x, domain=domain)


@dataclass(frozen=True, slots=True)
class KernelFunction:
    """A function that the runtime has kernels for.

    Attributes:
        values: Computes it, of numbers and its own parameters.
        nodes: Writes it.
        starts: Parameters to try.
        single: It exists in float32 only.
    """

    values: Callable[[Array, tuple[float, ...]], Array]
    nodes: Nodes
    starts: tuple[tuple[float, ...], ...] = ((),)
    single: bool = False


def _power(exponent: float) -> KernelFunction:
    """Return x to a multiple of a quarter, made of square roots and products."""

    def nodes(draft: Draft, x: str, _: tuple[float, ...]) -> str:
        quarters = round(abs(exponent) * 4)
        factors, power, whole = list[str](), x, quarters // 4
        while whole:
            if whole & 1:
                factors.append(power)
            whole >>= 1
            power = draft.op("Mul", power, power) if whole else power
        root = draft.op("Sqrt", x) if quarters % 4 else x
        if quarters & 2:
            factors.append(root)
        if quarters & 1:
            factors.append(draft.op("Sqrt", root))
        made = factors[0]
        for factor in factors[1:]:
            made = draft.op("Mul", made, factor)
        return draft.op("Reciprocal", made) if exponent < 0 else made

    return KernelFunction(lambda x, _: np.power(x, exponent), nodes)


def _hard_swish(draft: Draft, x: str, _: tuple[float, ...]) -> str:
    return draft.op("Mul", x, draft.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _mish(draft: Draft, x: str, _: tuple[float, ...]) -> str:
    return draft.op("Mul", x, draft.op("Tanh", draft.op("Softplus", x)))


def _square(draft: Draft, x: str, _: tuple[float, ...]) -> str:
    return draft.op("Mul", x, x)


def _cube(draft: Draft, x: str, _: tuple[float, ...]) -> str:
    return draft.op("Mul", x, draft.op("Mul", x, x))


FUNCTIONS: Mapping[str, KernelFunction] = {
    "Sigmoid": KernelFunction(lambda x, _: _expit(x), _one("Sigmoid")),
    "Tanh": KernelFunction(lambda x, _: np.tanh(x), _one("Tanh")),
    "Erf": KernelFunction(lambda x, _: _erf(x), _one("Erf")),
    "Exp": KernelFunction(lambda x, _: _exp(x), _one("Exp")),
    "Gelu": KernelFunction(lambda x, _: 0.5 * x * (1 + _erf(x / np.sqrt(2))), _one("Gelu", MICROSOFT), single=True),
    "FastGelu": KernelFunction(
        lambda x, _: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        _one("FastGelu", MICROSOFT),
        single=True,
    ),
    "QuickGelu": KernelFunction(
        lambda x, p: x * _expit(p[0] * x),
        lambda draft, x, p: draft.op("QuickGelu", x, domain=MICROSOFT, alpha=p[0]),
        ((1.0,), (1.702,)),
        single=True,
    ),
    "HardSwish": KernelFunction(lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1), _hard_swish),
    "Softplus": KernelFunction(lambda x, _: _softplus(x), _one("Softplus")),
    "Softsign": KernelFunction(lambda x, _: x / (1 + np.abs(x)), _one("Softsign")),
    "Elu": KernelFunction(
        lambda x, p: np.where(x > 0, x, p[0] * np.expm1(np.minimum(x, 0))),
        lambda draft, x, p: draft.op("Elu", x, alpha=p[0]),
        ((1.0,),),
    ),
    "Selu": KernelFunction(
        lambda x, _: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
        _one("Selu"),
    ),
    **{f"Power {exponent}": _power(exponent) for exponent in (4, 5, 6, 8)},
    "Square": KernelFunction(lambda x, _: x * x, _square),
    "Cube": KernelFunction(lambda x, _: x**3, _cube),
    "Mish": KernelFunction(lambda x, _: x * np.tanh(_softplus(x)), _mish),
    "Sin": KernelFunction(lambda x, _: np.sin(x), _one("Sin")),
    "Cos": KernelFunction(lambda x, _: np.cos(x), _one("Cos")),
    "Softabs": KernelFunction(lambda x, _: np.sqrt(1 + x * x), lambda draft, x, _: _softabs(draft, x)),
}
"""By name; affine and piecewise linear functions are recognised by their slopes."""


def _softabs(draft: Draft, x: str) -> str:
    return draft.op("Sqrt", draft.op("Add", draft.op("Mul", x, x), draft.constant(1.0, np.float32)))


POWERS: Mapping[str, KernelFunction] = {
    f"Power {quarters / 4:g}": _power(quarters / 4) for quarters in range(-12, 13) if quarters not in {0, 4}
}
"""Functions of positive numbers only."""


@dataclass(frozen=True, slots=True)
class Fit:
    """a f(b x + c) + d.

    Attributes:
        name: Name of the function.
        nodes: Writes f.
        scale: a.
        inner: b.
        shift: c.
        offset: d.
        parameters: Parameters of f.
        single: f exists in float32 only.
    """

    name: str
    nodes: Nodes
    scale: float = 1.0
    inner: float = 1.0
    shift: float = 0.0
    offset: float = 0.0
    parameters: tuple[float, ...] = ()
    single: bool = False

    def write(self, draft: Draft, x: str, dtype: np.dtype[np.generic]) -> str:
        """Add its nodes and return the result."""
        x = _scaled(draft, x, self.inner, self.shift, dtype)
        return _scaled(draft, self.nodes(draft, x, self.parameters), self.scale, self.offset, dtype)


def _scaled(draft: Draft, x: str, factor: float, summand: float, dtype: np.dtype[np.generic]) -> str:
    if factor == -1:
        x = draft.op("Neg", x)
    elif factor != 1:
        x = draft.op("Mul", x, draft.constant(factor, dtype))
    return x if summand == 0 else draft.op("Add", x, draft.constant(summand, dtype))


def _round(number: float) -> float:
    """Return a number as it was probably meant: fits come close to 1/6 and -1."""
    for meant in (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 6.0, 1 / 3, 1 / 6, 1.702, 0.01, 0.1, 0.2, 4.0, 8.0):
        if abs(number - meant) < 1e-5 * max(abs(meant), 1.0):
            return meant
    return float(number)


def _linear(found: Array, wanted: Array, weights: Array) -> tuple[float, float, float]:
    """Return a and d of the best a f + d, and its largest weighted difference."""
    if not np.isfinite(found).all():
        return 0.0, 0.0, np.inf
    (a, d), *_ = np.linalg.lstsq(np.stack([found * weights, weights], 1), wanted * weights, rcond=None)
    return float(a), float(d), float(np.abs((a * found + d - wanted) * weights).max())


def fits(x: Array, y: Array) -> list[Fit]:
    """Return the functions that agree with samples, the cheapest first; empty if none does.

    Args:
        x: Arguments.
        y: Values; only finite ones count.
    """
    finite = np.isfinite(y)
    positive = x > 0
    if finite[positive].all() and not finite[x < 0].any():
        return list(_tabled(POWERS, x[positive], y[positive].astype(np.float64)))
    if finite.mean() < _LEAST_FINITE:
        return []
    x, y = x[finite].astype(np.float64), y[finite].astype(np.float64)
    weights = 1 / np.maximum(1, np.abs(y))
    a, d, error = _linear(x, y, weights)
    if error < _TOLERANCE:
        return [Fit("Affine", _identity, _round(a), offset=_round(d))]
    if found := _piecewise(x, y, weights):
        return [found]
    known = list(_tabled(FUNCTIONS, x, y))
    return known or list(_shifted(x, y, weights))


def _identity(_draft: Draft, x: str, _parameters: tuple[float, ...]) -> str:
    return x


def _tabled(table: Mapping[str, KernelFunction], x: Array, y: Array) -> Iterator[Fit]:
    weights = 1 / np.maximum(1, np.abs(y))
    for name, function in table.items():
        for start in function.starts:
            with np.errstate(all="ignore"):
                a, d, error = _linear(function.values(x, start), y, weights)
            if error < _TOLERANCE and a:
                yield Fit(name, function.nodes, _round(a), 1.0, 0.0, _round(d), start, function.single)


def _piecewise(x: Array, y: Array, weights: Array) -> Fit | None:
    """Return a function of two or three straight pieces: Relu, LeakyRelu, Abs, Clip, HardSigmoid."""
    left, right = x < -11, (x > 11) & (x < 13)
    (low, low_at), (high, high_at) = (
        np.polyfit(x[part & (np.abs(x) < 13)], y[part & (np.abs(x) < 13)], 1) for part in (left, right)
    )
    bends = abs(low - high) > 1e-6
    corner = (low_at - high_at) / (high - low) if bends else 0.0
    two = np.where(x > corner, high * x + high_at, low * x + low_at)
    if bends and np.abs((two - y) * weights).max() < _TOLERANCE:
        shift, at = _round(-corner), _round(high * corner + high_at)
        if abs(low) < 1e-6:
            return Fit("Relu", _one("Relu"), _round(high), 1.0, shift, at)
        if abs(high) < 1e-6:
            return Fit("Relu", _one("Relu"), _round(-low), -1.0, -shift, at)
        if abs(low + high) < 1e-6:
            return Fit("Abs", _one("Abs"), _round(high), 1.0, shift, at)
        return Fit("LeakyRelu", _leaky, _round(high), 1.0, shift, at, (_round(low / high),))
    return _clipped(x, y, weights)


def _clipped(x: Array, y: Array, weights: Array) -> Fit | None:
    slopes = np.gradient(y, x)
    steepest = int(np.abs(slopes).argmax())
    slope, low, high = float(slopes[steepest]), float(y.min()), float(y.max())
    if abs(slope) < 1e-6:
        return None
    at = float(y[steepest] - slope * x[steepest])
    if np.abs((np.clip(slope * x + at, low, high) - y) * weights).max() > _TOLERANCE:
        return None
    if abs(slope - 1) < 1e-5 and abs(at) < 1e-5:
        return Fit("Clip", _clip, parameters=(_round(low), _round(high)))
    reach = high - low
    return Fit(
        "HardSigmoid", _hard_sigmoid, _round(reach), offset=_round(low),
        parameters=(_round(slope / reach), _round((at - low) / reach)),
    )  # fmt: skip


def _leaky(draft: Draft, x: str, parameters: tuple[float, ...]) -> str:
    return draft.op("LeakyRelu", x, alpha=parameters[0])


def _hard_sigmoid(draft: Draft, x: str, parameters: tuple[float, ...]) -> str:
    return draft.op("HardSigmoid", x, alpha=parameters[0], beta=parameters[1])


def _clip(draft: Draft, x: str, parameters: tuple[float, ...]) -> str:
    low, high = (draft.constant(number, np.float32) for number in parameters)
    return draft.op("Clip", x, low, high)


def _likely(x: Array, y: Array) -> Sequence[str]:
    """Return the functions that behave far out as samples do."""
    left, right = ((y[i] - y[j]) / (x[i] - x[j]) for i, j in ((0, 1), (-1, -2)))
    if x[-1] < _FAR[-1] or abs(right) > _STEEP:
        return ("Exp",)
    return ("Sigmoid", "Tanh", "Erf") if max(abs(left), abs(right)) < _FLAT else _BENT


def _shifted(x: Array, y: Array, weights: Array) -> Iterator[Fit]:
    """Yield the first fit with b and c searched, too: on few samples, and then compared on all."""
    from scipy.optimize import least_squares

    few = np.linspace(0, len(x) - 1, min(len(x), _FEW)).astype(int)
    for name in _likely(x, y):
        function = FUNCTIONS[name]
        for begin in _BEGINS:

            def residuals(at: Array, function: KernelFunction = function) -> Array:
                found = function.values(at[0] * x[few] + at[1], tuple(at[2:]))
                a, d, _ = _linear(found, y[few], weights[few])
                made: Array = np.clip(np.nan_to_num((a * found + d - y[few]) * weights[few]), -1e3, 1e3)
                return made

            with np.errstate(all="ignore"):
                solved = least_squares(residuals, [*begin, *function.starts[0]], max_nfev=25)
                if float(np.abs(solved.fun).max()) >= _TOLERANCE:
                    continue
                found = function.values(solved.x[0] * x + solved.x[1], tuple(solved.x[2:]))
                a, d, error = _linear(found, y, weights)
            if error < _TOLERANCE:
                inner, shift, *own = (_round(number) for number in solved.x)
                yield Fit(name, function.nodes, _round(a), inner, shift, _round(d), tuple(own), function.single)
                return


# The engine.


def pointwise(values: Values, deadline: float) -> list[Rewrite]:
    """Return rewrites of elementwise regions."""
    graph, found, covered = values.graph, list[Rewrite](), set[int]()
    search = _Search(values)

    def allowed(index: int) -> bool:
        return graph.nodes[index].op_type in POINTWISE

    for last in reversed(range(len(graph.nodes))):
        if late(deadline):
            break
        value = graph.nodes[last].output[0]
        if last in covered or not allowed(last) or not values.is_float(value) or values.is_constant(value):
            continue
        regions = list(values.regions(value, allowed, most_nodes=_MOST_NODES, most_reads=2))
        for region in sorted(regions, key=lambda region: (len(region.reads), -len(region.nodes))):
            if late(deadline):
                break
            if rewrite := values.attempt(search.rewrite, region, value):
                found.append(rewrite)
                covered |= set(graph.removable(region.nodes, value))
                break
    return found


class _Search:
    """Fits regions; regions of one spelling are evaluated once."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._known: dict[str, list[Fit]] = {}
        self._separated: dict[str, list[tuple[str, tuple[Fit, Fit]]]] = {}

    def rewrite(self, region: Region, value: str) -> Rewrite | None:  # noqa: PLR0911  # one reason each
        """Return the cheapest rewrite of a region; None if nothing fits, or nothing is saved."""
        values = self._values
        gone = values.graph.removable(region.nodes, value)
        if len(region.reads) == 1 and values.dtypes.get(region.reads[0]) in {np.dtype("int8"), np.dtype("uint8")}:
            return self._looked_up(region, value)
        single = len(gone) == 1 and values.graph.nodes[gone[0]].op_type in SLOW
        if (len(gone) < 2 and not single) or not all(values.is_float(name) for name in region.reads):
            return None
        if any(values.dtypes[name] != values.dtypes[value] for name in region.reads):
            return None
        scalars = _scalars(values, region)
        if scalars is None:
            return None
        if len(region.reads) == 2:
            return self._two(region, value, scalars, gone)
        if values.shapes[region.reads[0]] != values.shapes[value]:
            return None
        options = [made for fit in self._fits(region, value, scalars) if (made := self._made(fit, region, value, gone))]
        return max(options, key=lambda rewrite: rewrite.saving_ns, default=None)

    def _looked_up(self, region: Region, value: str) -> Rewrite | None:
        """Return a region that reads bytes as a table of all 256 results; negative bytes count from its end."""
        values, (x,) = self._values, region.reads
        scalars, draft = _scalars(values, region), Draft(values.graph)
        if scalars is None or values.shapes[x] != values.shapes[value]:
            return None
        table = values.part(region, value, scalars)(np.arange(256, dtype=np.uint8).view(values.dtypes[x]))[0]
        rows = draft.op("Cast", x, to=values.graph.fresh("rows"))
        draft.nodes[-1].attribute.append(onnx.helper.make_attribute("to", onnx.TensorProto.INT32))
        draft.op("Gather", draft.constant(table), rows, to=value, axis=0)
        return values.cheaper(draft, "pointwise: table of all bytes", value)

    def _made(self, fit: Fit, region: Region, value: str, gone: Sequence[int]) -> Rewrite | None:
        values = self._values
        dtype = values.dtypes[value]
        if fit.single and dtype != np.float32:
            return None
        draft = Draft(values.graph)
        draft.finish(fit.write(draft, region.reads[0], dtype), value)
        return _saving(values, draft, value, gone, f"pointwise: {fit.name}")

    def _fits(self, region: Region, value: str, scalars: Mapping[str, Array]) -> list[Fit]:
        key = _spelling(self._values, region, value, scalars)
        if key not in self._known:
            part = self._values.part(region, value, scalars)
            x = GRID.astype(self._values.dtypes[region.reads[0]])
            y = np.broadcast_to(part(x)[0], x.shape)
            self._known[key] = fits(x.astype(np.float64), y.astype(np.float64))
        return self._known[key]

    def _two(self, region: Region, value: str, scalars: Mapping[str, Array], gone: Sequence[int]) -> Rewrite | None:
        """Return a rewrite as g(x) h(z) or g(x) + h(z)."""
        values = self._values
        smaller = all(np.prod(values.shapes[name]) < np.prod(values.shapes[value]) for name in region.reads)
        if len(gone) < 3 - smaller:
            return None
        options = list[Rewrite]()
        for operator, sides in self._sides(region, value, scalars):
            draft = Draft(values.graph)
            if any(fit.single for fit in sides) and values.dtypes[value] != np.float32:
                continue
            inputs = [
                fit.write(draft, name, values.dtypes[value]) for fit, name in zip(sides, region.reads, strict=True)
            ]
            draft.op(operator, *inputs, to=value)
            kind = f"pointwise: {operator} of {sides[0].name} and {sides[1].name}"
            rewrite = values.cheaper(draft, kind, value) if smaller else _saving(values, draft, value, gone, kind)
            if rewrite is not None:
                options.append(rewrite)
        return max(options, key=lambda rewrite: rewrite.saving_ns, default=None)

    def _sides(self, region: Region, value: str, scalars: Mapping[str, Array]) -> list[tuple[str, tuple[Fit, Fit]]]:
        """Return a region of two values as products and sums of functions of each."""
        key = _spelling(self._values, region, value, scalars)
        if key not in self._separated:
            self._separated[key] = []
            grid = GRID[np.abs(GRID) < 12][::3]
            x, z = (grid.astype(self._values.dtypes[name]) for name in region.reads)
            made = self._values.part(region, value, scalars)(x[:, None], z[None])[0].astype(np.float64)
            if made.shape == (len(grid),) * 2 and np.isfinite(made).all():
                self._separated[key] = list(_separated(grid, made))
        return self._separated[key]


def _separated(grid: Array, made: Array) -> Iterator[tuple[str, tuple[Fit, Fit]]]:
    """Yield a table over two arguments as a product or a sum of functions of each."""
    scale = np.abs(made).max() + 1e-12
    row, column = np.unravel_index(int(np.abs(made).argmax()), made.shape)
    pivot = made[row, column]
    if pivot and np.abs(made - np.outer(made[:, column], made[row]) / pivot).max() < 1e-5 * scale:
        first, second = made[:, column], made[row] / pivot
        for factor in (1.0, second[np.abs(second).argmax()] / grid[np.abs(grid).argmax()] or 1.0):
            for one in fits(grid, first * factor)[:1]:
                for two in fits(grid, second / factor)[:1]:
                    yield "Mul", (one, two)
    centre = len(grid) // 2
    if np.abs(made - made[:, [centre]] - made[[centre]] + made[centre, centre]).max() < 1e-5 * scale:
        for one in fits(grid, made[:, centre] - made[centre, centre])[:1]:
            for two in fits(grid, made[centre])[:1]:
                yield "Add", (one, two)


def _saving(values: Values, draft: Draft, value: str, gone: Sequence[int], kind: str) -> Rewrite | None:
    """Return the rewrite of a draft with values of one shape; None if it saves nothing."""
    shape = values.shapes[value]
    shapes = {name: shape for node in draft.nodes for name in node.output}
    before, after = values.cost_of(gone), values.cost_of_new(draft, shapes)
    fewer = len(draft.nodes) < len(gone) or (len(gone) == 1 and after < 0.6 * before)
    if after >= before or not fewer:
        return None
    return draft.rewrite(kind, [value], values.graph.names(gone), before - after)


def _scalars(values: Values, region: Region) -> dict[str, Array] | None:
    """Return the constants of a region as scalars; None if one differs between elements."""
    found = {}
    made = {name for index in region.nodes for name in values.graph.nodes[index].output}
    for index in region.nodes:
        for name in values.graph.reads[index]:
            if name in made or name in region.reads:
                continue
            array = values.constant(name)
            if array is None or not array.size or (array.size > 1 and not (array == array.flat[0]).all()):
                return None
            found[name] = np.array(array.flat[0], array.dtype)
    return found


def _spelling(values: Values, region: Region, value: str, scalars: Mapping[str, Array]) -> str:
    """Return a spelling of a region that does not depend on names of values."""
    numbers: dict[str, int] = {name: number for number, name in enumerate((*region.reads, value))}
    lines = []
    for index in region.nodes:
        node = values.graph.nodes[index]
        inputs = [
            float(scalars[name]) if name in scalars else numbers.setdefault(name, len(numbers)) for name in node.input
        ]
        outputs = [numbers.setdefault(name, len(numbers)) for name in node.output]
        lines.append(
            (node.op_type, node.domain, sorted(map(repr, values.graph.attributes[index].items())), inputs, outputs)
        )
    return repr((lines, values.dtypes[value]))
