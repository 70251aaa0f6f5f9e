"""Export of measurements: tables for other tools, or a database for others."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StoreError, UsageError
from ..tabular import as_text
from .faults import guarded
from .rows import Row, statistics_row
from .samples.statistics import BASELINE
from .store import Store
from .transfer import Policy, transfer
from .values import CACHES, Run, Stack, Subject

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "parquet", "sqlite")

_PUBLIC_SUBJECTS = (Subject.BRICK, Subject.REFERENCE)

_PUBLIC_OPTIONS = frozenset(
    {
        *("backend", "device", "threads", "cache", "dtype", "processes", "rounds", "unroll", "granularity", "visits"),
        *("budget_s", "item_budget_s", "item_timeout_s", "min_samples", "max_samples", "memory_bytes", "seed"),
        *("sessions", CACHES),
    }
)
_PUBLIC_STATE = frozenset(
    {
        *("governor", "frequency_mhz", "min_frequency_mhz", "max_frequency_mhz", "turbo", "smt", "temperature_c"),
        *("load_1m", "load_5m", "load_15m", "driver", "virtual", "container", "cpus_allowed", "cpu_quota"),
        *("memory_available_gib", "sessions_again", "sessions_throttled", BASELINE),
    }
)
"""Public names. Options and states that a later version adds stay private until they are listed here."""


class _MeasurementsOnly(Policy):
    """A policy that copies bricks only, without names of machines, persons, models or paths."""

    subjects = _PUBLIC_SUBJECTS

    def run(self, row: Row) -> Row:
        return row | {
            "options": _public(row["options"], _PUBLIC_OPTIONS),
            "before": _public(row["before"], _PUBLIC_STATE),
            "after": None if row["after"] is None else _public(row["after"], _PUBLIC_STATE),
            "node": "",
            "campaign": "",
        }

    def measurement(self, row: Row) -> Row:
        return row | {"node": ""}

    def failure(self, row: Row) -> Row:
        # A runtime's message may contain a file's path, and with it a user's name.
        return row | {"reason": f"{row['kind']} (the message stayed where it was measured)"}

    def view(self, row: Row) -> Row:
        # A kernel's name that looks like a path may be a user's.
        kernels = [
            ["(withheld)" if isinstance(part, str) and _names_a_path(part) else part for part in kernel]
            for kernel in row["kernels"]
        ]
        return row | {"kernels": kernels}


def _public(values: Mapping[str, object], allowed: frozenset[str]) -> Mapping[str, object]:
    """Return public options or machine states: numbers, lists of numbers, and words that are not paths."""

    def harmless(value: object) -> bool:
        if isinstance(value, list):
            return all(isinstance(item, int | float) for item in value)
        return isinstance(value, int | float) or (isinstance(value, str) and not _names_a_path(value))

    return {name: value for name, value in values.items() if name in allowed and harmless(value)}


def _names_a_path(value: str) -> bool:
    """Return True if a word may be a path, which could name a person or a host."""
    return any(mark in value for mark in ("/", "\\", "~"))


def _refuse_paths(stack: Stack, options: Iterable[tuple[str, object]] = ()) -> None:
    for name, value in (*stack.options, *stack.versions, *options):
        if _names_a_path(str(value)):
            raise StoreError(
                f"{stack.backend} was measured with {name}={value}, which may be a path",
                remedy="measure with an option that is no path, or export without --measurements-only",
            )


def export(
    store: Store,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002  (as the option is called)
    measurements_only: bool = False,
    named: Mapping[str, Mapping[str, str | int | None]] | None = None,
    node: str | None = None,
) -> int:
    """Write the finished measurements to a new file.

    ``csv`` and ``parquet`` contain one row per measurement, including its system and stack (``frame``). ``sqlite`` is a
    database for ``merge``, including raw samples and failures.

    Args:
        store: The database.
        path: The new file; it appears only when complete, and never replaces another file.
        format: ``csv``, ``parquet`` or ``sqlite``; by default from the file's suffix.
        measurements_only: Omit everything that could reveal places or models: whole-model measurements, host and model
            names, paths, run options and states that are not known to be harmless, the wording of failures. With this
            option the owner of a private model receives latencies from others.
        named: Further columns of a table, by key of brick or model.
        node: Export only measurements of this node, without kernel views, which are not assigned to nodes; None for
            all.

    Returns:
        Number of measurements.

    Raises:
        UsageError: The format is unknown.
        StoreError: The file exists or cannot be written, pyarrow is missing, or an option of a stack may be a path.
    """
    if named is not None and measurements_only:
        raise UsageError("names do not leave the house with measurements only", remedy="leave out one")
    destination = Path(path)
    kind = format or {".csv": "csv", ".parquet": "parquet", ".db": "sqlite", ".sqlite": "sqlite"}.get(
        destination.suffix
    )
    if kind not in FORMATS:
        raise UsageError(f"the format of {destination} is not known", remedy=f"choose one of {', '.join(FORMATS)}")
    if named is not None and kind == "sqlite":
        raise UsageError("a database has no place for names", remedy="export to csv or parquet")
    if os.path.lexists(destination):
        raise StoreError(f"{destination} exists already", remedy="remove it, or write to another file")
    if not destination.parent.is_dir():
        raise StoreError(f"the folder of {destination} does not exist", remedy="create it first")
    if measurements_only:
        for stack in store.stacks().values():
            _refuse_paths(stack)
    partial = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}.partial")
    try:
        with guarded(str(destination)):
            if kind == "sqlite":
                count = _write_database(store, partial, (_MeasurementsOnly if measurements_only else Policy)(node))
            else:
                table = frame(store, node=node)
                count = _write_table(table, partial, kind, measurements_only=measurements_only, named=named)
            partial.rename(destination)
    finally:
        for leftover in (partial, *(partial.with_name(partial.name + end) for end in ("-wal", "-shm", "-journal"))):
            leftover.unlink(missing_ok=True)
    return count


def export_run(store: Store, path: Path, run: Run) -> None:
    """Write the measurements of one run to a new database, as ``export`` with ``measurements_only`` does.

    Raises:
        StoreError: The file cannot be written, or an option of the runtime may be a path.
    """
    options = run.options.get("options")
    _refuse_paths(store.stacks()[run.stack], options.items() if isinstance(options, Mapping) else ())
    with guarded(str(path)):
        _write_database(store, path, _MeasurementsOnly(run=run.id))


def _write_database(store: Store, path: Path, policy: Policy) -> int:
    with Store.open(path) as target, store.reading() as source, target.writing() as connection:
        count = transfer(source, connection, policy).measurements
    # Without a write-ahead log the file can be read in any folder and on any medium.
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA journal_mode=DELETE")
    raw.close()
    return count


def _write_table(
    table: pd.DataFrame,
    path: Path,
    kind: str,
    *,
    measurements_only: bool,
    named: Mapping[str, Mapping[str, str | int | None]] | None = None,
) -> int:
    for column in dict.fromkeys(name for words in (named or {}).values() for name in words):
        table[column] = [(named or {}).get(key, {}).get(column) for key in table["key"]]
    if measurements_only:
        table = table[table["subject"].isin([str(subject) for subject in _PUBLIC_SUBJECTS])].assign(
            node="", campaign=""
        )
    if kind == "csv":
        table.map(lambda cell: as_text(cell) if isinstance(cell, str) else cell).to_csv(path, index=False)
    else:
        try:
            import pyarrow as _  # noqa: F401, ICN001  (optional; imported first for our own message)
        except ImportError as error:
            raise StoreError("Parquet needs pyarrow, the `parquet` extra", remedy="pip install pyarrow") from error
        table.to_parquet(path, index=False, engine="pyarrow")
    return len(table)


def frame(store: Store, *, latest: bool = False, node: str | None = None) -> pd.DataFrame:
    """Return the finished measurements as a table: one row each, including system and stack; no raw samples.

    Args:
        store: The database.
        latest: Return only the newest of each item.
        node: Return only measurements of this node; None for all.
    """
    import pandas as pd

    systems, stacks, runs = store.systems(), store.stacks(), {run.id: run for run in store.runs()}
    rows = []
    for m in store.measurements(variant=None, latest=latest, protocol=None, node=node):
        system, stack = systems[m.system], stacks[m.stack]
        rows.append(
            statistics_row(m)
            | {
                "id": m.id, "run": m.run, "subject": str(m.subject), "key": m.key, "variant": m.variant,
                "system": m.system, "cpu": system.cpu, "architecture": system.architecture,
                "physical_cores": system.physical_cores, "memory_gib": system.memory_gib, "gpus": ";".join(system.gpus),
                "stack": m.stack, "backend": stack.backend, "device": stack.device,
                "versions": ";".join(f"{name}={version}" for name, version in stack.versions),
                "options": ";".join(f"{name}={value}" for name, value in stack.options),
                "threads": m.conditions.threads, "cache": m.conditions.cache, "dtype": m.conditions.dtype,
                "node": runs[m.run].node, "campaign": runs[m.run].campaign,
            }
        )  # fmt: skip
    table = pd.DataFrame(rows, columns=_COLUMNS)
    # Columns with missing times stay integers.
    return table.astype(
        {
            **dict.fromkeys(("load_ns", "first_run_ns", "footprint_bytes"), "Int64"),
            **dict.fromkeys(("undisturbed_ns", "quiet"), "Float64"),
        }
    )


_COLUMNS = [
    "id", "run", "subject", "key", "variant", "system", "cpu", "architecture", "physical_cores", "memory_gib", "gpus",
    "stack", "backend", "device", "versions", "options", "threads", "cache", "dtype", "unroll", "samples", "median_ns",
    "mean_ns", "trimmed_mean_ns", "min_ns", "p90_ns", "p99_ns", "ci95_low_ns", "ci95_high_ns", "verdict", "stop",
    "load_ns", "first_run_ns", "protocol", "footprint_bytes", "undisturbed_ns", "quiet",
    "node", "campaign",
]  # fmt: skip
"""Columns of ``frame``, also of an empty table."""
