"""What is visited in turn: groups of models with the packs that hold their bricks.

A model's bricks are visited between its own executions, within seconds, so that both meet the same machine. A pack
touches about as much as the models that its bricks come from: between two uses of a weight everything else has passed,
as in a model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ....bricks.graph.footprint import REPEAT_LEVELS, REUSE_LEVELS
from ..item import Item

__all__ = ["MOST_MODELS", "Group", "PackPlan", "grouped", "packs_of"]

MOST_MODELS = 8
"""Models of one group: more of them would part a model's executions from the visits of its bricks by too long."""

_MOST_MEMBERS = 300
"""Bricks of one pack: what a crash costs, and what a profile can hold."""

_ROOM = 1.6
"""A pack holds at most so many times its footprint class, unless a single brick is larger."""

_MOST_COPIES = 8

_JITTER = 0.4
"""How far bricks may stand from their place by size, as the logarithm of bytes."""

_FILLED = 0.7
"""A pack below this part of its class is filled with copies of its own bricks, which have weights of their own."""


@dataclass(slots=True, eq=False)
class PackPlan:
    """Bricks that are run together.

    Attributes:
        id: What the worker calls it.
        items: Its bricks, all of one footprint class and variant.
        copies: How often a brick stands in it, by its id, where that is more than once.
        run_ns: Latest guess at the time of a pass.
    """

    id: str
    items: list[Item]
    copies: dict[str, int] = field(default_factory=dict)
    run_ns: int = 0

    @property
    def footprint(self) -> int:
        """Its footprint class, in bytes."""
        return self.items[0].footprint

    @property
    def footprint_bytes(self) -> int:
        """What one visit touches: weights that are read, and the most that is alive of inputs and outputs at once."""
        weights = sum(item.read_bytes * self.copies.get(item.id, 1) for item in self.items)
        return weights + max((item.live_bytes for item in self.items), default=0)

    def ordered(self, seed: str) -> list[Item]:
        """The bricks from small to large inputs and outputs, or from large to small, each time a little differently.

        A layer of a model writes where one of about its size was a moment before: in random order, what a short brick
        writes is colder than in a model (docs/measuring.md has figures).
        """
        draw = random.Random(seed)  # noqa: S311  # an order, not a secret
        places = {item.id: math.log(item.live_bytes + 1) + draw.uniform(-_JITTER, _JITTER) for item in self.items}
        return sorted(self.items, key=lambda item: (places[item.id], item.id), reverse=draw.choice((False, True)))

    def shares_memory(self, session: int) -> bool:
        """Whether tensors of one shape share memory in a session: it makes what a brick writes to colder.

        In a model it was used a few layers before. In a pack it was used where a brick of the same shape stands, or
        else by the brick before. The truth lies between, so that both take turns; in a large model weights evict it
        anyway (docs/measuring.md has figures).
        """
        return self.footprint >= max(REUSE_LEVELS) or session % 2 == 0

    def halves(self) -> tuple[PackPlan, PackPlan]:
        """Two packs of half the bricks each."""
        middle = (len(self.items) + 1) // 2
        first, second = (
            PackPlan(f"{self.id}{mark}", part, self.copies)
            for mark, part in (("a", self.items[:middle]), ("b", self.items[middle:]))
        )
        return first, second


@dataclass(slots=True, eq=False)
class Group:
    """What is visited in turn.

    Attributes:
        items: Everything that is measured in it.
        models: Whole models among it.
    """

    items: list[Item]
    models: list[Item]

    @property
    def all(self) -> list[Item]:
        """Bricks, models and all else."""
        return [*self.items, *self.models]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.items) + len(self.models)

    @property
    def size_bytes(self) -> int:
        """A guess at the memory that it takes."""
        return sum(item.size_bytes for item in self.all)


def grouped(
    bricks: Sequence[Item],
    models: Sequence[Item],
    holds: Mapping[str, Collection[str]],
    *,
    memory_bytes: int,
    most_models: int = MOST_MODELS,
    levels: Mapping[str, int] | None = None,
) -> list[Group]:
    """Groups that hold every item at least once, each as small as a footprint class, and within memory.

    Args:
        bricks: Bricks and other items that are no models.
        models: Whole models; ``footprint_bytes`` is theirs.
        holds: Model key to the keys of its bricks; a model that is absent is visited beside bricks of its class.
        memory_bytes: Most memory of a group.
        most_models: Of one group.
        levels: Model key to its footprint class, where that is known; else that which is nearest to its own footprint.
    """
    by_class: dict[int, dict[str, list[Item]]] = {}
    for item in bricks:
        by_class.setdefault(item.footprint, {}).setdefault(item.key, []).append(item)
    members: dict[str, list[Item]] = {}
    classes: dict[int, list[Item]] = {}
    loose: list[Item] = []
    for model in models:
        wanted = holds.get(model.key)
        own = (levels or {}).get(model.key, model.footprint_bytes or 1)
        footprint = _class_of(own, wanted, by_class) if wanted else None
        if wanted is None or footprint is None:
            loose.append(model)
            continue
        classes.setdefault(footprint, []).append(model)
        sizes = sorted({footprint, *_beside_it(footprint, by_class)})
        members[model.key] = [item for key in sorted(wanted) for size in sizes for item in by_class[size].get(key, ())]
    groups: list[Group] = []
    for footprint, found in sorted(classes.items()):
        groups += _with_models(_chained(found, members), members, footprint, memory_bytes, most_models)
    placed = {item.id for group in groups for item in group.items}
    for _, keys in sorted(by_class.items()):
        rest = [item for items in keys.values() for item in items if item.id not in placed]
        groups += _chunks(rest, memory_bytes)
    return _beside(groups, loose, memory_bytes, most_models)


def _class_of(own: int, wanted: Collection[str], by_class: Mapping[int, Mapping[str, object]]) -> int | None:
    """The footprint class that has all bricks of a model and is nearest to its own; None where none has."""
    able = [footprint for footprint, keys in by_class.items() if all(key in keys for key in wanted)]
    return min(able, key=lambda footprint: abs(math.log(max(footprint, 1) / own)), default=None)


def _beside_it(footprint: int, by_class: Collection[int]) -> list[int]:
    """Classes that a model's estimate may be of besides: of its iterations; and the least that models without have."""
    found = [size for size in REPEAT_LEVELS if size in by_class]
    if footprint in REPEAT_LEVELS:
        found += sorted(size for size in by_class if size not in REPEAT_LEVELS)[:1]
    return found


def _chained(models: Sequence[Item], members: Mapping[str, Sequence[Item]]) -> list[Item]:
    """Models in an order in which neighbours share bricks."""
    keys = {model.key: {item.id for item in members[model.key]} for model in models}
    left = sorted(models, key=lambda model: (len(keys[model.key]), model.key))
    chain = [left.pop(0)] if left else []
    while left:
        last = keys[chain[-1].key]
        following = max(left, key=lambda model: len(last & keys[model.key]) / len(last | keys[model.key]))
        left.remove(following)
        chain.append(following)
    return chain


def _with_models(
    models: Iterable[Item], members: Mapping[str, Sequence[Item]], footprint: int, memory_bytes: int, most_models: int
) -> list[Group]:
    """Consecutive models, until their bricks together are as large as the class."""
    groups: list[Group] = []
    known: dict[str, Item] = {}
    for model in models:
        added = {item.id: item for item in members[model.key] if item.id not in known}
        group = groups[-1] if groups else None
        size = model.size_bytes + sum(item.size_bytes for item in added.values())
        full = group is None or (
            sum(item.read_bytes for item in known.values()) >= footprint
            or len(group.models) >= most_models
            or group.size_bytes + size > memory_bytes
        )
        if full or group is None:
            known = {item.id: item for item in members[model.key]}
            groups.append(Group(list(known.values()), [model]))
        else:
            known |= added
            group.items += added.values()
            group.models.append(model)
    return groups


def _chunks(items: Sequence[Item], memory_bytes: int) -> list[Group]:
    """As few groups as memory allows."""
    groups: list[Group] = []
    size_bytes = 0
    for item in items:
        if not groups or size_bytes + item.size_bytes > memory_bytes:
            groups.append(Group([], []))
            size_bytes = 0
        groups[-1].items.append(item)
        size_bytes += item.size_bytes
    return groups


def _beside(groups: list[Group], loose: Sequence[Item], memory_bytes: int, most_models: int) -> list[Group]:
    """Spread models of which it is not known what bricks they hold."""
    for model in loose:
        room = [
            group
            for group in groups
            if len(group.models) < most_models and group.size_bytes + model.size_bytes <= memory_bytes
        ]
        if room:
            min(room, key=lambda group: len(group.models)).models.append(model)
        else:
            groups.append(Group([], [model]))
    return groups


def packs_of(items: Sequence[Item], name: str) -> list[PackPlan]:
    """Packs of about the footprint of their class each.

    Args:
        items: Bricks that can be packed.
        name: How the packs' ids begin.
    """
    packs: list[PackPlan] = []
    kinds: dict[tuple[int, str, bool], list[Item]] = {}
    for item in items:
        kinds.setdefault((item.footprint, item.algorithm, item.as_is), []).append(item)
    for (footprint, _, _), members in sorted(kinds.items(), key=lambda kind: kind[0]):
        parts: list[list[Item]] = []
        for item in members:
            size_bytes = sum(one.read_bytes for one in parts[-1]) if parts else 0
            full = size_bytes >= footprint or size_bytes + item.read_bytes > _ROOM * footprint
            if not parts or full or len(parts[-1]) >= _MOST_MEMBERS:
                parts.append([])
            parts[-1].append(item)
        if len(parts) > 1:
            weights = sum(one.read_bytes for part in parts[-2:] for one in part)
            if weights <= _ROOM * footprint and len(parts[-2]) + len(parts[-1]) <= _MOST_MEMBERS:
                parts[-2:] = [[*parts[-2], *parts[-1]]]
        for part in parts:
            plan = PackPlan(f"{name}.{len(packs)}", part)
            _fill(plan, footprint)
            packs.append(plan)
    return packs


def _fill(plan: PackPlan, footprint: int) -> None:
    """Have those with the largest weights of a pack that is too small once more, and again."""
    whole = [item for item in plan.items if item.read_bytes >= item.weight_bytes]  # not the table of an embedding
    largest = sorted(whole, key=lambda item: -item.read_bytes)
    copies = 2
    while copies <= _MOST_COPIES and plan.footprint_bytes < _FILLED * footprint:
        for item in largest:
            if plan.footprint_bytes >= _FILLED * footprint or not item.read_bytes:
                break
            plan.copies[item.id] = copies
        copies += 1
