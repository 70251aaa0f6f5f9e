"""The isolated worker: runs untrusted networks, times them, answers on one pipe.

Started as ``python -P -m dlbricks.generator.worker`` in an empty folder. It reads requests from its standard input
and writes one reply for each (see ``messages``). Only the protocol writes to standard output: at the start its
descriptor is moved away and descriptor 1 becomes standard error. A library that prints therefore cannot break a
reply. The worker ends when its input closes. The kernel kills it when the parent's thread that started it dies,
even in the middle of an execution.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from ...bricks.encoding import tensor_type
from ...bricks.reference import GEMM, built_in
from ...db.values import NATIVE
from ...errors import BackendError, ModelError, UsageError
from ...models.subgraphs import declared_shape
from ...models.user_inputs import write_arrays
from ..backends.base import Backend, Executable, Settings, TokenLoop
from ..backends.custom_ops import adopt
from ..backends.registry import get
from ..device.device import Device
from ..device.host import HostDevice
from ..halves import by_halves
from ..machine.cores import peak_bytes, physical_cores, resident_bytes, return_memory
from ..machine.priority import Priority
from ..network.network import Network, array_type, file_network, read_network, synthetic_network
from ..network.packed import PackedBrick, reads_any_value, repeated
from . import messages
from .execution.extraction import write_graph
from .execution.pack import Pack, executed_brick, executed_bricks, load_pack
from .execution.timing import KernelClock, Probe, choose_unroll, settle, undisturbed
from .serving import answer_all, refusal, serve_confined

_CHECKED = 0.02
"""Share of the time of a worker's passes that passes without a profiler may take, which show what the profiler adds."""


# Executing a network for its values: types for the shape oracle, arrays for conformance.


_MOST_ATTEMPTS = 64
"""Limit on the executions of one call that works around operators that cannot run."""


def executed_types(
    model: onnx.ModelProto, names: Sequence[str], backend: Backend, settings: Settings, *, seed: int = 0
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Execute a skeleton-form model and return the types of some of its values.

    If a value cannot be computed (the runtime lacks an operator), the names are tried in halves, so that the types of
    the other values are still found.

    Returns:
        Name to element type (ONNX's name in lower case) and shape; values that could not be computed are missing.
    """
    produced = {name for node in model.graph.node for name in node.output}
    types = {}
    for value in model.graph.input:
        if value.name in names:
            input_type = tensor_type(value.type.tensor_type.elem_type, declared_shape(value.type))
            if input_type is not None:  # unknown element types are left out
                types[value.name] = input_type.dtype, input_type.shape

    def find(subset: Sequence[str]) -> None:
        types.update(_types(model, subset, backend, settings, seed=seed))

    by_halves([[name for name in names if name in produced]], find, most=_MOST_ATTEMPTS)
    return types


def _types(
    model: onnx.ModelProto, names: Sequence[str], backend: Backend, settings: Settings, *, seed: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    network = synthetic_network(model, seed=seed, outputs=names)
    executable = backend.prepare(network, settings)
    try:
        executable.run()
        executable.synchronize()
        arrays = network.first_outputs(executable.outputs())
    finally:
        executable.close()
    return {name: array_type(array) for name, array in arrays.items()}


def read_feeds(path: Path, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a network, with values from an npz file.

    Args:
        path: A file that ``write_arrays`` wrote.
        feeds: The inputs. Strings, and inputs that the file lacks or has in another shape, keep their values.
    """
    inputs = dict(feeds)
    with np.load(path, allow_pickle=False) as archive:
        for name, default in feeds.items():
            if name not in archive.files or default.dtype == object:
                continue
            array = archive[name]
            if array.shape == default.shape:
                inputs[name] = array.astype(default.dtype, order="C")  # a scalar stays one
    return inputs


@dataclass(frozen=True, slots=True, eq=False)
class _Single:
    """A loaded network, ready to be timed.

    Attributes:
        network: The network.
        executable: It, loaded.
        edges: Layout changes at the edges of a brick, loaded; None if they are part of the network, or there are none.
    """

    network: Network
    executable: Executable
    edges: Executable | None = None

    def close(self) -> None:
        self.executable.close()
        if self.edges is not None:
            self.edges.close()


@dataclass(slots=True, eq=False)
class _KeptPack:
    """Bricks that run together.

    Attributes:
        names: Ids of all requested bricks.
        bricks: The bricks that can run, in the form that the runtime executes.
        pack: The loaded pack; None if none of the bricks can run.
        variant: The algorithm that all bricks run with.
        visits: Number of timed visits since the pack was loaded.
    """

    names: frozenset[str]
    bricks: dict[str, PackedBrick]
    pack: Pack | None
    variant: str
    visits: int = 0

    def close(self) -> None:
        if self.pack is not None:
            self.pack.close()


_TIMING = (messages.Time, messages.Read, messages.Profile, messages.Occupy, messages.Answer)


class _WorkerState:
    """State of the worker between requests."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._settings = Settings("cpu", 1, {})
        self._kept: dict[str, _Single | _KeptPack] = {}
        self._decoders: dict[str, TokenLoop] = {}
        self._device: Device | None = None
        self._probe: Probe | None = None
        self._priority = Priority("off")
        self._crowded = False  # other programs held up the last visit of several threads
        self._passed_ns = self._checked_ns = 0.0
        self._idle_ns: dict[str, float] = {}  # cost of a pack's node that computes nothing, by variant

    def answer(self, request: messages.AnyRequest) -> messages.Reply:
        """Execute a request and return its reply."""
        handlers: dict[type[messages.AnyRequest], Callable[[Any], messages.Reply]] = {
            messages.Hello: self._hello,
            messages.Load: self._load,
            messages.Time: self._time,
            messages.Read: self._read,
            messages.Outputs: self._outputs,
            messages.Types: self._types,
            messages.Extract: self._extract,
            messages.Profile: self._profile,
            messages.Trace: self._trace,
            messages.Occupy: self._occupy,
            messages.Decode: self._decode,
            messages.Answer: self._answer_tokens,
            messages.Drop: self._drop,
            messages.Bye: lambda _: messages.Done(),
        }
        self._prioritise(request)
        try:
            return handlers[type(request)](request)
        except Exception as error:
            self._end_if_lost(error)
            raise

    def _prioritise(self, request: messages.AnyRequest) -> None:
        """Raise the priority for requests that time networks; give it back for the others."""
        if isinstance(request, _TIMING):
            self._priority.high()
        elif not isinstance(request, messages.Drop):
            self._priority.usual()

    def _end_if_lost(self, error: Exception) -> None:
        """End the process if the GPU failed: it fails for every process that used it, so another worker must go on."""
        if self._device is None or self._device.name == "cpu":
            return
        try:
            self._device.synchronize()
        except BackendError as lost:
            raise SystemExit(f"{lost}, after: {error}") from error

    def _hello(self, request: messages.Hello) -> messages.Greeting:
        if self._backend is not None:
            raise UsageError("this worker has a backend already", remedy="start another one")
        place = request.place
        device = place.runtime.device
        backend = get(place.runtime.backend)
        adopt(request.libraries)
        options = backend.resolve(device, dict(place.runtime.options))
        cores = physical_cores()
        if place.together:
            backend.require_in_turn(options)
        backend.require_dtype(place.dtype)
        settings = Settings(device, place.threads or len(cores), options, cores, place.together, place.dtype)
        stack = backend.stack(device, options)
        backend.setup(settings)
        self._backend, self._settings = backend, settings
        if request.memory_bytes is not None:
            self._opened().limit(request.memory_bytes)
        self._priority = Priority(place.priority)
        gc.freeze()  # all objects loaded now live as long as the process: exempt them from garbage collection
        return messages.Greeting(
            stack=stack, threads=settings.threads, pid=os.getpid(), priority=self._priority.granted
        )

    def _load(self, request: messages.Load) -> messages.Loaded:
        if request.packed:
            return self._load_pack(request)
        self._drop(messages.Drop(request.id))
        (member,) = request.members
        file, make, edges = member.file, None, None
        settings = self._settings_of(file)
        if file.synthetic or file.path.startswith("@"):
            model = built_in(file.path) or read_network(Path(file.path), values=True)
            make = partial(_brick, file, model)
            if file.in_model:
                brick = executed_brick(make(unroll=1), self._greeted(), settings)
                make, edges = partial(repeated, brick.network), brick.edges
            network = make(unroll=request.unroll or 1)
        elif request.unroll > 1:
            raise UsageError(f"{file.path} is a whole model and cannot be unrolled", remedy="ask for one copy")
        else:
            network = replace(_model_network(file), as_is=file.as_is)
        entry, load_ns, first_run_ns = self._loaded(network, settings)
        loading_ns = load_ns + first_run_ns
        if make is not None and request.unroll == 0:
            copies = choose_unroll(entry.executable, network)
            if copies > 1:
                # The times of the single network are the brick's, and are kept.
                entry.close()
                entry, *again_ns = self._loaded(make(unroll=copies), settings)
                loading_ns += sum(again_ns)
        if edges is not None:
            beside, *more_ns = self._loaded(repeated(edges, unroll=entry.network.unroll), settings)
            entry, loading_ns = replace(entry, edges=beside.executable), loading_ns + sum(more_ns)
        self._kept[request.id] = entry
        return messages.Loaded(
            loading_ns=loading_ns, load_ns=load_ns, first_run_ns=first_run_ns, unroll=entry.network.unroll
        )

    def _loaded(self, network: Network, settings: Settings) -> tuple[_Single, int, int]:
        """Return the loaded network, the nanoseconds to load it and the nanoseconds of its first run."""
        begin = time.perf_counter_ns()
        executable = self._greeted().prepare(network, settings)
        load_ns = time.perf_counter_ns() - begin
        first_run_ns = executable.timed_ns()
        return _Single(network, executable), load_ns, first_run_ns

    def _load_pack(self, request: messages.Load) -> messages.Loaded:
        """Load bricks; if they are loaded already, load them in the new order."""
        backend = self._greeted()
        backend.require_in_turn(self._settings.options)
        first = request.members[0].file
        settings = self._settings_of(first)
        files = {member.id: member.file.path for member in request.members}
        previous = self._kept.pop(request.id, None)
        if previous is not None:
            previous.close()
        if isinstance(previous, _KeptPack) and previous.names == files.keys():
            bricks, failed = previous.bricks, dict[str, Exception]()
        else:
            bricks, failed = _executed(request.members, backend, settings)
        begin = time.perf_counter_ns()
        loaded = load_pack(
            {
                member.id: replace(bricks[member.id], copies=member.copies, twice=member.twice)
                for member in request.members
                if member.id in bricks
            },
            backend,
            replace(settings, memory_reuse=request.memory_reuse),
        )
        loading_ns = time.perf_counter_ns() - begin
        failed |= loaded.refused
        omitted = {*loaded.refused, *loaded.alone}
        bricks = {name: brick for name, brick in bricks.items() if name not in omitted}
        self._kept[request.id] = _KeptPack(frozenset(files), bricks, loaded.pack, first.variant)
        left_out = [messages.OmittedBrick(name, None, "it cannot be run with others") for name in loaded.alone]
        for name, error in failed.items():
            why = refusal(error, files[name])
            left_out.append(messages.OmittedBrick(name, why.kind, why.reason))
        return messages.Loaded(loading_ns=loading_ns, left_out=tuple(left_out))

    def _settings_of(self, file: messages.NetworkFile) -> Settings:
        """Return the settings of a network: as in ``Hello``, or with one of the backend's algorithms."""
        if file.path.startswith("@") and not file.path.startswith(GEMM):
            return replace(self._settings, dtype=NATIVE)
        if not file.variant:
            return self._settings
        return self._greeted().with_algorithm(self._settings, file.variant)

    def _time(self, request: messages.Time) -> messages.Timed:
        entry = self._found(request.id)
        if isinstance(entry, _KeptPack):
            if (pack := entry.pack) is None:
                raise UsageError(f"pack {request.id!r} is without bricks")
            number, entry.visits = entry.visits, entry.visits + 1
            timed = self._timed(
                request,
                HostDevice(),  # each pass waits for its end
                warm_up=lambda: pack.run(visit=None),
                run=lambda: pack.run(visit=number),
                synchronize=_nothing,
            )
            self._passed_ns += timed.elapsed_ns
            return timed
        if request.cold and entry.network.unroll > 1:
            raise UsageError("copies share their weights and would warm each other", remedy="load with unroll=1")
        inner, *edges = (
            self._timed(request, self._opened(), warm_up=each.run, run=each.run, synchronize=each.synchronize)
            for each in (entry.executable, entry.edges)
            if each is not None
        )
        return msgspec.structs.replace(inner, edges_ns=edges[0].elapsed_ns) if edges else inner

    def _timed(
        self,
        request: messages.Time,
        device: Device,
        *,
        warm_up: Callable[[], None],
        run: Callable[[], None],
        synchronize: Callable[[], None],
    ) -> messages.Timed:
        """Warm up, then execute between two probes. A cold execution omits the first, which would refill the caches."""
        if self._probe is None:
            self._probe = Probe()

        def loop() -> None:
            for _ in range(request.loops):
                run()

        with undisturbed():
            for _ in range(request.warmups):
                warm_up()
            synchronize()
            if self._crowded and not request.cold:
                settle(warm_up, synchronize, self._settings.computing)
            if request.cold:
                device.evict()
            before = (0, 0) if request.cold else self._probe()
            begun_us = time.time_ns() // 1000
            clock = KernelClock()
            elapsed_ns = device.timed_ns(loop, synchronize)
            seen = clock.read()
            after = self._probe()
        self._crowded = seen.crowded(self._settings.computing)
        return messages.Timed(
            begun_us,
            seen.left_ns(round(elapsed_ns), self._settings.computing),
            max(before[0], after[0]),
            max(before[1], after[1]),
            seen.cpu_ns,
            seen.switches,
            seen.waited_ns,
        )

    def _read(self, request: messages.Read) -> messages.Readings:
        entry = self._kept.get(request.id)
        if not isinstance(entry, _KeptPack) or entry.pack is None:
            raise UsageError(f"no pack {request.id!r} is loaded")
        check = self._checked_ns <= _CHECKED * self._passed_ns
        readings = entry.pack.read(self._idle_ns.get(entry.variant), check=check)
        self._checked_ns += 2 * readings.unwatched_ns
        self._idle_ns[entry.variant] = readings.idle_ns
        return readings

    def _outputs(self, request: messages.Outputs) -> messages.Done:
        entry = self._found(request.id)
        if not isinstance(entry, _Single):
            raise UsageError(f"{request.id!r} is a pack: its bricks hand nothing out")
        entry.executable.run()
        entry.executable.synchronize()
        values = {**entry.network.first_feeds(), **entry.network.first_outputs(entry.executable.outputs())}
        write_arrays(Path(request.to), values)
        return messages.Done()

    def _types(self, request: messages.Types) -> messages.Typed:
        backend, file = self._greeted(), request.file
        model = read_network(Path(file.path), values=True)
        return messages.Typed(executed_types(model, request.names, backend, self._settings, seed=file.seed))

    def _extract(self, request: messages.Extract) -> messages.Done:
        backend = self._greeted()
        if backend.graph == "source":
            backend.require(Backend.executed_graph)
        if self._settings.dtype != NATIVE:
            raise UsageError(f"the graph that is executed in {self._settings.dtype} has no bricks")
        networks = [_model_network(file) for file in request.files]
        if backend.graph == "fused":
            graphs = [backend.fused_graph(network, self._settings) for network in networks]
        else:
            graphs = backend.sized_graphs(networks, self._settings)
        for executed, network, folder in zip(graphs, networks, request.to, strict=True):
            write_graph(executed, network, Path(folder))
        return messages.Done()

    def _profile(self, request: messages.Profile) -> messages.Profiled:
        backend, file = self._greeted().require(Backend.kernels), request.file
        settings = self._settings_of(file)
        network = replace(_model_network(file), as_is=file.as_is)
        return messages.Profiled(backend.kernels(network, settings, request.count))

    def _trace(self, request: messages.Trace) -> messages.Traced:
        backend = self._greeted().require(Backend.calls)
        return messages.Traced(backend.calls(_model_network(request.file), self._settings))

    def _occupy(self, request: messages.Occupy) -> messages.Occupied:
        network = _model_network(request.file)
        gc.collect()
        return_memory()
        empty = resident_bytes()
        executable = self._greeted().prepare(network, self._settings_of(request.file))
        try:
            loaded = resident_bytes()
            executable.timed_ns()
            first = resident_bytes()
            end, taken = time.monotonic() + request.most_s, list[int]()
            with undisturbed():
                while len(taken) < request.most and time.monotonic() < end:
                    taken.append(executable.timed_ns())
            return messages.Occupied(empty, loaded, first, resident_bytes(), peak_bytes(), tuple(taken))
        finally:
            executable.close()

    def _decode(self, request: messages.Decode) -> messages.Done:
        self._drop(messages.Drop(request.id))
        backend = self._greeted().require(Backend.decoding)
        self._decoders[request.id] = backend.decoding(request.decoder, self._settings)
        return messages.Done()

    def _answer_tokens(self, request: messages.Answer) -> messages.Answered:
        decoder = self._decoders.get(request.id)
        if decoder is None:
            raise UsageError(f"no decoder {request.id!r} is loaded")
        times_ns: list[int] = []
        tokens: list[int] = []
        try:
            decoder.begin(batch=request.batch, past=request.past, first=request.first, new=request.new)
            with undisturbed():
                for _ in range(request.new):
                    clock = KernelClock()
                    begin = time.perf_counter_ns()
                    decoder.step()
                    elapsed_ns = time.perf_counter_ns() - begin
                    times_ns.append(clock.read().left_ns(elapsed_ns, self._settings.computing))
                    tokens += decoder.choose()
        finally:
            decoder.end()  # between two answers, bricks need the memory
        return messages.Answered(tuple(times_ns), tuple(tokens))

    def _drop(self, request: messages.Drop) -> messages.Done:
        for kept in (self._kept.pop(request.id, None), self._decoders.pop(request.id, None)):
            if kept is not None:
                kept.close()
        return messages.Done()

    def _found(self, name: str) -> _Single | _KeptPack:
        entry = self._kept.get(name)
        if entry is None:
            raise UsageError(f"no network {name!r} is loaded")
        return entry

    def _opened(self) -> Device:
        if self._device is None:
            self._device = self._greeted().device(self._settings)
        return self._device

    def _greeted(self) -> Backend:
        if self._backend is None:
            raise UsageError("the first request must be 'hello'")
        return self._backend


def _executed(
    members: Iterable[messages.PackMember], backend: Backend, settings: Settings
) -> tuple[dict[str, PackedBrick], dict[str, Exception]]:
    """Return bricks as the runtime executes them, and the errors of bricks that cannot be converted."""
    networks: dict[str, Network] = {}
    failed: dict[str, Exception] = {}
    boundary = {member.id: member.boundary for member in members}
    for member in members:
        try:
            model = read_network(Path(member.file.path), values=True)
            alike = backend.packs(settings) and reads_any_value(model, member.boundary)
            networks[member.id] = _brick(member.file, model, alike=alike)
        except (BackendError, ModelError) as error:
            failed[member.id] = error
    bricks, refused = executed_bricks(networks, backend, settings)
    return {name: replace(brick, boundary=boundary[name]) for name, brick in bricks.items()}, failed | refused


def _brick(file: messages.NetworkFile, model: onnx.ModelProto, *, unroll: int = 1, alike: bool = False) -> Network:
    """Return the network of a brick in a file."""
    return replace(synthetic_network(model, seed=file.seed, unroll=unroll, alike=alike), as_is=file.as_is)


def _model_network(file: messages.NetworkFile) -> Network:
    """Return the network of a model, with its own weights or with synthetic ones."""
    if file.synthetic:
        network = synthetic_network(
            read_network(Path(file.path), values=True), seed=file.seed, replacing=bool(file.feeds)
        )
    else:
        network = file_network(Path(file.path), overrides=dict(file.overrides), inputs=file.inputs, seed=file.seed)
    for path in file.feeds:
        network = replace(network, feeds=read_feeds(Path(path), network.feeds))
    return network


def _nothing() -> None:
    """Synchronize with nothing: a pass is over when its call returns."""


def serve(requests: Iterable[str], replies: IO[str]) -> None:
    """Answer requests until ``Bye`` or the end of the input."""
    answer_all(requests, replies, messages.AnyRequest, _WorkerState().answer)


def main() -> None:
    """Confine the process, take the protocol's descriptors, and serve."""
    serve_confined(serve)
