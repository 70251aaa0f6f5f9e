"""``reproduce``: what a manifest says, measured once more, and held against it."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...bricks.reference import OVERHEAD
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.calibration import scatters
from ...db import Stack, Store, Subject, Verdict
from ...db.samples.statistics import alike
from ...errors import UsageError
from ...generator.backends.environments import locked_environment
from ...generator.backends.registry import get
from ...generator.machine.software import software_state
from ...generator.machine.system import machine_state, probe_system
from ...generator.measurement.settings import MeasurementSettings
from ...generator.progress import ProgressCallback
from ...tabular import Records, Tabular
from ..comparison.difference import Relation, difference, welch
from ..comparison.results import Figure, Pair
from ..comparison.side_by_side import judged
from ..comparison.timeline import compared_apart
from .differences import FieldDifference, differences
from .manifest import Manifest, Recorded, manifest, read_manifest
from .parts import data_part, hardware_part, software_part
from .rerun import run_here, run_with

__all__ = ["MINIMUM_EFFECT", "ReproducedBrick", "Reproduction", "reproduce"]

MINIMUM_EFFECT = 0.15
"""Relative difference below which a latency counts as reproduced, where nothing else is asked for. Two runs apart, of
two processes each, of one brick on one thread scatter so (``scatter.json``) that the 95 % interval of their ratio
reaches 8 % to either side and the ratio itself misses 1 by up to 5 % in four of five cases: 13 %, and a bit."""

_NS_PER_MS = 1e6
_NAMED = 3
"""Packages or bricks that an error names."""


@dataclass(frozen=True, slots=True)
class ReproducedBrick:
    """One brick of a manifest and the same brick here.

    Attributes:
        key: Key of the brick.
        operators: Its operators.
        cache: Cache state that it was measured in.
        manifest_ms: Its latency by the manifest: on a quiet machine where both sides know that, else the mean.
        here_ms: Here; None where it was not measured.
        ratio: ``here_ms / manifest_ms``.
        ratio_ci95: Its interval, with what runs differ by.
        verdict: What it is here; None where it was not measured.
        reason: Why it is UNCLEAR, or was not measured.
    """

    key: str
    operators: tuple[str, ...]
    cache: str
    manifest_ms: float
    here_ms: float | None = None
    ratio: float | None = None
    ratio_ci95: tuple[float, float] | None = None
    verdict: Relation | None = None
    reason: str | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


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
            "differences": [asdict(one) for one in self.differences],
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
    known = {one.measurement.key for one in base.measurements if one.measurement.subject is Subject.BRICK}
    if strange := known - set(opened.keys):
        raise UsageError(f"the manifest has bricks that suite {opened.path} has not: {_some(sorted(strange))}")
    missing = tuple(key for key in opened.keys if key not in known)
    if dry_run:
        return Reproduction((), differences(base, _here(base)), None, minimum_effect, missing=missing)
    settings = MeasurementSettings(**base.settings)
    with TemporaryDirectory(prefix="dlbricks-reproduce-") as name:
        database = Path(name) / "again.db"
        if here:
            run_here(opened, database, settings, progress=progress)
        else:
            run_with(locked_environment(_lock(base, lock, Path(name))), opened, database, settings)
        with Store.open(database, read_only=True, create=False) as store:
            again = manifest(opened, store=store)
    rows = _compared(base, again, opened, minimum_effect)
    environment, differ = "here" if here else "lock", differences(base, again)
    return Reproduction(rows, differ, environment, minimum_effect, again, _machine(base, again), missing)


def _machine(base: Manifest, again: Manifest) -> dict[str, float]:
    """How much longer our own probes and calls took here."""
    known = [_witnesses(one) for one in (base, again)]
    return {name: known[1][name] / taken for name, taken in known[0].items() if name in known[1] and taken > 0}


def _witnesses(one: Manifest) -> dict[str, float]:
    found = dict(zip(("compute", "memory"), one.log["probes_ns"] or (), strict=False))
    call = next((row["latency_ns"] for row in one.log["references"] if row["name"] == OVERHEAD), None)
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
    settings = MeasurementSettings(**base.settings)
    stack = get(settings.backend).stack(settings.device, settings.options)
    software = software_part(stack, software_state(tuple(name for name, _ in stack.versions)))
    data = data_part(base.settings, software)
    return replace(base, hardware=hardware_part(probe_system(), machine_state()), software=software, data=data)


def _compared(base: Manifest, again: Manifest, suite: Suite, minimum_effect: float) -> tuple[ReproducedBrick, ...]:
    stacks = {one.stack.key: one.stack for one in (base, again)}
    found = {_place(one): one for one in again.measurements}
    failed = {one["key"]: one["kind"] for one in again.log["failures"]}
    same = alike(_low_probes(base), _low_probes(again))
    rows, pairs = [], []
    for one in base.measurements:
        key, own = one.measurement.key, one.measurement
        if own.subject is not Subject.BRICK:
            continue
        row = ReproducedBrick(key, suite.brick(key).operators, own.conditions.cache, own.latency_ms)
        other = found.get(_place(one))
        if other is None:
            rows.append(replace(row, reason=failed.get(key, "not measured")))
            continue
        row, pair = _pair(row, one, other, stacks, same=same)
        rows.append(row)
        pairs.append(pair)
    verdicts = iter(judged(pairs, minimum_effect))
    return tuple(
        row if row.here_ms is None else replace(row, verdict=verdict, reason=reason)
        for row in rows
        for verdict, reason in [(None, None) if row.here_ms is None else next(verdicts)]
    )


def _low_probes(one: Manifest) -> tuple[float, float] | None:
    """What probes took at the machine's best moments; None where the manifest does not say, or says nonsense."""
    match one.log.get("probes_low_ns"):
        case [float(compute_ns), float(memory_ns)] if compute_ns > 0 and memory_ns > 0:
            return compute_ns, memory_ns
    return None


def _place(one: Recorded) -> tuple[object, ...]:
    return one.measurement.subject, one.measurement.key, one.measurement.conditions.cache


def _pair(
    row: ReproducedBrick, one: Recorded, other: Recorded, stacks: Mapping[str, Stack], *, same: bool
) -> tuple[ReproducedBrick, Pair]:
    """Both with their difference; they were not visited in turn."""
    base, again = one.measurement, other.measurement
    pair = Pair(
        Figure(),
        Figure(),
        "measured",
        apart=True,
        guessed=not all(scatters(stacks, each).known for each in (base, again)),
        noisy=Verdict.UNSTABLE in {base.summary.verdict, again.summary.verdict},
    )
    if base.latency_ns <= 0 or again.latency_ns <= 0:
        return replace(row, here_ms=again.latency_ms), replace(pair, reason="it takes no time that could be measured")
    compared = compared_apart(base, again, stacks, same=same)
    error, degrees = _error(one, other, undisturbed=compared.undisturbed)
    seen = difference(compared.base_ns, compared.other_ns, error=error, degrees=degrees, apart=compared.apart)
    row = replace(
        row,
        manifest_ms=compared.base_ns / _NS_PER_MS,
        here_ms=compared.other_ns / _NS_PER_MS,
        ratio=seen.ratio,
        ratio_ci95=seen.ci95,
    )
    return row, replace(pair, difference=seen)


def _error(one: Recorded, other: Recorded, *, undisturbed: bool) -> tuple[float, float]:
    """Standard error of the difference of two logarithms, and its degrees of freedom."""
    if undisturbed and one.undisturbed is not None and other.undisturbed is not None:
        return welch(one.undisturbed, other.undisturbed)
    return welch((one.error, one.degrees), (other.error, other.degrees))
