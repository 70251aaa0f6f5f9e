"""``reproduce``: what a manifest says, measured once more, and held against it."""

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
from ...tabular import Records, Row, Tabular, flattened
from ..comparison.difference import Relation, welch
from ..comparison.results import Judged, SidePair, figure_of, measured_pair, pair_without_time, verdicts_of
from ..comparison.sides import compare_across_runs
from .manifest import Manifest, Recorded, manifest, read_manifest
from .parts import data_part, hardware_part, software_part

# A suite measured by the Python of another environment, into a database of its own.
#
# The other Python runs this module as a program; it has this very dlbricks, or the one of its lock file.


def run_here(
    suite: Suite, database: Path, settings: MeasurementSettings, *, progress: ProgressCallback | None = None
) -> None:
    """Measure a suite in this environment; raises as ``run``."""
    with Store.open(database) as store:
        run(suite, store=store, settings=settings, progress=progress)


def run_with(python: Path, suite: Suite, database: Path, settings: MeasurementSettings) -> None:
    """Measure a suite by another Python.

    Args:
        python: Of an environment that has dlbricks.
        suite: The bricks.
        database: Is made, and holds one run afterwards.
        settings: How to measure.

    Raises:
        UsageError: A library of custom operators that the settings name was not given here.
        WorkerError: It failed; the message says why.
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
        said = [line for line in done.stderr.splitlines() if line.strip()]
        why = said[-1] if said else f"exit status {done.returncode}"
        kind, _, reason = why.partition(": ")  # the last line of a traceback
        raise WorkerError(f"{python} did not measure: {reason if kind.startswith('dlbricks.errors.') else why}")


def _main() -> None:
    suite, database, settings, libraries = json.loads(sys.argv[1])
    adopt(libraries)
    run_here(Suite.open(suite), Path(database), MeasurementSettings.of(settings))


# In what a machine and its software differ from those of a manifest, field by field.


_DERIVED = frozenset({"software.lock", "software.without_hash"})
"""What follows from the packages."""

_OF_FILE = ("wheel", "sha256")
"""Of a package: the file that it came from. Where both sides know what is in it, nothing hangs on that."""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that differs; None: not known there, or not there.

    Attributes:
        field: Its path, such as ``hardware.governor`` or ``software.packages.numpy.version``.
        manifest: What the manifest says.
        here: What it is here.
    """

    field: str
    manifest: Any
    here: Any


def differences(base: Manifest, here: Manifest) -> tuple[FieldDifference, ...]:
    """Every field of the machine, the software, the models, the data and the settings in which two manifests differ.

    Args:
        base: The one that was handed on.
        here: Of the same suite, here.
    """
    ours, theirs = (dict(flattened(manifest.parts)) for manifest in (base, here))
    names = [name for name in dict.fromkeys([*ours, *theirs]) if name not in _DERIVED]
    return tuple(
        FieldDifference(name, ours.get(name), theirs.get(name))
        for name in names
        if ours.get(name) != theirs.get(name) and not _same_contents(name, ours, theirs)
    )


def _same_contents(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a field is about the file of a package whose files are the same on both sides."""
    package, _, last = name.rpartition(".")
    known = [side.get(f"{package}.contents") for side in (ours, theirs)]
    return last in _OF_FILE and known[0] is not None and known[0] == known[1]


MINIMUM_EFFECT = 0.15
"""Relative difference below which a latency counts as reproduced, where nothing else is asked for. Two runs apart, of
two processes each, of one brick on one thread scatter so (``scatter.json``) that the 95 % interval of their ratio
reaches 8 % to either side and the ratio itself misses 1 by up to 5 % in four of five cases: 13 %, and a bit."""

_NAMED = 3
"""Packages or bricks that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedBrick(Judged):
    """One brick of a manifest, the base, and the same brick here; without a verdict where it was not measured here.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        cache: Cache state that it was measured in.
    """

    key: str
    operators: tuple[str, ...]
    cache: str

    def record(self) -> Row:
        """As a JSON object; latencies are those on a quiet machine where both sides know that, else means."""
        stated, here = self.pair.compared
        return {
            "key": self.key,
            "operators": self.operators,
            "cache": self.cache,
            "manifest_ms": None if stated is None else stated.ms,
            "here_ms": None if here is None else here.ms,
            **self.judgement(),
        }


@dataclass(frozen=True, slots=True)
class Reproduction(Tabular):
    """What came of measuring a manifest again.

    Attributes:
        rows: Its bricks; none where nothing was measured.
        differences: Every field in which machine or software differ.
        environment: ``lock``: rebuilt from the lock file, ``here``: this one; None where nothing was measured.
        minimum_effect: Relative difference that matters.
        manifest: What was measured, as a manifest of its own; None where nothing was.
        machine: What probes outside any runtime (``compute``, ``memory``, each at its quietest) and a call of the
            runtime that does nothing (``call``) took here, in times of what they took by the manifest: where these
            moved, the machine was another, or busy otherwise.
        missing: Keys of bricks of the suite that the manifest has no measurement of: nothing is said of these.
    """

    rows: tuple[ReproducedBrick, ...]
    differences: tuple[FieldDifference, ...]
    environment: str | None
    minimum_effect: float
    manifest: Manifest | None = None
    machine: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether the manifest has every brick of the suite, and each a verdict unless nothing was to be measured."""
        measured = bool(self.rows) and all(row.verdict is not None for row in self.rows)
        return not self.missing and (self.environment is None or measured)

    @property
    def verdicts(self) -> Mapping[Relation, int]:
        """Bricks by verdict."""
        return Counter(row.verdict for row in self.rows if row.verdict is not None)

    @property
    def ratio(self) -> float | None:
        """Geometric mean of the ratios: what all bricks have in common."""
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return statistics.geometric_mean(ratios) if ratios else None

    def records(self) -> Records:
        """One row per brick of the manifest, and beside them every difference."""
        shares = {str(verdict): self.verdicts.get(verdict, 0) for verdict in Relation}
        totals = {
            "environment": self.environment,
            "minimum_effect": self.minimum_effect,
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
        suite: The suite that it is about, or its folder.
        here: Measure in this environment, instead of one that is made from the lock file.
        lock: Lock file of the environment, in place of the manifest's own.
        dry_run: Only name the differences of this machine and this environment; nothing is installed or measured.
        minimum_effect: Relative difference that matters.
        progress: Called between requests where this environment measures.

    Raises:
        UsageError: It is no manifest, the suite is another one or lacks bricks of it, the manifest has no lock file and
            none is given, or the minimum effect is not positive.
        BackendUnavailable: The environment cannot be made, or the runtime cannot be used here.
        MachineBusy: Another process is measuring.
        WorkerError: The other environment failed.

    Example:
        >>> reproduce("results.json", suite="suite").verdicts  # doctest: +SKIP
    """
    if not 0 < minimum_effect < float("inf"):
        raise UsageError(f"a minimum effect of {minimum_effect} is not positive", remedy="write 0.15 for 15 %")
    base = stated if isinstance(stated, Manifest) else read_manifest(stated)
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    if opened.hash != base.model["suite"]:
        raise UsageError(
            f"suite {opened.path} is {opened.hash[:12]}, and the manifest is about {base.model['suite'][:12]}",
            remedy="generate it again with the same version and options, or ask for the very folder",
        )
    known = {recorded.measurement.key for recorded in base.bricks}
    if strange := known - set(opened.keys):
        raise UsageError(f"the manifest has bricks that suite {opened.path} has not: {_some(sorted(strange))}")
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
    """How much longer our own probes and calls took here."""
    then, now = (_witnesses(manifest) for manifest in (base, again))
    return {name: now[name] / taken for name, taken in then.items() if name in now and taken > 0}


def _witnesses(manifest: Manifest) -> dict[str, float]:
    found = dict(zip(("compute", "memory"), manifest.log["probes_ns"] or (), strict=False))
    call = next((row["latency_ns"] for row in manifest.log["references"] if row["name"] == OVERHEAD), None)
    return found if call is None else found | {"call": call}


def _lock(base: Manifest, given: Path | None, folder: Path) -> Path:
    """The lock file: the one that was given, else the manifest's, written to a folder."""
    if given is not None:
        return given
    text = base.software.get("lock")
    if text is None:
        lacking = _some(base.software["without_hash"]) or "its packages"
        raise UsageError(
            f"the manifest has no lock file: the hashes of {lacking} were not known where it was written",
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
    """What this machine and this environment are, and all else as the manifest says."""
    settings = MeasurementSettings.of(base.settings)
    stack = stack_of(settings.runtime)
    software = software_part(stack, software_state(tuple(name for name, _ in stack.versions)))
    data = data_part(base.settings, software)
    return replace(base, hardware=hardware_part(probe_system(), machine_state()), software=software, data=data)


def _compare_bricks(
    base: Manifest, again: Manifest, suite: Suite, minimum_effect: float
) -> tuple[ReproducedBrick, ...]:
    """Return the bricks of a manifest with their verdicts; both sides come from different runs."""
    stacks = {manifest.stack.key: manifest.stack for manifest in (base, again)}
    found = {_place(recorded): recorded for recorded in again.bricks}
    failed = {failure["key"]: failure["kind"] for failure in again.log["failures"]}
    same = alike(_low_probes(base), _low_probes(again))
    pairs = [_pair(recorded, found.get(_place(recorded)), stacks, same=same) for recorded in base.bricks]
    rows = []
    for recorded, pair, (verdict, reason) in zip(base.bricks, pairs, verdicts_of(pairs, minimum_effect), strict=True):
        key, cache = _place(recorded)
        known = (key, cache) in found
        operators = suite.brick(key).operators
        row = ReproducedBrick(pair, verdict, reason, key=key, operators=operators, cache=cache)
        rows.append(row if known else replace(row, verdict=None, reason=failed.get(key, "not measured")))
    return tuple(rows)


def _low_probes(manifest: Manifest) -> tuple[float, float] | None:
    """Return what probes took at the machine's best moments; None where the manifest does not say, or says nonsense."""
    match manifest.log.get("probes_low_ns"):
        case [float(compute_ns), float(memory_ns)] if compute_ns > 0 and memory_ns > 0:
            return compute_ns, memory_ns
    return None


def _place(recorded: Recorded) -> tuple[str, str]:
    return recorded.measurement.key, recorded.measurement.conditions.cache


def _pair(base: Recorded, again: Recorded | None, stacks: Mapping[str, Stack], *, same: bool) -> SidePair:
    """Return a brick of a manifest and the same brick here, which may not be measured."""
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
    _main()
