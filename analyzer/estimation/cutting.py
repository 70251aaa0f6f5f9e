"""The decomposition of a model by the kind of graph that is asked for; the generator's ``cutter`` does the cutting.

* ``source``: the model's own graph, as DLBricks has it.
* ``runtime``: the graph that the runtime executes for it, on one stack and instruction set.
* ``fused``: the model's own layers, cut so that no fusion of the runtime is cut through.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...bricks.cutting.fused import fused_units
from ...bricks.cutting.windows import windows
from ...constructor.decomposition import Decomposition, distance_level
from ...db import Stack
from ...generator.decomposition.cutter import Cut, CutModel
from ...generator.machine.cores import physical_cores
from ...models import ModelSource

__all__ = ["cut_of", "decomposed"]


def cut_of(cut: Cut, graph: str, stack: Stack | None = None, threads: int = 1) -> Cut:
    """A cut of the same width, of another graph.

    Args:
        cut: How wide sequences are.
        graph: Which graph is cut.
        stack: Whose runtime executes it; None where none is asked.
        threads: Its threads.

    Raises:
        UsageError: There is no such graph, or the granularity is less than 1.
    """
    wanted = Cut(cut.granularity, cut.overlap, cut.connected, graph)
    wanted.check()
    if stack is None:
        return wanted
    # Cores decide how many threads can be bound, not which graph is executed: its keys name no threads either.
    threads = min(threads, len(physical_cores()))
    return Cut(
        cut.granularity, cut.overlap, cut.connected, graph, stack.backend, stack.device, stack.options, threads
    )  # fmt: skip


def decomposed(source: ModelSource, found: CutModel, cut: Cut) -> Decomposition:
    """A model that was cut, with what may compete for its lower bound."""
    units: Iterable[Iterable[int]] = ((index,) for index in found.graph.live)
    if cut.graph == "fused" and found.executed is not None:
        units = fused_units(found.executed).groups
    rivals = cut.granularity > 1 and cut.graph != "fused"  # windows would cut through fusions
    return Decomposition(
        source=source,
        own=found.source,
        graph=found.graph,
        sequences=tuple(found.sequences),
        units=tuple(tuple(unit) for unit in units),
        windows=tuple(windows(found.graph, cut.granularity, connected=cut.connected)) if rivals else (),
        level=distance_level(found.graph),
        executed=found.executed,
    )
