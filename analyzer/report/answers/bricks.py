"""Bricks by key, from a suite and from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ....bricks.graph.boundary import BOUNDARY
from ....bricks.suite.brick import Brick, signature_of
from ....bricks.suite.suite import Suite
from ....db import Failure, KernelView, Measurement, Stack, Store, Subject
from ....db.place import DatabasePlace
from ....db.queries import Filter
from ....db.values import PARTS, Identity
from ....errors import MissingBrick, UsageError
from ....tabular import Field, Row, fields, record_of
from ...kernels import KernelShare, shares_of, use_shares
from ...shell import shell_command
from ..tables import MOST, Answer, form_cells, kernel_of, shapes_of, unlisted
from ..units import counted, cut, milliseconds, percent, quantity, short, size

if TYPE_CHECKING:
    from ....db import Kernel, KernelView, Stack
    from ....db.values import Identity
    from ...kernels import Kernels, ModelKernels


def bricks_answer(suite: Path | None, database: str, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``brick list``: the bricks of a suite with their latencies, or all measured bricks.

    The table lists ``most`` bricks, the slowest first; None: all.

    Raises:
        SuiteError: The suite or a brick of it cannot be read.
        StoreError: There is neither a suite nor a database, or the database cannot be read.
    """
    if suite is None:
        with Store.open(database, create=False, read_only=True) as store:
            keys = sorted({measurement.key for measurement in store.measurements(subject=Subject.BRICK)})
            latencies = _latencies(store, keys)
        rows: list[Row] = [{"key": key, **_latency(latencies.get(key))} for key in keys]
        columns = [
            Field("key", "brick", "key"),
            Field("latency_ms", "fastest ms ±95%", "ms", interval="ci95_ms"),
        ]
        summary = [*unlisted(rows, most), f"{len(rows)} measured bricks"]
        return Answer(rows, columns=columns, summary=summary, table=_slowest(rows)[:most])
    opened = Suite.open(suite)
    measurements: dict[str, Measurement] = {}
    if _exists(database):
        with Store.open(database, create=False, read_only=True) as store:
            measurements = _latencies(store, opened.keys)
    rows = [{**_described(opened.brick(key)), **_latency(measurements.get(key))} for key in opened.keys]
    return Answer(
        rows,
        columns=[
            Field("key", "brick", "key"),
            Field("operators", "operators", "operators"),
            Field("cost.macs", "MACs", "count"),
            Field("weight_bytes", "weights", "bytes"),
            Field("input_bytes", "in", "bytes"),
            Field("output_bytes", "out", "bytes"),
            Field("latency_ms", "fastest ms ±95%", "ms", interval="ci95_ms"),
        ],
        totals={"suite": str(suite), "granularity": opened.granularity, "hash": opened.hash},
        summary=[*unlisted(rows, most), f"{len(rows)} bricks at G={opened.granularity}"],
        table=_slowest(rows)[:most],
    )


def _slowest(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, the slowest first and unmeasured bricks last."""
    return sorted(rows, key=lambda row: -value if isinstance(value := row["latency_ms"], float) else 0.0)


def brick_answer(beginning: str, suite: Path | None, database: str) -> Answer:
    """Return the answer of ``brick show``: one result per measurement or failure.

    The brick and its kernels are totals.

    Raises:
        UsageError: No key, or several keys, have this beginning.
        SuiteError: The suite or the brick cannot be read.
        StoreError: There is neither a suite nor a database, or the database cannot be read.
    """
    opened = None if suite is None else Suite.open(suite)
    key = "" if opened is None else find_key(beginning, opened.keys, f"suite {suite}")
    rows: list[Row] = []
    views: dict[Identity, KernelView] = {}
    stacks: dict[str, Stack] = {}
    if opened is None or _exists(database):
        with Store.open(database, create=False, read_only=True) as store:
            if opened is None:
                key = find_key(beginning, _known_keys(store), f"database {database}")
            stacks = store.stacks()
            brick_filter = Filter(Subject.BRICK, [key], variant=None)
            entries: list[Measurement | Failure] = [
                *store.measurements(brick_filter, latest=False),
                *store.failures(brick_filter),
            ]
            rows = [_row(entry, stacks) for entry in entries]
            views = store.kernels(brick_filter)
    brick = None if opened is None else opened.brick(key)
    lines = [f"brick      {key}"]
    if brick is not None:
        form = signature_of(brick)
        lines += [
            f"operators  {'+'.join(brick.operators)}",
            f"shapes     {shapes_of(form.inputs, form.outputs)}",
            *([f"kernel     {kernel}"] if (kernel := kernel_of(form.kernel, form.strides)) else []),
            f"weights    {size(brick.weight_bytes)}",
            f"traffic    reads {size(brick.input_bytes)}, writes {size(brick.output_bytes)}",
            f"work       {'unknown' if brick.cost is None else f'{quantity(brick.cost.macs)} MACs'}",
        ]
    return Answer(
        rows,
        totals={
            "brick": {"key": key} if brick is None else _described(brick),
            "kernels": view_records(views, stacks),
        },
        columns=[
            Field("system", "system", "key"),
            *map(Field, ("backend", "device", "threads", "cache")),
            *([Field("variant")] if any(row["variant"] for row in rows) else []),
            Field("latency_ms", "mean ms ±95%", "ms", interval="ci95_ms"),
            *map(Field, ("samples", "verdict", "reason")),
        ],
        summary=[*lines, *view_lines(views, stacks)],
    )


def _known_keys(store: Store) -> set[str]:
    """Keys of every brick that was measured or failed."""
    every_brick = Filter(Subject.BRICK, variant=None)
    measured = {entry.key for entry in store.measurements(every_brick)}
    return measured | {entry.key for entry in store.failures(every_brick)}


def _row(entry: Measurement | Failure, stacks: Mapping[str, Stack]) -> Row:
    stack, measured = stacks[entry.stack], entry if isinstance(entry, Measurement) else None
    return {
        **record_of(entry, fields("system stack")),
        **record_of(stack, fields("backend device")),
        **asdict(entry.conditions),
        "variant": entry.variant,
        **_latency(measured),
        "samples": 0 if measured is None else measured.summary.samples,
        "verdict": entry.summary.verdict if isinstance(entry, Measurement) else entry.kind,
        "reason": entry.reason if isinstance(entry, Failure) else None,
    }


def find_key(beginning: str, keys: Iterable[str], where: str) -> str:
    """Return the only key with this beginning.

    Raises:
        UsageError: Several keys match.
        MissingBrick: No key matches.
    """
    matches = sorted(key for key in keys if key.startswith(beginning.lower()))
    if not matches:
        raise MissingBrick(f"no brick {beginning!r} in {where}", remedy="'dlbricks brick list' names them")
    if len(matches) > 1:
        some = ", ".join(short(key) for key in matches[:4])
        raise UsageError(f"{len(matches)} bricks in {where} begin with {beginning!r}", remedy=f"for example {some}")
    return matches[0]


def _described(brick: Brick) -> Row:
    return {
        **record_of(brick, fields("key operators layers")),
        **asdict(signature_of(brick)),
        **record_of(brick, fields("weight_bytes input_bytes output_bytes")),
        "cost": None if brick.cost is None else asdict(brick.cost) | {"flops": brick.cost.flops},
    }


def _latencies(store: Store, keys: Iterable[str]) -> dict[str, Measurement]:
    """Return the fastest stored measurement of each brick, algorithms included."""
    fastest: dict[str, Measurement] = {}
    for entry in store.measurements(subject=Subject.BRICK, keys=list(keys), variant=None):
        if entry.variant in {*PARTS, *BOUNDARY}:  # a part of the brick, not a way to run it
            continue
        fastest[entry.key] = min(entry, fastest.get(entry.key, entry), key=lambda measured: measured.latency_ns)
    return fastest


def _latency(measurement: Measurement | None) -> Row:
    return {"latency_ms": measurement and measurement.latency_ms, "ci95_ms": measurement and measurement.ci95_ms}


def _exists(database: str) -> bool:
    return bool(DatabasePlace.of(database).inspect())


# Kernels as tables and records: of models, and of one brick wherever it was profiled.


_NS_PER_MS = 1e6
_LISTED = 20
"""Lines per view of a brick, and calls that ran elsewhere."""

_LONGEST_NAME = 72
"""Characters of a kernel's name in a table; those of CUDA are a page long."""

_MISSING = 5
"""Kinds of sequences without a view that are listed per model."""


def kernels_answer(kernels: Kernels, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``kernels``: one result per model, one row of the table per kernel, ``most`` per model."""
    layered = any(kernel.layers for row in kernels for kernel in row.kernels)
    fell_back = any(row.elsewhere for row in kernels)
    return Answer.of(
        kernels.records(),
        columns=[
            *([Field("model")] if len(kernels) > 1 else []),
            *([] if layered else [Field("kernel.operator", "operator", _cut)]),
            Field("kernel.name", "kernel", _cut),
            *([Field("form", "operators, shapes, layers")] if layered else []),
            Field("kernel.calls", "calls"),
            Field("kernel.time_ms", "profiled ms", "ms"),
            Field("kernel.share", "share", "share"),
            Field("kernel.matrix", "matrix units"),
            Field("kernel.units", "units", spare=True),
            Field("kernel.place", "ran on", spare=not fell_back),
        ],
        table=[
            {"model": row.name, "kernel": kernel.record(), "form": _layers(kernel)}
            for row in kernels
            for kernel in row.kernels[:most]
        ],
        summary=[line for row in kernels for line in _remarks(row, most)],
    )


def _layers(kernel: KernelShare) -> str | None:
    """Write the brick with the most time of a kernel, and the number of other bricks."""
    if not kernel.layers:
        return None
    first, rest = kernel.layers[0], len(kernel.layers) - 1
    form = form_cells(first.operators, first.names, first.form)["form"]
    return f"{form}, and {counted(rest, 'other brick')}" if rest else str(form)


def _remarks(row: ModelKernels, most: int | None) -> list[str]:
    if row.error is not None:
        return [f"{row.name}: {row.error}"]
    lines = []
    if row.kernels:
        cut = most is not None and len(row.kernels) > most
        rest = f", of which {most} are listed (--all lists all)" if cut else ""
        time = "" if row.time_ms is None else f", {milliseconds(row.time_ms)} ms under {row.source}"
        lines.append(f"{row.name}: {counted(len(row.kernels), 'kernel')}{rest}{time}; {_in_words(row.kernels)}")
    if row.elsewhere and row.choice is not None:
        calls = sum(share.kernel.calls for share in row.elsewhere)
        lines.append(f"{row.name}: {counted(calls, 'call')} did not run on {row.choice.stack.device}:")
        lines += [
            f"  {share.kernel.calls:>4} x {_label(share.kernel)} on {share.kernel.place}"
            for share in row.elsewhere[:_LISTED]
        ]
    if row.missing:
        what = "the model" if row.whole else counted(sum(missing.copies for missing in row.missing), "sequence")
        lines.append(
            f"{row.name}: the kernels of {what} are not known"
            + (f": {shell_command(row.remedy)}" if row.remedy else "")
        )
        if not row.whole:
            kinds = Counter[str]()
            for missing in row.missing:
                kinds["+".join(missing.op_types)] += missing.copies
            lines += [f"  {count:>4} x {operators}" for operators, count in kinds.most_common(_MISSING)]
            if len(kinds) > _MISSING:
                more = sum(count for _, count in kinds.most_common()[_MISSING:])
                lines.append(f"  and {more} more (--json lists all)")
    return lines


def _in_words(kernels: Sequence[KernelShare]) -> str:
    """Write the shares of time with and without matrix units, known from kernel names."""
    if not kernels:
        return "no kernels"
    shares = use_shares(kernels)
    if shares["yes"] is None:
        return "times are not known"
    words = {"yes": "with matrix units", "no": "without", "unknown": "unknown from the names"}
    parts = [f"{percent(shares[use] or 0.0)} {text}" for use, text in words.items()]
    return f"{', '.join(parts)} (of the time)"


def view_records(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[dict[str, object]]:
    """Return the kernel views of one brick as records, each with its system, stack and conditions."""
    records: list[dict[str, object]] = []
    for identity, view in _sorted(views):
        stack = stacks[identity.stack]
        kernels, _ = shares_of([(view, 1)], stack.device)
        records.append(
            {
                **record_of(identity, fields("system stack")),
                **record_of(stack, fields("backend device")),
                **record_of(identity, fields("threads=conditions.threads dtype=conditions.dtype variant")),
                **record_of(view, fields("source executions")),
                "wall_ms": view.wall_ns / _NS_PER_MS,
                "matrix_shares": use_shares(kernels),
                "kernels": [kernel.record() for kernel in kernels],
            }
        )
    return records


def view_lines(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[str]:
    """Return the kernel views of one brick as lines."""
    lines = []
    for identity, view in _sorted(views):
        stack, conditions = stacks[identity.stack], identity.conditions
        kernels, _ = shares_of([(view, 1)], stack.device)
        how = f", algorithm {identity.variant}" if identity.variant else ""
        where = f"{stack.backend} on {stack.device}, {counted(conditions.threads, 'thread')}, {conditions.dtype}{how}"
        lines.append(f"kernels    {where} (stack {short(identity.stack)}, {view.source}): {_in_words(kernels)}")
        for row in kernels[:_LISTED]:
            time = "-" if row.time_ms is None else milliseconds(row.time_ms)
            share = "-" if row.share is None else percent(row.share)
            units = f"  {row.units}" if row.units else ""
            lines.append(f"  {time:>10} ms {share:>5}  {row.kernel.calls:>3} x {_label(row.kernel)}{units}")
    return lines


def _sorted(views: Mapping[Identity, KernelView]) -> Iterable[tuple[Identity, KernelView]]:
    return sorted(
        views.items(), key=lambda pair: (pair[0].stack, pair[0].system, str(pair[0].conditions), pair[0].variant)
    )


def _label(kernel: Kernel) -> str:
    name = _cut(kernel.name)
    return name if kernel.operator in {"", kernel.name} else f"{name} ({_cut(kernel.operator)})"


def _cut(name: str) -> str:
    return cut(name, _LONGEST_NAME)
