"""Models for the viewers of other tools: a trace of the composed execution, and an ONNX file with notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...db import KernelView
from ...errors import UsageError
from ...generator.network.export import annotate_model
from ...tabular import fields, record_of
from .page.payload import at_once
from .section import LayerRow, Section, layer_rows
from .shares import whole_ms
from .tables import printable
from .units import milliseconds, percent, ratio

# The composed execution as a trace for Perfetto, speedscope and others: models, layers and kernels over time.
#
# Chrome's Trace Event Format: complete events (``X``) in microseconds, nested by time within a thread. The levels are
# those of XSP (Li et al., 2020): a model holds layers, and a profiled layer holds its kernels. A trace is built from
# means: it shows the duration and order of layers, not one observed execution.


_ROW, _PROFILE, _LANES = 1, 2, 10
"""Threads of a process: one layer after the other; kernels of the whole model; the first lane of branches at once."""

_TICK = 1024
"""Parts of a microsecond that times are rounded to: such fractions add up exactly, so that events that follow each
other, or lie within another, do so to the last bit, as viewers want it."""

Event = dict[str, Any]

Track = tuple[int, int]
"""Process and thread of an event."""


def write_trace(sections: Sequence[Section], path: Path) -> int:
    """Write the trace of some models, one process each; the number of its events.

    Raises:
        OSError: The file cannot be written.
    """
    events = [event for number, section in enumerate(sections, 1) for event in trace_events(section, number)]
    document = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"made by": "dlbricks report"}}
    path.write_text(json.dumps(document, allow_nan=False))
    return len(events)


_OF_MODEL = fields(
    "measured_ms=estimate.truth.ms estimate_ms=estimate.latency.ms system=estimate.place.system "
    "stack=estimate.place.stack model=model.own.key"
)
"""What a viewer shows of a model as it is."""


def trace_events(section: Section, process: int) -> Iterator[Event]:
    """Yield the events of one model; nothing until every layer is measured.

    Args:
        section: The model.
        process: Number of the model in the trace.
    """
    rows = list(layer_rows(section))
    lengths = [max(0.0, row.sequence.latency_ms) for row in rows if row.sequence.latency_ms is not None]
    if not rows or len(lengths) < len(rows):
        return
    yield _named("process_name", process, 0, section.name)
    yield _named("thread_name", process, _ROW, "constructed, one layer after the other")
    yield _event(
        (process, _ROW), section.name, "model", (0.0, math.fsum(lengths)),
        record_of(section, _OF_MODEL),
    )  # fmt: skip
    bounds = [math.fsum(lengths[:count]) for count in range(len(lengths) + 1)]
    for row, begin, end in zip(rows, bounds, bounds[1:], strict=False):
        yield _layer((process, _ROW), row, begin, end)
        view = section.views.get(row.sequence.key)
        if view is not None:
            yield from _kernels(process, view, begin, end)
    if section.quotient is not None:
        schedule = at_once(section.quotient, lengths)
        for lane in range(max(lane for _, lane in schedule) + 1):
            yield _named("thread_name", process, _LANES + lane, f"branches at once, lane {lane + 1}")
        for row, length, (begin, lane) in zip(rows, lengths, schedule, strict=True):
            yield _layer((process, _LANES + lane), row, begin, begin + length)
    if section.profile:
        yield _named("thread_name", process, _PROFILE, "measured profile: kernels by their first start")
        begin = 0.0
        for kernel in section.profile:
            if kernel.time_ns is not None:
                details = {"operator": kernel.operator, "place": kernel.place, "calls": kernel.calls}
                end = begin + kernel.time_ns / 1e6
                yield _event((process, _PROFILE), kernel.name, "kernel", (begin, end), details)
                begin = end


_OF_LAYER = fields(
    "on_critical_path=sequence.on_path ci95_ms=sequence.ci95_ms brick=sequence.key measurement=measurement.id"
)
"""What a viewer shows of a layer as it is."""


def _layer(track: Track, row: LayerRow, begin: float, end: float) -> Event:
    return _event(
        track,
        row.name,
        "layer",
        (begin, end),
        {
            **record_of(row, fields("operator reads writes")),
            "executed": row.executed or None,
            **record_of(row, _OF_LAYER),
        },
    )


def _kernels(process: int, view: KernelView, begin: float, last: float) -> Iterator[Event]:
    """Yield the kernels of a brick within its time: by shares, since profiling slows execution."""
    timed = [(kernel, kernel.time_ns / 1e6) for kernel in view.kernels if kernel.time_ns is not None]
    whole = math.fsum(time for _, time in timed)
    scale = min(1.0, (last - begin) / whole) if whole > 0 else 0.0
    for kernel, time in timed:
        details = {"operator": kernel.operator, "place": kernel.place, "calls": kernel.calls, "profiled_ms": time}
        end = min(last, begin + time * scale)
        yield _event((process, _ROW), kernel.name, "kernel", (begin, end), details)
        begin = end


def _event(track: Track, name: str, category: str, span_ms: tuple[float, float], details: Event) -> Event:
    arguments = {key: printable(value) if isinstance(value, str) else value for key, value in details.items()}
    begin, end = (round(ms * 1e3 * _TICK) / _TICK for ms in span_ms)
    return {
        "ph": "X",
        "pid": track[0],
        "tid": track[1],
        "name": printable(name),
        "cat": category,
        "ts": begin,
        "dur": end - begin,
        "args": {key: value for key, value in arguments.items() if value is not None},
    }


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": printable(name)}}


def annotate(sections: Sequence[Section], path: Path) -> int:
    """Write a model with the cost of each of its nodes; how many have one.

    Args:
        sections: One model.
        path: The file to write.

    Raises:
        UsageError: There are several models, or nothing is known of the one.
        ModelError: It cannot be read again.
        OSError: The file cannot be written.
    """
    if len(sections) != 1:
        raise UsageError(f"{len(sections)} models do not fit into one file", remedy="annotate one model at a time")
    (section,) = sections
    if section.model is None:
        raise UsageError(f"nothing is known of {section.name}, and so of its nodes: {section.estimate.error}")
    return annotate_model(section.model.source, notes_of(section), path)


def notes_of(section: Section) -> dict[str, Mapping[str, str]]:
    """Return notes by the first output of each node of the model's own graph.

    If the runtime computes several nodes as one, each of them has the latency and names of all.
    """
    model = section.model
    if model is None:
        return {}
    rows = list(layer_rows(section))
    whole = whole_ms(section.estimate)
    notes: dict[str, Mapping[str, str]] = {}
    for row in rows:
        latency = row.sequence.latency_ms
        for layer in row.origins:
            others = [origin.name for origin in row.origins if origin is not layer]
            note = {"latency": "not measured" if latency is None else f"{milliseconds(latency)} ms"}
            if latency is not None and row.sequence.ci95_ms is not None:
                note["ci95"] = " … ".join(f"{milliseconds(end)} ms" for end in row.sequence.ci95_ms)
            if latency is not None and whole:
                note["share"] = percent(latency / whole)
            if others:
                note["together with"] = ", ".join(others)
            if row.roof is not None and row.roof.headroom is not None:
                note["headroom"] = ratio(row.roof.headroom)
            note["brick"] = row.sequence.key
            if row.measurement is not None:
                note["measurement"] = row.measurement.id
            notes[layer.outputs[0]] = note
    if model.executed is not None and model.graph is model.executed.graph:
        for index in model.executed.eliminated:
            notes[model.own.layers[index].outputs[0]] = {"latency": "none: the runtime has nothing to do for it"}
    return notes
