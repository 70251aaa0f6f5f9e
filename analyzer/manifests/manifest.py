"""A manifest: one run of a suite as a statement to hand on, in the shape of in-toto (v1).

Everything that decided the latencies stands in it, and the latencies themselves: whoever has the suite can measure the
same again and compare (``reproduce``). It holds no path, and no name of a host, node, campaign or person; names of
models, and their latencies, only where the suite itself has the names.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import msgspec

from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.exporting import PUBLIC_STATE, public_values
from ...db.queries import Filter
from ...db.samples.statistics import BASELINE, Baseline, low_probes
from ...db.values import content_key
from ...errors import AmbiguousQuery, UsageError
from ...generator.measurement.settings import MeasurementFields, MeasurementSettings
from ...generator.measurement.start import SOFTWARE
from ..estimation.query import Query, QueryFields, asked
from .parts import Shape, data_part, hardware_part, model_part, refuse_paths, software_part, with_hashes

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:dlbricks:manifest:1"
"""What the statement says; the number changes with its meaning."""

_SHOWN = 8
"""Characters of a run's id in messages."""


_ONCE = frozenset({"id", "run", "system", "stack"})
"""Fields of a measurement that are the same of all in a manifest, or mean nothing elsewhere."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One measurement of a manifest.

    Attributes:
        measurement: As stored.
        error: Its relative standard error, by what time blocks and processes differ by, and its degrees of freedom.
        undisturbed: Both of its undisturbed latency; None where that is not known.
    """

    measurement: Measurement
    error: tuple[float, float]
    undisturbed: tuple[float, float] | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object, without what the manifest states once."""
        taken = asdict(self.measurement)
        fields = {**taken.pop("identity"), **taken.pop("summary"), **taken}
        error, degrees = self.error
        own = {"error": error, "degrees": degrees, "undisturbed_error": self.undisturbed}
        return {name: value for name, value in fields.items() if name not in _ONCE} | own


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run of a suite measured, and on and with what.

    Attributes:
        hardware: The machine and how it was set up (``hardware_part``).
        software: The runtime, its options, Python, packages, the lock (``software_part``).
        model: The suite, how it was cut, and the models (``model_part``).
        data: Seed and generator of weights and inputs.
        settings: Of the run: ``MeasurementFields``.
        log: When, the state of the machine, probes, reference networks, failures, and what is missing.
        measurements: Bricks of the suite, and whole models where it names them.
    """

    hardware: Mapping[str, Any]
    software: Mapping[str, Any]
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    log: Mapping[str, Any]
    measurements: tuple[Recorded, ...]

    @property
    def complete(self) -> bool:
        """Whether every brick of the suite is in it."""
        return not self.log["missing"]

    @property
    def stack(self) -> Stack:
        """Backend, device, versions and options."""
        return _stack(self.software)

    @property
    def bricks(self) -> tuple[Recorded, ...]:
        """The measurements of bricks."""
        return tuple(known for known in self.measurements if known.measurement.subject is Subject.BRICK)

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """What decided the latencies, by name."""
        return {
            "hardware": self.hardware,
            "software": self.software,
            "model": self.model,
            "data": self.data,
            "settings": self.settings,
        }

    def statement(self) -> dict[str, Any]:
        """As the JSON object of the file: an in-toto statement about the measurements and the suite."""
        measured = [recorded.record() for recorded in self.measurements]
        return {
            "_type": STATEMENT,
            "subject": [
                {"name": "measurements", "digest": {"sha256": content_key(measured)}},
                {"name": "suite", "digest": {"sha256": self.model["suite"]}},
            ],
            "predicateType": PREDICATE,
            "predicate": {**self.parts, "reference_log": self.log, "measurements": measured},
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all; what is there is replaced.

        Raises:
            OSError: It cannot be written.
        """
        place, text = Path(path), json.dumps(self.statement(), indent=1) + "\n"
        if place.exists() and not place.is_file():  # a pipe, say: nothing can take its place
            place.write_text(text)
            return
        place = place.resolve()
        partial = place.with_name(f".{uuid.uuid4().hex}.partial")
        try:
            partial.write_text(text)
            partial.replace(place)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            partial.unlink(missing_ok=True)


def _stack(software: Mapping[str, Any]) -> Stack:
    versions, options = (tuple(sorted(software[name].items())) for name in ("versions", "options"))
    return Stack(software["backend"], software["device"], versions, options)


def manifest(
    suite: Suite | str | os.PathLike[str],
    *,
    store: Store,
    run: str | None = None,
    hashes: bool = False,
    query: Query | None = None,
    **fields: Unpack[QueryFields],
) -> Manifest:
    """Say of a run of a suite what it measured, and on and with what; nothing is measured.

    Args:
        suite: The suite that was run, or its folder.
        store: Where it is stored.
        run: Id of the run, or its beginning; None for the newest finished one.
        hashes: Ask pip, and the indexes that it is configured for, for the wheels whose hashes no record of the
            installation has; each must be what is installed.
        query: Narrows which runs there are.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Raises:
        UsageError: No finished run of this suite matches, or an option of the runtime may be a path.
        AmbiguousQuery: Runs under several conditions match.
        SuiteError: The suite cannot be read.
        StoreError: The database cannot be read.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     manifest("suite", store=store).write("results.json")
    """
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    chosen = _run_of(store, opened, run, asked(query, fields))
    stack = store.stacks()[chosen.stack]
    settings = {name: chosen.options[name] for name in MeasurementFields.__annotations__ if name in chosen.options}
    refuse_paths(stack, settings)
    recorded = chosen.before.get(SOFTWARE)
    if hashes and isinstance(recorded, Mapping):
        recorded = {**recorded, "packages": with_hashes(recorded["packages"])}
    software = software_part(stack, recorded if isinstance(recorded, Mapping) else None)
    bricks = _of_run(store, chosen, Subject.BRICK, opened.keys)
    models = [] if opened.annotations is None else _of_run(store, chosen, Subject.MODEL, None)
    blocks = store.blocks_of([measurement.id for measurement in (*bricks, *models)])
    uncertainty = Uncertainty((*bricks, *models), blocks, store.stacks())
    baseline, dims = Baseline.of_run(chosen), chosen.options.get("dims")
    return Manifest(
        hardware=hardware_part(store.systems()[chosen.system], chosen.before),
        software=software,
        model=model_part(opened, [model.key for model in models], dims if isinstance(dims, Mapping) else {}),
        data=data_part(settings, software),
        settings=settings,
        log=_log(store, opened, chosen, low_probes(block for taken in blocks.values() for block in taken), bricks),
        measurements=tuple(_recorded(measurement, uncertainty, baseline) for measurement in (*bricks, *models)),
    )


def _log(
    store: Store, suite: Suite, run: Run, low: tuple[float, float] | None, bricks: Collection[Measurement]
) -> dict[str, Any]:
    """When it was, the state of the machine as far as that is nobody's secret, and what failed or is missing."""
    after = run.after or {}
    found = {brick.key for brick in bricks}
    failed = store.failures(_filter(run, Subject.BRICK, suite.keys))
    return {
        "run": run.id,
        "command": run.command,
        "started": run.started,
        "finished": run.finished,
        "before": public_values(run.before, PUBLIC_STATE),
        "after": public_values(after, PUBLIC_STATE),
        "probes_ns": after.get(BASELINE),
        "probes_low_ns": None if low is None else list(low),
        "references": [
            {
                "key": reference.key,
                "name": OVERHEAD if reference.key == built_in_key(OVERHEAD) else None,
                "latency_ns": reference.latency_ns,
                "ci95_ns": list(reference.ci95_ns),
            }
            for reference in _of_run(store, run, Subject.REFERENCE, None)
        ],
        "failures": [{"key": failure.key, "kind": failure.kind} for failure in failed if failure.run == run.id],
        "missing": [key for key in suite.keys if key not in found],
    }


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest.

    Raises:
        UsageError: It is not there, is no manifest, lacks a field or has one of another type, is of a newer dlbricks,
            or its measurements were changed.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no manifest: {error}", remedy="dlbricks manifest writes one") from error
    if not isinstance(found, dict) or found.get("_type") != STATEMENT or found.get("predicateType") != PREDICATE:
        kind = found.get("predicateType") if isinstance(found, dict) else type(found).__name__
        raise UsageError(f"{path} is no manifest of dlbricks, or of another version: it is {kind}")
    try:
        said = found["predicate"]
        digests = {subject["name"]: subject["digest"]["sha256"] for subject in found["subject"]}
        if digests["measurements"] != content_key(said["measurements"]) or digests["suite"] != said["model"]["suite"]:
            raise UsageError(f"{path} was changed: its measurements or its suite are not those that it states")
        msgspec.convert(said, Shape)
        MeasurementSettings.of(said["settings"]).check()
        system, stack, log = content_key(said["hardware"]), _stack(said["software"]).key, said["reference_log"]
        once = {"run": log["run"], "system": system, "stack": stack}
        measured = (_read({"id": str(place), **once}, row) for place, row in enumerate(said["measurements"]))
        return Manifest(
            said["hardware"], said["software"], said["model"], said["data"], said["settings"], log, tuple(measured)
        )
    except msgspec.ValidationError as error:
        raise UsageError(f"{path} is no manifest of dlbricks: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path} is no manifest of dlbricks: {error!r}") from error


def _read(once: Mapping[str, str], row: Mapping[str, Any]) -> Recorded:
    """Return a measurement from its row and what the manifest states once."""
    measurement = msgspec.convert({**row, **once, "summary": row, "identity": {**row, **once}}, Measurement)
    error = msgspec.convert((row["error"], row["degrees"]), tuple[float, float])
    undisturbed = msgspec.convert(row.get("undisturbed_error"), tuple[float, float] | None)
    recorded = Recorded(measurement, error, undisturbed)
    known = recorded.record()
    if unknown := {*row, *row["conditions"]} - {*known, *known["conditions"]}:
        raise ValueError(f"measurement {once['id']} has fields that are not known: {', '.join(sorted(unknown))}")
    sound = all(0 <= sd < math.inf and 0 < degrees < math.inf for sd, degrees in filter(None, (error, undisturbed)))
    if not sound or (measurement.undisturbed_ns or 0) < 0:
        raise ValueError(f"measurement {once['id']} has a negative latency, or an error that is none")
    return recorded


def _recorded(measurement: Measurement, uncertainty: Uncertainty, baseline: Baseline | None) -> Recorded:
    if measurement.latency_ns <= 0:
        return Recorded(measurement, (0.0, 1.0))
    error = uncertainty.error_ns({measurement.id: 1 / measurement.latency_ns})
    return Recorded(measurement, error, uncertainty.undisturbed_error(measurement.id, baseline))


def _of_run(store: Store, run: Run, subject: Subject, keys: Collection[str] | None) -> list[Measurement]:
    found = store.measurements(_filter(run, subject, keys), latest=False)
    return [measurement for measurement in found if measurement.run == run.id]


def _filter(run: Run, subject: Subject, keys: Collection[str] | None) -> Filter:
    return Filter(subject, keys, run.system, run.stack)


def _run_of(store: Store, suite: Suite, id_: str | None, query: Query) -> Run:
    """Return the newest finished run of a suite, or the one that is meant.

    Raises:
        UsageError: There is none.
        AmbiguousQuery: Runs under several conditions match.
    """
    stacks = store.stacks()
    known = [run for run in store.runs() if run.suite == suite.hash and run.finished is not None]
    found = [run for run in known if run.id.startswith(id_ or "") and _matches(run, stacks[run.stack], query)]
    if not found:
        which = f"; finished are {_listed(known)}" if known else ""
        raise UsageError(
            f"no finished run of suite {suite.path} is stored as asked{which}", remedy=f"dlbricks run {suite.path}"
        )
    if len({(run.system, run.stack, *_conditions(run)) for run in found}) > 1 or (id_ and len(found) > 1):
        raise AmbiguousQuery(
            f"{len(found)} runs of suite {suite.path} match: {_listed(found)}", remedy="name one with --run"
        )
    return found[-1]


def _conditions(run: Run) -> tuple[object, ...]:
    return tuple(run.options.get(name) for name in ("threads", "cache", "dtype"))


def _matches(run: Run, stack: Stack, query: Query) -> bool:
    wanted = query.backend, query.device, query.threads, query.cache, query.dtype
    given = stack.backend, stack.device, *_conditions(run)
    return (
        run.system.startswith(query.system or "")
        and run.stack.startswith(query.stack or "")
        and all(value is None or value == own for value, own in zip(wanted, given, strict=True))
    )


def _listed(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{run.id[:_SHOWN]} ({run.started[:19].replace('T', ' ')}, {run.options.get('backend')}, "
        f"threads {run.options.get('threads')}, cache {run.options.get('cache')})"
        for run in runs
    )
