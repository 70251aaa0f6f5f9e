"""Bricks of one pack: loaded together, and timed one by one.

A runtime that reports the time of its nodes runs all of them as one network (``network.packed``). For others the bricks
stand in the stream of a device, one after the other (``streaming``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from ....bricks.reference import CHAIN, OVERHEAD, built_in
from ....db.values import NATIVE
from ....errors import BackendError
from ...backends.base import Backend, Executable, NodeTimes, PackedExecutable, PackingBackend, Settings, is_packing
from ...network.network import Network, synthetic_network
from ...network.packed import Member, Packed, grouped, pack
from ..replies import Times
from .executed import Executed
from .reading import STALL, Array, Reading, by_visit, rounded, without_stalls
from .streaming import StreamedPack
from .timing import time_once

__all__ = ["LoadedPack", "load_pack"]

_PAIRS = 30
"""Executions with and without the profiler that show what it costs."""

_TWIN_NODES = 200
"""Nodes of the network that these are of, the shortest ones: what the clock costs weighs most there."""

_TWIN_NS = 1e6
"""What its bricks take together at most: what a longer one takes scatters by more than what the clock costs."""

_QUIET = 0.1

_FEWEST_IDLE = 20


class LoadedPack(Protocol):
    """Bricks that are loaded together."""

    def run(self, *, visit: int | None) -> None:
        """Execute each once, as part of a visit of this number; None: to no account."""

    def read(self, idle_ns: float | None) -> Reading:
        """End the profile, and read it; ``run`` can still be called, to no account.

        Args:
            idle_ns: What a node costs that does nothing; None: it is found out.
        """

    def close(self) -> None:
        """Free what the runtime holds."""


def load_pack(
    bricks: Mapping[str, Executed], copies: Mapping[str, int], backend: Backend, settings: Settings
) -> tuple[LoadedPack | None, dict[str, BackendError], tuple[str, ...]]:
    """Load bricks in the order given, and run them once.

    Where the runtime fails over one of them, that one is found by halves and left out.

    Args:
        bricks: By the brick's id.
        copies: How often each is loaded, by its id, each time with weights of its own.
        backend: The runtime.
        settings: How it is set up.

    Returns:
        The pack, None where no brick is left; why bricks were left out; and those that cannot be run with others.

    Raises:
        MemoryError: There was not enough memory.
    """
    try:
        return _loaded(bricks, copies, backend, settings)
    except BackendError as error:
        refused = _culprits(bricks, backend, settings, error)
    left = {name: brick for name, brick in bricks.items() if name not in refused}
    if not left:
        return None, refused, ()
    try:
        loaded, more, alone = _loaded(left, copies, backend, settings)
    except BackendError as error:  # each half can be run, and both together cannot
        return None, refused | dict.fromkeys(left, error), ()
    return loaded, refused | more, alone


def _culprits(
    bricks: Mapping[str, Executed], backend: Backend, settings: Settings, error: BackendError
) -> dict[str, BackendError]:
    """Of bricks that cannot be loaded or run together, those that cannot by themselves."""
    names = sorted(bricks)
    if len(names) == 1:
        return {names[0]: error}
    found: dict[str, BackendError] = {}
    for half in (names[: len(names) // 2], names[len(names) // 2 :]):
        part = {name: bricks[name] for name in half}
        try:
            loaded, _, _ = _loaded(part, {}, backend, settings)
        except BackendError as inner:
            found |= _culprits(part, backend, settings, inner)
        else:
            if loaded is not None:
                loaded.close()
    return found


def _loaded(
    bricks: Mapping[str, Executed], copies: Mapping[str, int], backend: Backend, settings: Settings
) -> tuple[LoadedPack | None, dict[str, BackendError], tuple[str, ...]]:
    names = [*bricks]
    refused: dict[str, BackendError] = {}
    loaded: LoadedPack
    if is_packing(backend, settings):
        groups = [[names[place] for place in places] for places in grouped([bricks[name].network for name in names])]
        loaded = _Profiled([{name: bricks[name] for name in group} for group in groups], copies, backend, settings)
        known = {name for group in groups for name in group}
    else:
        loaded = streamed = StreamedPack(bricks, copies, backend, settings)
        refused, known = streamed.refused, set(names)
        if not streamed.loaded:
            streamed.close()
            return None, refused, ()
    try:
        loaded.run(visit=None)
    except BaseException:
        loaded.close()
        raise
    return (loaded if known else None), refused, tuple(name for name in names if name not in known)


class _Profiled:
    """Bricks as one network of each group, whose runtime reports the time of its nodes."""

    def __init__(
        self,
        groups: Sequence[Mapping[str, Executed]],
        copies: Mapping[str, int],
        backend: PackingBackend,
        settings: Settings,
    ) -> None:
        self._backend, self._settings, self._copies = backend, settings, copies
        self._groups = [{**group} for group in groups]
        self._visits: list[int | None] = []
        self._packs: list[tuple[Packed, PackedExecutable]] = []
        self._call = _call_network(backend, settings)
        try:
            for group in self._groups:
                members = [
                    Member(brick.network, copies.get(name, 1), brick.edges, brick.boundary)
                    for name, brick in group.items()
                ]
                packed = pack(members, threads=settings.threads)
                self._packs.append((packed, backend.prepare_packed(packed.network, settings)))
        except BaseException:
            self.close()
            raise

    def run(self, *, visit: int | None) -> None:
        self._visits.append(visit)
        for _, executable in self._packs:
            executable.run()
            executable.synchronize()

    def read(self, idle_ns: float | None) -> Reading:
        readings = [executable.end() for _, executable in self._packs]
        unwatched_ns = sum(self._unwatched(executable) for _, executable in self._packs)
        if idle_ns is None:
            idle_ns = self._idle(readings)
        times: list[Times] = []
        watched = 0.0
        for group, (packed, _), reading in zip(self._groups, self._packs, readings, strict=True):
            clock = _of_idle(packed, reading) - idle_ns
            visits = by_visit(reading.times - clock[:, None], self._visits)
            watched += float(np.median(visits.sum(axis=1))) if visits.size else 0.0
            inner = _by_member(packed.nodes, reading.names, visits, len(group))
            whole = inner + _by_member(packed.uncounted, reading.names, visits, len(group))
            even = without_stalls(whole)
            inner *= np.divide(even, whole, out=np.ones_like(whole), where=whole > 0)
            for place, (name, brick) in enumerate(group.items()):
                count = self._copies.get(name, 1)
                own = rounded(inner[:, place] / count) if brick.edges else ()
                times.append(Times(name, rounded(even[:, place] / count), own))
        return Reading(tuple(times), idle_ns, watched, float(unwatched_ns))

    def close(self) -> None:
        for _, executable in self._packs:
            executable.close()
        self._packs = []
        self._call.close()

    def _unwatched(self, executable: Executable) -> int:
        return time_once(executable.run, executable.synchronize) - time_once(self._call.run, self._call.synchronize)

    def _idle(self, readings: Sequence[NodeTimes]) -> float:
        """What a consumer, which does nothing, takes of an execution that nobody watches.

        What the profile says of a node beyond its share of such an execution is measured on a network of the shortest
        bricks (of small operators of ours where none is short), once profiled and once not, in turn; what it says of a
        consumer there, less that, is the consumer's own.
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
            if total > _TWIN_NS or sum(map(_count, chosen)) >= _TWIN_NODES:
                break
            chosen.append(network)
        chosen = chosen or [_own(CHAIN)]
        places = max(grouped(chosen), key=len)
        packed = pack([Member(chosen[place]) for place in places], threads=self._settings.threads)
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
        seen, true = (float(np.quantile(one, _QUIET)) for one in both)  # what disturbs both is no cost of the clock
        idle = float(np.quantile(_of_idle(packed, reading)[1:], _QUIET))
        return max(0.0, idle - (seen - true) / len(reading.names))


def _of_idle(packed: Packed, reading: NodeTimes) -> Array:
    """What the clock shows for a consumer, by execution: their mean, but for what a stall adds.

    It counts whole microseconds, so that a few consumers show it over all executions together only.
    """
    idle = {*packed.idle}
    times = reading.times[:, [place for place, name in enumerate(reading.names) if name in idle]]
    even = np.minimum(times, STALL * np.median(times))
    means: Array = even.mean(axis=1)
    return means if times.shape[1] >= _FEWEST_IDLE else np.full_like(means, means.mean())


def _count(network: Network) -> int:
    assert network.model is not None  # noqa: S101  # a brick, never a file
    return len(network.model.graph.node)


def _by_member(nodes: Mapping[str, int], names: Sequence[str], times: Array, members: int) -> Array:
    """Sums over the nodes of each member: visits by members."""
    owners = np.zeros((len(names), members))
    for place, name in enumerate(names):
        if name in nodes:
            owners[place, nodes[name]] = 1
    return times @ owners


def _call_network(backend: Backend, settings: Settings) -> Executable:
    """What costs nothing but a call."""
    executable = backend.prepare(_own(OVERHEAD), replace(settings, dtype=NATIVE))
    executable.run()
    return executable


def _own(name: str) -> Network:
    """A network of our own, to be run as it stands."""
    model = built_in(name)
    assert model is not None  # noqa: S101  # the names are constants
    return replace(synthetic_network(model), as_is=True)
