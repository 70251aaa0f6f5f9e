"""A manifest: one run of a suite as a public statement, in the form of in-toto (v1).

It contains the latencies and everything that decided them, so that others can measure the same suite again and compare
(``reproduce``). It contains no paths and no names of hosts, nodes, campaigns or persons. Names and latencies of models
are included only if the suite contains the names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NotRequired, TypedDict, Unpack

import msgspec

from ...bricks.reference import OVERHEAD, built_in_key
from ...bricks.suite.suite import Suite
from ...constructor.choice import Query
from ...constructor.uncertainty.interval import Uncertainty
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.exporting import PUBLIC_STATE, names_a_path, public_values
from ...db.queries import Filter
from ...db.samples.statistics import BASELINE, Baseline, low_probes
from ...db.values import System, content_key
from ...errors import AmbiguousQuery, BackendUnavailable, UsageError
from ...generator.backends.environments import own_variables
from ...generator.machine.software import wheel_contents
from ...generator.measurement.settings import MeasurementFields, MeasurementSettings
from ...generator.measurement.start import SOFTWARE
from ...tabular import Row
from ..estimation.query import QueryFields, asked

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:dlbricks:manifest:1"
"""Type of the statement; the number changes with its meaning."""

_SHOWN = 8
"""Characters of a run's id in messages."""

_ONCE = frozenset({"id", "run", "system", "stack"})
"""Fields of a measurement that a manifest states once, or that have no meaning elsewhere."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A measurement of a manifest.

    Attributes:
        measurement: The stored measurement.
        error: Relative standard error, from differences of time blocks and processes, and its degrees of freedom.
        undisturbed: The same of its undisturbed latency; None if unknown.
    """

    measurement: Measurement
    error: tuple[float, float]
    undisturbed: tuple[float, float] | None = None

    def record(self) -> Row:
        """Return a JSON object, without the fields that the manifest states once."""
        taken = asdict(self.measurement)
        fields = {**taken.pop("identity"), **taken.pop("summary"), **taken}
        error, degrees = self.error
        own = {"error": error, "degrees": degrees, "undisturbed_error": self.undisturbed}
        return {name: value for name, value in fields.items() if name not in _ONCE} | own


@dataclass(frozen=True, slots=True)
class Manifest:
    """The measurements of a run of a suite, and everything that decided them.

    Attributes:
        hardware: The machine and its set-up.
        software: Runtime, options, Python, packages, lock file.
        model: The suite, its cut, and the models.
        data: Seed and generator of weights and inputs.
        settings: The run's ``MeasurementFields``.
        log: Time, machine state, probes, reference networks, failures, and missing bricks.
        measurements: Bricks of the suite; also whole models if the suite names them.
    """

    hardware: Mapping[str, Any]
    software: Software
    model: Model
    data: Data
    settings: Mapping[str, Any]
    log: Log
    measurements: tuple[Recorded, ...]

    @property
    def complete(self) -> bool:
        """True if it contains every brick of the suite."""
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
    def parts(self) -> Row:
        """Everything that decided the latencies, by name."""
        return {name: getattr(self, name) for name in ("hardware", "software", "model", "data", "settings")}

    def statement(self) -> Row:
        """Return the JSON object of the file: an in-toto statement about the measurements and the suite."""
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
        """Write the file completely or not at all; an existing file is replaced.

        Raises:
            OSError: The file cannot be written.
        """
        place, text = Path(path), json.dumps(self.statement(), indent=1) + "\n"
        if place.exists() and not place.is_file():  # for example a pipe, which cannot be replaced
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


def _stack(software: Software) -> Stack:
    versions, options = (tuple(sorted(pairs.items())) for pairs in (software["versions"], software["options"]))
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
    """Make the manifest of a stored run of a suite; nothing is measured.

    Args:
        suite: The suite, or its folder.
        store: The database.
        run: Id of the run, or its beginning; None for the newest finished one.
        hashes: Let pip find wheels with missing hashes on its configured indexes.
        query: Restricts the runs.
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
    stacks = store.stacks()
    stack = stacks[chosen.stack]
    settings = {name: chosen.options[name] for name in MeasurementFields.__annotations__ if name in chosen.options}
    refuse_paths(stack, settings)
    recorded = chosen.before.get(SOFTWARE)
    if hashes and isinstance(recorded, Mapping):
        recorded = {**recorded, "packages": with_hashes(recorded["packages"])}
    software = software_part(stack, recorded if isinstance(recorded, Mapping) else None)
    bricks = _of_run(store, chosen, Subject.BRICK, opened.keys)
    models = [] if opened.annotations is None else _of_run(store, chosen, Subject.MODEL)
    blocks = store.blocks_of([measurement.id for measurement in (*bricks, *models)])
    uncertainty, baseline = Uncertainty((*bricks, *models), blocks, stacks), Baseline.of_run(chosen)
    dims = bound if isinstance(bound := chosen.options.get("dims"), Mapping) else {}
    low = low_probes(block for taken in blocks.values() for block in taken)
    return Manifest(
        hardware=hardware_part(store.systems()[chosen.system], chosen.before),
        software=software,
        model={
            "suite": opened.hash,
            "bricks": len(opened.keys),
            "granularity": opened.granularity,
            "graph": opened.graph,
            "overlap": opened.overlap,
            "connected": opened.connected,
            "bound_to": opened.bound_to,
            "names": sorted(opened.annotations or ()),
            "models": {key: {"dims": dict(dims.get(key, {}))} for key in sorted(model.key for model in models)},
        },
        data=data_part(settings, software),
        settings=settings,
        log=_log(store, opened, chosen, low, {brick.key for brick in bricks}),
        measurements=tuple(_recorded(measurement, uncertainty, baseline) for measurement in (*bricks, *models)),
    )


def _log(store: Store, suite: Suite, run: Run, low: tuple[float, float] | None, found: Collection[str]) -> Log:
    """Return the public log of a run."""
    after: Mapping[str, Any] = run.after or {}
    failures = store.failures(Filter(Subject.BRICK, suite.keys, run.system, run.stack))
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
            for reference in _of_run(store, run, Subject.REFERENCE)
        ],
        "failures": [{"key": failure.key, "kind": failure.kind} for failure in failures if failure.run == run.id],
        "missing": [key for key in suite.keys if key not in found],
    }


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read a manifest.

    Raises:
        UsageError: The file does not exist, is not a manifest of this version, lacks a field, has a field of another
            type, or its measurements were changed.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a dlbricks manifest ({error})", remedy="dlbricks manifest writes one") from error
    kind = (found.get("_type"), found.get("predicateType")) if isinstance(found, dict) else (None, type(found).__name__)
    if kind != (STATEMENT, PREDICATE):
        raise UsageError(f"{path}: not a dlbricks manifest, or of another version ({kind[1]})")
    try:
        stated = found["predicate"]
        digests = {subject["name"]: subject["digest"]["sha256"] for subject in found["subject"]}
        own = {"measurements": content_key(stated["measurements"]), "suite": stated["model"]["suite"]}
        if not digests.items() >= own.items():
            raise UsageError(f"{path} was changed: its measurements or its suite differ from their digests")
        msgspec.convert(stated, Predicate)
        MeasurementSettings.of(stated["settings"]).check()
        hardware, software, log = stated["hardware"], stated["software"], stated["reference_log"]
        once = {"run": log["run"], "system": content_key(hardware), "stack": _stack(software).key}
        measured = tuple(_read({"id": str(place), **once}, row) for place, row in enumerate(stated["measurements"]))
        return Manifest(hardware, software, stated["model"], stated["data"], stated["settings"], log, measured)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: not a dlbricks manifest ({error})") from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: not a dlbricks manifest ({error!r})") from error


def _read(once: Mapping[str, str], row: Mapping[str, Any]) -> Recorded:
    """Return a measurement from its row and the fields stated once."""
    measurement = msgspec.convert({**row, **once, "summary": row, "identity": {**row, **once}}, Measurement)
    error = msgspec.convert((row["error"], row["degrees"]), tuple[float, float])
    undisturbed = msgspec.convert(row.get("undisturbed_error"), tuple[float, float] | None)
    recorded = Recorded(measurement, error, undisturbed)
    known = recorded.record()
    if unknown := {*row, *row["conditions"]} - {*known, *asdict(measurement.conditions)}:
        raise ValueError(f"measurement {once['id']} has unknown fields: {', '.join(sorted(unknown))}")
    sound = all(0 <= sd < math.inf and 0 < degrees < math.inf for sd, degrees in filter(None, (error, undisturbed)))
    if not sound or (measurement.undisturbed_ns or 0) < 0:
        raise ValueError(f"measurement {once['id']} has a negative latency or an invalid error")
    return recorded


def _recorded(measurement: Measurement, uncertainty: Uncertainty, baseline: Baseline | None) -> Recorded:
    if measurement.latency_ns <= 0:
        return Recorded(measurement, (0.0, 1.0))
    error = uncertainty.error_ns({measurement.id: 1 / measurement.latency_ns})
    return Recorded(measurement, error, uncertainty.undisturbed_error(measurement.id, baseline))


def _of_run(store: Store, run: Run, subject: Subject, keys: Collection[str] | None = None) -> list[Measurement]:
    found = store.measurements(Filter(subject, keys, run.system, run.stack), latest=False)
    return [measurement for measurement in found if measurement.run == run.id]


def _run_of(store: Store, suite: Suite, prefix: str | None, query: Query) -> Run:
    """Return the newest finished run of a suite, or the named one.

    Raises:
        UsageError: No run matches.
        AmbiguousQuery: Runs under several conditions match.
    """
    stacks = store.stacks()
    known = [run for run in store.runs() if run.suite == suite.hash and run.finished is not None]
    found = [run for run in known if run.id.startswith(prefix or "") and _matches(run, stacks[run.stack], query)]
    if not found:
        others = f"; finished are {_listed(known)}" if known else ""
        raise UsageError(f"no finished run of suite {suite.path} matches{others}", remedy=f"dlbricks run {suite.path}")
    if len({(run.system, run.stack, *_conditions(run)) for run in found}) > 1 or (prefix and len(found) > 1):
        raise AmbiguousQuery(
            f"{len(found)} runs of suite {suite.path} match: {_listed(found)}", remedy="name one with --run"
        )
    return found[-1]


def _conditions(run: Run) -> tuple[object, ...]:
    return tuple(run.options.get(name) for name in ("threads", "cache", "dtype"))


def _matches(run: Run, stack: Stack, query: Query) -> bool:
    wanted = query.backend, query.device, query.threads, query.cache, query.dtype
    given = stack.backend, stack.device, *_conditions(run)
    keys = run.system.startswith(query.system or "") and run.stack.startswith(query.stack or "")
    return keys and all(value in (None, own) for value, own in zip(wanted, given, strict=True))


def _listed(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{run.id[:_SHOWN]} ({run.started[:19].replace('T', ' ')}, {run.options.get('backend')}, "
        f"threads {run.options.get('threads')}, cache {run.options.get('cache')})"
        for run in runs
    )


# The parts of a manifest: machine, software with its lock file, models, data and log.


# The lock file of a measured environment. Hashes are never guessed.


Packages = Mapping[str, Mapping[str, Any]]
"""By name ``version``, ``contents`` and, if known, ``wheel`` and ``sha256`` (``software_state``)."""

_PIP = ("-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")


def lock_of(packages: Packages, *, python: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Write a lock file (PEP 751).

    Args:
        packages: The installed packages.
        python: Version of their Python.

    Returns:
        Its text, or None if hashes are missing or nothing is known; and the packages without a hash.
    """
    lacking = tuple(
        sorted(name for name, known in packages.items() if not (known.get("sha256") and known.get("wheel")))
    )
    if lacking or not packages or python is None:
        return None, lacking
    minor = ".".join(python.split(".")[:2])
    lines = ['lock-version = "1.0"', f'requires-python = "=={minor}.*"', 'created-by = "dlbricks"']
    for name, package in sorted(packages.items()):
        version, wheel, digest = (json.dumps(package[key]) for key in ("version", "wheel", "sha256"))  # valid in TOML
        lines += ["", "[[packages]]", f"name = {json.dumps(name)}", f"version = {version}", ""]
        lines += ["[[packages.wheels]]", f"path = {wheel}", f"hashes = {{sha256 = {digest}}}"]
    return "".join(f"{line}\n" for line in lines), ()


def with_hashes(packages: Packages) -> dict[str, dict[str, Any]]:
    """Add missing hashes of wheels that pip finds on its configured indexes.

    Each wheel is downloaded for this Python and machine. Its hash is used only if its files are the installed ones, by
    their hashes. pip receives only valid names with versions, because a database may contain names from other machines
    that pip would read as addresses or options.

    Args:
        packages: The installed packages.

    Raises:
        BackendUnavailable: This Python has no pip.
    """
    wanted = {
        name: pinned
        for name, known in packages.items()
        if not known.get("sha256") and known.get("contents") and (pinned := _pinned(name, known.get("version")))
    }
    found: dict[str, dict[str, Any]] = {name: dict(known) for name, known in packages.items()}
    with TemporaryDirectory(prefix="dlbricks-wheels-") as folder:
        if wanted and not _download(list(wanted.values()), Path(folder)):
            for package in wanted.values():  # one missing package does not stop the others
                _download([package], Path(folder))
        by_contents = {_contents(path): path for path in sorted(Path(folder).glob("*.whl"))}
        for name in wanted:
            if (path := by_contents.get(packages[name]["contents"])) is not None:
                found[name] |= {"wheel": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return found


def _pinned(name: str, version: object) -> str | None:
    """Return a package as a requirement for pip; None unless it has a normalized name and a version."""
    from packaging.utils import is_normalized_name
    from packaging.version import InvalidVersion, Version

    try:
        return f"{name}=={Version(version)}" if is_normalized_name(name) and isinstance(version, str) else None
    except InvalidVersion:
        return None


def _download(wanted: Sequence[str], folder: Path) -> bool:
    command = [sys.executable, *_PIP, "--dest", str(folder), "--", *wanted]
    done = subprocess.run(
        command, env=own_variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        raise BackendUnavailable(
            "hashes come from pip, and this Python has no pip", remedy=f"{sys.executable} -m ensurepip"
        )
    return done.returncode == 0


def _contents(path: Path) -> str | None:
    with zipfile.ZipFile(path) as wheel:
        record = next((name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")), None)
        return None if record is None else wheel_contents(wheel.read(record).decode())


# The parts as JSON. Reading requires every field that is not marked otherwise, and keeps unknown ones.


class Software(TypedDict):
    """Runtime with its options, Python, C library, dlbricks, the packages of all these, and their lock file.

    ``without_hash`` names packages without a known hash; then ``lock`` is None.
    """

    backend: str
    device: str
    versions: dict[str, str]
    options: dict[str, str]
    python: NotRequired[str | None]
    implementation: NotRequired[str | None]
    compiler: NotRequired[str | None]
    libc: NotRequired[str | None]
    image: NotRequired[str | None]
    dlbricks: NotRequired[dict[str, Any] | None]
    packages: dict[str, dict[str, Any]]
    without_hash: list[str]
    lock: str | None


class Model(TypedDict):
    """The suite and its cut; names and models only if the suite has names."""

    suite: str
    bricks: NotRequired[int]
    granularity: NotRequired[int]
    graph: NotRequired[str]
    overlap: NotRequired[bool]
    connected: NotRequired[bool]
    bound_to: NotRequired[str | None]
    names: list[str]
    models: dict[str, Any]


class Data(TypedDict):
    """Seed and generator of weights and inputs."""

    seed: int | None
    generator: dict[str, Any]


class Reference(TypedDict):
    """The latency of a reference network; its name is None if unknown."""

    key: NotRequired[str]
    name: str | None
    latency_ns: float
    ci95_ns: NotRequired[list[float]]


class Problem(TypedDict):
    """A failure, without its message."""

    key: str
    kind: str


class Log(TypedDict):
    """Time, machine state, probes, reference networks, failures, and missing bricks of a run."""

    run: str
    command: NotRequired[str]
    started: NotRequired[str]
    finished: NotRequired[str | None]
    before: NotRequired[Row]
    after: NotRequired[Row]
    probes_ns: list[float] | None
    probes_low_ns: NotRequired[Any]
    references: list[Reference]
    failures: list[Problem]
    missing: list[str]


class _Hardware(TypedDict):
    cpu: str
    architecture: str


class Predicate(TypedDict):
    """The predicate of the statement."""

    hardware: _Hardware
    software: Software
    model: Model
    data: Data
    settings: MeasurementFields
    reference_log: Log
    measurements: list[dict[str, Any]]


_STATE = (
    "kernel", "microcode", "governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "affinity",
    "cpus_allowed", "cpu_quota", "huge_pages", "virtual",
)  # fmt: skip
"""Machine state that its owner decides or that is constant while it runs."""

_GPU_STATE = ("driver", "most_sm_mhz", "power_limit_w")


def hardware_part(system: System, state: Row) -> Row:
    """Return the machine's hardware and set-up; None for unknown values.

    Args:
        system: The hardware.
        state: Its state at the beginning of a run.
    """
    gpu = state.get("gpu")
    return {
        **dataclasses.asdict(system),
        "cache_bytes": dict(system.cache_bytes),
        "isa": list(system.isa),
        "gpus": list(system.gpus),
        **{name: state.get(name) for name in _STATE},
        "gpu": {name: gpu.get(name) for name in _GPU_STATE} if isinstance(gpu, Mapping) else None,
    }


def software_part(stack: Stack, recorded: Mapping[str, Any] | None) -> Software:
    """Return the software of a run.

    Args:
        stack: The run's stack.
        recorded: Software as the run recorded it; None from an older dlbricks.
    """
    found = recorded or {}
    packages = dict(found.get("packages", {}))
    lock, lacking = lock_of(packages, python=found.get("python"))
    return {
        "backend": stack.backend,
        "device": stack.device,
        "versions": dict(stack.versions),
        "options": dict(stack.options),
        "python": found.get("python"),
        "implementation": found.get("implementation"),
        "compiler": found.get("compiler"),
        "libc": found.get("libc"),
        "image": found.get("image"),
        "dlbricks": found.get("dlbricks"),
        "packages": packages,
        "without_hash": list(lacking),
        "lock": lock,
    }


def data_part(settings: Mapping[str, Any], software: Software) -> Data:
    """Return the source of weights and inputs: a seed, this dlbricks and this NumPy."""
    own, numpy = software.get("dlbricks") or {}, software["packages"].get("numpy", {})
    versions = {"dlbricks": own.get("version"), "sources": own.get("sources"), "numpy": numpy.get("version")}
    return Data(seed=settings.get("seed"), generator=versions)


def refuse_paths(stack: Stack, settings: Mapping[str, Any]) -> None:
    """Refuse options that may be paths, which could name a person or a host.

    Raises:
        UsageError: An option may be a path.
    """
    for name, value in (*stack.options, *stack.versions, *(settings.get("options") or {}).items()):
        if names_a_path(str(value)):
            raise UsageError(
                f"{stack.backend} was measured with {name}={value}, which may be a path",
                remedy="manifests are public: measure with an option that is not a path",
            )
