"""What a model was measured on and with, as rows of words; each with the keys that find it in the database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ....db import Stack, System
from ...findings.cold_start import cold_start_of
from ..section import Section
from ..units import counted, half_of, margin, milliseconds, percent, ratio, ratio_within, size

__all__ = ["Fact", "facts_of", "figures_of", "place_of", "spelt_stack", "spelt_system"]


_NOTED = 0.02
"""By how much a machine is slower than when it is quiet before the page says so."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One row.

    Attributes:
        term: What it is.
        text: What it says.
        note: What else is to be known of it; empty where nothing is.
        keys: Kind of key (``system``, ``stack``, ``model``, ``measurement``, ``run``) to key.
    """

    term: str
    text: str
    note: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


def spelt_system(system: System) -> str:
    """A machine in a few words."""
    return f"{system.cpu}, {counted(system.physical_cores, 'core')}" + "".join(f", {gpu}" for gpu in system.gpus)


def spelt_stack(stack: Stack) -> str:
    """A runtime in a few words."""
    return " ".join(f"{name} {version}" for name, version in stack.versions) or stack.backend


def figures_of(section: Section) -> list[Fact]:
    """The latencies of a model, with their intervals; what is not known says why."""
    entry, truth = section.estimate, section.truth
    found = {} if truth is None else {"model": truth.key, "measurement": truth.id}
    whole = _within(entry.measured_ms, entry.measured_ci95_ms)
    quiet = entry.measured_undisturbed_ms
    rows = [
        Fact(
            "Measured",
            whole or "not measured",
            f"on a quiet machine {milliseconds(quiet)} ms" if quiet is not None else "",
            found,
        ),
        Fact(
            "Estimate from bricks",
            _within(entry.estimate_ms, entry.ci95_ms) or "not complete",
            f"{ratio_within(entry.ratio, entry.ratio_ci95)} of measured" if entry.ratio is not None else "",
        ),
        Fact(
            "Critical path",
            _ms(entry.critical_path_ms) or "not known",
            "if branches ran at once and did not contend" if entry.critical_path_ms is not None else "",
        ),
    ]
    bound = entry.lower_bound_sequential_ms
    if bound is not None and (entry.estimate_ms is None or bound < 0.999 * entry.estimate_ms):
        rows.append(Fact("Lower bound", _ms(bound) or "", "the cheapest bricks that are stored, over all stacks"))
    if entry.roofline_ms is not None:
        headroom = f"headroom {ratio(entry.roofline_headroom)}×" if entry.roofline_headroom else ""  # noqa: RUF001
        rows.append(Fact("Bound of the machine", _ms(entry.roofline_ms) or "", headroom))
    start = cold_start_of(truth)
    if start is not None:
        both = start.load_ms + start.first_run_ms
        parts = f"{milliseconds(start.load_ms)} ms and {milliseconds(start.first_run_ms)} ms"
        rows.append(Fact("Load and first run", _ms(both) or "", f"{parts}: as long as {start.runs:.3g} runs", found))
    return rows


def place_of(section: Section) -> list[Fact]:
    """The setup in a line: machine, runtime, conditions, dimensions, and how quiet it was."""
    entry, system, stack = section.estimate, section.system, section.stack
    if system is None or stack is None:
        return []
    words = [
        Fact("system", spelt_system(system), keys={"system": system.key}),
        Fact("stack", f"{spelt_stack(stack)} on {stack.device}", keys={"stack": stack.key}),
        Fact("conditions", f"{counted(entry.threads or 0, 'thread')}, {entry.dtype}, cache {entry.cache}"),
        Fact("dimensions", ", ".join(f"{name} = {value}" for name, value in entry.bound.items())),
    ]
    if entry.disturbance is not None:
        words.append(Fact("machine", f"machine {_quietness(section)[0]}"))
    return [one for one in words if one.text]


def facts_of(section: Section) -> Iterator[Fact]:
    """The setup of a model's measurements."""
    entry, system, stack, model = section.estimate, section.system, section.stack, section.model
    if model is not None:
        bound = ", ".join(f"{name} = {value}" for name, value in entry.bound.items())
        own = sum(1 for _ in model.own.live)
        cut = f"{counted(len(entry.sequences), 'node')} of the executed graph" if entry.graph == "runtime" else ""
        cut = cut or f"{counted(len(entry.sequences), 'sequence')} of at most {counted(entry.granularity, 'layer')}"
        yield Fact(
            "Model",
            f"{counted(own, 'layer')} at inference; {cut}, {entry.unique} of them unique",
            bound,
            {"model": model.own.key},
        )
    if system is not None:
        caches = ", ".join(f"{name} {size(value)}" for name, value in system.cache_bytes)
        yield Fact("System", spelt_system(system), f"{caches}; memory {system.memory_gib} GiB", {"system": system.key})
    if stack is not None:
        options = ", ".join(f"{name} {value}" for name, value in stack.options)
        yield Fact("Stack", f"{spelt_stack(stack)} on {stack.device}", options, {"stack": stack.key})
    if entry.threads is not None:
        state = f" (bricks at a reuse distance of {section.state})" if entry.cache == "model" else ""
        yield Fact(
            "Conditions", f"{counted(entry.threads, 'thread')}, {entry.dtype}, cache {entry.cache}{state}",
            f"graph {entry.graph}, granularity {entry.granularity}",
        )  # fmt: skip
    if entry.quiet is not None or entry.disturbance is not None:
        yield Fact("Machine", *_quietness(section))
    for run in section.runs:
        load = run.before.get("load_1m")
        yield Fact(
            "Run",
            f"{run.started[:16].replace('T', ' ')} UTC, dlbricks {run.tool} {run.command}",
            "" if load is None else f"load before {load}",
            {"run": run.id},
        )


def _quietness(section: Section) -> tuple[str, str]:
    entry = section.estimate
    slowed = entry.disturbance
    text = "quiet" if slowed is None or slowed < _NOTED else f"{percent(slowed)} slower than when it is quiet"
    text = "disturbed: " + text if entry.disturbed else text
    share = "" if entry.quiet is None else f"{percent(entry.quiet)} of the visits met a quiet machine"
    paired = {True: "bricks and model were visited in turn", False: "bricks and model are of different sessions"}
    known = [one for one in (share, paired.get(entry.paired) if entry.paired is not None else None) if one]
    return text, "; ".join(known)


def _within(value: float | None, bounds: tuple[float, float] | None) -> str | None:
    if value is None:
        return None
    half = "" if bounds is None else f" ± {margin(half_of(value, bounds))}"
    return f"{milliseconds(value)}{half} ms"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{milliseconds(value)} ms"
