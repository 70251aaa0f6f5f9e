"""Other stored ways to run the model that take less: more threads, another precision, another runtime, other options.

Saving: measured latency here less measured latency there, of the same model on the same system, each way by itself and
the fastest of its kind. Measurements of different runs have in their interval what the machine may have done in between
(docs/comparing.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .....constructor.choice import narrows
from .....db import Measurement, Stack, Subject
from .....generator.backends.base import TF32
from .....generator.backends.huge_pages import HUGE_PAGES
from ...analysis import LATENCY, Analysis
from ...finding import Finding, Remedy
from ...subject import Subject as Model
from ..settings import huge_pages
from .beside import Beside

__all__ = ["ANALYSIS"]


def _run(model: Model) -> Iterable[Finding]:
    choice = model.choice
    if choice is None or model.latency_ms is None:
        return
    stored = model.store.measurements(
        subject=Subject.MODEL, keys=[model.graph.key], system=choice.system_key, variant=""
    )
    stored = [one for one in stored if one.conditions.cache != "cold" and one.latency_ns > 0]
    here = [one for one in stored if one.stack == choice.stack_key]
    own = [
        one
        for one in here
        if (one.conditions.threads, one.conditions.dtype) == (choice.conditions.threads, choice.conditions.dtype)
    ]
    if not own:
        return
    base, stacks, found = own[-1], model.store.stacks(), dict[tuple[str, str], Finding]()
    beside = Beside(model.store, stored)
    for other in stored:
        difference = _difference(base, other, stacks)
        if difference is None:
            continue
        kind, remedy = difference
        ratio = beside.ratio(base, other)
        least, most = ratio.between()
        saving = model.latency_ms * (1 - ratio.value)
        way = (kind, remedy.action)
        if way not in found or saving > found[way].saving_ms:
            found[way] = Finding(
                kind=kind,
                title=remedy.text,
                layers=(),
                current_ms=model.latency_ms,
                achievable_ms=model.latency_ms - saving,
                saving_ms=saving,
                ci95_ms=(model.latency_ms * (1 - most), model.latency_ms * (1 - least)),
                share=saving / model.latency_ms,
                evidence=(_measured(base, other, together=ratio.in_turn),),
                keys=(),
                remedy=remedy,
            )
    yield from found.values()


def _measured(base: Measurement, other: Measurement, *, together: bool) -> str:
    latencies = f"{other.latency_ms:.4g} ms there, {base.latency_ms:.4g} ms here"
    return f"measured: {latencies}, {'in turn' if together else 'in different runs'}"


def _difference(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> tuple[str, Remedy] | None:
    """What kind of other way it is, where it differs from the base in one thing alone."""
    ours, theirs = stacks[base.stack], stacks[other.stack]
    threads, dtype = other.conditions.threads, other.conditions.dtype
    changed = _changed(dict(ours.options), dict(theirs.options))
    differs = {
        "threads": threads != base.conditions.threads,
        "precision": dtype != base.conditions.dtype or narrows(ours) != narrows(theirs),
        "framework": ours.backend != theirs.backend,
        "options": ours.backend == theirs.backend and bool(changed.keys() - {TF32.name}),
        "": ours.device != theirs.device or (ours.backend == theirs.backend and ours.versions != theirs.versions),
    }
    kinds = [kind for kind, one in differs.items() if one]
    match kinds:
        case ["threads"]:
            remedy = Remedy("threads", f"Run with {threads} threads.", {"threads": str(threads)})
        case ["precision"] if dtype == base.conditions.dtype:
            how = "in TF32, where the accuracy allows it" if narrows(theirs) else "exactly"
            remedy = Remedy("session_option", f"Compute products and convolutions of float32 {how}.", changed)
        case ["precision"]:
            remedy = Remedy("precision", f"Compute in {dtype}, where the accuracy allows it.", {"dtype": dtype})
        case ["framework"]:
            versions = " ".join(f"{name} {version}" for name, version in theirs.versions)
            remedy = Remedy("backend", f"Run with {versions or theirs.backend}.", {"backend": theirs.backend})
        case ["options"]:
            words = ", ".join(f"{name}={value}" for name, value in changed.items())
            code = huge_pages.REMEDY.code if changed == huge_pages.REMEDY.settings else ""
            remedy = Remedy("session_option", f"Run with {words}.", changed, code)
        case _:
            return None
    return kinds[0], remedy


def _changed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Options that have another value there; stacks do not name an option that came later where it has its default."""
    changed = {name: value for name, value in theirs.items() if ours.get(name) != value}
    return changed | {one.name: one.default for one in (HUGE_PAGES,) if one.name in ours and one.name not in theirs}


ANALYSIS = Analysis("alternatives", frozenset({LATENCY}), _run)
