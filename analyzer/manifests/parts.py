"""The parts of a manifest: machine, software with its lock file, models, data and log."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NotRequired, TypedDict

from ...db.exporting import names_a_path
from ...db.values import Stack, System
from ...errors import BackendUnavailable, UsageError
from ...generator.backends.environments import own_variables
from ...generator.machine.software import wheel_contents
from ...generator.measurement.settings import MeasurementFields
from ...tabular import Row

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
