"""What many models have in common: who is far from its bound, which findings recur, which bricks matter most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....bricks.graph.similarity import similarity_matrix
from ..section import LayerRow, Section
from .headline import headline
from .payload import clipped

__all__ = ["Recurring", "overview_data", "recurring"]

_MOST = 60
"""Bricks that are listed, those of most time."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """Findings of one kind over all models.

    Attributes:
        kind: Name of the analysis.
        title: Title of the largest of them.
        models: How many models have one.
        count: How many there are.
        saving_ms: Their savings together; they may overlap.
        proven_ms: Of that, what was proven.
    """

    kind: str
    title: str
    models: int
    count: int
    saving_ms: float
    proven_ms: float


def recurring(sections: Sequence[Section]) -> list[Recurring]:
    """Findings by kind, those of most saving first."""
    kinds: dict[str, list[tuple[str, Any]]] = {}
    for section in sections:
        for finding in (one for one in section.findings or () if not one.at_most):
            kinds.setdefault(finding.kind, []).append((section.name, finding))
    found = []
    for kind, pairs in kinds.items():
        largest = max((finding for _, finding in pairs), key=lambda one: one.saving_ms)
        proven = math.fsum(finding.proven_ms for _, finding in pairs if finding.proven_ms is not None)
        saving = math.fsum(finding.saving_ms for _, finding in pairs)
        found.append(Recurring(kind, largest.title, len({name for name, _ in pairs}), len(pairs), saving, proven))
    return sorted(found, key=lambda one: -one.saving_ms)


def overview_data(sections: Sequence[Section], rows: Mapping[str, Sequence[LayerRow]]) -> dict[str, Any]:
    """Models, bricks and similarity as plain data.

    Args:
        sections: The models.
        rows: Layers of each, by model name.
    """
    readable = [section for section in sections if section.model is not None]
    keys = {section.name: {row.sequence.key for row in rows[section.name]} for section in readable}
    matrix = similarity_matrix(keys)
    return {
        "models": [_model(section, rows[section.name]) for section in sections],
        "bricks": _bricks(sections, rows),
        "names": [clipped(name) for name in matrix.names],
        "similarity": [[round(100 * value) for value in line] for line in matrix.values],
    }


def _model(section: Section, rows: Sequence[LayerRow]) -> dict[str, Any]:
    entry, top = section.estimate, headline(section, rows)
    largest = [one.saving_ms for one in section.findings or () if not one.at_most][:3]
    savings = None if section.findings is None else math.fsum(largest)
    return {
        "name": clipped(section.name),
        "layers": len(rows),
        "unique": entry.unique,
        "measured": entry.measured_ms,
        "half": top.half_ms if top.basis == "measured" else None,
        "estimate": entry.estimate_ms,
        "ratio": entry.ratio,
        "bound": entry.roofline_ms,
        "headroom": entry.roofline_headroom,
        "first": None if top.first is None or not top.whole else clipped(top.first.name),
        "share": None if top.first is None or not top.whole else top.first.share,
        "timed": top.timed,
        "findings": None if section.findings is None else len(section.findings),
        "saving": savings,
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
    whole = math.fsum(one for values in totals.values() for one in values)
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
