"""What a model was cut into, and what a runtime executes for it, as the plain data that the archive keeps.

A record may come from a file that anybody wrote: reading checks all of it, and raises ``ValueError`` (or ``TypeError``,
``KeyError``, ``IndexError``) for what is no record of these.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from ...bricks.cutting.windows import KeyedWindow
from ...bricks.graph.executed import ExecutedModel, Layouts
from ...bricks.graph.graph import ModelGraph
from ...bricks.graph.outline import Outline, Table, integers, lists, outline_of, read_sequences, record, texts
from ...bricks.sequence import LayerSequence
from ...constructor.decomposition import Decomposition, alone
from ...db.decompositions import Record

__all__ = ["Parts", "executed_record", "parts_record", "read_executed", "read_parts"]

_LARGEST = 1 << 63


class Parts(NamedTuple):
    """What a graph was cut into, as ``Decomposition`` has it."""

    sequences: tuple[LayerSequence, ...]
    units: tuple[tuple[int, ...], ...]
    windows: tuple[KeyedWindow, ...]


def executed_record(executed: ExecutedModel) -> Record:
    """What a runtime executes for a model, but for the stack and the model's own graph, which are kept beside it."""
    return {
        "source": executed.source.key,
        "graph": outline_of(executed.graph, alone(executed.graph)),
        "origins": [sorted(origin) for origin in executed.origins],
        "eliminated": sorted(executed.eliminated),
        "duplicated": [list(pair) for pair in executed.duplicated.items()],
    }


def read_executed(written: Record, name: str, own: ModelGraph, layouts: Layouts) -> ExecutedModel:
    """What a runtime executes for a model, from its record.

    Args:
        written: The record.
        name: The model's name.
        own: Its own graph.
        layouts: How the runtime's own layouts show in what it executes.
    """
    graph, layers = Outline(written["graph"]), _size(own)
    origins = lists(written["origins"], layers)
    if written["source"] != own.key or len(origins) != _size(graph):
        raise ValueError("the executed graph of another model")
    return ExecutedModel(
        name=name,
        source=own,
        graph=graph,
        origins=tuple(map(frozenset, origins)),
        eliminated=frozenset(integers(written["eliminated"], layers)),
        duplicated={index: count for index, count in lists(written["duplicated"], _LARGEST)},  # noqa: C416
        layouts=layouts,
    )


def parts_record(model: Decomposition) -> Record:
    """What a model was cut into."""
    values, keys = Table[str](), Table[str]()
    return {
        "graph": model.graph.key,
        "sequences": record(model.sequences, values),
        "values": list(values),
        "units": [list(unit) for unit in model.units],
        "windows": [[one.begin, one.end, keys[one.key]] for one in model.windows],
        "keys": list(keys),
    }


def read_parts(written: Record, graph: ModelGraph) -> Parts:
    """What a model was cut into, from its record.

    Args:
        written: The record.
        graph: The graph that was cut.
    """
    size, keys = _size(graph), texts(written["keys"])
    sequences = read_sequences(written["sequences"], texts(written["values"]), size)
    units = lists(written["units"], size)
    windows = lists(written["windows"], _LARGEST)
    if written["graph"] != graph.key or sorted(chain.from_iterable(units)) != list(graph.live):
        raise ValueError("parts of another graph")
    if not {layer for part in sequences for layer in part.layers} <= set(graph.live):
        raise ValueError("a sequence of layers that cannot be one")
    if not all(begin < end <= len(graph.live) for begin, end, _ in windows):
        raise ValueError("a window beyond the graph")
    return Parts(
        sequences,
        tuple(map(tuple, units)),
        tuple([KeyedWindow(begin, end, keys[key]) for begin, end, key in windows]),
    )


def _size(graph: ModelGraph) -> int:
    return graph.size if isinstance(graph, Outline) else len(graph.layers)
