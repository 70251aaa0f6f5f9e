"""Select the bricks and models to measure, by the measurements in the database, and prepare each of them to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import onnx

from ...bricks.decomposition import Decomposition, Failed, suspects
from ...bricks.graph.boundary import BOUNDARY, Caches
from ...bricks.graph.footprint import CORE_LEVEL, MODEL_LEVELS, REUSE_LEVELS, STREAM_LEVEL, footprint, level_name
from ...bricks.layer import TensorType
from ...bricks.operators import Trait, having
from ...bricks.suite.suite import Suite
from ...bricks.work import weights_read
from ...db.queries import Filter
from ...db.store import Store
from ...db.values import Circumstances, Failure, Identity, Measurement, Subject, Verdict
from ...errors import DlbricksError, UsageError
from ...models.control_flow import require_bounded
from ...models.runnable import Runnable
from ..decomposition.decompose import readable
from ..decomposition.observation import run_as_given
from .plan import Membership, TaskMember
from .recorder import Record
from .settings import Order

_SCRATCH = tuple(name.encode() for name in having(Trait.SCRATCH))
_SHORT_KEY = 12

_SAME_SHAPES = 0.5
"""A suite with a smaller share of a model's bricks has other shapes: most layers have a dynamic dimension."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Bricks or models by the action they need, and the results of the run.

    Attributes:
        pending: Bricks or models to measure.
        reused: Finished measurements that stay valid.
        failed: Stored failures that are not tried again.
        broken: Number of pending bricks or models that cannot be read.
        measured: Measurements of the run.
        refused: Failures of the run.
        settled: Number of pending bricks or models that the run measured, or that failed in it.
    """

    pending: tuple[Identity, ...] = ()
    reused: tuple[Measurement, ...] = ()
    failed: tuple[Failure, ...] = ()
    broken: int = 0
    measured: tuple[Measurement, ...] = ()
    refused: tuple[Failure, ...] = ()
    settled: int = 0

    def without(self, keys: Collection[str]) -> Selection:
        """Return the selection without keys that cannot be read; they count as broken."""
        pending = tuple(identity for identity in self.pending if identity.key not in keys)
        return replace(self, pending=pending, broken=self.broken + len(self.pending) - len(pending))

    def among(self, keys: Collection[str]) -> Selection:
        """Return the selection with only these keys pending."""
        return replace(self, pending=tuple(identity for identity in self.pending if identity.key in keys))

    def after(self, records: Mapping[Identity, Record]) -> Selection:
        """Return the selection with the results of the run."""
        selected_records = [records[identity] for identity in self.pending if identity in records]
        return replace(
            self,
            measured=tuple(record.result for record in selected_records if record.result is not None),
            refused=tuple(record.failure for record in selected_records if record.failure is not None),
            settled=sum(not record.open for record in selected_records),
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures, stored before the run or found by it."""
        return (*self.failed, *self.refused)

    @property
    def remaining(self) -> int:
        """Number of pending bricks or models that are still open."""
        return len(self.pending) - self.settled

    @property
    def verdicts(self) -> Counter[str]:
        """Number of valid measurements, by verdict."""
        return Counter(str(measurement.summary.verdict) for measurement in (*self.reused, *self.measured))


def select(identities: Sequence[Identity], store: Store, order: Order) -> Selection:
    """Split bricks or models (all of one subject) by their stored measurements and failures.

    Args:
        identities: Bricks, or models; each in its own cache state and variant.
        store: The database.
        order: Names the stored results to repeat.
    """
    if not identities or order.repeats_all:
        return Selection(tuple(identities))
    parts = [_select(alike, store, order) for alike in _alike(identities)]
    return Selection(
        pending=tuple(identity for part in parts for identity in part.pending),
        reused=tuple(measurement for part in parts for measurement in part.reused),
        failed=tuple(failure for part in parts for failure in part.failed),
    )


def finished(identities: Sequence[Identity], store: Store) -> list[Identity]:
    """Return the identities (all of one subject) with a stored measurement, even if they are begun again."""
    measured: list[Identity] = []
    for alike in _alike(identities):
        keys = {measurement.key for measurement in store.measurements(_filter(alike))}
        measured += [identity for identity in alike if identity.key in keys]
    return measured


def _alike(identities: Sequence[Identity]) -> Iterator[list[Identity]]:
    """Yield lists of identities with one cache state and variant each."""
    kinds: dict[tuple[str, str], list[Identity]] = {}
    for identity in identities:
        kinds.setdefault((identity.conditions.cache, identity.variant), []).append(identity)
    return (alike for _, alike in sorted(kinds.items()))


def _filter(alike: Sequence[Identity]) -> Filter:
    """Return the filter for identities that differ only in their keys."""
    return Filter.of(alike[0], [identity.key for identity in alike])


def _select(alike: Sequence[Identity], store: Store, order: Order) -> Selection:
    """Split identities that differ only in their keys, as ``select`` does."""
    where, again = _filter(alike), order.again
    results = [] if "all" in again else store.measurements(where)
    good = {entry.key: entry for entry in results if "noisy" not in again or entry.summary.verdict is Verdict.STABLE}
    stood = [] if {"failed", "all"} & set(again) else store.failures(where)
    if order.since_us is not None:
        good |= {entry.key: entry for entry in store.measurements(where, since_us=order.since_us)}
        stood += store.failures(where, since_us=order.since_us)
    failures = {entry.key: entry for entry in stood}
    keys = [identity.key for identity in alike]
    return Selection(
        pending=tuple(identity for identity in alike if identity.key not in good and identity.key not in failures),
        reused=tuple(good[key] for key in keys if key in good and key not in failures),
        failed=tuple(failures[key] for key in keys if key in failures),
    )


def wanted_bricks(
    suite: Suite, bench: Circumstances, caches: Caches | None, *, packed: bool, device: str
) -> dict[Identity, int]:
    """Return one identity per brick, or in cache mode ``model`` one per brick and footprint class; read no file.

    Args:
        suite: The bricks.
        bench: Shared properties of the measurements.
        caches: What the caches of this machine hold, if variants depend on it.
        packed: True if packs are networks. In cache mode ``model``, add an identity for each position of a brick at a
            model's own inputs and outputs.
        device: The device; only on a CPU do bricks of small models run alone.

    Returns:
        Footprint class of each identity in bytes; 0: it runs alone.
    """
    brick, in_model = Subject.BRICK, bench.conditions.cache == "model"
    stand_ins = {} if device == "cpu" else {CORE_LEVEL: REUSE_LEVELS[0], STREAM_LEVEL: REUSE_LEVELS[-1]}
    sizes = {
        key: {stand_ins.get(size, size) for size in suite.footprints(key)} if in_model else {0} for key in suite.keys
    }
    footprints = {
        bench.identity(brick, key, cache=level_name(size) if size else None): size
        for key in suite.keys
        for size in sizes[key]
    }
    if packed:
        in_models = [(identity, size) for identity, size in footprints.items() if size in MODEL_LEVELS]
        for identity, size in in_models:
            variants = suite.boundary(identity.key, caches.last if caches is not None else 0)
            footprints |= {replace(identity, variant=variant): size for variant in variants}
    return footprints


def brick_members(
    suite: Suite, identities: Iterable[Identity], footprints: Mapping[Identity, int], unroll: int, *, packed: bool
) -> tuple[dict[Identity, TaskMember], dict[str, str]]:
    """Read and verify the bricks that are about to run.

    Args:
        suite: The bricks.
        identities: Identities of the bricks to run.
        footprints: As ``wanted_bricks`` returns them; a brick without an entry runs alone.
        unroll: Copies in one network of a brick that runs alone; 0: the worker chooses.
        packed: True if packs are networks: a brick that runs alone for its size is then brought into their form.

    Returns:
        Members by identity, and errors by key: a file is missing, does not match its name, or cannot be read.
    """
    members: dict[Identity, TaskMember] = {}
    broken: dict[str, str] = {}
    for key, group in groupby(sorted(identities, key=attrgetter("key")), key=attrgetter("key")):
        try:
            brick = suite.brick(key)
            if b"Loop" in brick.model:  # most bricks need not be read once more
                require_bounded(onnx.load_from_string(brick.model).graph, {})
        except DlbricksError as error:
            broken[key] = str(error)
            continue
        network = Runnable(suite.brick_path(key).resolve(), synthetic=True)
        live = brick.input_bytes + brick.output_bytes
        for identity in group:
            at_boundary = identity.variant in BOUNDARY
            size = footprints.get(identity if at_boundary else replace(identity, variant=""), 0)
            brief = size == CORE_LEVEL
            size = 0 if brief else size
            members[identity] = TaskMember(
                identity,
                key[:_SHORT_KEY],
                network,
                as_is=bool(brick.salt),
                in_model=brief and packed and not brick.salt,
                unroll=1 if size else unroll,
                footprint=size,
                macs=brick.cost.macs if brick.cost is not None else None,
                weight_bytes=brick.weight_bytes,
                read_bytes=brick.read_bytes + (live if at_boundary else 0),
                live_bytes=live,
                scratch=any(operator in brick.model for operator in _SCRATCH),
            )
    return members, broken


@dataclass(frozen=True, slots=True)
class Sources:
    """Whole models to measure.

    Attributes:
        names: Name and key of each argument, in order; the key is None for a broken model.
        problems: Errors of broken models, by name.
        models: The models that can be measured, by name.
        bound: Sizes of their dynamic dimensions, by name.
        invented: Their inputs with made-up values that decide shapes or time, by name (``Decomposition.invented``).
        suspects: Words on what a runtime may have refused, by name (``bricks.decomposition.suspects``).
    """

    names: tuple[tuple[str, str | None], ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Decomposition] = field(default_factory=dict)
    bound: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    invented: Mapping[str, Mapping[str, TensorType]] = field(default_factory=dict)
    suspects: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, models: Sequence[Decomposition | Failed]) -> Sources:
        """Return the sources of decomposed models; a broken model does not affect the others.

        Raises:
            UsageError: Two models have one name.
        """
        keys: dict[str, str] = {}
        for model in readable(models):
            if keys.setdefault(model.name, model.own.key) != model.own.key:
                raise UsageError(
                    f"two models are called {model.name!r}",
                    remedy="name them in one call of find_models, which tells them apart",
                )
        names = tuple((model.name, None if isinstance(model, Failed) else model.own.key) for model in models)
        problems = {model.name: model.reason for model in models if isinstance(model, Failed)}
        read = {model.name: model for model in readable(models)}
        bound = {name: dict(model.own.bound) for name, model in read.items()}
        invented = {name: model.invented for name, model in read.items()}
        doubtful = {name: suspects(model.source, model.own) for name, model in read.items()}
        return cls(names, problems, read, bound, invented, doubtful)

    @property
    def keys(self) -> list[str]:
        """Keys of the distinct models that can be measured, in order."""
        return list(dict.fromkeys(key for _, key in self.names if key is not None))

    def without(self, reasons: Mapping[str, str]) -> Sources:
        """Return the sources without some models, given as name to reason; the reasons become problems."""
        return Sources(
            tuple((name, None if name in reasons else key) for name, key in self.names),
            {**self.problems, **reasons},
            {name: model for name, model in self.models.items() if name not in reasons},
            {name: bound for name, bound in self.bound.items() if name not in reasons},
            self.invented,
            self.suspects,
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """The bricks and models of a run.

    Attributes:
        models: Selected models.
        sources: The models by argument, and the errors of broken ones.
        bricks: Selected bricks of the suite.
        algorithms: Selected pairs of a brick and one of the backend's other algorithms.
        broken: Bricks with a file that cannot be run, and why; nothing is stored for them.
    """

    models: Selection
    sources: Sources
    bricks: Selection = Selection()
    algorithms: Selection = Selection()
    broken: Mapping[str, str] = field(default_factory=dict)

    def apart(self, reasons: Mapping[str, str]) -> Chosen:
        """Return it without some models, given as name to reason."""
        sources = self.sources.without(reasons)
        return replace(self, models=self.models.among(sources.keys), sources=sources)

    def after(self, records: Mapping[Identity, Record]) -> Chosen:
        """Return it with the results of the run."""
        parts = (self.models, self.bricks, self.algorithms)
        models, bricks, algorithms = (selection.after(records) for selection in parts)
        return replace(self, models=models, bricks=bricks, algorithms=algorithms)


def model_members(
    sources: Sources, identities: Collection[Identity], folder: Path
) -> tuple[dict[Identity, TaskMember], dict[str, str]]:
    """Make models ready to be run.

    Args:
        sources: The models.
        identities: Identities of the models to prepare.
        folder: Folder for runnable forms that do not exist as files.

    Returns:
        Members by identity, and errors by model name.
    """
    members: dict[Identity, TaskMember] = {}
    problems: dict[str, str] = {}
    for number, identity in enumerate(identities):
        alike = {name: model for name, model in sources.models.items() if model.own.key == identity.key}
        model = next(iter(alike.values()))
        subfolder = folder / str(number)
        subfolder.mkdir(parents=True, exist_ok=True)
        try:
            network = run_as_given(model.source, subfolder, model.own.control)
        except DlbricksError as error:
            problems |= dict.fromkeys(alike, str(error))
            continue
        costs = [model.own.layers[index].cost for index in model.own.live]
        members[identity] = TaskMember(
            identity,
            model.name,
            network,
            macs=sum(cost.macs for cost in costs if cost is not None),
            weight_bytes=model.own.weight_bytes,
            read_bytes=weights_read(model.own.layers[index] for index in model.own.live),
            footprint_bytes=footprint(model.own),
        )
    return members, problems


def membership_of(sources: Sources, suite: Suite) -> Membership:
    """Find the bricks of each model.

    The bricks that the suite notes for a model are used; in a suite of source layers, only for models with static
    shapes. If a model has bricks outside the suite because another runtime made it, it is visited with other bricks.
    """
    suite_keys = frozenset(suite.keys)
    noted = suite.annotations or {}
    bricks: dict[str, frozenset[str]] = {}
    apart: dict[str, str] = {}
    of_source, all_bound = suite.graph == "source", sources.bound
    for name, key in sources.names:
        if key is None or key in bricks:
            continue
        bound, model = all_bound.get(name, {}), sources.models[name]
        keys = frozenset(noted[name]) if name in noted and not (of_source and bound) else model.keys
        if keys and keys <= suite_keys:
            bricks[key] = keys
        elif of_source and keys and bound and len(keys & suite_keys) < len(keys) * _SAME_SHAPES:
            apart[name] = _differing(bound, len(keys & suite_keys), len(keys))
    levels = {key: suite.levels[name] for name, key in sources.names if key in bricks and name in suite.levels}
    return Membership(bricks, apart, levels)


def _differing(bound: Mapping[str, int], present: int, bricks: int) -> str:
    values = ", ".join(f"{name}={size}" for name, size in bound.items())
    return (
        f"bound to {values}, it has {present} of its {bricks} bricks in the suite, so that it would be measured in "
        "other shapes than they; give the --batch and --dim that the suite was generated with, or 'dlbricks measure' "
        "it alone"
    )


def companions(
    bricks: Selection, identities: Iterable[Identity], holds: Mapping[str, Collection[str]], models: Selection
) -> list[Identity]:
    """Return measured bricks that are visited once more, because they belong to models that will be measured."""
    keys = {key for model in models.pending for key in holds.get(model.key, ())}
    settled = {failure.key for failure in bricks.failed}
    pending = {*bricks.pending}
    return [
        identity
        for identity in identities
        if identity.key in keys and identity not in pending and identity.key not in settled
    ]
