"""The decomposition of a model by the kind of graph that is asked for; the generator's ``cutter`` does the cutting.

* ``source``: the model's own graph, as DLBricks has it.
* ``runtime``: the graph that the runtime executes for it, on one stack and instruction set.
* ``fused``: the model's own layers, cut so that no fusion of the runtime is cut through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...bricks.cutting.fused import fused_units
from ...bricks.cutting.windows import windows
from ...constructor.decomposition import Decomposition, Failed, distance_level
from ...db import Stack, Store
from ...db.values import NATIVE
from ...errors import UsageError
from ...generator.decomposition.cutter import Cut, CutModel
from ...generator.machine.cores import physical_cores
from ...models import ModelSource, require_known
from .query import Query
from .runtime import chosen_stack

__all__ = ["Settled", "cut_of", "decomposed", "readable_of", "settle"]


@dataclass(frozen=True, slots=True)
class Settled:
    """Whose graphs are cut, and which of the stored measurements belong to them.

    Attributes:
        cut: How models are cut, with the runtime that executes them where another graph than their own is.
        query: Which stored combinations; only of that runtime where bricks are of what it executes.
        why_not: Why the runtime cannot be asked here; None where it can.
    """

    cut: Cut
    query: Query
    why_not: str | None = None


def settle(store: Store, query: Query, cut: Cut) -> Settled:
    """Settle which runtime executes the graphs that are cut; a model's own graph needs none.

    Raises:
        AmbiguousQuery: Several stored stacks are installed here.
        UsageError: There is no such graph, the granularity is less than 1, the executed graph is asked for in another
            precision, or no stored system, or stack, has a key that begins as asked.
        BackendUnavailable: Nothing that matches is stored, and the backend is not installed.
    """
    if cut.graph == "runtime" and query.dtype not in {None, NATIVE}:
        raise UsageError(
            f"the graph that a runtime executes is known in {NATIVE} only, not in {query.dtype}",
            remedy="use --graph source or fused",
        )
    cut = cut_of(cut, cut.graph)
    if cut.graph == "source":
        return Settled(cut, query)
    place = chosen_stack(store, query, at_home=cut.graph == "fused")
    if place.why_not is not None:
        return Settled(cut, query, f"{place.why_not}; use --graph source")
    if cut.graph == "runtime" and place.stack.key in store.stacks():
        query = replace(query, stack=place.stack.key)
    return Settled(cut_of(cut, cut.graph, place.stack, place.threads), query)


def readable_of(models: Sequence[ModelSource], found: Iterable[Decomposition | Failed]) -> list[Decomposition]:
    """Those of the models that could be decomposed.

    Raises:
        UsageError: A dimension is given that none of them has.
    """
    readable = [model for model in found if isinstance(model, Decomposition)]
    if readable:
        require_known({name: size for one in models for name, size in one.dims}, [model.own for model in readable])
    return readable


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
