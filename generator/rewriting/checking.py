"""Compare a changed model with the original: outputs on several inputs, the model's own noise, quick timing.

Runs inside the search process only.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ...errors import DlbricksError, ModelError
from ...models.binding import apply, plan
from ...models.normal import NormalForm, normalise
from ...models.reader import read_full
from ...models.subgraphs import static_shape
from ..network.inputs import InputType, make_inputs
from .form import Rewrite
from .values import Feeds, Values, apart, session

_SCALES = (1.0, 1.0, 3.0, 30.0)
"""Factors of floating-point inputs in each set of inputs: typical, typical, scaled, wide."""

_RECORDED = 3
"""Number of input sets with recorded interior values; the wide ones only count for the outputs."""

_SHAPES = 3
"""Number of dynamic dimensions that are changed alone, in addition to all together."""

_JITTER = 1e-6
"""Relative change of inputs that shows how far a model amplifies rounding errors."""

_LEAST, _MOST, _RELAXED = 1e-4, 5e-3, 1e-3
"""Tolerance of outputs relative to their largest value: at least, at most, and at least if noise is accepted."""

_FACTOR = 3.0
"""Tolerance as a multiple of the model's own noise."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model to be rewritten.

    Attributes:
        path: Its file.
        model: The model with its weights; dynamic dimensions stay dynamic.
        overridable: Constants that a caller could override, since they are inputs of the file as well.
        is_external: Weights are in separate files.
        feeds: Sets of inputs at the measured shape.
        other_feeds: Sets of inputs at a second shape; empty for static models.
    """

    path: Path
    model: onnx.ModelProto
    overridable: frozenset[str]
    is_external: bool
    feeds: tuple[Feeds, ...]
    other_feeds: tuple[Feeds, ...]


def read_subject(path: Path, batch: int | None, dims: Mapping[str, int], *, shapes: bool = True) -> CheckedModel:
    """Read a model file.

    Args:
        path: The file.
        batch: Batch to measure at; a batch that the file fixes is changed.
        dims: Values of dynamic dimensions to measure at.
        shapes: Also make inputs of a second shape.

    Raises:
        ModelError: The file cannot be read or bound.
    """
    normal, external = _with_weights(path)
    model, overridable = normal.model, normal.overridable
    bound = _copy_of_structure(model)
    binding = plan(bound, batch=batch, dims=dims)
    apply(bound, binding)
    feeds = _feeds(bound, _SCALES)
    if binding.rebatch is not None:
        apply(model, binding)
    if binding.rebatch is not None or not binding.bound or not shapes:
        return CheckedModel(path, model, overridable, external, feeds, ())
    others = list[Feeds]()
    sizes = {name: _another(size) for name, size in binding.bound.items()}
    for changed in (sizes, *({**binding.bound, name: size} for name, size in list(sizes.items())[:_SHAPES])):
        other = _copy_of_structure(model)
        with contextlib.suppress(DlbricksError):  # another size need not be possible
            apply(other, plan(other, dims=changed))
            others += _feeds(other, _SCALES[:1], first=1)
    return CheckedModel(path, model, overridable, external, feeds, tuple(others))


def _with_weights(path: Path) -> tuple[NormalForm, bool]:
    model, folder = read_full(path)
    external = bool(folder.locations)
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            data = folder.locate(tensor).read()
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.raw_data = bytes(data)
    notes = onnx.ModelProto(metadata_props=model.metadata_props, doc_string=model.doc_string)
    notes.producer_name = model.producer_name
    normal = normalise(model, keep_weights=True)
    for name in ("metadata_props", "doc_string", "producer_name"):
        normal.model.ClearField(name)
    normal.model.MergeFrom(notes)
    del normal.model.graph.value_info[:]  # types inside are recorded, and binding thousands of them takes minutes
    return normal, external


def _copy_of_structure(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model; binding changes small constants only, so that all are copied."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _another(size: int) -> int:
    """Return another size of a dimension that is likely to be legal."""
    return size + 32 if size % 32 == 0 else size + 1


def _feeds(bound: onnx.ModelProto, scales: Sequence[float], *, first: int = 0) -> tuple[Feeds, ...]:
    """Return sets of inputs. In all but number 0 integers and booleans vary: masks of ones would hide their effect."""
    constants = {tensor.name for tensor in bound.graph.initializer}
    compared = _compared(bound)
    types = list[InputType]()
    for value in bound.graph.input:
        if value.name in constants:
            continue
        shape = static_shape(value.type)
        if shape is None:
            raise ModelError(f"input '{value.name}' has no static shape", remedy="give its dimensions")
        kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
        types.append((value.name, kind, shape))
    usual = make_inputs(bound, types, seed=0)[0]
    return tuple(
        {
            name: _varied(
                array * array.dtype.type(scale) if array.dtype.kind == "f" else array, usual[name], seed, compared
            )
            for name, array in make_inputs(bound, types, seed=seed)[0].items()
        }
        for seed, scale in enumerate(scales, start=first)
    )


def _varied(array: npt.NDArray[Any], usual: npt.NDArray[Any], seed: int, compared: _Numbers) -> npt.NDArray[Any]:
    """Return an input that differs from the usual one enough for conditions to be true and false.

    Integers and booleans that are the same in every set vary, except for the first of each row, because a row that is
    masked as a whole would give no finite output. In one set a quarter of the other integers is zero. In another one a
    quarter of all numbers are those that the model compares with.
    """
    kind = array.dtype.kind
    if seed == 0 or kind not in "iubf" or not array.size:
        return array
    value, random = int(array.flat[0]) if kind != "f" else 1, np.random.default_rng(seed)
    if seed == _COMPARED and kind in "iu" and array.dtype.itemsize <= _NARROW:
        least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
        return random.integers(least, most, array.shape, array.dtype, endpoint=True)
    deciding = compared["f" if kind == "f" else "i"] if seed == _COMPARED else [0] * (kind in "iu" and seed == _ZEROS)
    if kind == "f" or not np.array_equal(array, usual):
        if not deciding or kind == "b":
            return array
        made = np.where(random.random(array.shape) < _DECIDING, random.choice(deciding, array.shape), array)
    elif array.size == 1:
        return np.full_like(array, random.choice([0, 1, value // 2, 2 * value]))
    else:
        made = random.integers(0, max(value, 1) + 1, array.shape)
    made = made.astype(array.dtype)
    if array.ndim:
        made[..., 0] = array[..., 0]
    return made


_ZEROS, _COMPARED, _DECIDING = 1, 2, 0.25
"""Sets with zeros and with compared numbers, and the share of these."""

_NARROW = 2
"""Bytes of integers that may be images or sounds: the set of compared numbers has all their values."""

_Numbers = Mapping[str, Sequence[float]]
"""Numbers by kind: ``i`` or ``f``."""

_BOUNDS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


def _compared(model: onnx.ModelProto) -> _Numbers:
    """Return the constants that a model compares with; of integers no negative ones, and the neighbours as well."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = (node for node in model.graph.node if node.op_type == "Constant")
    known |= {node.output[0]: value.t for node in nodes for value in node.attribute if value.name == "value"}
    found: dict[str, set[float]] = {"i": set(), "f": set()}
    for node in model.graph.node:
        for name in node.input if node.op_type in _BOUNDS | {"Equal"} else ():
            if name in known and np.prod(known[name].dims) == 1:
                constant = numpy_helper.to_array(known[name])
                if constant.dtype.kind in "iu":
                    found["i"].update(number for step in (-1, 0, 1) if (number := int(constant.item()) + step) >= 0)
                elif constant.dtype.kind == "f" and node.op_type == "Equal":
                    found["f"].add(float(constant.item()))
    return {kind: sorted(numbers) for kind, numbers in found.items()}


_SMALL = 16
"""Elements of a constant that counts with its contents."""

Executed = Counter[int]
"""Number of executed operators by attributes, shapes of constants (contents of small ones), and what they come from."""


def loaded(model: bytes, *, threads: int) -> tuple[Any, Executed]:
    """Load a model, and return it with the operators that the runtime executes."""
    with tempfile.TemporaryDirectory(prefix="dlbricks-executed-") as name:
        path = Path(name) / "executed.onnx"
        runner = session(model, threads=threads, write=path)
        if not path.exists():
            return runner, Counter()
        graph = onnx.load(path).graph
    marks: dict[str, object] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for tensor in graph.initializer:
        if np.prod(tensor.dims) <= _SMALL:  # bounds and numbers change the work
            marks[tensor.name] = tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()
    found: Executed = Counter()
    for node in graph.node:
        attributes = tuple(sorted(repr((attribute.name, _attribute(attribute))) for attribute in node.attribute))
        read = tuple(marks.get(value, value) for value in node.input)
        mark = hash((node.domain, node.op_type, attributes, read))
        found[mark] += 1
        marks.update({value: (mark, slot) for slot, value in enumerate(node.output) if value})
    return runner, found


def _attribute(attribute: onnx.AttributeProto) -> object:
    return attribute.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class CheckVerdict:
    """The result of a check.

    Attributes:
        error: Largest difference of an output, relative to its largest value.
        refusal: Why the model does not compute the same; empty if it does.
        runner: The loaded model; None if it was refused.
        executed: Its executed operators.
    """

    error: float
    refusal: str
    runner: Any = None
    executed: Executed = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Reference:
    """One set of inputs with the outputs of the original and their tolerance."""

    feeds: Feeds
    outputs: Sequence[Any]
    noise: float
    tolerance: float


class Checker:
    """Compares changed models with the original on several inputs.

    Args:
        subject: The original.
        threads: Threads of the runtime.
        noise_ok: Accept differences of the last digits that are larger than the model's own noise.

    Raises:
        ModelError: The original cannot run.
    """

    def __init__(self, subject: CheckedModel, *, threads: int, noise_ok: bool) -> None:
        self._threads = threads
        least = _RELAXED if noise_ok else _LEAST
        data = subject.model.SerializeToString()
        self.runner, self.executed = loaded(data, threads=threads)
        plain = session(data, optimised=False, threads=threads)
        self._references = list[_Reference]()
        self.usable = list[Feeds]()
        self.other: Feeds | None = None
        reason = ""
        for number, feeds in enumerate((*subject.feeds, *subject.other_feeds)):
            scale = _SCALES[number] if number < len(subject.feeds) else 1.0
            try:
                found = _reference(self.runner, plain, feeds, least)
            except Exception as error:  # noqa: BLE001  # an input may be illegal, or a second shape impossible
                reason = reason or " ".join(str(error).split())[:200]
                continue
            overflows = found is not None and scale > 1 and self._references and _is_infinite(found.outputs)
            if overflows and not _is_infinite(self._references[0].outputs):
                continue  # another spelling of a function may overflow later, or not at all
            if found is not None:
                self._references.append(found)
                if number < _RECORDED:
                    self.usable.append(feeds)
                if number >= len(subject.feeds) and self.other is None:
                    self.other = feeds
        if not self.usable:
            raise ModelError(f"the model does not run on any input that was made for it: {reason}")
        for name, array in self.usable[0].items():
            same = all(np.array_equal(array, feeds[name]) for feeds in self.usable)
            if array.dtype.kind in "iub" and array.size and same:
                told = f"input '{name}' was accepted with one value only: a rewrite could hold for no other"
                raise ModelError(told, remedy="make it a constant of the model")

    @property
    def second_shape(self) -> bool:
        """True if a second shape is compared."""
        return self.other is not None

    @property
    def noise(self) -> float:
        """The model's own noise: difference of its outputs without the runtime's optimiser, or after a tiny change."""
        return max(reference.noise for reference in self._references)

    @property
    def tolerance(self) -> float:
        """The smallest tolerance of any set of inputs."""
        return min(reference.tolerance for reference in self._references)

    def check(self, model: bytes) -> CheckVerdict:
        """Compare a model with the original."""
        try:
            runner, executed = loaded(model, threads=self._threads)
        except Exception as error:  # noqa: BLE001  # the runtime refuses it in its own ways
            return CheckVerdict(np.inf, f"the runtime refuses it: {' '.join(str(error).split())[:160]}")
        largest = 0.0
        for reference in self._references:
            try:
                outputs = runner.run(None, dict(reference.feeds))
            except Exception as error:  # noqa: BLE001
                return CheckVerdict(np.inf, f"it does not run: {' '.join(str(error).split())[:160]}")
            error_ = _largest(outputs, reference.outputs)
            if error_ > reference.tolerance:
                return CheckVerdict(error_, f"an output differs by {error_:.2g} of its largest value")
            largest = max(largest, error_)
        return CheckVerdict(largest, "", runner, executed)


def _reference(runner: Any, plain: Any, feeds: Feeds, least: float) -> _Reference | None:
    """Return the outputs for one set of inputs with their noise; None if they are not finite."""
    outputs = runner.run(None, dict(feeds))
    if any(isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any() for value in outputs):
        return None
    random = np.random.default_rng(0)
    shaken = {
        name: (array * (1 + _JITTER * random.standard_normal(array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in feeds.items()
    }
    noise = max(_largest(plain.run(None, dict(feeds)), outputs), _largest(runner.run(None, shaken), outputs) / 10)
    if not np.isfinite(noise):
        return None
    return _Reference(feeds, outputs, noise, min(max(least, _FACTOR * noise), max(_MOST, least)))


def _is_infinite(outputs: Sequence[Any]) -> bool:
    return any(isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isinf(value).any() for value in outputs)


def _largest(own: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the largest relative difference of outputs; infinite if anything but numbers differs."""
    if len(own) != len(other):
        return np.inf
    found = 0.0
    for mine, theirs in zip(own, other, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "fiub":
            same = repr(mine) == repr(theirs)
            found = max(found, 0.0 if same else np.inf)
        elif mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return np.inf
        elif theirs.dtype.kind == "f":
            error = apart(mine, theirs)
            found = max(found, error if np.abs(theirs).max(initial=0) > 1e-30 or error == 0 else np.inf)
        elif not np.array_equal(mine, theirs):
            found = max(found, np.inf)
    return found


def computes_the_same(values: Values, rewrite: Rewrite) -> bool:
    """Return True if the nodes of a rewrite compute the recorded values from the recorded values upstream."""
    made = {name for node in rewrite.nodes for name in node.output}
    reads = {name for node in rewrite.nodes for name in node.input if name} - made - set(rewrite.constants)
    reads -= set(values.graph.constants)
    if any(name not in values.runs[0] for name in reads):
        return True  # a value that cannot be recorded: the outputs decide
    if not reads:
        return True
    runner = values.function(
        rewrite.nodes, {name: values.dtypes[name] for name in reads}, rewrite.values, rewrite.constants
    )
    for run in values.runs:
        found = runner(*(run[name] for name in reads))
        for name, array in zip(rewrite.values, found, strict=True):
            if name not in run:
                continue
            if array.dtype != run[name].dtype:
                return False
            if array.dtype.kind == "f":
                limit = rewrite.close if array.dtype != np.float16 else 10 * rewrite.close
                if apart(array, run[name]) > limit:
                    return False
            elif not np.array_equal(array, run[name]):
                return False
    return True


@dataclass(frozen=True, slots=True)
class Timing:
    """The saving of a change, by a quick look inside one process.

    Attributes:
        saving: Median saving as a share.
        low: Lower end of its 95 % interval.
        high: Upper end.
        before_ms: Median latency before.
    """

    saving: float
    low: float
    high: float
    before_ms: float


_LEAST_S, _FEWEST, _EARLY, _PLAIN = 3e-3, 7, 6, 0.9
"""Seconds of one sample at least; samples at least; samples after which a hopeless change is given up; the ratio of
all samples below which no more are taken."""


class Alternation:
    """Two loaded models that run alternately on the same inputs; on one thread CPU time counts, else elapsed time.

    Args:
        before: The first model.
        after: The second.
        feeds: The inputs.
        threads: Threads of the runtime.
    """

    def __init__(self, before: Any, after: Any, feeds: Feeds, *, threads: int) -> None:
        self._runners, self._feeds = (before, after), dict(feeds)
        self._clock = time.process_time if threads == 1 else time.perf_counter
        self.samples = list[tuple[float, float]]()
        for runner in self._runners:
            runner.run(None, self._feeds)  # the first run prepares kernels
        quickest = min(self._seconds(side, 1) for side in (0, 1))
        self._times = max(1, int(_LEAST_S / max(quickest, 1e-6)))

    def _seconds(self, side: int, times: int) -> float:
        runner, feeds = self._runners[side], self._feeds
        begun = self._clock()
        for _ in range(times):
            runner.run(None, feeds)
        return (self._clock() - begun) / times

    def sample(self) -> None:
        """Take one sample of each, in an order that changes."""
        first = len(self.samples) % 2
        taken = {side: self._seconds(side, self._times) for side in (first, 1 - first)}
        self.samples.append((taken[0], taken[1]))


def compare(before: Any, after: Any, feeds: Feeds, *, threads: int, budget_s: float, longer: int = 3) -> Timing:
    """Return the saving of one loaded model over another by a quick look; an unclear one takes longer."""
    begun = time.perf_counter()
    turns = Alternation(before, after, feeds, threads=threads)
    found = _sampled(turns, begun + budget_s)
    if found.low <= 0 < found.saving:
        found = _sampled(turns, begun + longer * budget_s)
    return found


def _sampled(turns: Alternation, end: float) -> Timing:
    samples, latest = turns.samples, end + (end - time.perf_counter())
    while len(samples) < _FEWEST or time.perf_counter() < end:
        turns.sample()
        ratios = [new / old for old, new in samples]
        if len(samples) == _EARLY and np.median(ratios) > 1.0:
            break
        if len(samples) >= _FEWEST and max(ratios) < _PLAIN:
            break
        if time.perf_counter() > latest and len(samples) >= 3:
            break
    taken = np.array([new / old for old, new in samples])
    drawn = np.random.default_rng(0).integers(0, len(taken), (500, len(taken)))
    low, high = np.percentile(np.median(taken[drawn], 1), (2.5, 97.5))
    before_ms = float(np.median([old for old, _ in samples])) * 1e3
    return Timing(1 - float(np.median(taken)), 1 - float(high), 1 - float(low), before_ms)


@dataclass(frozen=True, slots=True)
class Race:
    """Pairs of files to be timed in one process.

    Attributes:
        path: The original, from which the inputs are made.
        pairs: The files, before and after.
        batch: As ``Request``.
        dims: As ``Request``.
        threads: Threads of the runtime.
        budget_s: Seconds for all samples.
        seed: Number of the process: it decides the order of loading, and so the place of files in memory.
    """

    path: str
    pairs: tuple[tuple[str, str], ...]
    batch: int | None
    dims: tuple[tuple[str, int], ...]
    threads: int
    budget_s: float
    seed: int = 0


Samples = tuple[tuple[tuple[float, float], ...], ...]
"""By pair: seconds before and after of each sample."""


_MOST_BALLAST = 1 << 20
"""Maximum bytes that are allocated between two models, so that their place in memory differs between processes."""


def race(asked: Race) -> Samples:
    """Time pairs of files, sample by sample, one pair after the other in each round."""
    subject = read_subject(Path(asked.path), asked.batch, dict(asked.dims), shapes=False)
    random = np.random.default_rng(asked.seed)
    loaded, ballast = dict[str, Any](), list[Any]()
    for path in random.permutation(sorted({path for pair in asked.pairs for path in pair})):
        ballast.append(np.ones(int(random.integers(1, _MOST_BALLAST)), np.uint8))
        loaded[str(path)] = session(str(path), threads=asked.threads)
    turns = [
        Alternation(loaded[before], loaded[after], subject.feeds[0], threads=asked.threads)
        for before, after in asked.pairs
    ]
    end = time.perf_counter() + asked.budget_s
    while len(turns[0].samples) < _FEWEST or time.perf_counter() < end:
        for turn in turns:
            turn.sample()
    return tuple(tuple(turn.samples) for turn in turns)
