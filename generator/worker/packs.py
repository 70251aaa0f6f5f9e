"""The packs that a worker holds, and how anything is visited: executed between two probes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ...errors import BackendError, ModelError, UsageError
from ..backends.base import OptimisingBackend, Settings
from ..device.device import Device
from ..device.host import HostDevice
from ..machine.memory import private_bytes
from ..network.network import Network, read_network
from ..network.padding import brick_network
from .execution.executed import Executed, executed_bricks
from .execution.packing import LoadedPack, load_pack
from .execution.probe import Probe
from .execution.timing import undisturbed
from .replies import LeftOut, Packed, Unpacked, Visited
from .requests import Pack, Visit
from .serving import refusal

__all__ = ["KeptPack", "Packs"]


@dataclass(frozen=True, slots=True, eq=False)
class KeptPack:
    """Bricks that are run together.

    Attributes:
        names: Ids of all that were asked for.
        bricks: Those that can be run, in the form that the runtime executes.
        loaded: Ready to be run; None where no brick can be.
        variant: Of the request.
    """

    names: frozenset[str]
    bricks: dict[str, Executed]
    loaded: LoadedPack | None
    variant: str
    visits: list[int] = field(default_factory=lambda: [0])


def _repeat(pack: LoadedPack, times: int, visit: int | None = None) -> None:
    for _ in range(times):
        pack.run(visit=visit)


def _nothing() -> None:
    """A pass is over when its call returns."""


class Packs:
    """What a worker remembers of packs: those that are loaded, and what a node costs that does nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptPack] = {}
        self._idle_ns: dict[str, float] = {}  # by variant
        self._probe: Probe | None = None

    def get(self, name: str) -> KeptPack | None:
        """The pack of a name."""
        return self._kept.get(name)

    def pack(self, request: Pack, backend: OptimisingBackend, settings: Settings) -> Packed:
        """Load bricks, in a new order where they are loaded already.

        Raises:
            MemoryError: There was not enough memory.
        """
        begin, before = time.perf_counter_ns(), private_bytes()
        places = {name: path for name, path, _ in request.members}
        copies = {name: count for name, _, count in request.members}
        kept = self._kept.pop(request.id, None)
        failed: dict[str, Exception] = {}
        if kept is not None and kept.loaded is not None:
            kept.loaded.close()
        if kept is None or kept.names != places.keys():
            networks: dict[str, Network] = {}
            for name, path in places.items():
                try:
                    model = read_network(Path(path), values=True)
                    brick = brick_network(model, seed=request.seed, unroll=1, multiple=settings.channels)
                    networks[name] = replace(brick, as_is=request.as_is)
                except (BackendError, ModelError) as error:
                    failed[name] = error
            bricks, refused = executed_bricks(networks, backend, settings)
            places_of = dict(request.boundary)
            bricks = {name: replace(brick, boundary=places_of.get(name, "")) for name, brick in bricks.items()}
            failed |= refused
        else:
            bricks = kept.bricks
        loading = time.perf_counter_ns()
        loaded, broken, alone = load_pack(
            {name: bricks[name] for name in places if name in bricks},
            copies,
            backend,
            replace(settings, memory_reuse=request.memory_reuse),
        )
        failed |= broken
        bricks = {name: brick for name, brick in bricks.items() if name not in broken and name not in alone}
        self._kept[request.id] = KeptPack(frozenset(places), bricks, loaded, request.variant)
        left_out = [LeftOut(name, "", "it cannot be run with others") for name in alone]
        for name, reason in failed.items():
            why = refusal(reason, places[name])
            left_out.append(LeftOut(name, str(why.kind), why.reason))
        held = sum(copies[name] * brick.network.weight_bytes for name, brick in bricks.items())
        return Packed(
            prepare_ns=time.perf_counter_ns() - begin,
            loading_ns=time.perf_counter_ns() - loading,
            bytes=max(2 * held, private_bytes() - before),  # packed beside the original
            left_out=tuple(left_out),
        )

    def visit(self, pack: KeptPack, request: Visit) -> Visited:
        """Execute a pack."""
        if pack.loaded is None:
            raise UsageError(f"pack {request.id!r} is without bricks")
        number, pack.visits[0] = pack.visits[0], pack.visits[0] + 1
        return self.timed(
            partial(_repeat, pack.loaded, request.loops, number),
            partial(_repeat, pack.loaded, request.warmups),
            device=HostDevice(),  # each pass waits for its end
            synchronize=_nothing,
        )

    def timed(
        self,
        run: Callable[[], None],
        warm_up: Callable[[], None],
        *,
        device: Device,
        synchronize: Callable[[], None],
        cold: bool = False,
    ) -> Visited:
        """Warm up, and execute once between two probes; after an eviction, which a probe would undo, with one."""
        if self._probe is None:
            self._probe = Probe()
        with undisturbed():
            warm_up()
            synchronize()
            if cold:
                device.evict()
            before = (0, 0) if cold else self._probe()
            begun_us = time.time_ns() // 1000
            elapsed_ns = device.timed_ns(run, synchronize)
            after = self._probe()
        return Visited(begun_us, round(elapsed_ns), max(before[0], after[0]), max(before[1], after[1]))

    def unpack(self, name: str) -> Unpacked:
        """The times of a pack's bricks.

        Raises:
            UsageError: There is no such pack.
        """
        kept = self._kept.get(name)
        if kept is None or kept.loaded is None:
            raise UsageError(f"no pack {name!r} is loaded")
        reading = kept.loaded.read(self._idle_ns.get(kept.variant))
        self._idle_ns[kept.variant] = reading.idle_ns
        return Unpacked(reading.times, reading.watched_ns, reading.unwatched_ns)

    def release(self, name: str) -> None:
        """Drop a pack; an unknown one is fine."""
        kept = self._kept.pop(name, None)
        if kept is not None and kept.loaded is not None:
            kept.loaded.close()
