"""``reproduce``: measure the suite of a manifest again and compare the results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...bricks.reference import OVERHEAD
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.calibration import scatters
from ...db import Stack
from ...db.samples.statistics import alike
from ...db.store import Store
from ...errors import UsageError, WorkerError
from ...generator.backends.custom_ops import adopt, files_of
from ...generator.backends.environments import locked_environment, own_variables
from ...generator.machine.software import software_state
from ...generator.machine.system import machine_state, probe_system
from ...generator.measurement.run import run
from ...generator.measurement.settings import MeasurementSettings
from ...generator.measurement.start import stack_of
from ...generator.progress import ProgressCallback
from ...tabular import Records, Row, Tabular, fields, flattened, record_of
from ..comparison.difference import Relation, check_minimum_effect, welch
from ..comparison.results import Judged, SidePair, figure_of, measured_pair, pair_without_time, with_verdicts
from ..comparison.sides import compare_across_runs
from .manifest import Manifest, Recorded, data_part, hardware_part, manifest, read_manifest, software_part

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


_DERIVED = frozenset({"software.lock", "software.without_hash"})
"""Fields that follow from the packages."""

_OF_FILE = ("wheel", "sha256")
"""Fields of a package's file. They do not matter if both sides know the package's contents."""

MINIMUM_EFFECT = 0.15
"""Default relative difference below which a latency is reproduced. For two runs of two processes each, of one brick on
one thread (``scatter.json``), the 95 % interval of the ratio reaches 8 % to either side, and the ratio misses 1 by up
to 5 % in four of five cases: 13 %, rounded up."""

_NAMED = 3
"""Packages or bricks that an error names."""


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


def differences(base: Manifest, here: Manifest) -> tuple[FieldDifference, ...]:
    """Return the fields of machine, software, models, data and settings that differ between two manifests.

    Args:
        base: The given manifest.
        here: The manifest of the same suite here.
    """
    ours, theirs = (dict(flattened(manifest.parts)) for manifest in (base, here))

    def matters(name: str) -> bool:
        package, _, last = name.rpartition(".")
        contents = ours.get(f"{package}.contents") if last in _OF_FILE else None
        return name not in _DERIVED and (contents is None or contents != theirs.get(f"{package}.contents"))

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
        manifest: The manifest of the new measurements; None if nothing was measured.
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
    manifest: Manifest | None = None
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
    stated: Manifest | str | os.PathLike[str],
    *,
    suite: Suite | str | os.PathLike[str],
    here: bool = False,
    lock: Path | None = None,
    dry_run: bool = False,
    minimum_effect: float = MINIMUM_EFFECT,
    progress: ProgressCallback | None = None,
) -> Reproduction:
    """Measure the suite of a manifest again with its settings, in its environment, and compare.

    Args:
        stated: The manifest, or its file.
        suite: The suite of the manifest, or its folder.
        here: Measure in this environment, instead of one made from the lock file.
        lock: Lock file of the environment, in place of the manifest's own.
        dry_run: Only name differences of this machine and environment; nothing is installed or measured.
        minimum_effect: Relative difference that matters.
        progress: Called between requests if this environment measures.

    Raises:
        UsageError: The file is not a manifest, the suite is another one or lacks bricks of it, there is no lock file,
            or the minimum effect is not positive.
        BackendUnavailable: The environment cannot be made, or the runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: The other environment failed.

    Example:
        >>> reproduce("results.json", suite="suite").verdicts  # doctest: +SKIP
    """
    check_minimum_effect(minimum_effect)
    base = stated if isinstance(stated, Manifest) else read_manifest(stated)
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    if opened.hash != base.model["suite"]:
        raise UsageError(
            f"suite {opened.path} is {opened.hash[:12]}, and the manifest is about {base.model['suite'][:12]}",
            remedy="generate it again with the same version and options, or ask for its folder",
        )
    known = {recorded.measurement.key for recorded in base.bricks}
    if strange := known - set(opened.keys):
        raise UsageError(f"the manifest has bricks that suite {opened.path} lacks: {_some(sorted(strange))}")
    missing = tuple(key for key in opened.keys if key not in known)
    if dry_run:
        return Reproduction((), differences(base, _here(base)), None, minimum_effect, missing=missing)
    settings = MeasurementSettings.of(base.settings)
    with TemporaryDirectory(prefix="dlbricks-reproduce-") as name:
        database = Path(name) / "again.db"
        if here:
            run_here(opened, database, settings, progress=progress)
        else:
            run_with(locked_environment(_lock(base, lock, Path(name))), opened, database, settings)
        with Store.open(database, read_only=True, create=False) as store:
            again = manifest(opened, store=store)
    rows = _compare_bricks(base, again, opened, minimum_effect)
    environment, differ = "here" if here else "lock", differences(base, again)
    return Reproduction(rows, differ, environment, minimum_effect, again, _machine(base, again), missing)


def _machine(base: Manifest, again: Manifest) -> dict[str, float]:
    """Return the ratios of times of probes and calls, here to the manifest."""
    then, now = (
        dict([*zip(("compute", "memory"), manifest.log["probes_ns"] or (), strict=False), *_calls(manifest)])
        for manifest in (base, again)
    )
    return {name: now[name] / taken for name, taken in then.items() if name in now and taken > 0}


def _calls(manifest: Manifest) -> list[tuple[str, float]]:
    return [("call", row["latency_ns"]) for row in manifest.log["references"] if row["name"] == OVERHEAD]


def _lock(base: Manifest, given: Path | None, folder: Path) -> Path:
    """Return the given lock file, or write the manifest's to a folder."""
    if given is not None:
        return given
    text = base.software["lock"]
    if text is None:
        lacking = _some(base.software["without_hash"]) or "its packages"
        raise UsageError(
            f"the manifest has no lock file, because the hashes of {lacking} were unknown",
            remedy="measure in this environment with --here, name a lock file with --lock, or have it written again "
            "with --hashes",
        )
    path = folder / "pylock.toml"
    path.write_text(text)
    return path


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _here(base: Manifest) -> Manifest:
    """Return the manifest with this machine and environment in place of its own."""
    stack = stack_of(MeasurementSettings.of(base.settings).runtime)
    software = software_part(stack, software_state(tuple(name for name, _ in stack.versions)))
    data = data_part(base.settings, software)
    return replace(base, hardware=hardware_part(probe_system(), machine_state()), software=software, data=data)


def _compare_bricks(
    base: Manifest, again: Manifest, suite: Suite, minimum_effect: float
) -> tuple[ReproducedBrick, ...]:
    """Return the bricks of a manifest with their verdicts, as measurements of different runs."""
    stacks = {manifest.stack.key: manifest.stack for manifest in (base, again)}
    found = {_place(recorded): recorded for recorded in again.bricks}
    failed = {failure["key"]: failure["kind"] for failure in again.log["failures"]}
    same = alike(_low_probes(base), _low_probes(again))
    pairs = [_pair(recorded, found.get(_place(recorded)), stacks, same=same) for recorded in base.bricks]
    rows = []
    for recorded, judged in zip(base.bricks, with_verdicts(pairs, minimum_effect), strict=True):
        key, cache = _place(recorded)
        pair = judged
        if (key, cache) not in found:
            pair = replace(judged, verdict=None, reason=failed.get(key, "not measured"))
        rows.append(ReproducedBrick(pair, key, suite.brick(key).operators, cache))
    return tuple(rows)


def _low_probes(manifest: Manifest) -> tuple[float, float] | None:
    """Return the probe times of the machine's best moments; None if missing or invalid."""
    match manifest.log.get("probes_low_ns"):
        case [float(compute_ns), float(memory_ns)] if compute_ns > 0 and memory_ns > 0:
            return compute_ns, memory_ns
    return None


def _place(recorded: Recorded) -> tuple[str, str]:
    return recorded.measurement.key, recorded.measurement.conditions.cache


def _pair(base: Recorded, again: Recorded | None, stacks: Mapping[str, Stack], *, same: bool) -> SidePair:
    """Return a brick of a manifest with its new measurement, if there is one."""
    ours = base.measurement
    if again is None:
        return SidePair(figure_of(ours))
    theirs = again.measurement
    if (pair := pair_without_time(ours, theirs)) is not None:
        return pair
    compared = compare_across_runs(ours, theirs, stacks, same=same)
    error = welch(base.error, again.error)
    if compared.undisturbed and base.undisturbed is not None and again.undisturbed is not None:
        error = welch(base.undisturbed, again.undisturbed)
    calibrated = all(scatters(stacks, measurement).known for measurement in (ours, theirs))
    return measured_pair(ours, theirs, compared, error, calibrated=calibrated)


if __name__ == "__main__":
    _suite, _database, _settings, _libraries = json.loads(sys.argv[1])
    adopt(_libraries)
    run_here(Suite.open(_suite), Path(_database), MeasurementSettings.of(_settings))
