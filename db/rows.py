"""Values to rows and back."""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from ..errors import StoreError
from .schema import MeasurementRow, table_of
from .values import Block, Conditions, Measurement, Run, Stack, Stop, Subject, System, Verdict, Visit

__all__ = [
    "STATISTICS",
    "block_row",
    "pack_samples",
    "pack_visits",
    "run_row",
    "stack_row",
    "statistics_row",
    "system_row",
    "to_block",
    "to_measurement",
    "to_run",
    "to_stack",
    "to_system",
]

_SAMPLE_BYTES = 16
"""Two int64: elapsed_ns and loops."""
_VISIT_BYTES = 24
"""Three int64: begun_us, compute_ns, memory_ns."""
_MOST_SAMPLES = 1_000_000
"""Of one request to a worker, and thus of a block."""

_M = table_of(MeasurementRow).c
STATISTICS = (
    _M.id, _M.run_id, _M.unroll, _M.median_ns, _M.mean_ns, _M.trimmed_mean_ns, _M.min_ns, _M.p90_ns, _M.p99_ns,
    _M.ci95_low_ns, _M.ci95_high_ns, _M.samples, _M.block_medians_ns, _M.verdict, _M.stop, _M.load_ns,
    _M.first_run_ns, _M.reference_ns, _M.protocol, _M.footprint_bytes, _M.undisturbed_ns, _M.quiet,
)  # fmt: skip
"""What ``to_measurement`` wants of a finished measurement, in its order."""


def pack_samples(samples: Sequence[tuple[int, int]]) -> bytes:
    """(elapsed_ns, loops) pairs as little-endian int64, deflated where that is shorter."""
    return _packed(number for sample in samples for number in sample)


@lru_cache(maxsize=16)
def pack_visits(visits: tuple[Visit, ...]) -> bytes:
    """(begun_us, compute_ns, memory_ns) likewise; hundreds of bricks are visited together and have the same."""
    return _packed(number for visit in visits for number in (visit.begun_us, visit.compute_ns, visit.memory_ns))


def _packed(numbers: Iterable[int]) -> bytes:
    flat = array("q", numbers)
    if sys.byteorder == "big":
        flat.byteswap()
    raw = flat.tobytes()
    packed = zlib.compress(raw, 1)
    return packed if len(packed) < len(raw) else raw


def _unpack_samples(data: object, samples: int) -> tuple[tuple[int, int], ...]:
    flat = _unpacked(data, samples, _SAMPLE_BYTES)
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@lru_cache(maxsize=64)
def _unpack_visits(data: object, samples: int) -> tuple[Visit, ...]:
    flat = _unpacked(data, samples, _VISIT_BYTES)
    return tuple(map(Visit, flat[::3], flat[1::3], flat[2::3]))


def _unpacked(data: object, samples: int, each: int) -> array[int]:
    # SQLite keeps what it is given, whatever the column is declared as.
    if not isinstance(data, bytes) or not isinstance(samples, int):
        raise StoreError("a stored block is no block", remedy="restore a copy")
    size = samples * each
    if not 0 <= samples <= _MOST_SAMPLES:
        raise StoreError(f"a stored block claims {samples} samples", remedy="restore a copy")
    raw = data
    if len(data) != size:
        # Databases of others are merged: deflated, a few bytes can stand for gigabytes.
        try:
            raw = zlib.decompressobj().decompress(data, size + 1)
        except zlib.error as error:
            raise StoreError(f"a stored block cannot be read: {error}", remedy="restore a copy") from error
    if len(raw) != size:
        raise StoreError(f"a stored block holds something else instead of {samples} samples", remedy="restore a copy")
    flat = array("q", raw)
    if sys.byteorder == "big":
        flat.byteswap()
    return flat


def block_row(measurement: str, block: Block) -> dict[str, Any]:
    """A row of ``BlockRow``."""
    return {
        "measurement_id": measurement,
        "process": block.process,
        "round": block.round,
        "warmups": block.warmups,
        "samples": len(block.samples),
        "data": pack_samples(block.samples),
        "visits": pack_visits(block.visits) if block.visits else None,
    }


def to_block(row: Sequence[Any]) -> Block:
    """From (process, round, warmups, samples, data, visits)."""
    process, round_, warmups, samples, data, visits = row
    return Block(
        process=process,
        round=round_,
        samples=_unpack_samples(data, samples),
        warmups=warmups,
        visits=() if visits is None else _unpack_visits(visits, samples),
    )


def statistics_row(measurement: Measurement) -> dict[str, Any]:
    """The columns of ``MeasurementRow`` that finishing fills in."""
    medians = measurement.block_medians_ns
    return {
        "run_id": measurement.run,
        "unroll": measurement.unroll,
        "median_ns": measurement.median_ns,
        "mean_ns": measurement.mean_ns,
        "trimmed_mean_ns": measurement.trimmed_mean_ns,
        "min_ns": measurement.min_ns,
        "p90_ns": measurement.p90_ns,
        "p99_ns": measurement.p99_ns,
        "ci95_low_ns": measurement.ci95_ns[0],
        "ci95_high_ns": measurement.ci95_ns[1],
        "samples": measurement.samples,
        "block_medians_ns": struct.pack(f"<{len(medians)}d", *medians),
        "verdict": str(measurement.verdict),
        "stop": str(measurement.stop),
        "load_ns": measurement.load_ns,
        "first_run_ns": measurement.first_run_ns,
        "reference_ns": measurement.reference_ns,
        "protocol": measurement.protocol,
        "footprint_bytes": measurement.footprint_bytes,
        "undisturbed_ns": measurement.undisturbed_ns,
        "quiet": measurement.quiet,
    }


def to_measurement(
    row: Sequence[Any], *, subject: Subject, key: str, system: str, stack: str, conditions: Conditions, variant: str
) -> Measurement:
    """From the columns ``STATISTICS``, and the identity of the item."""
    medians: bytes = row[12]
    return Measurement(
        id=row[0], run=row[1], subject=subject, key=key, system=system, stack=stack, conditions=conditions,
        unroll=row[2], median_ns=row[3], mean_ns=row[4], trimmed_mean_ns=row[5], min_ns=row[6], p90_ns=row[7],
        p99_ns=row[8], ci95_ns=(row[9], row[10]), samples=row[11],
        block_medians_ns=struct.unpack(f"<{len(medians) // 8}d", medians), verdict=Verdict(row[13]),
        stop=Stop(row[14]), load_ns=row[15], first_run_ns=row[16], reference_ns=row[17], variant=variant,
        protocol=row[18], footprint_bytes=row[19], undisturbed_ns=row[20], quiet=row[21],
    )  # fmt: skip


def system_row(system: System) -> dict[str, Any]:
    """A row of ``SystemRow``."""
    row = asdict(system) | {"key": system.key}
    return row | {"cache_bytes": [list(cache) for cache in system.cache_bytes], "isa": list(system.isa),
                  "gpus": list(system.gpus)}  # fmt: skip


def to_system(row: Mapping[str, Any]) -> System:
    """From a row of ``SystemRow``; its key must be that of its content."""
    system = System(
        cpu=row["cpu"],
        architecture=row["architecture"],
        physical_cores=row["physical_cores"],
        logical_cores=row["logical_cores"],
        cache_bytes=tuple((name, size) for name, size in row["cache_bytes"]),
        memory_gib=row["memory_gib"],
        isa=tuple(row["isa"]),
        gpus=tuple(row["gpus"]),
    )
    _check_key("system", row["key"], system.key)
    return system


def stack_row(stack: Stack) -> dict[str, Any]:
    """A row of ``StackRow``."""
    return {
        "key": stack.key,
        "backend": stack.backend,
        "device": stack.device,
        "versions": [list(pair) for pair in stack.versions],
        "options": [list(pair) for pair in stack.options],
    }


def to_stack(row: Mapping[str, Any]) -> Stack:
    """From a row of ``StackRow``; its key must be that of its content."""
    stack = Stack(
        backend=row["backend"],
        device=row["device"],
        versions=tuple((name, version) for name, version in row["versions"]),
        options=tuple((name, value) for name, value in row["options"]),
    )
    _check_key("stack", row["key"], stack.key)
    return stack


def _check_key(kind: str, stored: str, computed: str) -> None:
    # Databases of other machines are merged into ours; a key that is not its content would mix two machines up.
    if stored != computed:
        raise StoreError(
            f"the stored {kind} {stored[:12]} is not what its key says",
            remedy="the database was edited; restore a copy",
        )


def run_row(run: Run) -> dict[str, Any]:
    """A row of ``RunRow``."""
    row = {name: getattr(run, name) for name in Run.__slots__}
    return row | {
        "options": dict(run.options),
        "before": dict(run.before),
        "after": None if run.after is None else dict(run.after),
    }


def to_run(row: Mapping[str, Any]) -> Run:
    """From a row of ``RunRow``."""
    return Run(**{name: row[name] for name in Run.__slots__})
