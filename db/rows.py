"""Conversion of values to rows and back."""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from sqlalchemy import JSON, BigInteger, Column, Double, Integer, LargeBinary, RowMapping, String, Table, Text

from .schema import MEASUREMENT, PROOF, RUN
from .values import (
    Block,
    Identity,
    Kernel,
    KernelView,
    Measurement,
    Proofs,
    Run,
    Stack,
    Stop,
    Summary,
    System,
    Verdict,
    Visit,
)

_Keyed = TypeVar("_Keyed", System, Stack)

Row = dict[str, Any]
"""Values of a table's row by column."""

_SAMPLE_BYTES = 16
"""Two int64: elapsed_ns and loops."""
_VISIT = ("begun_us", "compute_ns", "memory_ns", "cpu_ns", "switches", "waited_ns")
"""Fields of a ``Visit``, an int64 each."""
_UNKNOWN = -1
"""Placeholder for a value that the system did not report."""
_MOST_SAMPLES = 1_000_000
"""Maximum samples of one request to a worker, and thus of a block."""

_SUMMARY = ("median_ns", "mean_ns", "trimmed_mean_ns", "min_ns", "p90_ns", "p99_ns", "samples")
"""Columns that are fields of a ``Summary``."""
_OWN = (
    "unroll", "load_ns", "first_run_ns", "protocol", "footprint_bytes", "undisturbed_ns", "quiet",
)  # fmt: skip
"""Columns that are fields of a ``Measurement``."""
_SPELLED = ("id", "run_id", "ci95_low_ns", "ci95_high_ns", "block_medians_ns", "verdict", "stop")
"""Columns with another form than the field."""
_CERTAIN = frozenset((*_SPELLED, *_SUMMARY))
"""Columns that a finished measurement has."""
STATISTICS = tuple(MEASUREMENT.c[name] for name in (*_SPELLED, *_SUMMARY, *_OWN))
"""Columns of a finished measurement for ``to_measurement``, in its order."""


# The border: a database may come from anywhere, and SQLite stores values of any type in any column.


_LARGEST = 1 << 63
_END_US = 253_402_300_800_000_000
"""Microseconds from 1970 to the year 10000, which no date reaches."""
_DEPTH = 50
"""Maximum nesting of stored JSON."""
_MOST_UNROLLED = 1 << 16
"""Copies in one network, far more than are made."""
_SIGNED = frozenset({"ci95_low_ns"})
"""Columns that may be negative: the lower end of a wide interval."""
_OBJECTS = frozenset({"options", "before", "after"})
"""JSON columns of a run that are objects."""
_MOMENTS = frozenset({"started", "finished"})
"""Text columns of a run that are dates of ISO 8601 with a time zone."""


def checked(table: Table, row: Mapping[str, Any] | RowMapping) -> Row:
    """Return a row of another database, if every value is one that dlbricks may have written.

    Raises:
        ValueError: A value has another type, is negative or far too large, or is nested too deep.
    """
    finished = table is MEASUREMENT and row["finished_us"] is not None
    for column in table.c:
        _check(column, row[column.name], certain=finished and column.name in _CERTAIN)
    if finished:
        _unpack_medians(row["block_medians_ns"])
        _check_ends(row["ci95_low_ns"], row["ci95_high_ns"])
    return {column.name: row[column.name] for column in table.c}


def _check(column: Column[Any], value: object, *, certain: bool = False) -> None:
    if not (column.nullable and not certain if value is None else _CHECKS[type(column.type)](column.name, value)):
        raise ValueError(f"{column.table.name}.{column.name} is {value!r:.40}")


def _whole(name: str, value: object) -> bool:
    if name == "unroll":
        return type(value) is int and 1 <= value <= _MOST_UNROLLED
    return type(value) is int and 0 <= value < (_END_US if name.endswith("_us") else _LARGEST)


def _real(name: str, value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < _LARGEST and (value >= 0 or name in _SIGNED)


def _text(name: str, value: object) -> bool:
    return isinstance(value, str) and (name not in _MOMENTS or _is_moment(value))


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _check_ends(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"measurement.ci95_low_ns is {low!r:.40}, above ci95_high_ns, {high!r:.40}")


def _bytes(_: str, value: object) -> bool:
    return isinstance(value, bytes)


def _json(name: str, value: object) -> bool:
    return isinstance(value, dict) if name in _OBJECTS else isinstance(value, list | dict)


def nested_at_most(value: object, depth: int = _DEPTH) -> bool:
    """Return True if lists and objects of JSON are nested at most so deep."""
    if not isinstance(value, list | dict):
        return True
    parts = value if isinstance(value, list) else value.values()
    return depth > 0 and all(nested_at_most(part, depth - 1) for part in parts)


def read_json(text: str) -> Any:
    """Return the value of a JSON column.

    Raises:
        ValueError: It is not JSON, or nested too deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    if (value is None and text != "null") or not nested_at_most(value):
        raise ValueError("stored JSON is nested too deep")
    return value


_CHECKS: dict[type, Callable[[str, object], bool]] = {
    Integer: _whole, BigInteger: _whole, Double: _real, String: _text, Text: _text, LargeBinary: _bytes, JSON: _json,
}  # fmt: skip


def pack_samples(samples: Sequence[tuple[int, int]]) -> bytes:
    """Pack (elapsed_ns, loops) pairs as little-endian int64, deflated if this is shorter."""
    return _packed(number for sample in samples for number in sample)


@lru_cache(maxsize=16)
def pack_visits(visits: tuple[Visit, ...]) -> bytes:
    """Pack the fields of visits likewise; hundreds of bricks that are visited together have the same visits."""
    numbers = (getattr(visit, name) for visit in visits for name in _VISIT)
    return _packed(_UNKNOWN if number is None else number for number in numbers)


def _packed(numbers: Iterable[int]) -> bytes:
    flat = array("q", numbers)
    if sys.byteorder == "big":
        flat.byteswap()
    raw = flat.tobytes()
    packed = zlib.compress(raw, 1)
    return packed if len(packed) < len(raw) else raw


def _unpack_samples(data: object, samples: int) -> tuple[tuple[int, int], ...]:
    flat = _unpacked(data, samples, _SAMPLE_BYTES)
    if samples and min(flat[1::2]) < 1:
        raise ValueError("a stored block has samples of no execution")
    return tuple(zip(flat[::2], flat[1::2], strict=True))


@lru_cache(maxsize=1024)  # a few hundred runs; hundreds of bricks have the same visits
def _unpack_visits(data: object, samples: int) -> tuple[Visit, ...]:
    flat = _unpacked(data, samples, 8 * len(_VISIT))
    columns = [flat[index :: len(_VISIT)] for index in range(len(_VISIT))]
    nullable_columns = [[None if number == _UNKNOWN else number for number in column] for column in columns[3:]]
    return tuple(map(Visit, *columns[:3], *nullable_columns))


def _unpacked(data: object, samples: int, each: int) -> array[int]:
    # SQLite stores values of any type in any column.
    if not isinstance(data, bytes) or not isinstance(samples, int):
        raise TypeError("a stored block has another type")
    size = samples * each
    if not 0 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"a stored block claims {samples} samples")
    raw = data
    if len(data) != size:
        # The database may be untrusted: a few deflated bytes can expand to gigabytes.
        try:
            raw = zlib.decompressobj().decompress(data, size + 1)
        except zlib.error as error:
            raise ValueError(f"a stored block cannot be read: {error}") from error
    if len(raw) != size:
        raise ValueError(f"a stored block holds something else instead of {samples} samples")
    flat = array("q", raw)
    if sys.byteorder == "big":
        flat.byteswap()
    return flat


def block_row(measurement: str, block: Block) -> Row:
    """Return a row of ``BLOCK``."""
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
    """Return the block of (process, round, warmups, samples, data, visits)."""
    process, round_, warmups, samples, data, visits = row
    return Block(
        process=process,
        round=round_,
        samples=_unpack_samples(data, samples),
        warmups=warmups,
        visits=() if visits is None else _unpack_visits(visits, samples),
    )


def statistics_row(measurement: Measurement) -> Row:
    """Return the columns of ``MEASUREMENT`` for a finished measurement."""
    summary = measurement.summary
    (low, high), medians = summary.ci95_ns, summary.block_medians_ns
    return {
        "run_id": measurement.run,
        "ci95_low_ns": low,
        "ci95_high_ns": high,
        "block_medians_ns": struct.pack(f"<{len(medians)}d", *medians),
        "verdict": str(summary.verdict),
        "stop": str(measurement.stop),
        **{name: getattr(summary, name) for name in _SUMMARY},
        **{name: getattr(measurement, name) for name in _OWN},
    }


def _unpack_medians(packed: bytes) -> tuple[float, ...]:
    medians = struct.unpack(f"<{len(packed) // 8}d", packed)
    if not all(map(math.isfinite, medians)):
        raise ValueError("measurement.block_medians_ns is not finite")
    return medians


def to_measurement(row: Sequence[Any], identity: Identity) -> Measurement:
    """Return the measurement of the columns ``STATISTICS`` and an identity.

    Raises:
        ValueError: A value is not one that dlbricks may have written.
    """
    for column, value in zip(STATISTICS, row, strict=True):
        _check(column, value, certain=column.name in _CERTAIN)
    id_, run, low, high, packed, verdict, stop, *rest = row
    medians = _unpack_medians(packed)
    _check_ends(low, high)
    figures, fields = rest[: len(_SUMMARY)], rest[len(_SUMMARY) :]
    summary = Summary(
        **dict(zip(_SUMMARY, figures, strict=True)),
        ci95_ns=(low, high),
        block_medians_ns=medians,
        verdict=Verdict(verdict),
    )
    return Measurement(id_, run, identity, summary=summary, stop=Stop(stop), **dict(zip(_OWN, fields, strict=True)))


def keyed_row(value: System | Stack) -> Row:
    """Return a row of ``SYSTEM`` or ``STACK``."""
    return asdict(value) | {"key": value.key}


def to_keyed(kind: type[_Keyed], row: Mapping[str, Any]) -> _Keyed:
    """Return a system or stack.

    Raises:
        ValueError: A value has another type, or it does not match its key.
    """
    value = msgspec.convert({name: row[name] for name in kind.__slots__}, kind)
    if row["key"] != value.key:
        raise ValueError(f"the stored {kind.__name__.lower()} {row['key'][:12]} does not match its key")
    return value


def run_row(run: Run) -> Row:
    """Return a row of ``RUN``."""
    row = {name: getattr(run, name) for name in Run.__slots__}
    return row | {
        "options": dict(run.options),
        "before": dict(run.before),
        "after": None if run.after is None else dict(run.after),
    }


def to_run(row: Mapping[str, Any]) -> Run:
    """Return the run of a row of ``RUN``.

    Raises:
        ValueError: A value is not one that dlbricks may have written.
    """
    checked(RUN, row)
    return Run(**{name: row[name] for name in Run.__slots__})


def view_row(view: KernelView) -> Row:
    """Return the columns of ``KERNEL_VIEW`` for the kernels."""
    return asdict(view) | {"kernels": [list(astuple(kernel)) for kernel in view.kernels]}


def to_view(row: Mapping[str, Any]) -> KernelView:
    """Return the kernel view of a row of ``KERNEL_VIEW``.

    Raises:
        ValueError: The row has another form.
    """
    kernels = row["kernels"]
    if not isinstance(kernels, list) or not all(_is_kernel(entry) for entry in kernels):
        raise ValueError("a stored kernel view cannot be read")
    return KernelView(
        kernels=tuple(Kernel(*entry) for entry in kernels),
        wall_ns=row["wall_ns"],
        executions=row["executions"],
        source=row["source"],
    )


def _is_kernel(entry: Sequence[object]) -> bool:
    # The database may be untrusted: refuse values that cannot be summed.
    if not isinstance(entry, list) or len(entry) != len(Kernel.__slots__):
        return False
    *texts, calls, time_ns = entry
    whole = isinstance(calls, int) and (time_ns is None or isinstance(time_ns, int))
    return whole and all(isinstance(text, str) for text in texts)


def proofs_row(proofs: Proofs) -> Row:
    """Return the columns of ``PROOF`` for results of trials."""
    return asdict(proofs)


def to_proofs(row: Mapping[str, Any]) -> Proofs:
    """Return the results of trials in a row of ``PROOF``.

    Raises:
        ValueError: A value is not one that dlbricks may have written.
    """
    for name in Proofs.__slots__:
        _check(PROOF.c[name], row[name])
    if not all(isinstance(name, str) for name in row["untried"]):
        raise ValueError("stored proofs cannot be read")
    return Proofs(row["contents"], row["form"], tuple(row["findings"]), tuple(row["untried"]))
