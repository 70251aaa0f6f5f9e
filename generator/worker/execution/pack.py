"""Bricks of one pack: in the form that the runtime executes, loaded together, and timed one by one."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....bricks.reference import CHAIN, CHAIN_NODES, OVERHEAD, built_in
from ....db.values import NATIVE
from ....errors import BackendError
from ...backends.base import Backend, Executable, NodeTimes, PackedExecutable, Settings
from ...device.device import Event, Over, Run
from ...halves import by_halves, halves
from ...network.network import Network, synthetic_network
from ...network.packed import (
    PackedBrick,
    PackedNetwork,
    crossing,
    grouped,
    merge,
    pack,
    set_apart,
    showing,
    split,
)
from ..messages import Readings, Times
from .timing import KernelClock

Array = npt.NDArray[np.float64]

STALL, _STALL_NS = 3.0, 20_000.0
"""A time above this multiple of the median plus this many nanoseconds is a stall by the scheduler."""

_DISTURBED = 0.01
"""Other programs had more than this share of the time: how much of a brick's time is theirs has to be told apart..."""

_LONG_NS = 1e6
"""...and of a longer brick only the time of an execution of its own tells: a kernel's time slices take milliseconds."""

_USUAL = 0.25
"""Quantile of the executions of a node that is its usual time: other programs meet most nodes in few executions."""


def executed_bricks(
    networks: Mapping[str, Network], backend: Backend, settings: Settings
) -> tuple[dict[str, PackedBrick], dict[str, BackendError]]:
    """Bring bricks into the form that the runtime executes, as many at once as possible.

    Args:
        networks: By the brick's id.
        backend: The runtime.
        settings: Its settings.

    Returns:
        The converted bricks, and the errors of the others.

    Raises:
        MemoryError: There was not enough memory.
    """
    bricks = {name: PackedBrick(network) for name, network in networks.items() if network.as_is}
    names = [name for name, network in networks.items() if not network.as_is]
    together = backend.packs(settings) and settings.dtype == NATIVE
    groups = grouped([networks[name] for name in names]) if together else []
    waiting = [[names[index] for index in indices] for indices in groups]
    waiting_names = {name for group in waiting for name in group}
    waiting += [[name] for name in names if name not in waiting_names]
    packs = backend.packs(settings)

    def optimise(group: Sequence[str]) -> None:
        optimised = _optimised([networks[name] for name in group], backend, settings)
        members = _set_apart(optimised, backend, settings) if packs else [*map(PackedBrick, optimised)]
        bricks.update(zip(group, members, strict=True))

    return bricks, by_halves(waiting, optimise)


def executed_brick(network: Network, backend: Backend, settings: Settings) -> PackedBrick:
    """Bring a brick into the form that the runtime executes inside a model; raises as ``Backend.prepare``."""
    bricks, refused = executed_bricks({"": network}, backend, settings)
    for error in refused.values():
        raise error
    return bricks[""]


def _optimised(networks: Sequence[Network], backend: Backend, settings: Settings) -> list[Network]:
    optimised = backend.optimised_bricks if backend.packs(settings) else backend.optimised
    if len(networks) == 1:
        return [optimised(networks[0], settings)]
    return split(optimised(merge(networks), settings), networks)


def _set_apart(networks: Sequence[Network], backend: Backend, settings: Settings) -> list[PackedBrick]:
    """Return bricks with the layout changes at their edges set apart.

    All are executed once, for the shapes of the values in between. A brick of layout changes alone stays as it is.
    """
    edges = [backend.edges(network) for network in networks]
    values = [
        crossing(network, indices) if len(indices) < len(network.brick.graph.node) else ()
        for network, indices in zip(networks, edges, strict=True)
    ]
    able = [index for index, names in enumerate(values) if names]
    arrays: dict[int, dict[str, Any]] = {}
    if able:
        shown = [showing(networks[index], values[index]) for index in able]
        executable = backend.prepare(replace(merge(shown), as_is=True), settings)
        try:
            executable.run()
            outputs = iter(executable.outputs())
        finally:
            executable.close()
        arrays = {index: {name: next(outputs) for name in values[index]} for index in able}
    return [
        set_apart(network, edges[index], arrays[index]) if index in arrays else PackedBrick(network)
        for index, network in enumerate(networks)
    ]


def without_stalls(times: Array) -> Array:
    """Return the times with each stall spread over its visit; in a stall the scheduler runs another process.

    A stall of milliseconds meets one node of microseconds, at random and in proportion to its time. A model that
    contains that node many times would count it every time. The excess of a node over three times its median plus 20
    microseconds is therefore shared by all nodes of the visit in proportion to their times. The visit's sum stays.

    Args:
        times: Nanoseconds, visits by nodes (or by bricks).
    """
    if not times.size:
        return times
    even: Array = np.minimum(times, STALL * np.median(times, axis=0).clip(min=0) + _STALL_NS)
    sums = even.sum(axis=1, keepdims=True)
    beyond = (times - even).sum(axis=1, keepdims=True)
    even *= 1 + np.divide(beyond, sums, out=np.zeros_like(sums), where=sums > 0)
    return even


def without_stolen(times: Array, stolen: Array) -> Array:
    """Return the times without the time that the kernel gave to other programs.

    Another program runs for a millisecond or more, in the midst of few nodes. The time is taken off the nodes that
    exceed their usual time most; what is left then is taken off all nodes in proportion to their times.

    Args:
        times: Nanoseconds, executions by nodes; a last column has the time between nodes.
        stolen: Nanoseconds that other programs had during each execution (``timing.Interruptions``).
    """
    if not times.size or not stolen.any():
        return times
    excess = (times - np.quantile(times, _USUAL, axis=0)).clip(min=0)
    order = np.argsort(-excess, axis=1)
    largest = np.take_along_axis(excess, order, axis=1)
    before = np.cumsum(largest, axis=1) - largest
    taken = np.minimum(largest, (stolen[:, None] - before).clip(min=0))
    even = times.copy()
    np.put_along_axis(even, order, np.take_along_axis(times, order, axis=1) - taken, axis=1)
    sums = even.sum(axis=1)
    unstolen = (times.sum(axis=1) - stolen).clip(min=0)
    even *= np.divide(unstolen, sums, out=np.ones_like(sums), where=sums > 0)[:, None]
    return even


def by_visit(times: Array, visits: Sequence[int | None], middle: Callable[..., Array] = np.mean) -> Array:
    """Return means, or another average, over the executions of each visit: visits by nodes."""
    numbers = np.array([-1 if visit is None else visit for visit in visits])
    return (
        np.stack([middle(times[numbers == number], axis=0) for number in range(numbers.max() + 1)])
        if (numbers.max(initial=-1) >= 0)
        else times[:0]
    )


def rounded(times: Array) -> tuple[int, ...]:
    """Return whole nanoseconds."""
    return tuple(round(value) for value in times.tolist())


class Pack(ABC):
    """Bricks that are loaded together, and timed one by one."""

    @abstractmethod
    def run(self, *, visit: int | None) -> None:
        """Execute each brick once and count it to the visit of this number; None: count it to no visit."""

    @abstractmethod
    def read(self, idle_ns: float | None, *, check: bool = False) -> Readings:
        """End the profile and read it; later calls of ``run`` are not counted.

        Args:
            idle_ns: Nanoseconds of a node that computes nothing; None: measure it.
            check: Make a pass without the profiler too, and compare the two.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the runtime's resources."""


@dataclass(frozen=True, slots=True)
class LoadedPack:
    """What came of loading bricks together.

    Attributes:
        pack: The bricks that run together; None if there are none.
        refused: Errors of bricks that were left out.
        alone: Bricks that cannot run with others.
    """

    pack: Pack | None
    refused: Mapping[str, BackendError] = field(default_factory=dict)
    alone: tuple[str, ...] = ()


# Bricks of one pass in the stream of a device, one after the other, with events between them.
#
# Each brick's inputs were just written, as by the layer before it in a model. The cost of two events and the call
# between them is measured in the same pass, by a network of one operation and a chain of operations. The chain shows
# the time of one operation; the rest of the single network's time is that cost.
#
# If a pass is not one launch, a GPU waits until a few bricks are enqueued, so that the time between events is its own.
# The processor's time to enqueue each brick is measured as well. The slower of the two decides a model's latency.


_BETWEEN = 16
"""Bricks per calibration of the clock."""

_HELD = 12
"""Bricks that are enqueued while a device waits: they must fit into its queue."""

_HOLD_NS = 100_000.0
_MARGIN = 2.0
"""The device waits ``_HOLD_NS`` per brick at first, then ``_MARGIN`` times as long as enqueuing took the last time."""

_ATTEMPTS = 3

_STEPS = 1.5
"""Readings this many steps of the clock from their median differ from it by the step alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _StreamStep:
    """A network of the pass, between two events.

    Attributes:
        owner: Place of the brick; -1: one operation that calibrates the clock; -2: the chain that does.
        executable: The network.
        begin: Event before it.
        end: Event after it.
    """

    owner: int
    executable: Executable
    begin: Event
    end: Event


_SINGLE, _CHAIN = -1, -2


class StreamedPack(Pack):
    """Bricks that are enqueued one after the other (see ``LoadedPack``).

    Attributes:
        loaded: Number of bricks in the pack.
        refused: Errors of bricks that cannot be loaded; they are left out of the pack.

    Args:
        bricks: By the brick's id, in the order in which they are run.
        backend: The runtime.
        settings: Its settings.
    """

    def __init__(self, bricks: Mapping[str, PackedBrick], backend: Backend, settings: Settings) -> None:
        self._names = [*bricks]
        self.refused: dict[str, BackendError] = {}
        self._backend, self._settings = backend, settings
        self._device = backend.device(settings)
        self._steps: list[_StreamStep] = []
        self._rows: list[Array] = []
        self._host: list[Array] = []
        self._inputs: dict[object, Any] = {}
        self._waits: dict[int, float] = {}
        self._visits: list[int | None] = []
        self._clock: dict[int, Executable] = {}
        try:
            for index, (name, brick) in enumerate(bricks.items()):
                begun = len(self._steps)
                try:
                    for copy in range(brick.copies):
                        self._steps.append(
                            self._step(index, self._loaded(_apart(brick.network) if copy else brick.network))
                        )
                except BackendError as error:
                    self.refused[name] = error
                    for step in self._steps[begun:]:
                        step.executable.close()
                    del self._steps[begun:]
                if index % _BETWEEN == 0:
                    self._steps.append(self._calibrating(_SINGLE, OVERHEAD))
                if index % _BETWEEN == _BETWEEN // 2:
                    self._steps.append(self._calibrating(_CHAIN, CHAIN))
            if all(step.owner != _CHAIN for step in self._steps):
                self._steps.append(self._calibrating(_CHAIN, CHAIN))
            self.loaded = len(bricks) - len(self.refused)
            self._launch: Run = self._enqueue
            if self.loaded:
                self._launch = backend.captured(self._enqueue, settings)
            if self._launch == self._enqueue and self._device.name != "cpu":
                self._launch = self._enqueue_held
        except BaseException:
            self.close()
            raise

    def run(self, *, visit: int | None) -> None:
        """Enqueue all bricks, wait, and note the times (see ``LoadedPack``)."""
        if self._device.name == "cpu":
            self._clock[_SINGLE].run()  # otherwise the first brick would run with the runtime's code cold
        self._launch()
        self._device.synchronize()
        self._rows.append(np.array([self._device.elapsed_ns(step.begin, step.end) for step in self._steps]))
        self._visits.append(visit)

    def read(self, idle_ns: float | None, *, check: bool = False) -> Readings:  # noqa: ARG002  # passes calibrate the clock
        """Return the times without the cost of the clock (see ``LoadedPack``)."""
        rows = np.array(self._rows)
        clock = _clock(rows, self._owners, self._device.resolution_ns)
        even = without_stalls((self._by_brick(by_visit(rows, self._visits)) - clock).clip(min=0))
        host = self._launches() if self._host else np.empty((0, len(self._names)))
        times = tuple(
            Times(name, rounded(even[:, index]), host_ns=rounded(host[:, index]))
            for index, name in enumerate(self._names)
            if name not in self.refused
        )
        return Readings(times, clock)

    def _launches(self) -> Array:
        """Return the nanoseconds to enqueue each brick: medians of each visit, since others use the processor too."""
        rows = np.array(self._host)
        clock = _clock(rows, self._owners, 0.0)
        return (self._by_brick(by_visit(rows, self._visits, np.median)) - clock).clip(min=0)

    def _by_brick(self, visits: Array) -> Array:
        """Return means over the copies of each brick: visits by bricks."""
        owners = self._owners
        sums = np.zeros((len(visits), len(self._names)))
        for owner in {*owners[owners >= 0].tolist()}:
            sums[:, owner] = visits[:, owners == owner].mean(axis=1)
        return sums

    @property
    def _owners(self) -> npt.NDArray[np.int64]:
        return np.array([step.owner for step in self._steps])

    def close(self) -> None:
        """Free all networks."""
        self._launch = self._closed
        for executable in {id(step.executable): step.executable for step in self._steps}.values():
            executable.close()
        self._steps = []
        self._inputs.clear()

    def _enqueue(self) -> None:
        for step in self._steps:
            step.executable.refresh()
            self._device.record(step.begin)
            step.executable.run()
            self._device.record(step.end)

    def _enqueue_held(self) -> None:
        """Enqueue all steps in parts; the device begins a part when all of it is enqueued.

        If the device began earlier, the part is enqueued once more with a longer wait.
        """
        taken: list[int] = []
        for first in range(0, len(self._steps), _HELD):
            part = self._steps[first : first + _HELD]
            for attempt in range(_ATTEMPTS):
                begun = time.perf_counter_ns()
                part_ns, over = self._held(part, self._waits.get(first, _HOLD_NS * len(part)))
                self._waits[first] = _MARGIN ** (attempt + 1) * (time.perf_counter_ns() - begun)
                waited = not over()
                self._device.synchronize()
                if waited:
                    break
            taken += part_ns
        self._host.append(np.array(taken, dtype=float))

    def _held(self, part: Sequence[_StreamStep], wait_ns: float) -> tuple[list[int], Over]:
        """Enqueue some bricks while the device waits; return the nanoseconds per brick and the end-of-wait test."""
        over = self._device.hold(wait_ns)
        taken: list[int] = []
        for step in part:
            step.executable.refresh()
            self._device.record(step.begin)
            begin = time.perf_counter_ns()
            step.executable.run()
            taken.append(time.perf_counter_ns() - begin)
            self._device.record(step.end)
        return taken, over

    def _closed(self) -> None:
        raise RuntimeError("this pack was closed")

    def _loaded(self, network: Network) -> Executable:
        executable = self._backend.prepare_streamed(replace(network, as_is=True), self._settings)
        if self._device.name != "cpu":
            executable.share(self._inputs)
        return executable

    def _calibrating(self, owner: int, name: str) -> _StreamStep:
        """Return one operation, or a chain of them, behind a brick.

        On a processor it is loaded anew: a repeated call takes less than half as long as a first one, and a pass calls
        every brick for the first time.
        """
        if self._device.name == "cpu" or owner not in self._clock:
            self._clock[owner] = self._loaded(_built_in(name))
        return self._step(owner, self._clock[owner])

    def _step(self, owner: int, executable: Executable) -> _StreamStep:
        return _StreamStep(owner, executable, self._device.event(), self._device.event())


def _clock(rows: Array, owners: npt.NDArray[np.int64], resolution_ns: float) -> float:
    """Return the clock's reading for no work, in nanoseconds: from the middle of all passes.

    The middle is the mean of the readings next to the median. A median alone is a multiple of the clock's step: with
    steps of one or two microseconds, sums of a model's bricks were 3 or 13 % off in a simulation.
    """
    single, chain = (_middle(rows[:, owners == owner], resolution_ns) for owner in (_SINGLE, _CHAIN))
    return max(0.0, single - max(0.0, chain - single) / (CHAIN_NODES - 1))


def _middle(readings: Array, resolution_ns: float) -> float:
    distances = np.abs(readings - np.median(readings))
    near = readings[distances <= _STEPS * resolution_ns]
    return float(near.mean() if near.size else np.median(readings))


def _apart(network: Network) -> Network:
    """Return the same network with weights in separate memory."""
    return replace(network, weights={name: array.copy() for name, array in network.weights.items()})


def _built_in(name: str) -> Network:
    """Return a built-in network, with optimisation off."""
    model = built_in(name)
    assert model is not None  # noqa: S101  # the names are constants
    return replace(synthetic_network(model), as_is=True)


# Bricks that run as one network, whose runtime reports the time of each node.


_PAIRS = 30
"""Executions with and without the profiler that show its cost."""

_TWIN_NODES = 200
"""Limit on the nodes of the network for these. It has the shortest bricks, which show the cost of the clock best."""

_TWIN_NS = 1e6
"""Limit on the nanoseconds of its bricks together: longer bricks scatter by more than the cost of the clock."""

_QUIET = 0.1

_FEWEST_IDLE = 20


class _ProfiledPack(Pack):
    """Bricks as one network per group; the runtime reports the time of its nodes."""

    def __init__(self, groups: Sequence[Mapping[str, PackedBrick]], backend: Backend, settings: Settings) -> None:
        self._backend, self._settings = backend, settings
        self._groups = [{**group} for group in groups]
        self._visits: list[int | None] = []
        self._packs: list[tuple[PackedNetwork, PackedExecutable]] = []
        self._passes: list[list[tuple[int, int]]] = []
        self._call = _call_network(backend, settings)
        try:
            for group in self._groups:
                packed = pack([*group.values()], threads=settings.threads)
                self._packs.append((packed, backend.prepare_packed(packed.network, settings)))
        except BaseException:
            self.close()
            raise

    def run(self, *, visit: int | None) -> None:
        self._visits.append(visit)
        passes: list[tuple[int, int]] = []
        for _, executable in self._packs:
            clock = KernelClock()
            executable.run()
            executable.synchronize()
            seen = clock.read()
            passes.append((seen.wall_ns, seen.stolen_ns(self._settings.computing)))
        self._passes.append(passes)

    @property
    def disturbed(self) -> bool:
        """Whether other programs had some of the time of the executions so far."""
        wall_ns, stolen_ns = np.array(self._passes, dtype=np.float64).reshape(-1, 2).sum(axis=0)
        return bool(stolen_ns > _DISTURBED * wall_ns)

    @property
    def long(self) -> frozenset[str]:
        """Bricks that take so long that another program meets most of their executions; ends the profile."""
        long_names: set[str] = set()
        for group, (packed, executable) in zip(self._groups, self._packs, strict=True):
            if len(group) == 1:
                continue
            reading = executable.end()
            taken = _by_member(packed.nodes, reading.names, reading.times[-1:], len(group))[0]
            long_names |= {name for name, ns in zip(group, taken.tolist(), strict=True) if ns > _LONG_NS}
        return frozenset(long_names)

    def read(self, idle_ns: float | None, *, check: bool = False) -> Readings:
        readings = [executable.end() for _, executable in self._packs]
        unwatched_ns = float(sum(self._unwatched(executable) for _, executable in self._packs)) if check else 0.0
        if idle_ns is None:
            idle_ns = self._idle(readings)
        times: list[Times] = []
        watched = 0.0
        passes = np.array(self._passes, dtype=np.float64)
        for number, (group, (packed, _), reading) in enumerate(zip(self._groups, self._packs, readings, strict=True)):
            clock = _of_idle(packed, reading) - idle_ns
            wall_ns, stolen_ns = passes[:, number].T
            between = wall_ns - reading.times.sum(axis=1)
            node_times = without_stolen(np.column_stack([reading.times, between]), stolen_ns)[:, :-1] - clock[:, None]
            visits = without_stalls(by_visit(node_times, self._visits))
            watched += float(np.median(visits.sum(axis=1))) if visits.size else 0.0
            inner = _by_member(packed.nodes, reading.names, visits, len(group))
            whole = inner + _by_member(packed.uncounted, reading.names, visits, len(group))
            for index, (name, brick) in enumerate(group.items()):
                bare = rounded(inner[:, index] / brick.copies) if brick.edges is not None else ()
                times.append(Times(name, rounded(whole[:, index] / brick.copies), bare))
        return Readings(tuple(times), idle_ns, watched if check else 0.0, unwatched_ns)

    def close(self) -> None:
        for _, executable in self._packs:
            executable.close()
        self._packs = []
        self._call.close()

    def _unwatched(self, executable: Executable) -> int:
        """Return the nanoseconds of an execution after another one, as those that the profiler watched."""
        executable.run()
        return executable.timed_ns() - self._call.timed_ns()

    def _idle(self, readings: Sequence[NodeTimes]) -> float:
        """Return the nanoseconds of a consumer, which computes nothing, in an execution without the profiler.

        A network of the shortest bricks (of small built-in operators if none is short) runs alternately with and
        without the profiler. The sum of its profile minus the time without the profiler, per node, is the cost of the
        clock. The reading of a consumer minus this cost is the consumer's own time.
        """
        shortest: list[tuple[float, Network]] = []
        for group, (packed, _), reading in zip(self._groups, self._packs, readings, strict=True):
            sums = _by_member(packed.nodes, reading.names, reading.times[-1:], len(group))[0]
            shortest += zip(sums.tolist(), (brick.network for brick in group.values()), strict=True)
        shortest.sort(key=lambda pair: pair[0])
        chosen: list[Network] = []
        total = 0.0
        for ns, network in shortest:
            total += ns
            if total > _TWIN_NS or sum(len(each.brick.graph.node) for each in chosen) >= _TWIN_NODES:
                break
            chosen.append(network)
        chosen = chosen or [_built_in(CHAIN)]
        indices = max(grouped(chosen), key=len)
        packed = pack([PackedBrick(chosen[index]) for index in indices], threads=self._settings.threads)
        plain, watched = (self._backend.prepare_packed(packed.network, self._settings) for _ in range(2))
        try:
            plain.run()
            plain.end()
            unwatched: list[int] = []
            for _ in range(_PAIRS):
                watched.run()
                unwatched.append(self._unwatched(plain))
            reading = watched.end()
        finally:
            plain.close()
            watched.close()
        both = (reading.times.sum(axis=1)[1:], np.array(unwatched[1:]))
        seen, true = (
            float(np.quantile(times, _QUIET)) for times in both
        )  # disturbances of both are not the clock's cost
        idle = float(np.quantile(_of_idle(packed, reading)[1:], _QUIET))
        return max(0.0, idle - (seen - true) / len(reading.names))


def _of_idle(packed: PackedNetwork, reading: NodeTimes) -> Array:
    """Return the clock's reading for a consumer, by execution: the mean over consumers, without stalls.

    The clock counts whole microseconds, so that a few consumers need the mean over all executions together.
    """
    idle = {*packed.idle}
    times = reading.times[:, [column for column, name in enumerate(reading.names) if name in idle]]
    even = np.minimum(times, STALL * np.median(times))
    means: Array = even.mean(axis=1)
    return means if times.shape[1] >= _FEWEST_IDLE else np.full_like(means, means.mean())


def _by_member(nodes: Mapping[str, int], names: Sequence[str], times: Array, members: int) -> Array:
    """Return sums over the nodes of each member: visits by members."""
    owners = np.zeros((len(names), members))
    for row, name in enumerate(names):
        if name in nodes:
            owners[row, nodes[name]] = 1
    return times @ owners


def _call_network(backend: Backend, settings: Settings) -> Executable:
    """Return a network that costs nothing but its call."""
    executable = backend.prepare(_built_in(OVERHEAD), replace(settings, dtype=NATIVE))
    executable.run()
    return executable


def load_pack(bricks: Mapping[str, PackedBrick], backend: Backend, settings: Settings) -> LoadedPack:
    """Load bricks in the order given, and run them once.

    If a runtime reports the time of its nodes, all bricks run as one network (``network.packed``). Otherwise the bricks
    run one after the other in the stream of a device. If the runtime fails on some bricks, these are found by halves
    and left out.

    Args:
        bricks: By the brick's id.
        backend: The runtime.
        settings: Its settings.

    Raises:
        MemoryError: There was not enough memory.
    """
    try:
        return _load(bricks, backend, settings)
    except BackendError as error:
        refused = _culprits(bricks, backend, settings, error)
    remaining = {name: brick for name, brick in bricks.items() if name not in refused}
    if not remaining:
        return LoadedPack(None, refused)
    try:
        loaded = _load(remaining, backend, settings)
    except BackendError as error:  # each half can be run, but not both together
        return LoadedPack(None, refused | dict.fromkeys(remaining, error))
    return replace(loaded, refused=refused | {**loaded.refused})


def _culprits(
    bricks: Mapping[str, PackedBrick], backend: Backend, settings: Settings, error: BackendError
) -> dict[str, BackendError]:
    """Return the bricks that fail even alone, among bricks that cannot be loaded or run together."""
    names = sorted(bricks)

    def load(part: Sequence[str]) -> None:
        loaded = _load({name: replace(bricks[name], copies=1) for name in part}, backend, settings)
        if loaded.pack is not None:
            loaded.pack.close()

    return by_halves(halves(names), load) if len(names) > 1 else {names[0]: error}


def _load(
    bricks: Mapping[str, PackedBrick], backend: Backend, settings: Settings, apart: Collection[str] | None = None
) -> LoadedPack:
    """Load bricks and run them once.

    If other programs had some of that time, the bricks are loaded again, long ones as networks of their own.

    Args:
        bricks: By the brick's id, in the order in which they are run.
        backend: The runtime.
        settings: Its settings.
        apart: The long bricks; None: find them.
    """
    pack: Pack
    refused: Mapping[str, BackendError] = {}
    if backend.packs(settings):
        names = [*bricks]
        groups = [[names[index] for index in indices] for indices in grouped([bricks[name].network for name in names])]
        groups = [part for group in groups for part in _parted(group, apart or ())]
        pack = _ProfiledPack([{name: bricks[name] for name in group} for group in groups], backend, settings)
        members = {name for group in groups for name in group}
    else:
        pack = streamed = StreamedPack(bricks, backend, settings)
        refused, members = streamed.refused, {*bricks}
        if not streamed.loaded:
            streamed.close()
            return LoadedPack(None, refused)
    try:
        pack.run(visit=None)
        long = pack.long if isinstance(pack, _ProfiledPack) and pack.disturbed and apart is None else None
    except BaseException:
        pack.close()
        raise
    if long is not None:
        pack.close()
        return _load(bricks, backend, settings, apart=long)
    return LoadedPack(pack if members else None, refused, tuple(name for name in bricks if name not in members))


def _parted(group: Sequence[str], apart: Collection[str]) -> list[list[str]]:
    """Return the bricks of a group that run together, and each of the others alone."""
    parts = [[name for name in group if name not in apart], *([name] for name in group if name in apart)]
    return [part for part in parts if part]
