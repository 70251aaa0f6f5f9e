"""Compare a changed model with the original: outputs on several inputs, next to the model's own noise."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ...errors import ModelError
from .checked_model import CheckedModel
from .recording import Feeds, apart, session

_RECORDED = 2
"""Number of input sets with recorded interior values; the wide ones only count for the outputs."""

_OTHERS = 4
"""Number of other shapes."""

_JITTER = 1e-6
"""Relative change of inputs that shows how far a model amplifies rounding errors."""

_LEAST, _MOST, _RELAXED = 1e-4, 5e-3, 1e-3
"""Tolerance of outputs relative to their largest value: at least, at most, and at least if noise is accepted."""

_CHAOTIC = 0.03
"""Noise from which the outputs for a hostile input are not compared."""

_FACTOR = 3.0
"""Tolerance as a multiple of the model's own noise."""

_SMALL = 16
"""Elements of a constant that counts with its contents."""

_MOST_BYTES = 200_000_000
"""Size of a model from which its executed operators are not looked at."""

Executed = Counter[int]
"""Number of executed operators by attributes, shapes of constants (contents of small ones), and what they come from."""


def loaded(model: bytes, *, threads: int) -> tuple[Any, Executed]:
    """Load a model, and return it with the operators that the runtime executes; with none for a large model."""
    if len(model) > _MOST_BYTES:
        return session(model, threads=threads), Counter()
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
    executed: Executed = Counter()
    for node in graph.node:
        attributes = tuple(sorted(repr((attribute.name, _attribute(attribute))) for attribute in node.attribute))
        read = tuple(marks.get(value, value) for value in node.input)
        mark = hash((node.domain, node.op_type, attributes, read))
        executed[mark] += 1
        marks.update({value: (mark, slot) for slot, value in enumerate(node.output) if value})
    return runner, executed


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
    """One set of inputs with the outputs of the original, their noise and tolerance; hostile ones have a name."""

    feeds: Feeds
    outputs: Sequence[Any]
    noise: float
    tolerance: float
    name: str = ""


class Checker:
    """Compares changed models with the original on several inputs.

    Args:
        subject: The original.
        threads: Threads of the runtime.
        noise_ok: Accept differences of the last digits that are larger than the model's own noise.
        until: When no further inputs are tried once there are some, on ``time.perf_counter``.

    Attributes:
        usable: Inputs at the measured shape that the model accepts.
        others: Inputs at other shapes that it accepts.

    Raises:
        ModelError: The original cannot run.
    """

    def __init__(self, subject: CheckedModel, *, threads: int, noise_ok: bool, until: float = np.inf) -> None:
        self._threads, self._subject = threads, subject
        self._least = _RELAXED if noise_ok else _LEAST
        data = subject.model.SerializeToString()
        self.runner, self.executed = loaded(data, threads=threads)
        self._plain = session(data, optimised=False, threads=threads)
        self._references = list[_Reference]()
        self._hostile: list[_Reference] | None = None
        self.usable, self.others = list[Feeds](), list[Feeds]()
        reasons = list[str]()
        for number, feeds in enumerate(subject.feeds):
            if len(self.usable) >= _RECORDED and number > subject.data and time.perf_counter() > until:
                break
            if self._refer(feeds, reasons) and number < subject.data + _RECORDED:
                self.usable.append(feeds)
        if not self.usable:
            raise ModelError(
                f"no input that was made for the model can be used: {next(iter(reasons), 'none was made')}"
            )
        for feeds in subject.other_shapes():
            enough = len(self.others) == _OTHERS or (self.others and time.perf_counter() > until)
            if not enough and self._refer(feeds, reasons):
                self.others.append(feeds)

    def _refer(self, feeds: Feeds, reasons: list[str]) -> bool:
        """Compare models on some inputs from now on, if the original accepts them."""
        try:
            reference = _reference(self.runner, self._plain, feeds, self._least, self._subject.values.names())
        except Exception as error:  # noqa: BLE001  # an input may be illegal, or another shape impossible
            reasons.append(" ".join(str(error).split())[:200])
            return False
        self._references.append(reference)
        return True

    @property
    def noise(self) -> float:
        """The model's own noise: difference of its outputs without the runtime's optimiser, or after a tiny change."""
        return max(reference.noise for reference in self._references)

    @property
    def tolerance(self) -> float:
        """The smallest tolerance of any set of inputs."""
        return min(reference.tolerance for reference in self._references)

    def check(self, model: bytes) -> CheckVerdict:
        """Compare a model with the original on ordinary inputs."""
        try:
            runner, executed = loaded(model, threads=self._threads)
        except Exception as error:  # noqa: BLE001  # the runtime refuses it in its own ways
            return CheckVerdict(np.inf, f"the runtime refuses it: {' '.join(str(error).split())[:160]}")
        verdict = _compared(runner, self._references)
        return CheckVerdict(verdict.error, verdict.refusal, *(() if verdict.refusal else (runner, executed)))

    def check_hostile(self, runner: Any, *, until: float) -> str:
        """Compare a loaded model with the original on inputs that guards exist for; return what differs.

        Args:
            runner: The model.
            until: When to stop collecting such inputs, on ``time.perf_counter``.
        """
        if self._hostile is None:
            self._hostile = list[_Reference]()
            for name, feeds in self._subject.hostile():
                if time.perf_counter() > until:
                    break
                try:
                    outputs, noise = _outputs(self.runner, self._plain, feeds, self._subject.values.names())
                except Exception:  # noqa: BLE001, S112  # the model does not accept them
                    continue
                if noise < _CHAOTIC:  # otherwise rounding decides the outputs
                    self._hostile.append(_Reference(feeds, outputs, noise, max(self._least, 10 * noise), name))
        return _compared(runner, self._hostile).refusal

    @property
    def hostile(self) -> int:
        """Number of hostile inputs that were compared."""
        return len(self._hostile or ())


def _compared(runner: Any, references: Iterable[_Reference]) -> CheckVerdict:
    largest = 0.0
    for reference in references:
        try:
            outputs = runner.run(None, dict(reference.feeds))
        except Exception as error:  # noqa: BLE001  # the runtime refuses it in its own ways
            return CheckVerdict(np.inf, f"it does not run: {' '.join(str(error).split())[:160]}")
        error_ = _largest(outputs, reference.outputs)
        if error_ > reference.tolerance:
            told = f" on inputs of the kind '{reference.name}'" if reference.name else ""
            return CheckVerdict(error_, f"an output differs by {error_:.2g} of its largest value{told}")
        largest = max(largest, error_)
    return CheckVerdict(largest, "")


def _reference(runner: Any, plain: Any, feeds: Feeds, least: float, fixed: Collection[str]) -> _Reference:
    """Return the outputs for one set of inputs with their noise.

    Raises:
        ModelError: They cannot be compared.
    """
    outputs, noise = _outputs(runner, plain, feeds, fixed)
    if any(isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isnan(value).any() for value in outputs):
        raise ModelError("outputs are NaN")
    if not np.isfinite(noise):
        raise ModelError(
            "an output, such as an index or a shape, changes where rounding differs: it cannot be compared"
        )
    return _Reference(feeds, outputs, noise, min(max(least, _FACTOR * noise), max(_MOST, least)))


def _outputs(runner: Any, plain: Any, feeds: Feeds, fixed: Collection[str]) -> tuple[Sequence[Any], float]:
    """Return the outputs for some inputs, and their difference by rounding alone; ``fixed`` inputs stay."""
    outputs = runner.run(None, dict(feeds))
    random = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        shaken = {
            name: np.asarray(array * (1 + _JITTER * random.standard_normal(array.shape)), array.dtype)
            if array.dtype.kind == "f" and name not in fixed
            else array
            for name, array in feeds.items()
        }
    noise = max(_largest(plain.run(None, dict(feeds)), outputs), _largest(runner.run(None, shaken), outputs) / 10)
    return outputs, noise


def _largest(outputs: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the largest relative difference of outputs; infinite if anything but numbers differs."""
    if len(outputs) != len(other):
        return np.inf
    largest = 0.0
    for mine, theirs in zip(outputs, other, strict=True):
        if not isinstance(theirs, np.ndarray) or theirs.dtype.kind not in "fiub":
            same = repr(mine) == repr(theirs)
            largest = max(largest, 0.0 if same else np.inf)
        elif mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            return np.inf
        elif theirs.dtype.kind == "f":
            error = apart(mine, theirs)
            most = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
            largest = max(largest, error if most > 1e-30 or error == 0 else np.inf)
        elif not np.array_equal(mine, theirs):
            largest = max(largest, np.inf)
    return largest
