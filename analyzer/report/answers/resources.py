"""Answers about the zoo, the runtimes, this machine and the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from ....db import Store, Transferred
from ....db.values import NATIVE
from ....errors import BackendUnavailable
from ....generator.backends import registry
from ....generator.backends.cudnn.plans import availability as cudnn_availability
from ....generator.backends.environments import Installed
from ....generator.machine.system import machine_state, probe_system, quietness
from ....generator.measurement.agreement import AgreementReport, Outcome
from ....models.zoo import names
from ....tabular import Field, columns_of, fields, record_of
from ...estimation.calibrating import FIELDS, CalibrationReport
from ..tables import Answer
from ..units import counted, percent, short, size

_EXTRA_NEEDS = {"zoo": ("torch", "transformers", "onnxscript")}
"""Modules that an extra installs."""


def zoo_answer(*, every: bool = False) -> Answer:
    """Return the answer of ``models list``: one result per model.

    Args:
        every: The table has a row per model; False: a row per family.
    """
    rows: list[dict[str, object]] = []
    for entry in names():
        missing = [module for module in _EXTRA_NEEDS.get(entry.extra or "", ()) if find_spec(module) is None]
        reason = f"needs pip install -e '.[{entry.extra}]' in a checkout" if missing else None
        rows.append(asdict(entry) | {"dims": dict(entry.dims), "available": not missing, "reason": reason})
    if every:
        dimensions = Field("dims", "dimensions", lambda dims: " ".join(f"{name}={size}" for name, size in dims.items()))
        columns = (Field("name", "model"), *map(Field, ("task", "family", "origin")), dimensions)
        return Answer(rows, columns=[*columns, Field("reason", "not available")])
    families: dict[object, list[str]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(str(row["name"]))
    unavailable = Counter(row["reason"] for row in rows if row["reason"])
    return Answer(
        rows,
        columns=[Field("family"), Field("models", "models", "words")],
        table=[{"family": family, "models": models} for family, models in families.items()],
        summary=[
            f"{counted(len(rows), 'model')}; --all shows the task and the dimensions of each",
            *(f"{counted(count, 'model')} not available here: {reason}" for reason, count in unavailable.items()),
            "next: dlbricks report NAME",
        ],
    )


def backends_answer() -> Answer:
    """Return the answer of ``backends list``."""
    rows: list[dict[str, object]] = []
    table: list[dict[str, object]] = []
    summary: list[str] = []
    for name, availability in registry.backends().items():
        abilities = _abilities(name)
        devices, algorithms, options = abilities["devices"], abilities["algorithms"], abilities["options_by_device"]
        row = {
            "name": name,
            "available": availability.ok,
            "reason": availability.reason or None,
            "devices": devices,
            "reasons": {device: availability.why_not(device) or None for device in devices},
            "versions": dict(availability.versions),
            "options": options.get(devices[0], {}) if devices else {},
            "options_by_device": options,
            "dtypes": abilities["dtypes"],
            "dtypes_by_device": abilities["dtypes_by_device"],
            "algorithms": algorithms,
        }
        rows.append(row)
        for device in devices or [None]:  # none is known of a backend that cannot be loaded
            reason = availability.reason if device is None else availability.why_not(device)
            table.append(row | {"device": device, "available": not reason, "reason": reason or None})
        summary += _precision_lines(name, abilities["dtypes_by_device"])
        summary += _option_lines(name, options)
        if algorithms:
            summary.append(f"algorithms of {name}, besides the default: {', '.join(algorithms)}")
    library = cudnn_availability()
    planner = "can be asked for" if library.ok else f"no: {library.reason}"
    summary.append(f"execution plans of cudnn (dlbricks backends plans): {planner}")
    plans = {"name": "cudnn", "available": library.ok, "reason": library.reason or None}
    return Answer(
        rows,
        totals={"libraries": [plans | {"versions": dict(library.versions)}]},
        columns=[
            Field("name", "backend"),
            Field("device"),
            Field("available", "runs here", "yes"),
            Field("reason", "because"),
            Field("versions", "versions", lambda versions: " ".join(f"{k} {v}" for k, v in versions.items())),
        ],
        summary=summary,
        table=table,
    )


def installation_answer(done: Installed) -> Answer:
    """Return the answer of ``backends install``: one result."""
    row = {"name": done.backend, "installed": done.fresh, "folder": str(done.folder), "versions": dict(done.versions)}
    versions = " ".join(f"{name} {number}" for name, number in done.versions.items())
    text = "installed" if done.fresh else "there already; --again replaces it"
    return Answer([row], summary=[f"{done.backend} ({versions}): {text}", f"  {done.folder}"])


def _abilities(name: str) -> dict[str, Any]:
    """Devices, precisions, algorithms and options with their defaults; nothing of a backend that cannot be loaded."""
    try:
        backend = registry.get(name)
    except BackendUnavailable:  # its availability has the reason
        return {"devices": [], "dtypes": [], "dtypes_by_device": {}, "algorithms": {}, "options_by_device": {}}
    options = {device: backend.resolve(device, {}) for device in backend.devices}
    device = backend.devices[0]
    offered = backend.algorithms(device, options[device], NATIVE)
    return {
        "devices": list(backend.devices),
        "dtypes": list(backend.dtypes),
        "dtypes_by_device": {device: list(backend.dtypes_on(device)) for device in backend.devices},
        "algorithms": {algorithm.name: algorithm.help for algorithm in offered},
        "options_by_device": options,
    }


def _precision_lines(name: str, dtypes: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the precisions of a backend, by device if they differ."""
    if len({tuple(precisions) for precisions in dtypes.values()}) > 1:
        yield from (
            f"precisions of {name} on {device}: {', '.join(precisions)}" for device, precisions in dtypes.items()
        )
    elif dtypes:
        yield f"precisions of {name}: {', '.join(next(iter(dtypes.values())))}"


def _option_lines(name: str, options: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the options of the first device, and the differences of the others."""
    first: Mapping[str, str] = next(iter(options.values()), {})
    if first:
        yield f"options of {name}, with their defaults: {_assigned(first)}"
    for device, device_options in options.items():
        if more := {option: value for option, value in device_options.items() if first.get(option) != value}:
            yield f"options of {name} on {device}, other values: {_assigned(more)}"
        if less := [option for option in first if option not in device_options]:
            yield f"options that {name} has not on {device}: {' '.join(less)}"


def _assigned(options: Mapping[str, str]) -> str:
    return " ".join(f"{option}={value}" for option, value in options.items())


def system_answer() -> Answer:
    """Return the answer of ``system``: one result."""
    system, state, judged = probe_system(), machine_state(), quietness()
    row = {
        "key": system.key,
        **asdict(system),
        "cache_bytes": dict(system.cache_bytes),
        "state": state,
        **record_of(judged, fields("quiet reasons notes busy")),
    }
    caches = ", ".join(f"{name} {size(count)}" for name, count in system.cache_bytes)
    state_text = ", ".join(f"{name}={value}" for name, value in state.items() if value is not None)
    verdict = "yes" if judged.quiet else "no: " + "; ".join(judged.reasons)
    lines = [
        f"system  {short(system.key)}",
        f"cpu     {system.cpu} ({system.architecture}), {system.physical_cores} cores, {system.logical_cores} threads",
        f"caches  {caches or 'unknown'}",
        f"memory  {system.memory_gib} GiB",
        f"gpus    {', '.join(system.gpus) or 'none'}",
        f"isa     {' '.join(system.isa)}",
        f"state   {state_text}",
        f"quiet   {verdict} ({percent(judged.busy)} of the CPUs busy)",
        *(f"note    {text}" for text in judged.notes),
    ]
    return Answer([row], summary=lines)


def agreement_answer(report: AgreementReport) -> Answer:
    """Return the answer of ``backends check``: one result per brick with different outputs."""
    verdicts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Outcome)
    sides = f"{report.backend} in {report.dtype} beside {report.against}"
    return Answer.of(
        report.records(),
        columns=[
            Field("key", "brick", "key"),
            Field("operators", "operators", "words"),
            Field("verdict"),
            Field("error", "error", lambda value: "" if value is None else f"{value:.1e}"),
            Field("reason"),
        ],
        summary=[f"{sides}: {counted(len(report.rows), 'brick')}: {verdicts}"],
    )


def database_answer(store: Store) -> Answer:
    """Return the answer of ``db info``: one result per combination with measurements."""
    info = store.info()
    systems, stacks = info["systems"], info["stacks"]
    rows = [
        {
            "system": combination.system,
            "cpu": systems[combination.system].cpu,
            "stack": combination.stack,
            **record_of(stacks[combination.stack], fields("backend device")),
            "versions": dict(stacks[combination.stack].versions),
            "options": dict(stacks[combination.stack].options),
            **asdict(combination.conditions),
            "measured": combination.count,
        }
        for combination in store.combinations()
    ]
    counts = info["counts"]
    held_text = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Answer(
        rows,
        totals={
            **{name: info[name] for name in ("database", "revision", "bytes", "counts")},
            "systems": {key: asdict(system) for key, system in systems.items()},
        },
        columns=[
            Field("system", "system", "key"),
            Field("cpu"),
            Field("stack", "stack", "key"),
            Field("backend"),
            Field("device", spare=True),
            *map(Field, ("threads", "cache", "dtype", "measured")),
        ],
        summary=[f"{info['database']} (schema {info['revision']}): {held_text}"],
    )


def merge_answer(added: Transferred) -> Answer:
    """Return the answer of ``db merge``: the number of new rows."""
    row = asdict(added)
    return Answer([row], summary=["new: " + ", ".join(f"{name} {count}" for name, count in row.items())])


def calibration_answer(report: CalibrationReport) -> Answer:
    """Return the answer of ``system --calibrate``."""
    columns = columns_of(FIELDS, "backend", "graph", "threads", "batch", "models", "sd", "reason")
    summary = []
    for row in report.rows:
        if row.half_width is not None:
            summary.append(
                f"{row.method.graph}, {counted(row.method.threads, 'thread')}, batch {row.method.batch}: estimates on "
                f"this system now count as calibrated; the error of the method is ± {percent(row.half_width)}"
            )
        if row.later_held is not None:
            summary.append(
                f"of {counted(row.later_models, 'model')} measured after the earlier fit, {percent(row.later_held)} "
                "were within its intervals (it intends 95 %)"
            )
    return Answer.of(report.records(), columns=columns, summary=summary)
