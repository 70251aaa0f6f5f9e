"""The isolated worker: runs untrusted networks, times them, answers on one pipe.

Started as ``python -P -m dlbricks.generator.worker`` in an empty folder. It reads requests from its standard input
and writes one reply for each; ``requests`` says what they are. Standard output belongs to the protocol alone: its
descriptor is moved away at the start and descriptor 1 becomes standard error, so that a library that prints cannot
break a reply. The worker ends when its input closes, and the kernel kills it when the parent's thread that started
it dies, even in the middle of an execution.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import onnx

from ...bricks.reference import GEMM, built_in
from ...db.values import NATIVE
from ...errors import BackendError, UsageError
from ..backends.base import Backend, Executable, FusingBackend, GraphBackend, OptimisingBackend, Settings
from ..backends.custom_ops import adopt
from ..backends.registry import get
from ..backends.requirements import require_dtype, require_in_turn, require_profiling, require_tracing, with_algorithm
from ..device.device import Device
from ..machine.cores import physical_cores
from ..machine.memory import private_bytes
from ..network.network import Network, file_network, read_network, synthetic_network
from ..network.padding import brick_network, padded_network
from .execution.extraction import write_graph
from .execution.layer_effects import layer_effects
from .execution.streaming import device_of
from .execution.timing import time_once
from .execution.unroll import choose_unroll
from .execution.values import executed_types, read_feeds, write_arrays
from .packs import Packs
from .replies import Done, Examined, Greeting, Packed, Prepared, Profiled, Reply, Traced, Types, Visited
from .requests import (
    Bye,
    Examine,
    Extract,
    Hello,
    NetworkRequest,
    Outputs,
    Pack,
    Prepare,
    Profile,
    Release,
    Request,
    Trace,
    Unpack,
    Values,
    Visit,
    parse_request,
)
from .serving import answer_all, confined

__all__ = ["main", "serve"]


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A network that is ready to be timed."""

    network: Network
    executable: Executable


class _Worker:
    """State of the worker between requests."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._settings = Settings("cpu", 1, {})
        self._kept: dict[str, _Kept] = {}
        self._opened: Device | None = None
        self._packs = Packs()

    def answer(self, request: Request) -> Reply:
        """Do what a request asks."""
        handlers: dict[str, Callable[[Any], Reply]] = {
            Hello.op: self._hello,
            Prepare.op: self._prepare,
            Pack.op: self._pack,
            Visit.op: self._visit,
            Unpack.op: lambda request: self._packs.unpack(request.id),
            Outputs.op: self._outputs,
            Values.op: self._values,
            Extract.op: self._extract,
            Examine.op: self._examine,
            Profile.op: self._profile,
            Trace.op: self._trace,
            Release.op: self._release,
            Bye.op: lambda _: Done(),
        }
        try:
            return handlers[request.op](request)
        except Exception as error:
            self._end_if_lost(error)
            raise

    def _end_if_lost(self, error: Exception) -> None:
        """A GPU that failed works for no process that used it: another one goes on."""
        if self._opened is None or self._opened.name == "cpu":
            return
        try:
            self._opened.synchronize()
        except BackendError as lost:
            raise SystemExit(f"{lost}, after: {error}") from error

    def _hello(self, request: Hello) -> Greeting:
        if self._backend is not None:
            raise UsageError("this worker has a backend already", remedy="start another one")
        backend = get(request.backend)
        adopt(request.libraries)
        options = backend.resolve(request.device, request.options)
        cores = physical_cores()
        if request.together:
            require_in_turn(backend, options)
        require_dtype(backend, request.dtype)
        threads = request.threads or len(cores)
        settings = Settings(request.device, threads, options, cores, request.together, request.dtype)
        stack = backend.stack(request.device, options)
        backend.setup(settings)
        self._backend, self._settings = backend, settings
        if request.limits.memory_bytes is not None:
            self._device().limit(request.limits.memory_bytes)
        gc.freeze()  # what is loaded now lives as long as the process: no collection need look at it again
        return Greeting(stack=stack, threads=settings.threads, pid=os.getpid())

    def _prepare(self, request: Prepare) -> Prepared:
        begin, before = time.perf_counter_ns(), private_bytes()
        self._release(Release(request.id))
        model, settings = None, self._settings_of(request)
        if request.synthetic or request.path.startswith("@"):
            model = built_in(request.path) or read_network(Path(request.path), values=True)
            network = _brick(model, request, settings, unroll=request.unroll or 1)
        elif request.unroll > 1:
            raise UsageError(f"{request.path} is a whole model and cannot be unrolled", remedy="ask for one copy")
        else:
            network = replace(_whole_model(request), as_is=request.as_is)
        if request.feeds:
            network = replace(network, feeds=read_feeds(Path(request.feeds), network.feeds))
        kept, load_ns, first_run_ns = self._load(network, settings)
        loading_ns = load_ns + first_run_ns
        if model is not None and request.unroll == 0:
            copies = choose_unroll(kept.executable, network)
            if copies > 1:
                # The times of the single network stand: they are those of the brick.
                kept.executable.close()
                network = _brick(model, request, settings, unroll=copies)
                kept, *again_ns = self._load(network, settings)
                loading_ns += sum(again_ns)
        self._kept[request.id] = kept
        return Prepared(
            load_ns=load_ns,
            first_run_ns=first_run_ns,
            prepare_ns=time.perf_counter_ns() - begin,
            loading_ns=loading_ns,
            # A runtime keeps packed weights beside the original ones.
            # What a runtime adds besides (threads with their stacks, code, plans) may be more than small networks hold.
            bytes=max(
                2 * network.weight_bytes + network.feed_bytes + kept.executable.output_bytes(),
                private_bytes() - before,
            ),
            unroll=network.unroll,
        )

    def _pack(self, request: Pack) -> Packed:
        backend = require_in_turn(self._greeted(), self._settings.options)
        return self._packs.pack(request, backend, self._settings_of(request))

    def _settings_of(self, request: Prepare | Profile | Pack) -> Settings:
        """How a network is run: as the worker was greeted, or with one of the backend's algorithms."""
        if not isinstance(request, Pack) and request.path.startswith("@") and not request.path.startswith(GEMM):
            return replace(self._settings, dtype=NATIVE)
        if not request.variant:
            return self._settings
        return with_algorithm(self._greeted(), self._settings, request.variant)

    def _load(self, network: Network, settings: Settings) -> tuple[_Kept, int, int]:
        """The loaded network, the time to load it and the time of its first run."""
        backend = self._greeted()
        begin = time.perf_counter_ns()
        executable = backend.prepare(network, settings)
        load_ns = time.perf_counter_ns() - begin
        first_run_ns = time_once(executable.run, executable.synchronize)
        return _Kept(network, executable), load_ns, first_run_ns

    def _visit(self, request: Visit) -> Visited:
        pack = self._packs.get(request.id)
        if pack is not None:
            return self._packs.visit(pack, request)
        kept = self._found(request.id)
        if request.cache not in {"hot", "cold"}:
            raise UsageError(f"a worker has no cache mode {request.cache!r}", remedy="it has hot and cold")
        cold = request.cache == "cold"
        if cold and kept.network.unroll > 1:
            raise UsageError("copies share their weights and would warm each other", remedy="prepare with unroll=1")
        return self._packs.timed(
            partial(_repeat, kept.executable, request.loops),
            partial(_repeat, kept.executable, request.warmups),
            device=self._device(),
            synchronize=kept.executable.synchronize,
            cold=cold,
        )

    def _device(self) -> Device:
        if self._opened is None:
            self._opened = device_of(self._greeted(), self._settings)
        return self._opened

    def _outputs(self, request: Outputs) -> Done:
        kept = self._found(request.id)
        kept.executable.run()
        kept.executable.synchronize()
        values = {**kept.network.first_feeds(), **kept.network.first_outputs(kept.executable.outputs())}
        write_arrays(Path(request.path), values)
        return Done()

    def _values(self, request: Values) -> Types:
        backend = self._greeted()
        model = read_network(Path(request.path), values=True)
        return Types(types=executed_types(model, request.names, backend, self._settings, seed=request.seed))

    def _extract(self, request: Extract) -> Done:
        backend = self._greeted()
        if not isinstance(backend, GraphBackend | FusingBackend):
            raise UsageError(
                f"backend {backend.name} does not report the graph that it executes", remedy="use --graph source"
            )
        if self._settings.dtype != NATIVE:
            raise UsageError(f"the graph that is executed in {self._settings.dtype} has no bricks")
        network = _model_network(request)
        graph_of = backend.executed_graph if isinstance(backend, GraphBackend) else backend.fused_graph
        write_graph(graph_of(network, self._settings), network, Path(request.folder))
        return Done()

    def _examine(self, request: Examine) -> Examined:
        backend = self._greeted()
        if not isinstance(backend, OptimisingBackend) or not self._settings.together:
            raise UsageError(
                f"backend {backend.name} cannot execute a model layer by layer", remedy="use backend onnxruntime"
            )
        network = backend.optimised(_model_network(request), self._settings)
        found = layer_effects(network, backend, self._settings, rounds=request.rounds, seed=request.seed)
        return Examined(layers=tuple(found))

    def _profile(self, request: Profile) -> Profiled:
        backend = require_profiling(self._greeted())
        settings = self._settings_of(request)
        network = padded_network(replace(_model_network(request), as_is=request.as_is), settings.channels)
        return Profiled(backend.kernels(network, settings, request.executions))

    def _trace(self, request: Trace) -> Traced:
        backend = require_tracing(self._greeted())
        return Traced(calls=backend.calls(_model_network(request), self._settings))

    def _release(self, request: Release) -> Done:
        kept = self._kept.pop(request.id, None)
        if kept is not None:
            kept.executable.close()
        self._packs.release(request.id)
        return Done()

    def _found(self, name: str) -> _Kept:
        kept = self._kept.get(name)
        if kept is None:
            raise UsageError(f"no network {name!r} is prepared")
        return kept

    def _greeted(self) -> Backend:
        if self._backend is None:
            raise UsageError("the first request must be 'hello'")
        return self._backend


def _brick(model: onnx.ModelProto, request: Prepare, settings: Settings, *, unroll: int = 1) -> Network:
    """The network of a brick that is asked for."""
    network = brick_network(model, seed=request.seed, unroll=unroll, multiple=settings.channels)
    return replace(network, as_is=request.as_is)


def _repeat(executable: Executable, times: int) -> None:
    for _ in range(times):
        executable.run()


def _model_network(request: NetworkRequest) -> Network:
    """The network of a model, with its own weights or with synthetic ones."""
    if request.synthetic:
        return synthetic_network(read_network(Path(request.path), values=True), seed=request.seed)
    return _whole_model(request)


def _whole_model(request: NetworkRequest) -> Network:
    """The network of a model file with its own weights."""
    return file_network(Path(request.path), overrides=dict(request.overrides), inputs=request.inputs, seed=request.seed)


def serve(requests: Iterable[str], replies: IO[str]) -> None:
    """Answer requests until ``Bye`` or the end of the input."""
    answer_all(requests, replies, parse_request, _Worker().answer)


def main() -> None:
    """Confine the process, take the protocol's descriptors, and serve."""
    confined(serve)
