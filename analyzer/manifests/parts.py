"""The parts of a manifest: what is said of the machine, the software, the models, the data and the settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

from ...bricks.suite.suite import Suite
from ...db.exporting import names_a_path
from ...db.values import Stack, System
from ...errors import BackendUnavailable, UsageError
from ...generator.backends.environments import own_variables
from ...generator.machine.software import wheel_contents
from ...generator.measurement.settings import MeasurementFields

# The lock file of an environment that was measured: versions and hashes of its wheels, none of them guessed.


Packages = Mapping[str, Mapping[str, Any]]
"""By name ``version``, ``contents`` and, where known, ``wheel`` and ``sha256`` (``software_state``)."""

_PIP = ("-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:")


def lock_of(packages: Packages, *, python: str | None) -> tuple[str | None, tuple[str, ...]]:
    """A lock file as of PEP 751.

    Args:
        packages: What was installed.
        python: Version of the Python that it was installed for.

    Returns:
        Its text, or None where hashes are missing or nothing is known; and the packages whose hash is missing.
    """
    lacking = tuple(
        sorted(name for name, known in packages.items() if not (known.get("sha256") and known.get("wheel")))
    )
    if lacking or not packages or python is None:
        return None, lacking
    minor = ".".join(python.split(".")[:2])
    lines = ['lock-version = "1.0"', f'requires-python = "=={minor}.*"', 'created-by = "dlbricks"']
    for name, package in sorted(packages.items()):
        lines += ["", "[[packages]]", f"name = {_quoted(name)}", f"version = {_quoted(package['version'])}", ""]
        lines += ["[[packages.wheels]]", f"path = {_quoted(package['wheel'])}"]
        lines += [f"hashes = {{sha256 = {_quoted(package['sha256'])}}}"]
    return "".join(f"{line}\n" for line in lines), ()


def with_hashes(packages: Packages) -> dict[str, dict[str, Any]]:
    """The same with the hashes of wheels that were missing, as far as pip finds these wheels.

    Each is downloaded from where pip is configured to look, for this Python and machine; its hash is taken only where
    its files are those that were installed, by their own hashes. What is no name with a version stays without: a
    database may hold what other machines wrote, and to pip it may be an address or an option.

    Args:
        packages: What was installed.

    Raises:
        BackendUnavailable: This Python has no pip.
    """
    lacking = {
        name: pinned
        for name, known in packages.items()
        if not known.get("sha256")
        and known.get("contents")
        and (pinned := _pinned(name, known.get("version"))) is not None
    }
    found: dict[str, dict[str, Any]] = {name: dict(known) for name, known in packages.items()}
    with TemporaryDirectory(prefix="dlbricks-wheels-") as folder:
        wanted = list(lacking.values())
        if wanted and not _download(wanted, Path(folder)):
            for package in wanted:  # what is to be had of them
                _download([package], Path(folder))
        by_contents = {contents: path for path in sorted(Path(folder).glob("*.whl")) if (contents := _contents(path))}
        for name in lacking:
            path = by_contents.get(packages[name]["contents"])
            if path is not None:
                found[name] |= {"wheel": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return found


def _pinned(name: str, version: object) -> str | None:
    """One package as pip is asked for it; None: it is no normalized name with a version."""
    from packaging.utils import is_normalized_name
    from packaging.version import InvalidVersion, Version

    if not is_normalized_name(name) or not isinstance(version, str):
        return None
    try:
        return f"{name}=={Version(version)}"
    except InvalidVersion:
        return None


def _download(wanted: Sequence[str], folder: Path) -> bool:
    command = [sys.executable, *_PIP, "--dest", str(folder), "--", *wanted]
    done = subprocess.run(
        command, env=own_variables(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if "No module named pip" in done.stderr:
        raise BackendUnavailable(
            "hashes are asked of pip, which this Python does not have", remedy=f"{sys.executable} -m ensurepip"
        )
    return done.returncode == 0


def _contents(path: Path) -> str | None:
    with zipfile.ZipFile(path) as wheel:
        record = next((name for name in wheel.namelist() if name.endswith(".dist-info/RECORD")), None)
        return None if record is None else wheel_contents(wheel.read(record).decode())


def _quoted(text: str) -> str:
    return json.dumps(text)  # a string of JSON is one of TOML


# What a manifest has to hold, wherever it is from: every field that anything relies on, and its type.


class _Hardware(TypedDict):
    cpu: str
    architecture: str


class _Software(TypedDict):
    backend: str
    device: str
    versions: dict[str, str]
    options: dict[str, str]
    packages: dict[str, dict[str, Any]]
    without_hash: list[str]
    lock: str | None


class _Model(TypedDict):
    suite: str
    names: list[str]
    models: dict[str, Any]


class _Data(TypedDict):
    seed: int | None
    generator: dict[str, Any]


class _Reference(TypedDict):
    name: str | None
    latency_ns: float


class _Failure(TypedDict):
    key: str
    kind: str


class _Log(TypedDict):
    run: str
    probes_ns: list[float] | None
    references: list[_Reference]
    failures: list[_Failure]
    missing: list[str]


class Shape(TypedDict):
    """The predicate of the statement."""

    hardware: _Hardware
    software: _Software
    model: _Model
    data: _Data
    settings: MeasurementFields
    reference_log: _Log
    measurements: list[dict[str, Any]]


_STATE = (
    "kernel", "microcode", "governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "affinity",
    "cpus_allowed", "cpu_quota", "huge_pages", "virtual",
)  # fmt: skip
"""What of the machine's state its owner decides, and what stays as it is while it runs."""

_GPU_STATE = ("driver", "most_sm_mhz", "power_limit_w")


def hardware_part(system: System, state: Mapping[str, Any]) -> dict[str, Any]:
    """The machine: what it is, and how it is set up; None: not known.

    Args:
        system: Its hardware.
        state: As a run found it.
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


def software_part(stack: Stack, software: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ran: the runtime with its options, Python, the C library, dlbricks, and every package that these need.

    Args:
        stack: Of the run.
        software: As the run recorded it; None by a dlbricks that did not.

    Returns:
        Beside that ``lock``, the text of a lock file of the packages, or None where the hash of the wheel of some is
        not known: these are ``without_hash``.
    """
    found = dict(software or {})
    packages = dict(found.pop("packages", {}))
    lock, lacking = lock_of(packages, python=found.get("python"))
    names = ("python", "implementation", "compiler", "libc", "image", "dlbricks")
    return {
        "backend": stack.backend,
        "device": stack.device,
        "versions": dict(stack.versions),
        "options": dict(stack.options),
        **{name: found.get(name) for name in names},
        "packages": packages,
        "without_hash": list(lacking),
        "lock": lock,
    }


def model_part(suite: Suite, models: Collection[str], dims: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """What was cut, and how; names only where the suite has them.

    Args:
        suite: The bricks.
        models: Keys of the whole models that were measured beside them.
        dims: What their dynamic dimensions were bound to, by key.
    """
    named = suite.annotations is not None
    return {
        "suite": suite.hash,
        "bricks": len(suite.keys),
        "granularity": suite.granularity,
        "graph": suite.graph,
        "overlap": suite.overlap,
        "connected": suite.connected,
        "bound_to": suite.bound_to,
        "names": sorted(suite.annotations or ()),
        "models": {key: {"dims": dict(dims.get(key, {}))} for key in sorted(models)} if named else {},
    }


def data_part(settings: Mapping[str, Any], software: Mapping[str, Any]) -> dict[str, Any]:
    """Weights and inputs: drawn from a seed, by this dlbricks with this NumPy."""
    own, numpy = software.get("dlbricks") or {}, software["packages"].get("numpy", {})
    return {
        "seed": settings.get("seed"),
        "generator": {
            "dlbricks": own.get("version"),
            "sources": own.get("sources"),
            "numpy": numpy.get("version"),
        },
    }


def refuse_paths(stack: Stack, settings: Mapping[str, Any]) -> None:
    """Make sure that no option is a path, which may name a person or a host.

    Raises:
        UsageError: One may be.
    """
    given = settings.get("options") or {}
    for name, value in (*stack.options, *stack.versions, *given.items()):
        if names_a_path(str(value)):
            raise UsageError(
                f"{stack.backend} was measured with {name}={value}, which may be a path",
                remedy="a manifest is handed on: measure with an option that is no path",
            )
