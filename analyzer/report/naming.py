"""What measured keys stand for: operators and shapes of bricks, names and dimensions of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ...bricks.cutting.wiring import sequences
from ...bricks.graph.graph import build_graph
from ...bricks.suite.signature import signature_of
from ...bricks.suite.suite import Suite
from ...generator.decomposition.oracle import WorkerOracle
from ...models import ModelSource

__all__ = ["names_of"]


def names_of(suite: Path | None, models: Sequence[ModelSource]) -> dict[str, dict[str, str | int | None]]:
    """Columns by key, for tables that stay in the house.

    Args:
        suite: Whose bricks are described by operators, shapes, strides and work; None: none are.
        models: Those that are described by name, batch and dimensions, and, at the granularity of the suite, which
            brick is in which of them.

    Raises:
        SuiteError: The suite or a brick of it cannot be read.
        ModelError: A model cannot be read or bound.
    """
    opened = None if suite is None else Suite.open(suite)
    found: dict[str, dict[str, str | int | None]] = {}
    for key in opened.keys if opened is not None else ():
        brick = opened.brick(key) if opened is not None else None
        if brick is not None:
            macs = None if brick.cost is None else brick.cost.macs
            found[key] = {"operators": "+".join(brick.operators), **asdict(signature_of(brick)), "macs": macs}
    held: dict[str, list[str]] = {}
    with WorkerOracle() as oracle:
        for source in models:
            graph = build_graph(source.skeleton(), oracle=oracle)
            values = " ".join(f"{name}={size}" for name, size in graph.bound.items())
            found[graph.key] = {"model": source.name, "batch": graph.bound.get("batch"), "dimensions": values}
            parts = Counter(part.key for part in sequences(graph, 1 if opened is None else opened.granularity))
            for key, count in parts.items():
                held.setdefault(key, []).append(f"{source.name} x {count}")
    for key, places in held.items():
        found.setdefault(key, {})["model"] = "; ".join(places)
    return found
