"""What each node of a model's own graph costs, as notes for viewers of ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import UsageError
from ...generator.network.annotated import annotate_model
from .section import Section, layer_rows
from .units import milliseconds, percent, ratio

__all__ = ["annotate", "notes_of"]


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
    """Notes by the first output of each node of the model's own graph.

    A node that the runtime computes together with others has the latency of all of them, and their names.
    """
    model = section.model
    if model is None:
        return {}
    rows = list(layer_rows(section))
    whole = sum(row.sequence.latency_ms or 0.0 for row in rows)
    notes: dict[str, Mapping[str, str]] = {}
    for row in rows:
        latency = row.sequence.latency_ms
        for layer in row.origins:
            others = [one.name for one in row.origins if one is not layer]
            note = {"latency": "not measured" if latency is None else f"{milliseconds(latency)} ms"}
            if latency is not None and row.sequence.ci95_ms is not None:
                note["ci95"] = " … ".join(f"{milliseconds(one)} ms" for one in row.sequence.ci95_ms)
            if latency is not None and whole > 0:
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
