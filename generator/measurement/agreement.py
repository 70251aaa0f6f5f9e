"""Whether a backend computes what another one does: every brick of a suite, on the same seeded inputs and weights.

A latency of something else is no latency of the brick. Each backend runs in a worker of its own, so that one which
crashes or hangs costs the brick alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ...bricks.suite.suite import Suite
from ...db.values import NATIVE
from ...errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError, WorkerError
from ...tabular import Records, Tabular
from ..backends.registry import get, require_available
from ..backends.requirements import require_dtype
from ..network.difference import relative_difference
from ..progress import Progress, ProgressCallback, Stage
from ..worker.requests import Prepare
from ..worker.standby import Standby, start_worker

__all__ = ["TOLERANCES", "Agreement", "AgreementReport", "Outcome", "agreements", "check_agreement", "difference"]

TOLERANCES: Mapping[str, float] = {NATIVE: 1e-3, "bfloat16": 5e-2, "float16": 1e-2, "int8": 2e-1}
"""Largest error by precision, as a share of the output's largest value: sums are added up in another order.

Of an integer or truth-valued output so many elements may differ: what lies on an edge may fall to either side.
"""


class Outcome(StrEnum):
    """What came out for a brick."""

    SAME = "same"
    DIFFERENT = "different"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    """The backend failed, or its worker died."""
    UNCHECKED = "unchecked"
    """The backend ran it; that which it is held against could not."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One brick in one backend beside another.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        verdict: What came out.
        error: Largest difference as a share of the output's largest value, over all outputs; None where there is none.
        reason: Why it is not ``same``.
    """

    key: str
    operators: tuple[str, ...]
    verdict: Outcome
    error: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AgreementReport(Tabular):
    """All bricks of a suite.

    Attributes:
        backend: What was checked.
        against: What it was checked against.
        dtype: Precision it computed in.
        tolerance: Largest error that counts as the same.
        rows: One per brick, sorted by key.
    """

    backend: str
    against: str
    dtype: str
    tolerance: float
    rows: tuple[Agreement, ...]

    @property
    def complete(self) -> bool:
        """Whether every brick is known to compute the same."""
        return all(row.verdict is Outcome.SAME for row in self.rows)

    def count(self, verdict: Outcome) -> int:
        """Bricks with a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    def records(self) -> Records:
        """One row per brick that does not compute the same, counts beside them."""
        rows = [
            asdict(row) | {"operators": list(row.operators), "verdict": str(row.verdict)}
            for row in self.rows
            if row.verdict is not Outcome.SAME
        ]
        totals = {name: getattr(self, name) for name in ("backend", "against", "dtype", "tolerance")} | {
            "worst_error": max((row.error for row in self.rows if row.error is not None), default=None),
            "counts": {str(verdict): self.count(verdict) for verdict in Outcome},
            "reasons": dict(Counter(row.reason for row in self.rows if row.reason is not None)),
        }
        return Records(rows, totals)


def check_agreement(
    suite: Suite,
    backend: str,
    *,
    against: str = "onnxruntime",
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    dtype: str = NATIVE,
    seed: int = 0,
    timeout_s: float = 120.0,
    progress: ProgressCallback | None = None,
) -> AgreementReport:
    """Run every brick in two backends and compare the outputs.

    Args:
        suite: Of source or fused bricks: those of an executed graph are of one stack's making.
        backend: What to check.
        against: What to check it against, on the CPU with default options, in each network's own precision.
        device: Of ``backend``.
        options: Of ``backend``.
        dtype: What ``backend`` computes in; ``TOLERANCES`` has what each precision may cost.
        seed: Of weights and inputs.
        timeout_s: For each brick and backend.
        progress: Called after each brick.

    Raises:
        UsageError: A wrong option or precision, or bricks that one stack only can run.
        BackendUnavailable: A runtime, or the device, cannot be used here.
        BackendError: A runtime cannot be set up as asked.
        WorkerError: A worker cannot be started.
        SuiteError: A brick is missing or not what its name says.
    """
    rows = []
    begun = time.monotonic()
    for row in agreements(
        suite,
        backend,
        against=against,
        device=device,
        options=options,
        dtype=dtype,
        seed=seed,
        timeout_s=timeout_s,
    ):
        rows.append(row)
        if progress is not None:
            elapsed_s = time.monotonic() - begun
            progress(Progress(Stage.CHECK, len(rows), len(suite.keys), " ".join(row.operators), elapsed_s))
    return AgreementReport(backend, against, dtype, _tolerance(dtype), tuple(rows))


def agreements(
    suite: Suite,
    backend: str,
    *,
    keys: Collection[str] | None = None,
    against: str = "onnxruntime",
    device: str = "cpu",
    options: Mapping[str, str] | None = None,
    dtype: str = NATIVE,
    seed: int = 0,
    timeout_s: float = 120.0,
) -> Generator[Agreement, None, None]:
    """What ``check_agreement`` finds, one brick after the other: whoever asks may keep each row, and stop at any.

    Args:
        suite: As for ``check_agreement``, and so is everything but ``keys``.
        backend: Likewise.
        keys: Only these bricks; None: all of the suite.
        against: Likewise.
        device: Likewise.
        options: Likewise.
        dtype: Likewise.
        seed: Likewise.
        timeout_s: Likewise.

    Yields:
        One row per brick, in the order of the keys.

    Raises:
        UsageError: As ``check_agreement``; with the first row.
        BackendUnavailable: Likewise.
        BackendError: A runtime cannot be set up as asked.
        WorkerError: A worker cannot be started.
        SuiteError: As ``check_agreement``.
    """
    if suite.bound_to is not None:
        raise UsageError(f"suite {suite.path} holds the bricks of one stack", remedy="check one with --graph source")
    with ExitStack() as resources:
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="dlbricks-agreement-")))
        both = [
            resources.enter_context(
                _Runner(name, on, chosen, precision, place=folder / f"{role}.npz", seed=seed, timeout_s=timeout_s)
            )
            for role, name, on, chosen, precision in [
                ("own", backend, device, options or {}, dtype),
                ("other", against, "cpu", {}, NATIVE),
            ]
        ]
        for runner in both:
            _ = runner.worker  # what ails the runtime itself is no brick's fault, and is reported once
        for key in suite.keys:
            if keys is None or key in keys:
                operators = suite.brick(key).operators
                path = suite.brick_path(key).resolve()
                yield _compare(key, tuple(operators), path, both, _tolerance(dtype))


def _tolerance(dtype: str) -> float:
    return TOLERANCES.get(dtype, max(TOLERANCES.values()))


class _Runner(Standby):
    """One backend's worker."""

    def __init__(
        self,
        backend: str,
        device: str,
        options: Mapping[str, str],
        dtype: str,
        *,
        place: Path,
        seed: int,
        timeout_s: float,
    ) -> None:
        runtime = get(backend)
        require_dtype(runtime, dtype, device)
        resolved = runtime.resolve(device, options)
        require_available(runtime, backend, device)
        memory_bytes = psutil.virtual_memory().available // 2
        super().__init__(
            partial(start_worker, backend, device=device, options=resolved, memory_bytes=memory_bytes, dtype=dtype)
        )
        self.name = runtime.name
        self._place = place
        self._seed = seed
        self._timeout_s = timeout_s

    def outputs(self, path: Path) -> dict[str, npt.NDArray[Any]]:
        """Inputs and outputs of one execution of a brick."""
        worker = self.worker
        request = Prepare(id="brick", path=str(path), synthetic=True, seed=self._seed, unroll=1)
        worker.prepare(request, timeout_s=self._timeout_s)
        worker.outputs("brick", self._place, timeout_s=self._timeout_s)
        worker.release("brick")
        with np.load(self._place, allow_pickle=False) as arrays:
            return dict(arrays)


def _compare(key: str, operators: tuple[str, ...], path: Path, both: Sequence[_Runner], tolerance: float) -> Agreement:
    try:
        own = both[0].outputs(path)
    except UnsupportedBrick as error:
        return Agreement(key, operators, Outcome.UNSUPPORTED, reason=str(error))
    except BackendUnavailable:
        raise  # no brick can be checked
    except (BackendError, WorkerError) as error:
        return Agreement(key, operators, Outcome.FAILED, reason=str(error))
    try:
        other = both[1].outputs(path)
    except (BackendError, WorkerError) as error:
        return Agreement(key, operators, Outcome.UNCHECKED, reason=f"{both[1].name}: {error}")
    worst = 0.0
    for name in other:
        if own[name].shape != other[name].shape:
            text = f"{name} has shape {own[name].shape}, and {other[name].shape} in the other backend"
            return Agreement(key, operators, Outcome.DIFFERENT, reason=text)
        apart = difference(own[name], other[name])
        worst = max(worst, apart)
        if not apart <= tolerance:
            text = f"{name} differs by {apart:.1e} of its largest value, more than {tolerance:.0e}"
            return Agreement(key, operators, Outcome.DIFFERENT, error=apart, reason=text)
    return Agreement(key, operators, Outcome.SAME, error=worst)


def difference(own: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """How far two arrays of one shape are apart.

    Args:
        own: Any values.
        other: Likewise.

    Returns:
        For numbers of a fraction the largest difference over the largest finite value of ``other``, infinite where one
        is finite and the other is not; for all else the share of elements that differ.
    """
    if not other.size:
        return 0.0
    if other.dtype.kind != "f":
        return float(np.mean(own != other))
    return relative_difference(own, other)
