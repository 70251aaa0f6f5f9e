"""Check that two backends compute the same for every brick of a suite, on the same seeded inputs and weights.

The latency of a different computation is not the brick's latency. Each backend runs in a separate worker, so that a
crash or a hang loses only the current brick.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ...bricks.suite.suite import Suite
from ...db.values import NATIVE, Runtime
from ...errors import BackendError, BackendUnavailable, UnsupportedBrick, UsageError, WorkerError
from ...tabular import Records, Tabular
from ..backends.registry import get, require_available
from ..network.network import relative_difference
from ..progress import Progress, ProgressCallback, Stage
from ..worker.client import Workers, start_worker
from ..worker.messages import Load, NetworkFile, PackMember, Place

TOLERANCES: Mapping[str, float] = {NATIVE: 1e-3, "bfloat16": 5e-2, "float16": 1e-2, "int8": 2e-1}
"""Largest error by precision, as a share of the output's largest value: backends add in different orders.

For integer and Boolean outputs it is the share of elements that may differ: a value on an edge may be rounded either
way.
"""


class Outcome(StrEnum):
    """Result of the comparison for one brick."""

    SAME = "same"
    DIFFERENT = "different"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    """The backend failed, or its worker died."""
    UNCHECKED = "unchecked"
    """The backend ran it; the reference backend could not."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Comparison of one brick in two backends.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        verdict: Result of the comparison.
        error: Largest difference as a share of the output's largest value, over all outputs; None without a comparison.
        reason: Why it is not ``same``.
    """

    key: str
    operators: tuple[str, ...]
    verdict: Outcome
    error: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class AgreementReport(Tabular):
    """Comparison of all bricks of a suite.

    Attributes:
        backend: The backend that was checked.
        against: The reference backend.
        dtype: Precision of the checked backend.
        tolerance: Largest error that counts as the same.
        rows: One per brick, sorted by key.
    """

    ANSWER = "report.answers.resources.agreement_answer"

    backend: str
    against: str
    dtype: str
    tolerance: float
    rows: tuple[Agreement, ...]

    @property
    def complete(self) -> bool:
        """True if both backends compute the same for every brick."""
        return all(row.verdict is Outcome.SAME for row in self.rows)

    def count(self, verdict: Outcome) -> int:
        """Return the number of bricks with a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    def records(self) -> Records:
        """Return one row per brick with another verdict than ``same``, and counts as totals."""
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
        suite: Source or fused bricks; bricks of an executed graph run on one stack only.
        backend: Backend to check.
        against: Reference backend, on the CPU with default options, in each network's own precision.
        device: Device of ``backend``.
        options: Options of ``backend``.
        dtype: Precision of ``backend``; ``TOLERANCES`` has the largest error of each precision.
        seed: Seed of weights and inputs.
        timeout_s: Time limit for each brick and backend.
        progress: Called after each brick.

    Raises:
        UsageError: An option or precision is wrong, or only one stack can run the bricks.
        BackendUnavailable: A runtime, or the device, cannot be used here.
        BackendError: A runtime cannot be set up with these options.
        WorkerError: A worker cannot be started.
        SuiteError: A brick is missing, or its content does not match its name.
    """
    _check_suite(suite)
    rows = []
    begun = time.monotonic()
    place, reference = checked_place(backend, device, options, dtype), checked_place(against)
    for row in agreements(suite, place, reference, seed=seed, timeout_s=timeout_s):
        rows.append(row)
        if progress is not None:
            elapsed_s = time.monotonic() - begun
            progress(Progress(Stage.CHECK, len(rows), len(suite.keys), " ".join(row.operators), elapsed_s))
    return AgreementReport(backend, against, dtype, _tolerance(dtype), tuple(rows))


def agreements(
    suite: Suite,
    place: Place,
    reference: Place,
    *,
    keys: Collection[str] | None = None,
    seed: int = 0,
    timeout_s: float = 120.0,
) -> Generator[Agreement, None, None]:
    """Yield the rows of ``check_agreement`` one by one, so that the caller can keep each row and stop after any.

    Args:
        suite: Source or fused bricks.
        place: Where the checked backend runs (``checked_place``).
        reference: Where the reference backend runs.
        keys: Keys of the bricks to check; None: all bricks of the suite.
        seed: Seed of weights and inputs.
        timeout_s: Time limit for each brick and backend.

    Yields:
        One row per brick, in the order of the keys.

    Raises as ``check_agreement``, when the first row is requested.
    """
    _check_suite(suite)
    places = (place, reference)
    start = partial(start_worker, memory_bytes=psutil.virtual_memory().available // 2)
    with TemporaryDirectory(prefix="dlbricks-agreement-") as folder, Workers(start) as workers:
        for each in places:
            workers.at(each)  # an error of the runtime itself concerns all bricks: report it once
        outputs = partial(_outputs, workers, to=Path(folder) / "outputs.npz", seed=seed, timeout_s=timeout_s)
        for key in suite.keys:
            if keys is None or key in keys:
                blank = Agreement(key, tuple(suite.brick(key).operators), Outcome.SAME)
                yield _compare(blank, suite.brick_path(key).resolve(), places, outputs)


def _check_suite(suite: Suite) -> None:
    if suite.bound_to is not None:
        raise UsageError(f"suite {suite.path} holds the bricks of one stack", remedy="check one with --graph source")


def _tolerance(dtype: str) -> float:
    return TOLERANCES.get(dtype, max(TOLERANCES.values()))


def checked_place(
    name: str, device: str = "cpu", options: Mapping[str, str] | None = None, dtype: str = NATIVE
) -> Place:
    """Return the place at which a backend runs bricks, after checking that the backend is available.

    Raises:
        UsageError: An option or precision is wrong.
        BackendUnavailable: The runtime, or the device, cannot be used here.
    """
    backend = get(name)
    backend.require_dtype(dtype, device)
    resolved = backend.resolve(device, options or {})
    require_available(backend, name, device)
    return Place(Runtime.of(name, device, resolved), dtype=dtype)


def _outputs(
    workers: Workers[Place], place: Place, path: Path, *, to: Path, seed: int, timeout_s: float
) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs and outputs of one execution of a brick."""
    worker = workers.at(place)
    member = PackMember("brick", NetworkFile(path=str(path), synthetic=True, seed=seed))
    worker.load(Load(id="brick", members=(member,)), timeout_s=timeout_s)
    worker.outputs("brick", to, timeout_s=timeout_s)
    worker.drop("brick")
    with np.load(to, allow_pickle=False) as arrays:
        return dict(arrays)


def _compare(
    blank: Agreement,
    path: Path,
    places: tuple[Place, Place],
    outputs: Callable[[Place, Path], dict[str, npt.NDArray[Any]]],
) -> Agreement:
    """Return the row of a brick, given the row without a result."""
    place, reference = places
    try:
        arrays = outputs(place, path)
    except UnsupportedBrick as error:
        return replace(blank, verdict=Outcome.UNSUPPORTED, reason=str(error))
    except BackendUnavailable:
        raise  # no brick can be checked
    except (BackendError, WorkerError) as error:
        return replace(blank, verdict=Outcome.FAILED, reason=str(error))
    try:
        reference_arrays = outputs(reference, path)
    except (BackendError, WorkerError) as error:
        return replace(blank, verdict=Outcome.UNCHECKED, reason=f"{reference.runtime.backend}: {error}")
    worst, tolerance = 0.0, _tolerance(place.dtype)
    for name in reference_arrays:
        if arrays[name].shape != reference_arrays[name].shape:
            text = f"{name} has shape {arrays[name].shape}, and {reference_arrays[name].shape} in the other backend"
            return replace(blank, verdict=Outcome.DIFFERENT, reason=text)
        apart = difference(arrays[name], reference_arrays[name])
        worst = max(worst, apart)
        if not apart <= tolerance:
            text = f"{name} differs by {apart:.1e} of its largest value, more than {tolerance:.0e}"
            return replace(blank, verdict=Outcome.DIFFERENT, error=apart, reason=text)
    return replace(blank, error=worst)


def difference(values: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the difference of two arrays of one shape.

    Returns:
        For floating-point numbers, the largest difference divided by the largest finite value of ``other``; infinite if
        an element is finite in one array only. For other types, the share of elements that differ.
    """
    if not other.size:
        return 0.0
    if other.dtype.kind != "f":
        return float(np.mean(values != other))
    return relative_difference(values, other)
