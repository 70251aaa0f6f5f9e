"""The plan of a run: members, the tasks that time them, groups of tasks, and a forecast of the duration.

A model's bricks are visited between its own executions, within seconds, so that both meet the same state of the
machine. A pack touches about as much memory as the models that its bricks come from. Between two uses of a weight,
all other bricks therefore run, as in a model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from ...bricks.graph.activations import LARGE_BYTES
from ...bricks.graph.boundary import BOUNDARY, TYPICAL, WORTH, assumed_ns, far_share
from ...bricks.graph.footprint import (
    CORE_LEVEL,
    REPEAT_LEVELS,
    REUSE_LEVELS,
    STREAM_LEVEL,
    level_name,
    level_of,
)
from ...db.values import Identity, Measurement
from ...models.runnable import Runnable
from ..halves import halves
from ..network.packed import ALONE, OFTEN, TOGETHER
from ..network.synthetic.walk import OTHER_WEIGHTS
from ..worker.client import file_of
from ..worker.messages import Load, PackMember, Place
from .pace import loop_ns, loops_of, warmups_of

_MOST_MODELS = 8
"""Models of one group: with more, too much time would pass between a model's executions and its bricks' visits."""

_MOST_ON_GPU = 1
"""Models of a group on a GPU: among the bricks of other models, a kernel of microseconds is up to a fifth slower."""

_MOST_MEMBERS = 300
"""Bricks of one pack: limited by the loss from a crash, and by the size of a profile."""

_ROOM = 1.08
"""Largest size of a pack relative to its footprint class, unless a single brick is larger."""

_MOST_COPIES = 8
"""Copies of a brick in its pack; more in packs that come from memory and have few bricks, which a cache would hold."""

_MOST_OF_CLASS = 0.5
"""A brick with more weights than this part of a class that comes from memory has a separate pack. In a shared one it
would take the place of many small bricks, and a cache may keep the few others next to one long stream."""

_JITTER = 0.4
"""Largest shift of a brick in the order by size, as a difference of logarithms of bytes."""

_FILLED = 0.95
"""A pack below this part of its class takes further bricks, at last copies of its own ones with separate weights."""

_WORKER_START_S = 0.5
"""Start of a worker: interpreter, runtime."""
_LOAD_S = 0.003
"""Loading of a small network in one process."""
_LOAD_S_PER_BYTE = 5e-9
"""Filling and packing weights: from 5 to 7 ns of a core for each byte of the weights of ResNet-50, BERT and GPT-2."""
_NS_PER_MAC = 0.025
"""40 GMAC/s: models of convolutions and of products had 45 to 70 on one core."""
_PROBES_S = 0.0005
"""Time per visit of the probes that show how quiet the machine is."""
_READ_S = 0.15
"""Reading the profile of a pack."""
_CLOCK_PASSES = 60
_CLOCK_BRICKS = 200
"""Each process measures the cost of the profiler's clock: this many passes over this many of the shortest bricks."""


@dataclass(frozen=True, slots=True)
class TaskMember:
    """A brick, model or built-in network to measure.

    Attributes:
        identity: Subject, key and conditions of the measurement.
        label: Name for the user: the shortened key, or the model's name.
        network: The network that the worker loads.
        as_is: True if it comes from a graph that the runtime executes, and runs without further optimisation.
        in_model: True if it runs alone in the form that the runtime executes inside a model.
        unroll: Copies in one network; 0: the worker chooses.
        footprint: Footprint class of its pack, in bytes; 0: it runs alone.
        macs: Work of one execution, for the forecast; None if unknown.
        weight_bytes: Bytes of its weights.
        read_bytes: Bytes of the weights that one execution reads; at a model's boundary, also its inputs and outputs.
        live_bytes: Bytes of its inputs and outputs.
        footprint_bytes: Bytes that a model touches between two visits of the same weights; None if unknown.
        scratch: True if it has operators with large temporary memory (``Trait.SCRATCH``).
    """

    identity: Identity
    label: str
    network: Runnable
    as_is: bool = False
    in_model: bool = False
    unroll: int = 1
    footprint: int = 0
    macs: int | None = None
    weight_bytes: int = 0
    read_bytes: int = 0
    live_bytes: int = 0
    footprint_bytes: int | None = None
    scratch: bool = False

    @property
    def id(self) -> str:
        """Id in the worker: a brick and a model may share a key, and a brick has several cache states and variants."""
        identity = self.identity
        return f"{identity.subject}:{identity.key}:{identity.conditions.cache}:{identity.variant}"

    @property
    def key(self) -> str:
        """Brick key, or model key."""
        return self.identity.key

    @property
    def algorithm(self) -> str:
        """The backend's algorithm for it; empty: the backend chooses."""
        return "" if self.identity.variant in BOUNDARY else self.identity.variant

    @property
    def loaded_bytes(self) -> int:
        """Most memory of its weights: the arrays, and the runtime's copy. Huge tables and weights take less."""
        return 2 * self.weight_bytes

    @property
    def size_bytes(self) -> int:
        """Estimate of its memory in the worker."""
        return self.loaded_bytes + self.live_bytes

    @property
    def runs_once(self) -> bool:
        """True if a pack executes it once: a model has nothing like another copy just before it.

        A copy of a table would take memory and show little, because an execution reads only a part of a table. A copy
        of an operator with temporary memory would leave this memory in the caches.
        """
        return self.scratch or self.read_bytes < self.weight_bytes

    @property
    def in_parts(self) -> bool:
        """True if parts of it are measured in the same visits."""
        return bool(self.footprint or self.in_model) and not self.identity.variant

    def part(self, variant: str) -> Identity:
        """Return the identity of a part of it that is measured in the same visits."""
        return replace(self.identity, variant=variant)


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementTask:
    """A network or a pack of bricks that is timed as one.

    Attributes:
        id: Id in the worker.
        place: Place at which it runs.
        members: One member, or the bricks of the pack: all have one footprint class and variant.
        packed: True if the members run together, as a pack.
        copies: Number of copies of a brick in its pack, by the brick's id, if more than one.
    """

    id: str
    place: Place
    members: tuple[TaskMember, ...]
    packed: bool = False
    copies: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name for progress reports."""
        return f"{len(self.members)} bricks" if self.packed else self.members[0].label

    @property
    def cold(self) -> bool:
        """True if caches are evicted before each visit."""
        return not self.packed and self.members[0].identity.conditions.cache == "cold"

    @property
    def brief(self) -> bool:
        """True for a brick of an executed graph that stays in a core's own caches: its model has many, all short."""
        return self.members[0].identity.conditions.cache == level_name(CORE_LEVEL)

    @property
    def footprint(self) -> int:
        """Footprint class of a pack, in bytes."""
        return self.members[0].footprint if self.packed else 0

    @property
    def evicts(self) -> bool | None:
        """True if one execution leaves nothing of its weights in the caches, False if it does; None: not known."""
        if self.packed:
            return self.footprint >= max(REUSE_LEVELS)
        touched = self.members[0].footprint_bytes
        return False if touched is not None and level_of(touched) < max(REUSE_LEVELS) else None

    @property
    def footprint_bytes(self) -> int:
        """Bytes that one visit touches: the weights it reads, and the largest inputs and outputs of a brick."""
        weights = sum(member.read_bytes * self.copies.get(member.id, 1) for member in self.members)
        return weights + max((member.live_bytes for member in self.members), default=0)

    @property
    def size_bytes(self) -> int:
        """Most memory that it takes in the worker.

        Each copy of a brick has separate weights, unless they are huge, and in a variant of ``BOUNDARY`` separate
        activations.
        """
        return sum(
            self._most_copies(member) * member.loaded_bytes
            + (self._most_copies(member) if member.identity.variant in BOUNDARY else 1) * member.live_bytes
            for member in self.members
        )

    def _most_copies(self, member: TaskMember) -> int:
        """Return the copies of a brick, with the one that may run before and does not count (``_cold``)."""
        once_more = self.packed and (_slower_if_cold(member) or _is_short(member))
        return self.copies.get(member.id, 1) + once_more

    def ordered(self, seed: str) -> list[TaskMember]:
        """Return the bricks by size of inputs and outputs, ascending or descending, with small random shifts.

        A layer of a model writes to memory that a layer of about its size just used. In random order, the memory that a
        short brick writes to is colder than in a model (docs/explanation/measuring.md).
        """
        draw = random.Random(seed)  # noqa: S311  # an order, not a secret
        places = {
            member.id: math.log(member.live_bytes + 1) + draw.uniform(-_JITTER, _JITTER) for member in self.members
        }
        descending = draw.choice((False, True))
        return sorted(self.members, key=lambda member: (places[member.id], member.id), reverse=descending)

    def shares_memory(self, session: int) -> bool:
        """Return True if tensors of one shape share memory in a session: this makes the memory of outputs colder.

        In a model, this memory was last used a few layers before. In a pack, a brick of the same shape was the last
        user if memory is shared, or else the brick before. A model is between both, so sessions alternate. In a large
        model, weights evict this memory anyway (docs/explanation/measuring.md).
        """
        return self.footprint >= max(REUSE_LEVELS) or session % 2 == 0

    def load(self, seed: int, *, process: int = 0, session: int = 0, unroll: int = 0) -> Load:
        """Return the request that loads the task in a worker.

        Args:
            seed: Seed of weights, inputs and orders; the weights of a pack differ by brick too.
            process: Number of the process.
            session: Number of the session in the process; it sets the order of a pack.
            unroll: Copies that an earlier process chose for a single network; 0: not chosen.
        """
        if not self.packed:
            (member,) = self.members
            return Load(
                id=self.id,
                members=(_loaded(member, seed),),
                unroll=1 if member.footprint else unroll or member.unroll,
            )
        ordered = self.ordered(f"{seed}:{process}:{session}")
        return Load(
            id=self.id,
            members=tuple(
                _loaded(member, _apart(member, seed), self.copies.get(member.id, 1), twice=twice)
                for member, twice in zip(ordered, _cold(ordered), strict=True)
            ),
            packed=True,
            memory_reuse=self.shares_memory(process + session),
        )

    def without(self, names: Collection[str]) -> MeasurementTask | None:
        """Return the pack without some of its bricks; None if none is left."""
        members = tuple(member for member in self.members if member.id not in names)
        return replace(self, members=members) if members else None

    def halves(self) -> tuple[MeasurementTask, ...]:
        """Return two packs of half the bricks each; nothing for a single brick."""
        parts = zip("ab", halves(self.members), strict=False)
        return tuple(replace(self, id=f"{self.id}{mark}", members=tuple(part)) for mark, part in parts)


_LATELY, _GROWN = 4, 1.25
"""The memory of activations is cold if they exceed the activations of so many bricks before by this factor."""

_HELD_BYTES = 16 << 20
"""Larger activations evict themselves from the smallest last-level cache that was met (an AMD EPYC's)."""

_NEVER_HELD_BYTES = 2 * max(caches.last for caches in TYPICAL)
"""Larger activations evict themselves from every usual last-level cache, so that earlier executions leave no trace."""

_FROM_MEMORY, _SHORT_BYTES = 64 << 20, 1 << 20
"""Packs of at least this class lose even code between two passes. Loading code counts for bricks of few bytes."""


def _cold(members: Sequence[TaskMember]) -> list[str]:
    """Return for each brick of a pack how it runs twice, if it finds its memory or its code cold, unlike in a model.

    A layer of a model writes to memory that the layers before have touched. A pack may have few bricks with large
    activations, and all weights are between two passes over their memory. In packs that come from memory, caches and
    outputs that stay are between neighbours too. A large model executes most operators many times, and finds their
    code in the caches; a pack has each brick once. A table runs once, as models look it up once. While a pack that
    streams passes, caches forget everything, and take several uses to hold it again; without weights these cost little.
    """
    sizes = [member.live_bytes for member in members]
    before = (max(sizes[max(0, place - _LATELY) : place], default=0) for place in range(len(sizes)))
    found = []
    for member, near in zip(members, before, strict=True):
        lost = member.footprint >= _FROM_MEMORY and member.live_bytes <= _HELD_BYTES
        cold = _slower_if_cold(member) and (lost or member.live_bytes > _GROWN * near)
        streamed = member.footprint == STREAM_LEVEL and not (member.weight_bytes or member.identity.variant)
        way = OFTEN if streamed else ALONE
        found.append(TOGETHER if _is_short(member) else way if cold else "")
    return found


def _slower_if_cold(member: TaskMember) -> bool:
    """Return True if activations are large, a cache may hold them, and cold ones add a noticeable share of time."""
    size = member.read_bytes + member.live_bytes
    return (
        not member.runs_once
        and LARGE_BYTES < member.live_bytes <= _NEVER_HELD_BYTES
        and far_share(member.macs or 0, size, member.live_bytes) >= WORTH
    )


def _is_short(member: TaskMember) -> bool:
    size = member.read_bytes + member.live_bytes
    return not member.runs_once and member.footprint >= _FROM_MEMORY and size < _SHORT_BYTES


def _apart(member: TaskMember, seed: int) -> int:
    """Return a seed that gives each brick different weights: a pack would rotate equal ones, and keep both."""
    return seed + OTHER_WEIGHTS * crc32(member.key.encode())


def _loaded(member: TaskMember, seed: int, copies: int = 1, *, twice: str = "") -> PackMember:
    variant = member.identity.variant
    file = file_of(member.network, seed=seed, as_is=member.as_is, in_model=member.in_model, variant=member.algorithm)
    return PackMember(member.id, file, copies, variant if variant in BOUNDARY else "", twice)


def single(member: TaskMember, place: Place) -> MeasurementTask:
    """Return a task that runs a member alone."""
    return MeasurementTask(member.id, place, (member,))


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that are visited alternately.

    Attributes:
        tasks: Packs, followed by the members that run alone.
        anchors: Ids of the whole models among the members: when they are measured, the group is done.
    """

    tasks: tuple[MeasurementTask, ...]
    anchors: frozenset[str] = frozenset()

    @property
    def one_order(self) -> bool:
        """True if the order of its packs does not matter: weights evict all data between two bricks.

        These packs take longest to load, so each process loads them only once.
        """
        return all(task.footprint >= max(REUSE_LEVELS) for task in self.tasks if task.packed)

    @property
    def largest_bytes(self) -> int:
        """Most memory that a task takes on a processor; weights count with their copy in the runtime."""
        sizes = (task.size_bytes for task in self.tasks if task.place.runtime.device == "cpu")
        return max(sizes, default=0)

    @property
    def members(self) -> tuple[TaskMember, ...]:
        """Members of all tasks."""
        return tuple(member for task in self.tasks for member in task.members)


@dataclass(frozen=True, slots=True)
class Membership:
    """Bricks of a suite by the models that contain them.

    Attributes:
        bricks: Model key to the keys of its bricks, for models with all their bricks in the suite.
        apart: Name of each model with other shapes than the suite, and the reason with its bound dimensions.
        levels: Model key to the footprint class of the cut graph, if the suite notes it.
    """

    bricks: Mapping[str, frozenset[str]] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """Groups to measure, and their distribution over processes and sessions.

    Attributes:
        groups: Groups, visited one after the other in each process.
        processes: Processes at each place, one after the other.
        sessions: Sessions of a group in each process; a group with packs has one if their order does not matter.
        seed: Seed of weights, inputs and orders.
        timeout_s: Hard limit of one visit.
        isolate: If a worker ends, or a runtime fails over a pack: True halves the pack until the culprit is found,
            which runs once more alone; False marks the task as failed.
    """

    groups: tuple[Group, ...]
    processes: int
    sessions: int
    seed: int = 0
    timeout_s: float = 120.0
    isolate: bool = True

    def sessions_of(self, group: Group) -> int:
        """Return the sessions of a group in each process."""
        return 1 if group.one_order and any(task.packed for task in group.tasks) else self.sessions

    def forecast_s(self, visits: int, measurements: Mapping[str, Measurement]) -> float:
        """Return the expected seconds of the plan: workers, loading and visits.

        Args:
            visits: Number of visits of each task.
            measurements: Earlier measurements by key, from any machine.
        """
        if not self.groups:
            return 0.0
        places = {task.place for group in self.groups for task in group.tasks}
        total = self.processes * len(places) * _WORKER_START_S
        packed: list[float] = []
        for group in self.groups:
            for task in group.tasks:
                each = {member.id: _run_ns(member, measurements) for member in task.members}
                run_ns = sum(ns * task.copies.get(name, 1) for name, ns in each.items())
                runs = loops_of(int(run_ns), brief=task.brief) + warmups_of(int(run_ns), evicts=task.evicts)
                visit_s = (runs * run_ns if run_ns >= 1 else loop_ns(brief=task.brief)) / 1e9 + _PROBES_S
                loads = self.processes * (self.sessions_of(group) if task.packed else 1)
                total += loads * sum(_load_s(member, measurements, task) for member in task.members)
                total += loads * _READ_S if task.packed else 0.0
                total += visits * visit_s
                packed += each.values() if task.packed else ()
        return total + self.processes * _CLOCK_PASSES * sum(sorted(packed)[:_CLOCK_BRICKS]) / 1e9


def _run_ns(member: TaskMember, measurements: Mapping[str, Measurement]) -> float:
    earlier = measurements.get(member.key)
    return earlier.latency_ns if earlier is not None else (member.macs or 0) * _NS_PER_MAC


def _load_s(member: TaskMember, measurements: Mapping[str, Measurement], task: MeasurementTask) -> float:
    load_s = _LOAD_S + member.weight_bytes * _LOAD_S_PER_BYTE
    earlier = measurements.get(member.key)
    if not task.packed and earlier is not None and earlier.load_ns is not None:
        load_s = max(load_s, (earlier.load_ns + (earlier.first_run_ns or 0)) / 1e9)
    return load_s


def plan_groups(
    bricks: Sequence[TaskMember],
    models: Sequence[TaskMember],
    membership: Membership,
    place: Place,
    *,
    memory_bytes: int,
    beside: Sequence[TaskMember] = (),
) -> tuple[Group, ...]:
    """Return groups that hold every member at least once, each as small as a footprint class, and within memory.

    Args:
        bricks: Bricks and other members that are not models.
        models: Whole models, with their ``footprint_bytes``.
        membership: The bricks of each model; an absent model is added to a group with room for it. A model without a
            footprint class gets the class nearest to its own footprint.
        place: Place of all tasks.
        memory_bytes: Most memory of a group.
        beside: Members without a footprint class that are visited with the first group.
    """
    by_class: dict[int, dict[str, list[TaskMember]]] = {}
    for item in bricks:
        by_class.setdefault(item.footprint or CORE_LEVEL, {}).setdefault(item.key, []).append(item)
    members: dict[str, list[TaskMember]] = {}
    classes: dict[int, list[TaskMember]] = {}
    loose: list[TaskMember] = []
    most_models = _MOST_MODELS if place.runtime.device == "cpu" else _MOST_ON_GPU
    for model in models:
        brick_keys = membership.bricks.get(model.key)
        model_bytes = membership.levels.get(model.key, model.footprint_bytes or 1)
        footprint = _class_of(model_bytes, brick_keys, by_class) if brick_keys else None
        if brick_keys is None or footprint is None:
            loose.append(model)
            continue
        classes.setdefault(footprint, []).append(model)
        sizes = sorted({footprint, *_beside_it(footprint, by_class)})
        members[model.key] = [
            item for key in sorted(brick_keys) for size in sizes for item in by_class[size].get(key, ())
        ]
    groups: list[_GroupDraft] = []
    for footprint, class_models in sorted(classes.items()):
        chained = _chained(class_models, members)
        groups += _with_models(chained, members, footprint, place, memory_bytes=memory_bytes, most_models=most_models)
    placed = {item.id for group in groups for task in group.tasks for item in task.members}
    for _, keys in sorted(by_class.items()):
        rest = [item for items in keys.values() for item in items if item.id not in placed]
        groups += _chunks(rest, place, memory_bytes)
    drafts = _beside(groups, loose, memory_bytes, most_models)
    if drafts:
        drafts[0].tasks += (single(item, place) for item in beside)
    return tuple(draft.group(str(number), place) for number, draft in enumerate(drafts))


@dataclass(slots=True, eq=False)
class _GroupDraft:
    """A group under construction: packs, bricks that run alone, and whole models."""

    tasks: list[MeasurementTask]
    models: list[TaskMember]

    @classmethod
    def of(cls, items: Collection[TaskMember], models: Sequence[TaskMember], place: Place) -> _GroupDraft:
        """Return a group of bricks and models; bricks with a footprint class are packed."""
        packs = _packs_of([item for item in items if item.footprint], place)
        return cls([*packs, *(single(item, place) for item in items if not item.footprint)], [*models])

    @property
    def size_bytes(self) -> int:
        """Estimate of its memory in the worker."""
        return sum(task.size_bytes for task in self.tasks) + sum(model.size_bytes for model in self.models)

    def group(self, name: str, place: Place) -> Group:
        tasks = [
            replace(task, id=f"{name}.{number}") if task.packed else task for number, task in enumerate(self.tasks)
        ]
        return Group(
            (*tasks, *(single(model, place) for model in self.models)), frozenset(model.id for model in self.models)
        )


def _class_of(
    model_bytes: int, brick_keys: Collection[str], by_class: Mapping[int, Mapping[str, object]]
) -> int | None:
    """Return the footprint class with all bricks of a model that is nearest to the model's own; None without any."""
    able = [footprint for footprint, keys in by_class.items() if all(key in keys for key in brick_keys)]
    return min(able, key=lambda footprint: abs(math.log(max(footprint, 1) / model_bytes)), default=None)


def _beside_it(footprint: int, by_class: Collection[int]) -> list[int]:
    """Return more classes for a model's estimate: classes of iterations, and if its own is one, the smallest other."""
    sizes = [size for size in REPEAT_LEVELS if size in by_class]
    if footprint in REPEAT_LEVELS:
        sizes += sorted(size for size in by_class if size not in REPEAT_LEVELS)[:1]
    return sizes


def _chained(models: Sequence[TaskMember], members: Mapping[str, Sequence[TaskMember]]) -> list[TaskMember]:
    """Return models in an order in which neighbours share bricks."""
    keys = {model.key: {item.id for item in members[model.key]} for model in models}
    unchained = sorted(models, key=lambda model: (len(keys[model.key]), model.key))
    chain = [unchained.pop(0)] if unchained else []
    while unchained:
        last = keys[chain[-1].key]
        following = max(unchained, key=lambda model: len(last & keys[model.key]) / len(last | keys[model.key]))
        unchained.remove(following)
        chain.append(following)
    return chain


def _with_models(
    models: Iterable[TaskMember],
    members: Mapping[str, Sequence[TaskMember]],
    footprint: int,
    place: Place,
    *,
    memory_bytes: int,
    most_models: int,
) -> list[_GroupDraft]:
    """Return groups of consecutive models; a group is full if its bricks together are as large as the class."""
    groups: list[_GroupDraft] = []
    group_bricks: dict[str, TaskMember] = {}
    for model in models:
        own = {item.id: item for item in members[model.key]}
        full = (
            not groups
            or sum(item.read_bytes for item in group_bricks.values()) >= footprint
            or len(groups[-1].models) >= most_models
        )
        if not full:
            together = _GroupDraft.of({**group_bricks, **own}.values(), [*groups[-1].models, model], place)
            full = together.size_bytes > memory_bytes
        if full:
            group_bricks = own
            groups.append(_GroupDraft.of(own.values(), [model], place))
        else:
            group_bricks |= own
            groups[-1] = together
    return groups


def _chunks(items: Collection[TaskMember], place: Place, memory_bytes: int) -> list[_GroupDraft]:
    """Return as few groups as memory allows; a pack stays whole."""
    groups: list[_GroupDraft] = []
    size_bytes = 0
    for task in _GroupDraft.of(items, (), place).tasks:
        if not groups or size_bytes + task.size_bytes > memory_bytes:
            groups.append(_GroupDraft([], []))
            size_bytes = 0
        groups[-1].tasks.append(task)
        size_bytes += task.size_bytes
    return groups


def _beside(
    groups: list[_GroupDraft], loose: Sequence[TaskMember], memory_bytes: int, most_models: int
) -> list[_GroupDraft]:
    """Spread models with unknown bricks over the groups."""
    for model in loose:
        room = [
            group
            for group in groups
            if len(group.models) < most_models and group.size_bytes + model.size_bytes <= memory_bytes
        ]
        if room:
            min(room, key=lambda group: len(group.models)).models.append(model)
        else:
            groups.append(_GroupDraft([], [model]))
    return groups


_FILLS = 0.001
"""Share of a footprint class that the weights of a brick have at least, to be worth copies."""

_FILLING_NS = 50_000_000
"""Time that copies of bricks in a pack may take, roughly: several times as long as reading the largest class."""


def _packs_of(items: Sequence[TaskMember], place: Place) -> list[MeasurementTask]:
    """Return packs of about the footprint of their class each, without ids."""
    packs: list[MeasurementTask] = []
    kinds: dict[tuple[int, str, bool], list[TaskMember]] = {}
    for item in items:
        kinds.setdefault((item.footprint, item.algorithm, item.as_is), []).append(item)
    for (footprint, _, _), members in sorted(kinds.items(), key=lambda kind: kind[0]):
        most_bytes = _MOST_OF_CLASS * footprint if footprint >= _FROM_MEMORY else math.inf
        alone = [[item] for item in members if item.read_bytes > most_bytes]
        parts: list[list[TaskMember]] = []
        for item in (item for item in members if item.read_bytes <= most_bytes):
            full = parts and (
                _touched(parts[-1]) >= _FILLED * footprint or _touched([*parts[-1], item]) > _ROOM * footprint
            )
            if not parts or full or len(parts[-1]) >= _MOST_MEMBERS:
                parts.append([])
            parts[-1].append(item)
        if len(parts) > 1:
            last = [*parts[-2], *parts[-1]]
            if _touched(last) <= _ROOM * footprint and len(last) <= _MOST_MEMBERS:
                parts[-2:] = [last]
        packs += (_filled(MeasurementTask("", place, tuple(part), packed=True), footprint) for part in (*parts, *alone))
    return packs


def _touched(members: Sequence[TaskMember]) -> int:
    """Return the bytes of one pass over bricks: all weights, and the largest inputs and outputs of a brick."""
    return sum(member.read_bytes for member in members) + max((member.live_bytes for member in members), default=0)


def _filled(pack: MeasurementTask, footprint: int) -> MeasurementTask:
    """Fill a pack that is too small with copies of its bricks while each brings it nearer.

    Bricks that read most in little time come first. Weights hardly decide how long a long computation takes, and its
    copies would multiply the time of the pack: all copies together have a short time.
    """
    costs_ns = {member.id: _assumed_ns(member) for member in pack.members}
    fillers = sorted(
        (member for member in pack.members if member.read_bytes >= _FILLS * footprint and not member.runs_once),
        key=lambda member: -member.read_bytes / costs_ns[member.id],
    )
    copies: dict[str, int] = {}
    touched, left_ns = pack.footprint_bytes, float(_FILLING_NS)
    most = max(_MOST_COPIES, _MOST_MEMBERS // len(pack.members) if footprint >= _FROM_MEMORY else 0)
    for _ in range(1, most):
        for member in fillers:
            if touched >= _FILLED * footprint:
                break
            if costs_ns[member.id] > left_ns:
                continue
            if copies.get(member.id, 1) >= _MOST_COPIES and member.live_bytes > member.read_bytes:
                continue  # its copies would mostly be inputs
            if touched * (touched + member.read_bytes) < footprint**2:  # nearer by ratio
                copies[member.id] = copies.get(member.id, 1) + 1
                touched += member.read_bytes
                left_ns -= costs_ns[member.id]
    return replace(pack, copies=copies)


def _assumed_ns(member: TaskMember) -> float:
    return assumed_ns(member.macs or 0, member.read_bytes + member.live_bytes)
