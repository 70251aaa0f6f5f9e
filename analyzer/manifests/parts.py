"""The parts of a manifest: what is said of the machine, the software, the models, the data and the settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ...bricks.suite.suite import Suite
from ...db.exporting import PUBLIC_STATE, names_a_path, public_values
from ...db.samples.statistics import BASELINE
from ...db.values import Run, Stack, System
from ...errors import UsageError
from ...generator.measurement.launch import SOFTWARE
from ...generator.measurement.settings import MeasurementSettings
from .locking import lock_of

__all__ = ["data_part", "hardware_part", "log_part", "model_part", "settings_part", "software_part"]

_STATE = (
    "kernel", "microcode", "governor", "turbo", "smt", "min_frequency_mhz", "max_frequency_mhz", "affinity",
    "cpus_allowed", "cpu_quota", "huge_pages", "virtual",
)  # fmt: skip
"""What of the machine's state its owner decides, and what stays as it is while it runs."""

_GPU_STATE = ("driver", "most_sm_mhz", "power_limit_w")

_SETTINGS = tuple(field.name for field in dataclasses.fields(MeasurementSettings))


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


def settings_part(run: Run) -> dict[str, Any]:
    """How it was measured: the settings of the run that it has in common with any other."""
    return {name: run.options[name] for name in _SETTINGS if name in run.options}


def log_part(run: Run) -> dict[str, Any]:
    """When it was, and the state of the machine before and after, as far as that is nobody's secret."""
    after = run.after or {}
    return {
        "run": run.id,
        "command": run.command,
        "started": run.started,
        "finished": run.finished,
        "before": public_values(run.before, PUBLIC_STATE),
        "after": public_values(after, PUBLIC_STATE),
        "probes_ns": after.get(BASELINE),
    }


def software_of(run: Run) -> Mapping[str, Any] | None:
    """What a run recorded of its software."""
    found = run.before.get(SOFTWARE)
    return found if isinstance(found, Mapping) else None


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
