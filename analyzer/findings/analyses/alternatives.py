"""Other stored ways to run the model that take less: more threads, another precision, another runtime, other options.

Saving: measured latency here less measured latency there, of the same model on the same system, each way by itself and
the fastest of its kind. Measurements of different runs have in their interval what the machine may have done in between
(docs/comparing.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ....constructor.uncertainty.interval import NORMAL
from ....db import Measurement, Stack, Subject
from ...comparison.timeline import Timeline, visited_in_turn
from ..analysis import LATENCY, Analysis
from ..finding import Finding, Remedy
from ..subject import Subject as Model

__all__ = ["ANALYSIS"]

_NS_PER_MS = 1e6


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
    base, stacks, found = own[-1], model.store.stacks(), dict[str, Finding]()
    timeline = Timeline(model.store)
    blocks = model.store.blocks_of([one.id for one in stored])
    for other in stored:
        kind, remedy = _difference(base, other, stacks)
        if kind is None or remedy is None:
            continue
        together = visited_in_turn(base, other, blocks.get(base.id, ()), blocks.get(other.id, ()))
        stand = timeline.between(base, other, in_turn=together)
        ratio = stand.other_ns / stand.base_ns
        half = math.hypot(_relative(base), _relative(other), NORMAL * stand.apart)
        low, high = (model.latency_ms * (1 - ratio * math.exp(sign * half)) for sign in (1, -1))
        saving = model.latency_ms * (1 - ratio)
        if kind not in found or saving > found[kind].saving_ms:
            found[kind] = Finding(
                kind=kind,
                title=remedy.text,
                layers=(),
                current_ms=model.latency_ms,
                achievable_ms=model.latency_ms - saving,
                saving_ms=saving,
                ci95_ms=(low, high),
                share=saving / model.latency_ms,
                evidence=(
                    f"measured: {other.latency_ns / _NS_PER_MS:.4g} ms there, {base.latency_ns / _NS_PER_MS:.4g} ms "
                    f"here, {'visited in turn' if together else 'in different runs'}",
                ),
                keys=(),
                remedy=remedy,
            )
    yield from found.values()


def _relative(one: Measurement) -> float:
    low, high = one.ci95_ns
    return (high - low) / 2 / one.latency_ns


def _difference(base: Measurement, other: Measurement, stacks: Mapping[str, Stack]) -> tuple[str | None, Remedy | None]:
    """What kind of other way it is, where it differs from the base in one thing alone."""
    ours, theirs = stacks[base.stack], stacks[other.stack]
    threads, dtype = other.conditions.threads, other.conditions.dtype
    same_threads, same_dtype = threads == base.conditions.threads, dtype == base.conditions.dtype
    if base.stack == other.stack:
        if same_dtype and not same_threads:
            return "threads", Remedy("threads", f"Run with {threads} threads.", {"threads": str(threads)})
        if same_threads and not same_dtype:
            return "precision", Remedy(
                "precision", f"Compute in {dtype}, where the accuracy allows it.", {"dtype": dtype}
            )
        return None, None
    if not (same_threads and same_dtype) or ours.device != theirs.device:
        return None, None
    if ours.backend != theirs.backend:
        versions = " ".join(f"{name} {version}" for name, version in theirs.versions)
        return "framework", Remedy("backend", f"Run with {versions or theirs.backend}.", {"backend": theirs.backend})
    if ours.versions != theirs.versions:
        return None, None
    changed = {name: value for name, value in theirs.options if dict(ours.options).get(name) != value}
    words = ", ".join(f"{name}={value}" for name, value in changed.items())
    return "options", Remedy("session_option", f"Run with {words}.", changed)


ANALYSIS = Analysis("alternatives", frozenset({LATENCY}), _run)
