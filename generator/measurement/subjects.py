"""What is measured: bricks of a suite and whole models, as items."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from ...bricks.graph.boundary import BOUNDARY
from ...bricks.graph.footprint import REUSE_LEVELS, footprint, level_name
from ...bricks.graph.graph import ModelGraph, build_graph
from ...bricks.inference.shapes import ShapeOracle
from ...bricks.suite.suite import Suite
from ...db.values import Subject
from ...errors import DlbricksError
from ...models import ModelSource, require_known
from ..decomposition.given import run_as_given
from .item import Item

__all__ = ["ModelItems", "brick_items", "inspect_bricks", "model_items"]

_SHORT_KEY = 12


@dataclass(frozen=True, slots=True)
class ModelItems:
    """Models made ready to be measured.

    Attributes:
        items: One per distinct model.
        names: Per argument, in order: name and key; None where it is broken.
        problems: Name to what is wrong with it.
        models: The models that could be read, by name.
        bound: What their dynamic dimensions were bound to, by name.
    """

    items: tuple[Item, ...]
    names: tuple[tuple[str, str | None], ...]
    problems: Mapping[str, str]
    models: Mapping[str, ModelSource]
    bound: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def without(self, reasons: Mapping[str, str]) -> ModelItems:
        """The same where some are not to be measured: name to the reason."""
        names = tuple((name, None if name in reasons else key) for name, key in self.names)
        kept = {key for _, key in names}
        return replace(
            self,
            items=tuple(item for item in self.items if item.key in kept),
            names=names,
            problems={**self.problems, **reasons},
            models={name: source for name, source in self.models.items() if name not in reasons},
        )


def brick_items(suite: Suite, *, unroll: int = 0, cache: str = "hot", packed: bool = False) -> list[Item]:
    """One item per brick, or in cache mode ``model`` one per brick and footprint class; no file is read yet.

    Args:
        suite: The bricks.
        unroll: Copies in one network; 0: the worker chooses.
        cache: Cache mode.
        packed: Whether packs are networks: then also one for each place at a model's own inputs and outputs, in cache
            mode ``model``.
    """
    found = [
        Item(
            Subject.BRICK,
            key,
            label=key[:_SHORT_KEY],
            path=suite.brick_path(key).resolve(),
            unroll=1 if size else unroll,
            cache=level_name(size) if size else None,
            footprint=size,
        )
        for key in suite.keys
        for size in (suite.footprints(key) if cache == "model" else (0,))
    ]
    models = [item for item in found if packed and item.footprint in REUSE_LEVELS]
    return [*found, *(item.in_variant(variant) for item in models for variant in suite.boundary(item.key))]


def inspect_bricks(suite: Suite, items: Iterable[Item]) -> dict[str, str]:
    """Read and verify the bricks that are about to run, and note their size, work and whether they run as they are.

    Returns:
        Key of each brick that cannot be run, and why: its file is gone, is not what its name says, or cannot be read.
    """
    broken: dict[str, str] = {}
    for key, members in groupby(sorted(items, key=attrgetter("key")), key=attrgetter("key")):
        try:
            brick = suite.brick(key)
        except DlbricksError as error:
            broken[key] = str(error)
            continue
        for item in members:
            item.weight_bytes, item.live_bytes = brick.weight_bytes, brick.input_bytes + brick.output_bytes
            item.read_bytes = brick.read_bytes + (item.live_bytes if item.variant in BOUNDARY else 0)
            item.size_bytes = 2 * item.weight_bytes + item.live_bytes  # a runtime keeps a packed copy of weights
            item.macs = brick.cost.macs if brick.cost is not None else None
            item.as_is = bool(brick.salt)
    return broken


def model_items(sources: Sequence[ModelSource], folder: Path, *, oracle: ShapeOracle | None = None) -> ModelItems:
    """One item per distinct whole model; a broken model costs itself only.

    Args:
        sources: Models.
        folder: Where runnable forms are written that do not exist as files.
        oracle: Finds shapes that inference does not.

    Raises:
        UsageError: None of the models has a dimension that was given.
    """
    items: dict[str, Item] = {}
    names: list[tuple[str, str | None]] = []
    problems: dict[str, str] = {}
    graphs: dict[str, ModelGraph] = {}
    for number, source in enumerate(sources):
        try:
            graph = build_graph(source.skeleton(), oracle=oracle)
            if graph.key not in items:
                place = folder / str(number)
                place.mkdir()
                runnable = run_as_given(source, place, graph.control)
        except DlbricksError as error:
            problems[source.name] = str(error)
            names.append((source.name, None))
            continue
        graphs[source.name] = graph
        names.append((source.name, graph.key))
        if graph.key not in items:
            costs = [graph.layers[index].cost for index in graph.live]
            items[graph.key] = Item(
                subject=Subject.MODEL,
                key=graph.key,
                label=source.name,
                path=runnable.path.resolve(),
                synthetic=runnable.synthetic,
                overrides=runnable.overrides,
                inputs=runnable.inputs,
                size_bytes=2 * graph.weight_bytes,  # a runtime keeps a packed copy beside the original
                macs=sum(cost.macs for cost in costs if cost is not None),
                unroll=1,  # a model is measured as it is run
                footprint_bytes=footprint(graph),
            )
    if graphs:
        require_known({name: size for source in sources for name, size in source.dims}, graphs.values())
    readable = {source.name: source for source in sources if source.name not in problems}
    bound = {name: dict(graph.bound) for name, graph in graphs.items()}
    return ModelItems(tuple(items.values()), tuple(names), problems, readable, bound)
