"""A manifest: one run of a suite as a statement to hand on, in the shape of in-toto (v1).

Everything that decided the latencies stands in it, and the latencies themselves: whoever has the suite can measure the
same again and compare (``reproduce``). It holds no path, and no name of a host, node, campaign or person; names of
models, and their latencies, only where the suite itself has the names.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Conditions, Measurement, Run, Stack, Stop, Store, Subject, System, Verdict
from ...db.samples.statistics import Baseline, low_probes
from ...db.values import Summary, content_key
from ...errors import AmbiguousQuery, UsageError
from ...generator.measurement.settings import MeasurementSettings
from ..estimation.query import Query, QueryFields, asked
from .locking import with_hashes
from .parts import (
    data_part,
    hardware_part,
    log_part,
    model_part,
    refuse_paths,
    settings_part,
    software_of,
    software_part,
)
from .shape import Shape, misfit

__all__ = ["PREDICATE", "STATEMENT", "Manifest", "Recorded", "manifest", "read_manifest"]

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:dlbricks:manifest:1"
"""What the statement says; the number changes with its meaning."""

_SHOWN = 8
"""Characters of a run's id in messages."""

_LOCAL = ("id", "run", "system", "stack")
"""Of a measurement, what stands in the manifest once."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One measurement of a manifest.

    Attributes:
        measurement: As stored.
        error: Its relative standard error, by what time blocks and processes differ by.
        degrees: Degrees of freedom that it is known with.
        undisturbed: Both of its undisturbed latency; None where that is not known.
    """

    measurement: Measurement
    error: float
    degrees: float
    undisturbed: tuple[float, float] | None = None

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        own: dict[str, Any] = {}
        for name, value in asdict(self.measurement).items():
            if name not in _LOCAL:
                own |= value if name == "summary" else {name: value}
        return own | {"error": self.error, "degrees": self.degrees, "undisturbed_error": self.undisturbed}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run of a suite measured, and on and with what.

    Attributes:
        hardware: The machine and how it was set up (``hardware_part``).
        software: The runtime, its options, Python, packages, the lock (``software_part``).
        model: The suite, how it was cut, and the models (``model_part``).
        data: Seed and generator of weights and inputs.
        settings: Of the run: fields of ``MeasurementSettings``.
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

    def statement(self) -> dict[str, Any]:
        """As the JSON object of the file: an in-toto statement about the measurements and the suite."""
        measured = [one.record() for one in self.measurements]
        parts = {name: getattr(self, name) for name in _PARTS} | {"reference_log": self.log}
        return {
            "_type": STATEMENT,
            "subject": [
                {"name": "measurements", "digest": {"sha256": content_key(measured)}},
                {"name": "suite", "digest": {"sha256": self.model["suite"]}},
            ],
            "predicateType": PREDICATE,
            "predicate": parts | {"measurements": measured},
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


_PARTS = ("hardware", "software", "model", "data", "settings")


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
    stack, system = store.stacks()[chosen.stack], store.systems()[chosen.system]
    settings = settings_part(chosen)
    refuse_paths(stack, settings)
    recorded = software_of(chosen)
    if hashes and recorded is not None:
        recorded = {**recorded, "packages": with_hashes(recorded["packages"])}
    return _manifest(store, opened, chosen, system, settings, software_part(stack, recorded))


def _manifest(  # noqa: PLR0917
    store: Store, suite: Suite, run: Run, system: System, settings: Mapping[str, Any], software: Mapping[str, Any]
) -> Manifest:
    named = suite.annotations is not None
    bricks = _of_run(store, run, Subject.BRICK, suite.keys)
    models = _of_run(store, run, Subject.MODEL, None) if named else []
    references = _of_run(store, run, Subject.REFERENCE, None)
    blocks = store.blocks_of([one.id for one in (*bricks, *models)])
    uncertainty = Uncertainty((*bricks, *models), blocks, store.stacks())
    dims = run.options.get("dims")
    failed = store.failures(subject=Subject.BRICK, keys=suite.keys, system=run.system, stack=run.stack, variant="")
    found = {one.key for one in bricks}
    probes = low_probes(one for found in blocks.values() for one in found)
    log = {
        "probes_low_ns": None if probes is None else list(probes),
        "references": [
            {
                "key": one.key,
                "name": OVERHEAD if one.key == built_in_key(OVERHEAD) else None,
                "latency_ns": one.latency_ns,
                "ci95_ns": list(one.ci95_ns),
            }
            for one in references
        ],
        "failures": [{"key": one.key, "kind": one.kind} for one in failed if one.run == run.id],
        "missing": [key for key in suite.keys if key not in found],
    }
    return Manifest(
        hardware=hardware_part(system, run.before),
        software=software,
        model=model_part(suite, [one.key for one in models], dims if isinstance(dims, Mapping) else {}),
        data=data_part(settings, software),
        settings=settings,
        log=log_part(run) | log,
        measurements=tuple(_recorded(one, uncertainty, Baseline.of_run(run)) for one in (*bricks, *models)),
    )


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest.

    Raises:
        UsageError: It is not there, is no manifest, lacks a field or has one of another type, is of a newer dlbricks,
            or its measurements were changed.
    """
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no manifest: {error}", remedy="dlbricks manifest writes one") from error
    if not isinstance(found, dict) or found.get("_type") != STATEMENT or found.get("predicateType") != PREDICATE:
        kind = found.get("predicateType") if isinstance(found, dict) else type(found).__name__
        raise UsageError(f"{path} is no manifest of dlbricks, or of another version: it is {kind}")
    try:
        said, digests = found["predicate"], {one["name"]: one["digest"]["sha256"] for one in found["subject"]}
        if digests["measurements"] != content_key(said["measurements"]) or digests["suite"] != said["model"]["suite"]:
            raise UsageError(f"{path} was changed: its measurements or its suite are not those that it states")
        wrong = misfit(said, Shape) or misfit(said["measurements"], list[Summary], "predicate.measurements")
        if wrong is not None:
            raise UsageError(f"{path} is no manifest of dlbricks: {wrong} is missing or of another type")
        MeasurementSettings(**said["settings"]).check()
        stack = _stack(said["software"]).key
        measured = tuple(_read(row, str(number), said, stack) for number, row in enumerate(said["measurements"]))
        return Manifest(**{name: said[name] for name in _PARTS}, log=said["reference_log"], measurements=measured)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path} is no manifest of dlbricks: {error!r}") from error


def _read(row: Mapping[str, Any], id_: str, said: Mapping[str, Any], stack: str) -> Recorded:
    own = dict(row)
    summary = {one.name: own.pop(one.name) for one in dataclasses.fields(Summary)}
    error, degrees = float(own.pop("error")), float(own.pop("degrees"))
    quiet = own.pop("undisturbed_error", None)
    undisturbed = None
    if quiet is not None:
        of_quiet, freedom = quiet
        undisturbed = float(of_quiet), float(freedom)
    known = [(error, degrees), *filter(None, [undisturbed])]
    sound = all(0 <= one < math.inf and 0 < freedom < math.inf for one, freedom in known)
    if not sound or (own.get("undisturbed_ns") or 0) < 0:
        raise ValueError(f"measurement {id_} has a negative latency, or an error that is none")
    return Recorded(
        Measurement(
            **own
            | {
                "id": id_,
                "run": said["reference_log"]["run"],
                "system": content_key(said["hardware"]),
                "stack": stack,
                "subject": Subject(own["subject"]),
                "conditions": Conditions(**own["conditions"]),
                "summary": Summary(
                    **summary
                    | {
                        "ci95_ns": tuple(summary["ci95_ns"]),
                        "block_medians_ns": tuple(summary["block_medians_ns"]),
                        "verdict": Verdict(summary["verdict"]),
                    }
                ),
                "stop": Stop(own["stop"]),
            }
        ),
        error,
        degrees,
        undisturbed,
    )


def _recorded(measurement: Measurement, uncertainty: Uncertainty, baseline: Baseline | None) -> Recorded:
    if measurement.latency_ns <= 0:
        return Recorded(measurement, 0.0, 1.0)
    error, degrees = uncertainty.error_ns({measurement.id: 1 / measurement.latency_ns})
    return Recorded(measurement, error, degrees, uncertainty.undisturbed_error(measurement.id, baseline))


def _of_run(store: Store, run: Run, subject: Subject, keys: Collection[str] | None) -> list[Measurement]:
    found = store.measurements(subject=subject, keys=keys, system=run.system, stack=run.stack, variant="", latest=False)
    return [one for one in found if one.run == run.id]


def _run_of(store: Store, suite: Suite, run: str | None, query: Query) -> Run:
    """The newest finished run of a suite, or the one that is meant.

    Raises:
        UsageError: There is none.
        AmbiguousQuery: Runs under several conditions match.
    """
    stacks = store.stacks()
    known = [one for one in store.runs() if one.suite == suite.hash and one.finished is not None]
    found = [one for one in known if one.id.startswith(run or "") and _matches(one, stacks[one.stack], query)]
    if not found:
        which = f"; finished are {_listed(known)}" if known else ""
        raise UsageError(
            f"no finished run of suite {suite.path} is stored as asked{which}", remedy=f"dlbricks run {suite.path}"
        )
    if len({_conditions(one) for one in found}) > 1 or (run and len(found) > 1):
        raise AmbiguousQuery(
            f"{len(found)} runs of suite {suite.path} match: {_listed(found)}", remedy="name one with --run"
        )
    return found[-1]


def _conditions(run: Run) -> tuple[object, ...]:
    return run.system, run.stack, *(run.options.get(name) for name in ("threads", "cache", "dtype"))


def _matches(run: Run, stack: Stack, query: Query) -> bool:
    wanted = dataclasses.asdict(query)
    given = {name: run.options.get(name) for name in ("threads", "cache", "dtype")}
    given |= {"backend": stack.backend, "device": stack.device}
    return (
        run.system.startswith(wanted.pop("system") or "")
        and run.stack.startswith(wanted.pop("stack") or "")
        and all(value is None or given[name] == value for name, value in wanted.items())
    )


def _listed(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{one.id[:_SHOWN]} ({one.started[:19].replace('T', ' ')}, {one.options.get('backend')}, "
        f"threads {one.options.get('threads')}, cache {one.options.get('cache')})"
        for one in runs
    )
