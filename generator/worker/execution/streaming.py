"""Bricks of one pass in the stream of a device, one after the other, with events between them.

Each brick's inputs were just written, as by the layer before it in a model. What two events and the call between them
cost is measured in the same pass, by a network of one operation and a chain of them: the chain shows what an operation
takes, and what the single one takes beyond that is no operation's.

Where a pass is not one launch, a GPU waits until a few bricks are enqueued, so that the time between events is its own;
what the processor takes to enqueue each of them is measured beside it. A model takes what the slower of the two takes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ....bricks.reference import CHAIN, CHAIN_NODES, OVERHEAD, built_in
from ....errors import BackendError
from ...backends.base import Backend, Executable, Settings
from ...backends.streams import SharingExecutable, StreamBackend, StreamedExecutable
from ...device.device import Device, Event, Over, Run
from ...device.opening import open_device
from ...network.network import Network, synthetic_network
from ..replies import Times
from .executed import Executed
from .reading import Array, Reading, by_visit, rounded, without_stalls

__all__ = ["StreamedPack", "device_of"]

_BETWEEN = 16
"""The clock is calibrated once per so many bricks."""

_HELD = 12
"""Bricks that a device waits for: what is enqueued must fit into its queue."""

_HOLD_NS = 100_000.0
_MARGIN = 2.0
"""How long it waits: so long for each brick at first, then so many times what enqueuing them took the last time."""

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A network of the pass, between two events.

    Attributes:
        owner: Place of the brick; -1: one operation that calibrates the clock; -2: the chain that does.
        executable: The network.
        begin: Before it.
        end: After it.
    """

    owner: int
    executable: StreamedExecutable
    begin: Event
    end: Event


_SINGLE, _CHAIN = -1, -2


class StreamedPack:
    """Bricks that are enqueued in turn (see ``LoadedPack``).

    Attributes:
        loaded: How many bricks it holds.
        refused: Bricks that cannot be loaded, and why; the pack is without them.

    Args:
        bricks: By the brick's id, in the order in which they are run.
        copies: How often each stands in the pass, by its id, each time with weights of its own.
        backend: The runtime.
        settings: How it is set up.
    """

    def __init__(
        self, bricks: Mapping[str, Executed], copies: Mapping[str, int], backend: Backend, settings: Settings
    ) -> None:
        self._names = [*bricks]
        self.refused: dict[str, BackendError] = {}
        self._backend, self._settings = backend, settings
        self._device = device_of(backend, settings)
        self._steps: list[_Step] = []
        self._rows: list[Array] = []
        self._host: list[Array] = []
        self._inputs: dict[object, Any] = {}
        self._waits: dict[int, float] = {}
        self._visits: list[int | None] = []
        self._clock: dict[int, StreamedExecutable] = {}
        try:
            for place, (name, brick) in enumerate(bricks.items()):
                begun = len(self._steps)
                try:
                    for copy in range(copies.get(name, 1)):
                        self._steps.append(
                            self._step(place, self._loaded(_apart(brick.network) if copy else brick.network))
                        )
                except BackendError as error:
                    self.refused[name] = error
                    for step in self._steps[begun:]:
                        step.executable.close()
                    del self._steps[begun:]
                if place % _BETWEEN == 0:
                    self._steps.append(self._calibrating(_SINGLE, OVERHEAD))
                if place % _BETWEEN == _BETWEEN // 2:
                    self._steps.append(self._calibrating(_CHAIN, CHAIN))
            if all(step.owner != _CHAIN for step in self._steps):
                self._steps.append(self._calibrating(_CHAIN, CHAIN))
            self.loaded = len(bricks) - len(self.refused)
            self._launch: Run = self._enqueue
            if self.loaded and isinstance(backend, StreamBackend):
                self._launch = backend.captured(self._enqueue, settings)
            if self._launch == self._enqueue and self._device.name != "cpu":
                self._launch = self._enqueue_held
        except BaseException:
            self.close()
            raise

    def run(self, *, visit: int | None) -> None:
        """Enqueue all, wait, and note the times (see ``LoadedPack``)."""
        if self._device.name == "cpu":
            self._clock[_SINGLE].run()  # the first brick would find the runtime's code cold
        self._launch()
        self._device.synchronize()
        self._rows.append(np.array([self._device.elapsed_ns(step.begin, step.end) for step in self._steps]))
        self._visits.append(visit)

    def read(self, idle_ns: float | None) -> Reading:  # noqa: ARG002  # each pass calibrates the clock
        """The times without the clock (see ``LoadedPack``)."""
        rows = np.array(self._rows)
        clock = _clock(rows, self._owners)
        even = without_stalls((self._by_brick(by_visit(rows, self._visits)) - clock).clip(min=0))
        host = self._launches() if self._host else np.empty((0, len(self._names)))
        times = tuple(
            Times(name, rounded(even[:, place]), host_ns=rounded(host[:, place]))
            for place, name in enumerate(self._names)
            if name not in self.refused
        )
        total = float(np.median(even.sum(axis=1))) if even.size else 0.0
        return Reading(times, clock, total, total)

    def _launches(self) -> Array:
        """Nanoseconds to enqueue each brick: medians of each visit, since others run on the processor as well."""
        rows = np.array(self._host)
        clock = _clock(rows, self._owners)
        return (self._by_brick(by_visit(rows, self._visits, np.median)) - clock).clip(min=0)

    def _by_brick(self, visits: Array) -> Array:
        """Means over the copies of each brick: visits by bricks."""
        owners = self._owners
        sums = np.zeros((len(visits), len(self._names)))
        for place in {*owners[owners >= 0].tolist()}:
            sums[:, place] = visits[:, owners == place].mean(axis=1)
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
        """The same in parts, each of which the device begins when all of it is enqueued.

        Where the device began before, the part is enqueued once more, and it waits longer.
        """
        taken: list[int] = []
        for first in range(0, len(self._steps), _HELD):
            part = self._steps[first : first + _HELD]
            for attempt in range(_ATTEMPTS):
                begun = time.perf_counter_ns()
                own, over = self._held(part, self._waits.get(first, _HOLD_NS * len(part)))
                self._waits[first] = _MARGIN ** (attempt + 1) * (time.perf_counter_ns() - begun)
                waited = not over()
                self._device.synchronize()
                if waited:
                    break
            taken += own
        self._host.append(np.array(taken, dtype=float))

    def _held(self, part: Sequence[_Step], wait_ns: float) -> tuple[list[int], Over]:
        """Enqueue some bricks while the device waits; what each took to enqueue, and whether the wait is over."""
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

    def _loaded(self, network: Network) -> StreamedExecutable:
        network = replace(network, as_is=True)
        if isinstance(self._backend, StreamBackend):
            executable = self._backend.prepare_streamed(network, self._settings)
            if self._device.name != "cpu" and isinstance(executable, SharingExecutable):
                executable.share(self._inputs)
            return executable
        return _Refreshed(self._backend.prepare(network, self._settings), network)

    def _calibrating(self, owner: int, name: str) -> _Step:
        """One operation, or a chain of them, behind a brick.

        On a processor it is loaded anew: a call of what ran before takes less than half as long as a first one, and in
        a pass every brick is called for the first time.
        """
        if self._device.name == "cpu" or owner not in self._clock:
            self._clock[owner] = self._loaded(_built_in(name))
        return self._step(owner, self._clock[owner])

    def _step(self, owner: int, executable: StreamedExecutable) -> _Step:
        return _Step(owner, executable, self._device.event(), self._device.event())


def device_of(backend: Backend, settings: Settings) -> Device:
    """The device that a backend runs on in this process."""
    if isinstance(backend, StreamBackend):
        return backend.device(settings)
    pinned = settings.options.get("pinning") == "on"
    return open_device("cpu", settings.cores[: settings.threads] if pinned else ())


def _clock(rows: Array, owners: npt.NDArray[np.int64]) -> float:
    """What the clock shows of nothing, in nanoseconds: medians over all passes."""
    single, chain = (float(np.median(rows[:, owners == owner])) for owner in (_SINGLE, _CHAIN))
    return max(0.0, single - max(0.0, chain - single) / (CHAIN_NODES - 1))


class _Refreshed:
    """A network of a runtime that waits for its end, with inputs in memory that is ours as well."""

    def __init__(self, executable: Executable, network: Network) -> None:
        self._executable = executable
        self._feeds = [array for array in network.feeds.values() if array.dtype.kind == "f" and array.flags.writeable]
        self.outputs, self.output_bytes = executable.outputs, executable.output_bytes
        self.synchronize, self.close = executable.synchronize, executable.close

    def refresh(self) -> None:
        for array in self._feeds:
            np.multiply(array, 1, out=array)

    def run(self) -> None:
        self._executable.run()
        self._executable.synchronize()


def _apart(network: Network) -> Network:
    """The same network with weights in memory of their own."""
    return replace(network, weights={name: array.copy() for name, array in network.weights.items()})


def _built_in(name: str) -> Network:
    model = built_in(name)
    assert model is not None  # noqa: S101  # the names are constants
    return synthetic_network(model)
