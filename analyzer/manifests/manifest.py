"""A manifest: one run of a suite in one file, so that others can measure it again and compare (``reproduce``).

The file is a zip archive. It contains the measurements as ``db export --measurements-only`` writes them, the suite, a
lock file if all hashes are known, and a description in JSON with the digests of these parts.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Unpack, cast

import msgspec

from ...bricks.suite.suite import Suite
from ...constructor.choice import Query
from ...db import Measurement, Run, Stack, Store, Subject
from ...db.exporting import export_run
from ...db.queries import Filter
from ...db.values import System
from ...errors import AmbiguousQuery, BackendUnavailable, UsageError
from ...generator.backends.environments import own_variables
from ...generator.fleet.blob import suite_files
from ...generator.machine.software import LOCK, wheel_contents
from ...generator.measurement.settings import MeasurementFields, MeasurementSettings
from ...generator.measurement.start import SOFTWARE
from ..estimation.query import QueryFields, asked

DESCRIPTION, MEASUREMENTS, SUITE = "manifest.json", "measurements.db", "suite"
"""Names within the archive; the lock file is called ``LOCK``."""

Packages = dict[str, dict[str, str | None]]
"""By name ``version``, ``contents`` and, if known, ``wheel`` and ``sha256`` (``software_state``)."""

_SHOWN = 8
"""Characters of a run's id in messages."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that decided the latencies of a run, apart from the suite; None for unknown values.

    Attributes:
        hardware: The machine and its set-up.
        software: The runtime with its versions and options, Python, C library, dlbricks.
        packages: The packages of all these.
        settings: The run's ``MeasurementFields``.
    """

    hardware: dict[str, Any]
    software: dict[str, Any]
    packages: Packages
    settings: MeasurementFields

    @property
    def without_hash(self) -> list[str]:
        """Packages whose wheel or hash is unknown."""
        return sorted(
            name for name, package in self.packages.items() if not (package.get("sha256") and package.get("wheel"))
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description in a manifest.

    Attributes:
        schema: Version of the format.
        run: Id of the run.
        suite: Hash of the suite.
        bricks: Number of its bricks that the run measured.
        missing: Keys of the others.
        provenance: Machine, software and settings.
        measurements: SHA-256 of the database.
        lock: SHA-256 of the lock file; None without one.
    """

    schema: Literal[1] = field(default=1, kw_only=True)
    run: str
    suite: str
    bricks: int
    missing: list[str]
    provenance: Provenance
    measurements: str
    lock: str | None

    @property
    def complete(self) -> bool:
        """True if the run measured every brick of the suite."""
        return not self.missing


def manifest(
    suite: Suite | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    store: Store,
    run: str | None = None,
    hashes: bool = False,
    query: Query | None = None,
    **fields: Unpack[QueryFields],
) -> Manifest:
    """Write a stored run of a suite to a file, completely or not at all; nothing is measured.

    Args:
        suite: The suite, or its folder.
        out: The file; an existing one is replaced.
        store: The database.
        run: Id of the run, or its beginning; None for the newest finished one.
        hashes: Let pip find wheels with missing hashes on its configured indexes.
        query: Restricts the runs.
        **fields: Fields of a ``Query``, in place of those of ``query``.

    Returns:
        The description that the file contains.

    Raises:
        UsageError: No finished run of this suite matches, its software is unknown, or ``out`` is no file.
        AmbiguousQuery: Runs under several conditions match.
        SuiteError: The suite cannot be read, or its files have changed.
        StoreError: The database cannot be read, or an option of the runtime may be a path.
        OSError: The file cannot be written.

    Example:
        >>> with Store.open("dlbricks.db") as store:  # doctest: +SKIP
        ...     manifest("suite", "results.zip", store=store)
    """
    target = replaceable(out)
    opened = suite if isinstance(suite, Suite) else Suite.open(Path(suite))
    chosen = _run_of(store, opened, run, asked(query, fields))
    provenance = stored_provenance(store, chosen)
    if hashes:
        provenance = replace(provenance, packages=with_hashes(provenance.packages))
    lock = lock_of(provenance)
    with TemporaryDirectory(prefix="dlbricks-manifest-") as folder:
        export_run(store, Path(folder) / MEASUREMENTS, chosen)
        database = (Path(folder) / MEASUREMENTS).read_bytes()
    measured = {brick.key for brick in measured_in(store, chosen, Subject.BRICK, opened.keys)}
    description = Manifest(
        chosen.id,
        opened.hash,
        len(measured),
        [key for key in opened.keys if key not in measured],
        provenance,
        hashlib.sha256(database).hexdigest(),
        None if lock is None else hashlib.sha256(lock).hexdigest(),
    )
    text = json.dumps(asdict(description), indent=1).encode() + b"\n"
    parts = {DESCRIPTION: text, MEASUREMENTS: database} | ({} if lock is None else {LOCK: lock})
    try:
        _pack(target, parts, opened)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error
    return description


def replaceable(out: str | os.PathLike[str]) -> Path:
    """Return the place of a file to be written, with links followed.

    Raises:
        UsageError: Something else is there, or its folder does not exist.
    """
    target = Path(out).resolve()
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise UsageError(f"{out} is no place for a file", remedy="name a file in an existing folder")
    return target


def _pack(target: Path, parts: Mapping[str, bytes], suite: Suite) -> None:
    partial = target.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in parts.items():
                archive.writestr(name, data)
            for name, path in suite_files(suite):
                archive.writestr(f"{SUITE}/{name}", path.read_bytes())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def unpack(path: str | os.PathLike[str], folder: Path) -> Manifest:
    """Unpack a manifest into an empty folder, and check its parts; ``run`` checks the bricks.

    Raises:
        UsageError: The file does not exist, is not a manifest of this version, lacks a part or a field, has a field of
            another type, or a part was changed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        description = msgspec.json.decode((folder / DESCRIPTION).read_bytes(), type=Manifest)
        MeasurementSettings.of(description.provenance.settings).check()
        digests = {MEASUREMENTS: description.measurements}
        digests |= {} if description.lock is None else {LOCK: description.lock}
        changed = [
            name
            for name, digest in digests.items()
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest
        ]
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{path}: not a manifest of this dlbricks ({error})", remedy="dlbricks manifest writes one"
        ) from error
    if changed:
        raise UsageError(f"{path} was changed: {', '.join(changed)} differs from its digest", remedy="get it again")
    return description


def measured_in(store: Store, run: Run, subject: Subject, keys: Collection[str]) -> list[Measurement]:
    """Return the measurements of a run of some bricks or references, without variants."""
    among = Filter(subject, keys, run.system, run.stack)
    return [measurement for measurement in store.measurements(among, latest=False) if measurement.run == run.id]


def _run_of(store: Store, suite: Suite, prefix: str | None, query: Query) -> Run:
    """Return the newest finished run of a suite, or the named one.

    Raises:
        UsageError: No run matches.
        AmbiguousQuery: Runs under several conditions match.
    """
    stacks = store.stacks()
    finished = [run for run in store.runs() if run.suite == suite.hash and run.finished is not None]
    matches = [run for run in finished if run.id.startswith(prefix or "") and _matches(run, stacks[run.stack], query)]
    if not matches:
        others = f"; finished are {_listed(finished)}" if finished else ""
        raise UsageError(f"no finished run of suite {suite.path} matches{others}", remedy=f"dlbricks run {suite.path}")
    if len({(run.system, run.stack, *_conditions(run)) for run in matches}) > 1 or (prefix and len(matches) > 1):
        raise AmbiguousQuery(
            f"{len(matches)} runs of suite {suite.path} match: {_listed(matches)}", remedy="name one with --run"
        )
    return matches[-1]


def _conditions(run: Run) -> tuple[object, ...]:
    return tuple(run.options.get(name) for name in ("threads", "cache", "dtype"))


def _matches(run: Run, stack: Stack, query: Query) -> bool:
    requested = query.backend, query.device, query.threads, query.cache, query.dtype
    recorded = stack.backend, stack.device, *_conditions(run)
    keys = run.system.startswith(query.system or "") and run.stack.startswith(query.stack or "")
    return keys and all(value in (None, actual) for value, actual in zip(requested, recorded, strict=True))


def _listed(runs: Sequence[Run]) -> str:
    return ", ".join(
        f"{run.id[:_SHOWN]} ({run.started[:19].replace('T', ' ')}, {run.options.get('backend')}, "
        f"threads {run.options.get('threads')}, cache {run.options.get('cache')})"
        for run in runs
    )


# Machine, software and settings.


_STATE = (
    "kernel", "microcode", "governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "affinity",
    "cpus_allowed", "cpu_quota", "huge_pages", "virtual",
)  # fmt: skip
"""Machine state that its owner decides or that is constant while it runs."""

_GPU_STATE = ("driver", "most_sm_mhz", "power_limit_w")


def stored_provenance(store: Store, run: Run) -> Provenance:
    """Return the provenance of a stored run.

    Raises:
        UsageError: The run came from an export that withholds it.
    """
    if SOFTWARE not in run.before:
        raise UsageError(
            f"run {run.id[:_SHOWN]} came without its software and settings, as an export of measurements only",
            remedy="write the manifest from the database of the machine that measured",
        )
    settings = {name: run.options[name] for name in MeasurementFields.__annotations__ if name in run.options}
    return provenance_of(store.systems()[run.system], store.stacks()[run.stack], run.before, settings)


def provenance_of(system: System, stack: Stack, before: Mapping[str, Any], settings: Mapping[str, Any]) -> Provenance:
    """Return the provenance of a run.

    Args:
        system: The hardware.
        stack: The runtime.
        before: State of the machine at the beginning (``state_before``).
        settings: ``MeasurementFields``.
    """
    gpu, software = before.get("gpu"), dict(before[SOFTWARE])
    packages = software.pop("packages")
    hardware = {
        **asdict(system),
        "cache_bytes": dict(system.cache_bytes),
        "isa": list(system.isa),
        "gpus": list(system.gpus),
        **{name: before.get(name) for name in _STATE},
        "gpu": {name: gpu.get(name) for name in _GPU_STATE} if isinstance(gpu, Mapping) else None,
    }
    runtime = {**asdict(stack), "versions": dict(stack.versions), "options": dict(stack.options)}
    return Provenance(hardware, {**runtime, **software}, packages, cast("MeasurementFields", settings))


# The lock file of a measured environment. Hashes are never guessed.


_PIP = ("-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")


def lock_of(provenance: Provenance) -> bytes | None:
    """Return a lock file (PEP 751) for the packages of a run; None if hashes are missing or no package is known."""
    if provenance.without_hash or not provenance.packages:
        return None
    minor = ".".join(provenance.software["python"].split(".")[:2])
    lines = ['lock-version = "1.0"', f'requires-python = "=={minor}.*"', 'created-by = "dlbricks"']
    for name, package in sorted(provenance.packages.items()):
        version, wheel, digest = (json.dumps(package[key]) for key in ("version", "wheel", "sha256"))  # valid in TOML
        lines += ["", "[[packages]]", f"name = {json.dumps(name)}", f"version = {version}", ""]
        lines += ["[[packages.wheels]]", f"path = {wheel}", f"hashes = {{sha256 = {digest}}}"]
    return "".join(f"{line}\n" for line in lines).encode()


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
    requirements = {
        name: pinned
        for name, installed in packages.items()
        if not installed.get("sha256")
        and installed.get("contents")
        and (pinned := _pinned(name, installed.get("version")))
    }
    hashed: dict[str, dict[str, Any]] = {name: dict(installed) for name, installed in packages.items()}
    with TemporaryDirectory(prefix="dlbricks-wheels-") as folder:
        if requirements and not _download(list(requirements.values()), Path(folder)):
            for package in requirements.values():  # one missing package does not stop the others
                _download([package], Path(folder))
        by_contents = {_contents(path): path for path in sorted(Path(folder).glob("*.whl"))}
        for name in requirements:
            if (path := by_contents.get(packages[name]["contents"])) is not None:
                hashed[name] |= {"wheel": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return hashed


def _pinned(name: str, version: object) -> str | None:
    """Return a package as a requirement for pip; None unless it has a normalized name and a version."""
    from packaging.utils import is_normalized_name
    from packaging.version import InvalidVersion, Version

    try:
        return f"{name}=={Version(version)}" if is_normalized_name(name) and isinstance(version, str) else None
    except InvalidVersion:
        return None


def _download(requirements: Sequence[str], folder: Path) -> bool:
    command = [sys.executable, *_PIP, "--dest", str(folder), "--", *requirements]
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
