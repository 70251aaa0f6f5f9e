"""Differences between two model files, layer by layer: both graphs are cut, measured and compared.

Both files are cut along the most exact graph of the runtime, if possible the executed one (``Backend.graph_at``).
Layers with equal bricks are the same in both files. Among the other layers, a common name in the files links old and
new ones; layers without a link appeared or vanished. Bricks are measured in the model's cache state (``run``).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ...constructor.result import Estimate, SequenceLatency
from ...db import Store
from ...db.values import Conditions
from ...errors import BackendError
from ...generator.backends.registry import get
from ...generator.decomposition.cut import Cut
from ...generator.decomposition.generate import generate
from ...generator.measurement.run import run
from ...generator.measurement.settings import MeasurementSettings
from ...generator.progress import ProgressCallback
from ...generator.worker.messages import Place
from ...models import ModelSource
from ...tabular import Field, Row, fields, record_of
from ..estimation.estimate import estimate

FIELDS = (
    Field("effect_ms", "adds ms", "ms"),
    Field("count", "x"),
    Field("old_ms", "old ms", "ms"),
    Field("new_ms", "new ms", "ms"),
    *fields("kind"),
    Field("old_operators", "old operators", "operators"),
    Field("new_operators", "new operators", "operators"),
    Field("layer"),
)


@dataclass(frozen=True, slots=True)
class LayerChange:
    """Layers of two files that belong together and differ; equal changes are one.

    Attributes:
        old_operators: Operators of these layers in the graph of the old file; empty if the layers appeared.
        new_operators: The same for the new file; empty if they vanished.
        count: Number of places in the model.
        old_ms: Latency of their bricks at all places; 0 without any, None if one is not measured.
        new_ms: The same for the new file.
        layer: Name of a layer at the first place.
    """

    old_operators: tuple[str, ...]
    new_operators: tuple[str, ...]
    count: int
    old_ms: float | None
    new_ms: float | None
    layer: str

    @property
    def kind(self) -> str:
        """``changed``, ``appeared`` or ``vanished``."""
        if not self.old_operators:
            return "appeared"
        return "changed" if self.new_operators else "vanished"

    @property
    def effect_ms(self) -> float | None:
        """Effect on the model's latency, new minus old; None if a brick is not measured."""
        return None if self.old_ms is None or self.new_ms is None else self.new_ms - self.old_ms

    def record(self) -> Row:
        """As a JSON object."""
        return record_of(self, FIELDS)


@dataclass(frozen=True, slots=True)
class LayerChanges:
    """All differences between two files.

    Attributes:
        rows: The changes, the largest effect first.
        same: Sequences that are equal in both.
    """

    rows: tuple[LayerChange, ...]
    same: int

    @property
    def effect_ms(self) -> float | None:
        """Sum of the effects of all changes; None if a brick is not measured."""
        effects = [row.effect_ms for row in self.rows]
        return None if None in effects else sum(effect for effect in effects if effect is not None)

    def record(self) -> list[Row]:
        """As JSON objects."""
        return [row.record() for row in self.rows]


def changed_layers(
    old: ModelSource, new: ModelSource, place: Place, *, budget_s: float, progress: ProgressCallback | None = None
) -> LayerChanges:
    """Measure the bricks of two files, and return the layers that differ.

    Args:
        old: The old file.
        new: The new file.
        place: The runtime and its configuration.
        budget_s: Seconds for visits.
        progress: Called between visits.

    Raises:
        UsageError: An option has a wrong value.
        BackendError: One of the files cannot be decomposed.
        BackendUnavailable: The runtime cannot be used here.
        MachineBusy: Another process is measuring.
    """
    sources = [replace(old, name="old"), replace(new, name="new")]
    runtime, threads = place.runtime, place.threads
    graph = get(runtime.backend).graph_at(runtime.device, place.dtype, dict(runtime.options))
    cut = Cut(1, graph=graph, runtime=runtime, threads=threads)
    conditions = Conditions(threads, "model", place.dtype)
    pace = MeasurementSettings(runtime, conditions, budget_s=budget_s)
    with TemporaryDirectory(prefix="dlbricks-layers-") as name, Store.open(str(Path(name) / "layers.db")) as store:
        made = generate(sources, out=Path(name) / "suite", settings=cut)
        for row in made.rows:
            if row.error is not None:
                raise BackendError(f"the layers of the {row.name} model are not known: {row.error}")
        assert made.suite is not None  # noqa: S101  # no row has an error
        run(made.suite, store=store, settings=pace, progress=progress)
        before, after = estimate(sources, store=store, graph=graph, threads=threads)
    return _changes(before, after)


def _changes(before: Estimate, after: Estimate) -> LayerChanges:
    """Return the changes between two models with measured bricks."""
    sides = [list(model.parts.sequences) for model in (before, after)]
    same = Counter(part.key for part in sides[0]) & Counter(part.key for part in sides[1])
    rest = [_without(side, same, other) for side, other in zip(sides, reversed(sides), strict=True)]
    found: defaultdict[tuple[tuple[str, ...], tuple[str, ...]], list[tuple[_Parts, _Parts]]] = defaultdict(list)
    for ours, theirs in _together(*rest):
        found[_operators(ours), _operators(theirs)].append((ours, theirs))
    rows = [
        LayerChange(ours, theirs, len(places), _ms(places, 0), _ms(places, 1), _name(places))
        for (ours, theirs), places in found.items()
    ]
    rows.sort(key=lambda row: -abs(row.effect_ms or 0.0))
    return LayerChanges(tuple(rows), same.total())


_Parts = tuple[SequenceLatency, ...]


def _without(side: Sequence[SequenceLatency], same: Counter[str], other: Sequence[SequenceLatency]) -> _Parts:
    """Return the sequences that only this side has; of equal ones, drop those with names on both sides first."""
    names = {(part.key, _names(part)) for part in other}
    left = Counter(same)
    kept = []
    for part in sorted(side, key=lambda part: (part.key, _names(part)) not in names):
        left[part.key] -= 1
        if left[part.key] < 0:
            kept.append(part)
    return tuple(sorted(kept, key=lambda part: part.index))


def _names(part: SequenceLatency) -> tuple[str, ...]:
    """Return the names of its layers in the file; none for a node that the runtime inserted."""
    return part.names if part.form is None else part.form.source_layers


def _together(ours: _Parts, theirs: _Parts) -> list[tuple[_Parts, _Parts]]:
    """Group the sequences of both sides that share the name of a layer, directly or through others."""
    group_of: dict[str, int] = {}
    groups: dict[int, tuple[list[SequenceLatency], list[SequenceLatency]]] = {}
    numbers = itertools.count()
    for side, parts in enumerate((ours, theirs)):
        for part in parts:
            known = {group_of[name] for name in _names(part) if name in group_of}
            number = min(known, default=next(numbers))
            merged = groups.setdefault(number, ([], []))
            for other in known - {number}:
                for mine, more in zip(merged, groups.pop(other), strict=True):
                    mine.extend(more)
            merged[side].append(part)
            group_of = {name: number if group in known else group for name, group in group_of.items()}
            group_of |= dict.fromkeys(_names(part), number)
    return [(tuple(mine), tuple(other)) for mine, other in groups.values()]


def _operators(parts: _Parts) -> tuple[str, ...]:
    return tuple(operator for part in parts for operator in part.op_types)


def _ms(places: Sequence[tuple[_Parts, _Parts]], side: int) -> float | None:
    times = [part.latency_ms for place in places for part in place[side]]
    return None if None in times else sum(time for time in times if time is not None)


def _name(places: Sequence[tuple[_Parts, _Parts]]) -> str:
    return next((name for place in places for parts in place for part in parts for name in _names(part)), "")
