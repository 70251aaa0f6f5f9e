"""Facts about many models: headroom, recurring findings, bricks with the most time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from ...findings.finding import Finding
from ..section import LayerRow, Section
from ..units import half_of
from .payload import clipped

# The first sentence of a model: how long it takes, and where that goes.


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a model.

    Attributes:
        name: The operator.
        ms: Time of all its measured layers.
        share: Share of the time of all measured bricks, 0 to 1.
        count: Number of its measured layers.
    """

    name: str
    ms: float
    share: float
    count: int


@dataclass(frozen=True, slots=True)
class Headline:
    """The latency of a model, and its largest parts.

    Attributes:
        ms: The measured latency, else the estimate, else the sum of the measured bricks; None without any.
        half_ms: Half of its interval; None if unknown.
        basis: ``measured``, ``estimated`` or ``known``, in the same order.
        first: The operator with the most time; None without measurements.
        layer: The layer with the most time; None without measurements.
        layer_share: Its share of the time of all bricks.
        fewest: Smallest number of layers with half of the time.
        layers: Number of layers.
        timed: Number of measured layers; shares are known only if all are measured.
    """

    ms: float | None
    half_ms: float | None
    basis: str
    first: Operator | None
    layer: LayerRow | None
    layer_share: float
    fewest: int
    layers: int
    timed: int

    @property
    def whole(self) -> bool:
        """True if every layer is measured."""
        return self.timed == self.layers


def operators(rows: Sequence[LayerRow]) -> list[Operator]:
    """Time by operator, the most first."""
    totals: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        if row.sequence.latency_ms is not None:
            counts[row.operator] = counts.get(row.operator, 0) + 1
            totals.setdefault(row.operator, []).append(row.sequence.latency_ms)
    sums = {name: math.fsum(values) for name, values in totals.items()}
    whole = math.fsum(sums.values())
    found = [Operator(name, ms, ms / whole if whole > 0 else 0.0, counts[name]) for name, ms in sums.items()]
    return sorted(found, key=lambda operator: -operator.ms)


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
    ranked = operators(rows)
    whole = math.fsum(ms for ms, _ in timed)
    fewest, reached = 0, 0.0
    while fewest < len(timed) and reached < whole / 2:
        reached += timed[fewest][0]
        fewest += 1
    return Headline(
        ms=ms if timed or basis == "measured" else None,
        half_ms=None if bounds is None or ms is None else half_of(ms, bounds),
        basis=basis,
        first=ranked[0] if ranked else None,
        layer=timed[0][1] if timed else None,
        layer_share=timed[0][0] / whole if whole > 0 else 0.0,
        fewest=fewest,
        layers=len(rows),
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
    found = []
    for kind, pairs in kinds.items():
        largest = max((finding for _, finding in pairs), key=lambda finding: finding.saving_ms)
        proven = math.fsum(finding.proven_ms or 0.0 for _, finding in pairs if not finding.unproven)
        predicted = math.fsum(finding.saving_ms for _, finding in pairs if finding.proof is None)
        row = {"kind": kind, "title": largest.title, "models": len({name for name, _ in pairs}), "count": len(pairs)}
        found.append({**row, "proven_ms": proven, "predicted_ms": predicted})
    return sorted(found, key=lambda row: (-row["proven_ms"], -row["predicted_ms"]))


def overview_data(sections: Sequence[Section], rows: Mapping[str, Sequence[LayerRow]]) -> dict[str, Any]:
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


def _model(section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    entry, top = section.estimate, headline(section, rows)
    return {
        "name": clipped(section.name),
        "layers": len(rows),
        "unique": entry.parts.unique,
        "measured": entry.truth.ms,
        "half": top.half_ms if top.basis == "measured" else None,
        "estimate": entry.latency.ms,
        "ratio": entry.truth.ratio,
        "bound": entry.roofline.ms,
        "headroom": entry.roofline.headroom,
        "first": None if top.first is None or not top.whole else clipped(top.first.name),
        "share": None if top.first is None or not top.whole else top.first.share,
        "timed": top.timed,
        "findings": None if section.findings is None else len(section.findings),
        "saving": None if section.joint is None else section.joint.saving_ms,
        "model": None if section.model is None else section.model.own.key,
        "measurement": None if section.truth is None else section.truth.id,
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
    whole = math.fsum(ms for values in totals.values() for ms in values)
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
