"""``reproduce``: measure the suite of a manifest again and compare the results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Measurement, Run, Store, Subject, merge
from ...db.samples.statistics import Baseline
from ...errors import UsageError, WorkerError
from ...generator.backends.custom_ops import adopt, files_of
from ...generator.backends.environments import locked_environment, own_variables
from ...generator.machine.software import LOCK
from ...generator.machine.system import probe_system
from ...generator.measurement.run import run
from ...generator.measurement.settings import MeasurementSettings
from ...generator.measurement.start import stack_of, state_before
from ...generator.progress import ProgressCallback
from ...tabular import Records, Row, Tabular, fields, flattened, record_of
from ..comparison.difference import Relation, check_minimum_effect
from ..comparison.results import Judged, SidePair, figure_of, measured_pair, with_verdicts
from ..comparison.sides import Timeline
from .manifest import (
    MEASUREMENTS,
    SUITE,
    Manifest,
    Provenance,
    manifest,
    measured_in,
    provenance_of,
    replaceable,
    stored_provenance,
    unpack,
)

# The suite is measured in this environment, or by the Python of another one, which runs this module as a program.


def run_here(
    suite: Suite, database: Path, settings: MeasurementSettings, *, progress: ProgressCallback | None = None
) -> None:
    """Measure a suite in this environment; raises as ``run``."""
    with Store.open(database) as store:
        run(suite, store=store, settings=settings, progress=progress)


def run_with(python: Path, suite: Suite, database: Path, settings: MeasurementSettings) -> None:
    """Measure a suite by another Python.

    Args:
        python: The Python of an environment with dlbricks.
        suite: The bricks.
        database: A new database, for one run.
        settings: The settings of the run.

    Raises:
        UsageError: The settings name a library of custom operators that the caller did not give.
        WorkerError: The run failed; the message contains the reason.
    """
    libraries = files_of(dict(settings.runtime.options))
    order = json.dumps([str(suite.path.resolve()), str(database.resolve()), settings.record(), libraries])
    done = subprocess.run(
        [str(python), "-P", "-m", __name__, order],
        env=own_variables(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]  # of a traceback
        kind, _, reason = last.partition(": ")
        raise WorkerError(f"{python} did not measure: {reason if kind.startswith('dlbricks.errors.') else last}")


_OF_FILE = ("wheel", "sha256")
"""Fields of a package's file. They do not matter if both sides know the package's contents."""

MINIMUM_EFFECT = 0.15
"""Default relative difference below which a latency is reproduced. For two runs of two processes each, of one brick on
one thread (``scatter.json``), the 95 % interval of the ratio reaches 8 % to either side, and the ratio misses 1 by up
to 5 % in four of five cases: 13 %, rounded up."""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field that differs; None for an unknown or absent value.

    Attributes:
        field: Its path, such as ``hardware.governor`` or ``software.packages.numpy.version``.
        manifest: Its value in the manifest.
        here: Its value here.
    """

    field: str
    manifest: Any
    here: Any


def differences(base: Provenance, here: Provenance) -> tuple[FieldDifference, ...]:
    """Return the fields of machine, software, packages and settings that differ.

    Args:
        base: As the manifest says.
        here: The same here.
    """
    ours, theirs = (dict(flattened(asdict(provenance))) for provenance in (base, here))

    def matters(name: str) -> bool:
        package, _, last = name.rpartition(".")
        contents = ours.get(f"{package}.contents") if last in _OF_FILE else None
        return contents is None or contents != theirs.get(f"{package}.contents")

    return tuple(
        FieldDifference(name, ours.get(name), theirs.get(name))
        for name in dict.fromkeys([*ours, *theirs])
        if ours.get(name) != theirs.get(name) and matters(name)
    )


@dataclass(frozen=True, slots=True)
class ReproducedBrick(Judged):
    """A brick in the manifest (the base) and here; without a verdict if it was not measured here.

    Attributes:
        pair: The brick in the manifest and here.
        key: Key of the brick.
        operators: Its operators.
        cache: Its cache state.
    """

    pair: SidePair
    key: str
    operators: tuple[str, ...]
    cache: str

    def record(self) -> Row:
        """Return a JSON object; latencies are undisturbed ones if both sides know them, else means."""
        stated, here = self.pair.compared
        return {
            **record_of(self, fields("key operators cache")),
            "manifest_ms": None if stated is None else stated.ms,
            "here_ms": None if here is None else here.ms,
            **self.judgement(),
        }


@dataclass(frozen=True, slots=True)
class Reproduction(Tabular):
    """A manifest measured again.

    Attributes:
        rows: Its bricks; empty if nothing was measured.
        differences: Fields that differ between the manifest and here.
        environment: ``lock``: rebuilt from the lock file, ``here``: this one; None if nothing was measured.
        minimum_effect: Relative difference that matters.
        machine: Ratios of times here to times in the manifest: of the quietest probes outside any runtime
            (``compute``, ``memory``), and of an empty call of the runtime (``call``). If they differ from 1, the
            machine is another one or was busy.
        missing: Keys of bricks of the suite without a measurement in the manifest.
    """

    ANSWER = "report.answers.reproduction.reproduction_answer"

    rows: tuple[ReproducedBrick, ...]
    differences: tuple[FieldDifference, ...]
    environment: str | None
    minimum_effect: float
    machine: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """True if the manifest has every brick of the suite, and each a verdict unless nothing was measured."""
        measured = bool(self.rows) and all(row.verdict is not None for row in self.rows)
        return not self.missing and (self.environment is None or measured)

    @property
    def verdicts(self) -> Mapping[Relation, int]:
        """Number of bricks by verdict."""
        return Counter(row.verdict for row in self.rows if row.verdict is not None)

    @property
    def ratio(self) -> float | None:
        """Geometric mean of the bricks' ratios."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return statistics.geometric_mean(ratios) if ratios else None

    def records(self) -> Records:
        """Return one row per brick of the manifest; the totals contain every difference."""
        shares = {str(verdict): self.verdicts.get(verdict, 0) for verdict in Relation}
        totals = {
            **record_of(self, fields("environment minimum_effect")),
            "verdicts": None if self.environment is None else shares,
            "ratio": self.ratio,
            "machine": dict(self.machine),
            "missing": list(self.missing),
            "differences": [asdict(difference) for difference in self.differences],
        }
        return Records([row.record() for row in self.rows], totals)


def reproduce(
    stated: str | os.PathLike[str],
    *,
    suite: Suite | str | os.PathLike[str] | None = None,
    here: bool = False,
    lock: Path | None = None,
    dry_run: bool = False,
    out: str | os.PathLike[str] | None = None,
    minimum_effect: float = MINIMUM_EFFECT,
    progress: ProgressCallback | None = None,
) -> Reproduction:
    """Measure the suite of a manifest again with its settings, in its environment, and compare.

    Args:
        stated: The file.
        suite: The same suite from another source, to be measured in place of the file's copy.
        here: Measure in this environment, instead of one made from the lock file.
        lock: Lock file of the environment, in place of the manifest's own.
        dry_run: Only name differences of this machine and environment; nothing is installed or measured.
        out: Also write a manifest of the new measurements to this file.
        minimum_effect: Relative difference that matters.
        progress: Called between requests if this environment measures.

    Raises:
        UsageError: The file is not a manifest, the suite is another one, there is no lock file, or the minimum effect
            is not positive.
        SuiteError: The suite cannot be read.
        BackendUnavailable: The environment cannot be made, or the runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: The other environment failed.
        OSError: The new manifest cannot be written.

    Example:
        >>> reproduce("results.zip").verdicts  # doctest: +SKIP
    """
    check_minimum_effect(minimum_effect)
    target = None if out is None else replaceable(out)
    with TemporaryDirectory(prefix="dlbricks-reproduce-") as name:
        folder = Path(name)
        base = unpack(stated, folder)
        opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite or folder / SUITE))
        if opened.hash != base.suite:
            raise UsageError(
                f"suite {opened.path} is {opened.hash[:12]}, and the manifest is about {base.suite[:12]}",
                remedy="leave out --suite: the file contains the suite" if suite else "get the file again",
            )
        settings = MeasurementSettings.of(base.provenance.settings)
        with Store.open(folder / MEASUREMENTS, read_only=True) as store:
            then = next((run for run in store.runs() if run.id == base.run), None)
            if then is None:
                raise UsageError(f"{stated}: its measurements are not of run {base.run}", remedy="get the file again")
            measured = {brick.key for brick in measured_in(store, then, Subject.BRICK, opened.keys)}
        missing = tuple(key for key in opened.keys if key not in measured)
        if dry_run:
            differ = differences(base.provenance, _provenance_here(settings))
            return Reproduction((), differ, None, minimum_effect, missing=missing)
        database = folder / "again.db"
        if here:
            run_here(opened, database, settings, progress=progress)
        else:
            run_with(locked_environment(lock or _lock(base, folder)), opened, database, settings)
        with Store.open(database) as store:
            (now,) = store.runs()
            differ = differences(base.provenance, stored_provenance(store, now))
            merge(store, folder / MEASUREMENTS)
            rows = _compare_bricks(store, then, now, opened, minimum_effect)
            machine = _machine(store, then, now)
            if target is not None:
                manifest(opened, target, store=store, run=now.id)
    return Reproduction(rows, differ, "here" if here else "lock", minimum_effect, machine, missing)


def _provenance_here(settings: MeasurementSettings) -> Provenance:
    stack = stack_of(settings.runtime)
    return provenance_of(probe_system(), stack, state_before(stack), settings.record())


def _lock(base: Manifest, folder: Path) -> Path:
    """Return the lock file in a folder of an unpacked manifest.

    Raises:
        UsageError: The manifest has none.
    """
    if base.lock is None:
        lacking = base.provenance.without_hash
        raise UsageError(
            f"the manifest has no lock file, because the hashes of {len(lacking)} packages were unknown: "
            f"{', '.join(lacking)}",
            remedy="measure in this environment with --here, name a lock file with --lock, or have it written again "
            "with --hashes",
        )
    return folder / LOCK


def _compare_bricks(
    store: Store, then: Run, now: Run, suite: Suite, minimum_effect: float
) -> tuple[ReproducedBrick, ...]:
    """Return the bricks of one run, compared with another run as ``compare`` does."""
    base, again = (
        {_place(brick): brick for brick in measured_in(store, run, Subject.BRICK, suite.keys)} for run in (then, now)
    )
    both = [key_and_state for key_and_state in base if key_and_state in again]
    bricks = [side[key_and_state] for side in (base, again) for key_and_state in both]
    uncertainty = Uncertainty(bricks, store.blocks_of([brick.id for brick in bricks]), store.stacks())
    timeline = Timeline(store)
    pairs = with_verdicts(
        [measured_pair(base[key_and_state], again[key_and_state], timeline, uncertainty) for key_and_state in both],
        minimum_effect,
    )
    judged = dict(zip(both, pairs, strict=True))
    failures = store.failures(subject=Subject.BRICK, keys=suite.keys)
    reasons = {failure.key: f"{failure.kind}: {failure.reason}" for failure in failures if failure.run == now.id}
    return tuple(
        ReproducedBrick(
            judged.get(key_and_state) or SidePair(figure_of(brick), reason=reasons.get(brick.key, "not measured")),
            brick.key,
            suite.brick(brick.key).operators,
            brick.conditions.cache,
        )
        for key_and_state, brick in base.items()
    )


def _place(measurement: Measurement) -> tuple[str, str]:
    return measurement.key, measurement.conditions.cache


def _machine(store: Store, then: Run, now: Run) -> dict[str, float]:
    """Return the ratios of times of probes and calls, now to then."""
    before, after = (_witnesses(store, run) for run in (then, now))
    return {name: after[name] / ns for name, ns in before.items() if name in after and ns > 0}


def _witnesses(store: Store, run: Run) -> dict[str, float]:
    calls = measured_in(store, run, Subject.REFERENCE, [built_in_key(OVERHEAD)])
    baseline = Baseline.of_run(run)
    probes = {} if baseline is None else {"compute": baseline.compute_ns, "memory": baseline.memory_ns}
    return probes | ({"call": calls[0].latency_ns} if calls else {})


if __name__ == "__main__":
    _suite, _database, _settings, _libraries = json.loads(sys.argv[1])
    adopt(_libraries)
    run_here(Suite.open(_suite), Path(_database), MeasurementSettings.of(_settings))
