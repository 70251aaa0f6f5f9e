"""Data for the page's scripts: bricks and layers of a model as columns.

Names are untrusted text of any length: control characters become escapes, and long names are cut. Each brick has its
key and the UUID of its measurement.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ....constructor.composition import Quotient
from ....constructor.roofline import LayerRoof
from ....tabular import Row, fields, record_of
from ...findings.finding import Finding
from ..section import LayerRow, Section
from ..shares import OperatorTime, operator_times, unmeasured_count, whole_ms
from ..tables import printable
from ..units import cut, half_of

# A model's sequences as an outline in which a block that repeats stands once, however layers are named.


_LONGEST_BLOCK = 256
"""Sequences of a block at most: comparing every length with every place takes time by the product of both."""


OutlineBlock = tuple[int, int, int, "list[OutlineBlock]"]
"""Part of an outline: position of its first sequence, number of sequences in each repetition, number of repetitions (1
for a single sequence), and the blocks of one repetition (none for a single sequence)."""


def outline(keys: Sequence[Hashable], offset: int = 0) -> list[OutlineBlock]:
    """Fold adjacent repetitions, from left to right, the widest first (O(n * ``_LONGEST_BLOCK``)).

    Args:
        keys: Identity of each sequence.
        offset: Position of the first.

    Returns:
        Blocks that cover all positions, in order.

    Example:
        >>> [(begin, width, count) for begin, width, count, _ in outline("xababababy")]
        [(0, 1, 1), (1, 2, 4), (9, 1, 1)]
    """
    size = len(keys)
    widths = range(1, min(_LONGEST_BLOCK, size // 2) + 1)
    # equal[w][i]: how many positions from i on are the same as those w later.
    equal: dict[int, list[int]] = {}
    for width in widths:
        run = [0] * (size + 1)
        for position in range(size - width - 1, -1, -1):
            run[position] = run[position + 1] + 1 if keys[position] == keys[position + width] else 0
        equal[width] = run
    blocks: list[OutlineBlock] = []
    position = 0
    while position < size:
        best_width, best_count = 1, 1
        for width in widths:
            count = equal[width][position] // width + 1
            if count > 1 and count * width > best_count * best_width:
                best_width, best_count = width, count
        inside = outline(keys[position : position + best_width], offset + position) if best_width > 1 else []
        blocks.append((offset + position, best_width, best_count, inside))
        position += best_width * best_count
    return blocks


# When each sequence of a model would run, if branches ran at once.


def at_once(quotient: Quotient, latencies: Sequence[float]) -> list[tuple[float, int]]:
    """Return the earliest start and the lane of each sequence (O(sequences x lanes)).

    The last end is the critical path. Lanes are filled greedily: they are places in a picture, not cores.

    Args:
        quotient: The sequences as a DAG.
        latencies: One per sequence, not negative, in any unit.

    Returns:
        Start of each sequence, in the given unit, and its lane from 0.
    """
    starts = [0.0] * len(latencies)
    for position in quotient.order:
        before = quotient.predecessors[position]
        starts[position] = max((starts[index] + latencies[index] for index in before), default=0.0)
    lanes = [0] * len(latencies)
    ends: list[float] = []
    ranks = {position: number for number, position in enumerate(quotient.order)}
    for position in sorted(quotient.order, key=lambda index: (starts[index], ranks[index])):
        lane = next((lane for lane, end in enumerate(ends) if end <= starts[position]), len(ends))
        end = starts[position] + latencies[position]
        if lane == len(ends):
            ends.append(end)
        else:
            ends[lane] = end
        lanes[position] = lane
    return list(zip(starts, lanes, strict=True))


_LONGEST = 160
"""Characters of a name that the page holds; JSON holds all of it."""

_GIGA = 1e9


def clipped(text: str) -> str:
    """Return a printable name of at most a line or two."""
    return cut(printable(text), _LONGEST)


def data_of(section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    """Return bricks, layers, ceilings, schedule, outline and whole latency of a model.

    Args:
        section: The model.
        rows: Its layers.
    """
    first: dict[str, LayerRow] = {}
    for row in rows:
        first.setdefault(row.sequence.key, row)
    number = {key: index for index, key in enumerate(first)}
    schedule: list[tuple[float, int]] = []
    latencies = [row.sequence.latency_ms for row in rows]
    known_ms = [ms for ms in latencies if ms is not None]
    if section.quotient is not None and len(known_ms) == len(rows):
        schedule = at_once(section.quotient, [max(0.0, ms) for ms in known_ms])
    return {
        "name": clipped(section.name),
        "bricks": [_brick(row) for row in first.values()],
        "layers": {
            "name": [clipped(row.name) for row in rows],
            "executed": [clipped(row.executed) for row in rows],
            "brick": [number[row.sequence.key] for row in rows],
            "path": [int(row.sequence.on_path) for row in rows],
            "start": [_rounded(start) for start, _ in schedule],
            "lane": [lane for _, lane in schedule],
        },
        "outline": outline([number[row.sequence.key] for row in rows]),
        "whole": _rounded(whole_ms(section.estimate)),
        "roofs": _roofs(section),
    }


def _brick(row: LayerRow) -> Row:
    part, measured, roof = row.sequence, row.measurement, row.roof
    half = None
    if part.latency_ms is not None and part.ci95_ms is not None:
        half = half_of(part.latency_ms, part.ci95_ms)
    return {
        "key": part.key,
        "op": clipped(row.operator),
        "fused": clipped(row.fused),
        "reads": clipped(row.reads),
        "writes": clipped(row.writes),
        "count": row.count,
        "ms": _rounded(part.latency_ms),
        "half": _rounded(half),
        "verdict": part.verdict,
        "lower": _rounded(part.lower_bound_ms),
        "id": None if measured is None else measured.id,
        **_under(roof),
    }


def _under(roof: LayerRoof | None) -> Row:
    """Return the work of a brick, and its roofline if that is a lower bound."""
    holds = roof is not None and (roof.headroom is None or roof.headroom >= 1)
    bound = roof if holds else None
    return {
        **record_of(roof, fields("flops bytes note")),
        **record_of(bound, fields("by=bound_by")),
        "bound": None if bound is None else _rounded(bound.bound_ms),
        "headroom": None if bound is None else _rounded(bound.headroom),
    }


def _roofs(section: Section) -> Mapping[str, Any] | None:
    """Return the ceilings, in 10^9 per second; None if they are unknown."""
    roofline = section.estimate.roofline.bricks
    if roofline is None or not roofline.ceilings.known or roofline.ceilings.compute is None:
        return None
    return {
        "compute": _rounded(roofline.ceilings.compute.rate.best / _GIGA),
        "levels": [[name, _rounded(ceiling.rate.best / _GIGA)] for name, ceiling in roofline.ceilings.levels],
    }


def _rounded(value: float | None) -> float | None:
    """Round to six significant digits, more than the precision of any latency; None for infinities."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


# Facts about many models: headroom, recurring findings, bricks with the most time.


# The first sentence of a model: how long it takes, and where that goes.


@dataclass(frozen=True, slots=True)
class Headline:
    """The latency of a model, and its largest parts.

    Attributes:
        ms: The measured latency, else the estimate, else the sum of the measured bricks; None without any.
        half_ms: Half of its interval; None if unknown.
        basis: ``measured``, ``estimated`` or ``known``, in the same order.
        busy: True if it was measured beside other programs.
        first: The operator with the most time; None without measurements.
        layer: The layer with the most time; None without measurements.
        layer_share: Its share of the time of all bricks; 0 unless all are measured.
        fewest: Smallest number of layers with half of the time; 0 unless all are measured.
        layers: Number of layers.
        timed: Number of measured layers.
    """

    ms: float | None
    half_ms: float | None
    basis: str
    busy: bool
    first: OperatorTime | None
    layer: LayerRow | None
    layer_share: float
    fewest: int
    layers: int
    timed: int

    @property
    def whole(self) -> bool:
        """True if every layer is measured."""
        return self.timed == self.layers


def headline(section: Section, rows: Sequence[LayerRow]) -> Headline:
    """Return the content of a model's first sentence."""
    entry = section.estimate
    ms, bounds, basis = entry.sums.known_ms, None, "known"
    if entry.truth.ms is not None:
        ms, bounds, basis = entry.truth.ms, entry.truth.ci95_ms, "measured"
    elif entry.latency.ms is not None:
        ms, bounds, basis = entry.latency.ms, entry.latency.ci95_ms, "estimated"
    timed = sorted(
        ((row.sequence.latency_ms, row) for row in rows if row.sequence.latency_ms is not None),
        key=lambda pair: -pair[0],
    )
    ranked = [operator for operator in operator_times(entry) if operator.measured]
    lacking = unmeasured_count(entry)
    whole = 0.0 if lacking else math.fsum(ms for ms, _ in timed)
    fewest, reached = 0, 0.0
    while fewest < len(timed) and reached < whole / 2:
        reached += timed[fewest][0]
        fewest += 1
    return Headline(
        ms=ms if timed or basis == "measured" else None,
        half_ms=None if bounds is None or ms is None else half_of(ms, bounds),
        basis=basis,
        busy=basis == "measured" and section.truth is not None and section.truth.busy,
        first=ranked[0] if ranked else None,
        layer=timed[0][1] if timed else None,
        layer_share=timed[0][0] / whole if whole > 0 else 0.0,
        fewest=fewest,
        layers=len(timed) + lacking,
        timed=len(timed),
    )


_MOST = 60
"""Bricks that are listed, those of most time."""


def recurring(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the kinds of findings, largest saving first.

    Each has the title of its largest finding, the numbers of models and findings, and the sums of proven savings and of
    predicted ones that were not tried; predicted savings may overlap.
    """
    kinds: dict[str, list[tuple[str, Finding]]] = {}
    for section in sections:
        for finding in (finding for finding in section.findings or () if not finding.at_most):
            kinds.setdefault(finding.kind, []).append((section.name, finding))
    records = []
    for kind, pairs in kinds.items():
        largest = max((finding for _, finding in pairs), key=lambda finding: finding.saving_ms)
        proven = math.fsum(finding.proven_ms or 0.0 for _, finding in pairs if not finding.unproven)
        predicted = math.fsum(finding.saving_ms for _, finding in pairs if finding.proof is None)
        row = {"kind": kind, "title": largest.title, "models": len({name for name, _ in pairs}), "count": len(pairs)}
        records.append({**row, "proven_ms": proven, "predicted_ms": predicted})
    return sorted(records, key=lambda row: (-row["proven_ms"], -row["predicted_ms"]))


def overview_data(sections: Sequence[Section], rows: Mapping[str, Sequence[LayerRow]]) -> Row:
    """Models, bricks and similarity as plain data.

    Args:
        sections: The models.
        rows: Layers of each, by model name.
    """
    readable = [section.name for section in sections if section.model is not None]
    matrix = similarity_matrix([[row.sequence.key for row in rows[name]] for name in readable])
    return {
        "models": [_model(section, rows[section.name]) for section in sections],
        "bricks": _bricks(sections, rows),
        "names": [clipped(name) for name in readable],
        "similarity": [[round(100 * value) for value in line] for line in matrix],
    }


_OF_MODEL = fields(
    "unique=estimate.parts.unique measured=estimate.truth.ms estimate=estimate.latency.ms ratio=estimate.truth.ratio "
    "bound=estimate.roofline.ms headroom=estimate.roofline.headroom saving=joint.saving_ms model=model.own.key "
    "measurement=truth.id"
)
"""What the script shows of a model as it is."""


def _model(section: Section, rows: Sequence[LayerRow]) -> Row:
    entry, top = section.estimate, headline(section, rows)
    return {
        **record_of(section, _OF_MODEL),
        "name": clipped(section.name),
        "layers": top.layers,
        "half": top.half_ms if top.basis == "measured" else None,
        "first": None if top.first is None or not top.whole else clipped(top.first.name),
        "share": None if top.first is None or not top.whole else top.first.share,
        "timed": top.timed,
        "findings": len(section.findings or ()) if section.searched else None,
        "error": None if entry.error is None else clipped(entry.error),
    }


def _bricks(sections: Sequence[Section], rows: Mapping[str, Sequence[LayerRow]]) -> list[dict[str, Any]]:
    """Bricks by their time over all models; latencies of a brick differ by the cache state of each model."""
    totals: dict[str, list[float]] = {}
    first: dict[str, LayerRow] = {}
    models: dict[str, set[str]] = {}
    for section in sections:
        for row in rows[section.name]:
            key = row.sequence.key
            first.setdefault(key, row)
            models.setdefault(key, set()).add(section.name)
            if row.sequence.latency_ms is not None:
                totals.setdefault(key, []).append(row.sequence.latency_ms)
    wholes = [whole_ms(section.estimate) for section in sections if section.model is not None]
    whole = None if None in wholes else math.fsum(ms or 0.0 for ms in wholes)
    ranked = sorted(totals, key=lambda key: -math.fsum(totals[key]))[:_MOST]
    return [
        {
            "key": key,
            "op": clipped(first[key].operator),
            "reads": clipped(first[key].reads),
            "writes": clipped(first[key].writes),
            "total": math.fsum(totals[key]),
            "share": math.fsum(totals[key]) / whole if whole else None,
            "count": len(totals[key]),
            "models": len(models[key]),
            "names": ", ".join(clipped(name) for name in sorted(models[key])[:6]),
        }
        for key in ranked
    ]


def jaccard(first: AbstractSet[str], second: AbstractSet[str]) -> float:
    """Return ``|A & B| / |A | B|``; 1 for two empty sets.

    Args:
        first: Unique layer or brick keys of a model.
        second: Unique keys of another model.
    """
    union = len(first | second)
    return len(first & second) / union if union else 1.0


def similarity_matrix(models: Sequence[Iterable[str]]) -> list[list[float]]:
    """Return the Jaccard similarity of every pair of models: symmetric, with 1 on the diagonal.

    Args:
        models: Layer or brick keys of each model; repetitions do not count.
    """
    unique = [frozenset(keys) for keys in models]
    return [[jaccard(first, second) for second in unique] for first in unique]
