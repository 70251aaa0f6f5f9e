"""The value types that the database stores: System, Stack, Measurement, Failure, Run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, TypedDict


def content_key(value: object) -> str:
    """SHA-256 (hexadecimal) of the canonical JSON of a value: equal on every machine and run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Subject(StrEnum):
    """What was timed."""

    BRICK = "brick"
    MODEL = "model"
    """Ground truth; its key is ``ModelGraph.key``."""
    REFERENCE = "reference"
    """A network of our own, which measures what a call costs, or what the machine does at most."""


PROTOCOL = 3
"""How samples are taken (docs/measuring.md). Rows of different protocols are never combined."""

NATIVE = "float32"
"""The precision that every backend has: each value in the network's own type, which is float32 in most models."""

INNER = "inner"
"""The variant of a brick without the layout changes at its edges: measured beside it, never asked for."""

HOST = "host"
"""The variant of a brick that is what the processor takes to enqueue it: measured beside it, never asked for."""

PARTS = (INNER, HOST)
"""Parts of a brick, no ways to run it."""

DATA = "data"
"""The variant that a model's data effect is stored as."""

DATA_CACHE = "hot"
"""Where data effects are measured: each layer repeats while it is timed. Values affect the arithmetic only, and cold
weights cost the same with both."""

PROFILED_CACHE = "hot"
"""Where kernels are recorded: they are the same whatever the caches hold."""

_SMALL_LAST_LEVEL = 64 << 20
"""A last-level cache up to this size is evicted as a whole; larger ones are shared by many cores (``Evictor``)."""


class Stop(StrEnum):
    """Why sampling of an item ended."""

    VISITS = "visits"
    """It was visited as often as was asked for."""
    BUDGET = "budget"
    """The time that was given is spent."""


class Verdict(StrEnum):
    """How far a measurement can be trusted."""

    STABLE = "stable"
    """Half-width of the mean at most 2 %, and it is known from two processes at least."""
    NOISY = "noisy"
    """Half-width at most 10 %."""
    UNSTABLE = "unstable"
    """Wider than that."""
    TIMED_OUT = "timed-out"
    """Fewer than the minimum number of samples."""


def evicted_bytes(last_level: int, private: int) -> int:
    """Bytes that are streamed through for cold caches, by the sizes of the last-level cache and of one core's L2."""
    return 2 * last_level if last_level <= _SMALL_LAST_LEVEL else 4 * private


@dataclass(frozen=True, slots=True)
class System:
    """The hardware that decides a latency; no host name.

    ``key`` covers all fields, so that two equal machines are one system.
    """

    cpu: str
    architecture: str
    physical_cores: int
    logical_cores: int
    cache_bytes: tuple[tuple[str, int], ...]
    """Cache name (``L1d``, ``L2``, ``L3``) to bytes, per instance."""
    memory_gib: int
    """Rounded to whole GiB, so that a kernel's reservation makes no new system."""
    isa: tuple[str, ...] = ()
    """The instruction sets that runtimes dispatch on, sorted (``avx2``, ``avx512f``, ``amx_tile``…)."""
    gpus: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Content key."""
        return content_key(asdict(self))


@dataclass(frozen=True, slots=True)
class Stack:
    """Backend, device, versions and options: the software side of a latency."""

    backend: str
    device: str
    versions: tuple[tuple[str, str], ...]
    """Sorted (package, version)."""
    options: tuple[tuple[str, str], ...] = ()
    """Sorted (option, value) of everything that can change a latency but is not in ``Conditions``."""

    @property
    def key(self) -> str:
        """Content key."""
        return content_key(asdict(self))

    @property
    def runtime(self) -> Runtime:
        """What runs it, with every option."""
        return Runtime(self.backend, self.device, self.options)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What is asked to execute networks; which versions it has, only a ``Stack`` knows.

    Attributes:
        backend: Name of the backend.
        device: One of its devices.
        options: Sorted (option, value); options that are not named have their defaults.
    """

    backend: str = "onnxruntime"
    device: str = "cpu"
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, backend: str, device: str = "cpu", options: Mapping[str, str] | None = None) -> Runtime:
        """Return a runtime with options by name."""
        return cls(backend, device, tuple(sorted((options or {}).items())))


DEFAULT_RUNTIME = Runtime()
"""What executes where nobody says otherwise."""


class RuntimeFields(TypedDict, total=False):
    """A ``Runtime`` as keywords of a function; options are given by name."""

    backend: str
    device: str
    options: Mapping[str, str] | None


def runtime_from(fields: Mapping[str, Any]) -> Runtime:
    """Return the runtime that keywords name, as in ``RuntimeFields``."""
    usual = DEFAULT_RUNTIME
    return Runtime.of(fields.get("backend", usual.backend), fields.get("device", usual.device), fields.get("options"))


@dataclass(frozen=True, slots=True)
class Conditions:
    """The options that are part of what is measured and the same for every backend (docs/cli.md)."""

    threads: int
    cache: str = "hot"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Identity:
    """What is measured, and under what: two measurements of one identity are comparable.

    Attributes:
        subject: Brick, model or reference.
        key: Key of the brick or model.
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache state and precision.
        variant: Name of an algorithm, or of a part that was measured by itself; empty for all of it as the runtime
            chooses.
    """

    subject: Subject
    key: str
    system: str
    stack: str
    conditions: Conditions
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """A system, a stack and conditions, which many measurements share.

    Attributes:
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache state and precision.
    """

    system: str
    stack: str
    conditions: Conditions

    def identity(self, subject: Subject, key: str, *, cache: str | None = None, variant: str = "") -> Identity:
        """Return the identity of a brick, model or reference here, or here in another cache state."""
        here = self.conditions if cache is None else replace(self.conditions, cache=cache)
        return Identity(subject, key, self.system, self.stack, here, variant)


class _Identified:
    """A value that is of an identity, with the identity's fields as its own."""

    __slots__ = ()
    identity: Identity

    @property
    def subject(self) -> Subject:
        """What was timed."""
        return self.identity.subject

    @property
    def key(self) -> str:
        """Brick key, or model key."""
        return self.identity.key

    @property
    def system(self) -> str:
        """Key of the system."""
        return self.identity.system

    @property
    def stack(self) -> str:
        """Key of the stack."""
        return self.identity.stack

    @property
    def conditions(self) -> Conditions:
        """Threads, cache state and precision."""
        return self.identity.conditions

    @property
    def variant(self) -> str:
        """Name of an algorithm or part; empty for all of it as the runtime chooses."""
        return self.identity.variant


@dataclass(frozen=True, slots=True)
class Visit:
    """When one sample was taken, and how quiet the machine was around it.

    Attributes:
        begun_us: Microseconds since 1970, UTC.
        compute_ns: The slower of two probes of arithmetic, one just before and one just after.
        memory_ns: The slower of two probes of memory, likewise.
        cpu_ns: CPU time of the process that executed it; None where the system does not tell.
        switches: How often the kernel took a core away from that process, to run another program; likewise.
        waited_ns: How long the threads of its process waited for a core, all together; likewise.
    """

    begun_us: int
    compute_ns: int
    memory_ns: int
    cpu_ns: int | None = None
    switches: int | None = None
    waited_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The samples of one item from one session of a worker, as the worker replied them.

    Attributes:
        process: Number of the worker process within the run's group, from 0; as many as there are over all runs that
            an item was taken up by.
        round: Number of the session within that process, from 0.
        samples: (elapsed_ns, loops) in the order taken, warm-ups excluded. The clock's own cost is taken off, so that
            a very short one may be negative.
        warmups: Number of warm-up executions that were dropped before.
        visits: When each sample was taken. Items of one group that have a process and round in
            common were visited in turn: sample i of one belongs to sample i of the other.
    """

    process: int
    round: int
    samples: tuple[tuple[int, int], ...]
    warmups: int = 0
    visits: tuple[Visit, ...] = ()

    def beside(self, other: Block) -> bool:
        """Whether the visits of both fell into the same time; False where one does not know when it was visited."""
        if not self.visits or not other.visits:
            return False
        return (
            self.visits[0].begun_us <= other.visits[-1].begun_us
            and other.visits[0].begun_us <= self.visits[-1].begun_us
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of samples: all times are of *one* execution of what was timed, in nanoseconds."""

    median_ns: float
    mean_ns: float
    trimmed_mean_ns: float
    """20 % trimmed at each end (DLBricks)."""
    min_ns: float
    p90_ns: float
    p99_ns: float
    ci95_ns: tuple[float, float]
    """Interval of the mean, by what time blocks and processes differ by."""
    samples: int
    block_medians_ns: tuple[float, ...]
    """Median of each block in (process, round) order."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Measurement(_Identified):
    """The samples of one subject on one stack and system, with statistics, verdict and why it stopped.

    All times are of *one* execution of the subject, in nanoseconds. ``unroll`` copies ran per loop; the statistics
    are divided by it, the raw samples are not.
    """

    id: str
    """UUID."""
    run: str
    """UUID of the run that took it."""
    identity: Identity
    unroll: int
    summary: Summary
    stop: Stop
    load_ns: int | None = None
    """Time to create the session; None where not taken."""
    first_run_ns: int | None = None
    protocol: int = PROTOCOL
    """How the samples were taken."""
    footprint_bytes: int | None = None
    """What is touched between two visits of the same weights; 0 where it ran alone; None where that is not known."""
    undisturbed_ns: float | None = None
    """Latency on a quiet machine (docs/measuring.md): what is compared across runs; None where it is not known."""
    quiet: float | None = None
    """Share of its visits that were quiet, by the probes around them; None where it is not known."""

    @property
    def latency_ns(self) -> float:
        """The mean: unlike medians, means of visits that alternate add up."""
        return self.summary.mean_ns

    @property
    def ci95_ns(self) -> tuple[float, float]:
        """95 % interval of ``latency_ns``."""
        return self.summary.ci95_ns

    @property
    def half_ns(self) -> float:
        """Half the width of that interval."""
        low, high = self.ci95_ns
        return (high - low) / 2

    @property
    def latency_ms(self) -> float:
        """The mean in milliseconds, as reports have it."""
        return self.latency_ns / 1e6

    @property
    def ci95_ms(self) -> tuple[float, float]:
        """95 % interval of that."""
        low, high = self.ci95_ns
        return low / 1e6, high / 1e6


@dataclass(frozen=True, slots=True)
class Failure(_Identified):
    """A brick or model that could not be measured: stored, never silent, never zero."""

    id: str
    run: str
    identity: Identity
    kind: str
    """``unsupported``, ``error``, ``crashed``, ``timeout`` or ``memory``."""
    reason: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a runtime executed under one name, in one execution of a network.

    Attributes:
        name: As the runtime prints it, such as ``aten::addmm`` or ``brgconv_avx512_f32``.
        operator: The framework's operator that launched it; empty where that is not known.
        place: The device or execution provider that it ran on, as the runtime prints it.
        calls: How often it ran.
        time_ns: Of all its calls together, the median over the profiled executions; None where the profiler reports
            none.
            A profiler adds to what it watches: these are shares, and never latencies.
    """

    name: str
    operator: str
    place: str
    calls: int
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class KernelView:
    """The kernels that ran for a network, taken in a pass apart from timing.

    Attributes:
        kernels: By name, operator and place, in the order in which each first started.
        wall_ns: One profiled execution, the median: longer than one that nobody watches.
        executions: How many were profiled.
        source: Which profiler, such as ``torch.profiler``.
    """

    kernels: tuple[Kernel, ...]
    wall_ns: int
    executions: int
    source: str


@dataclass(frozen=True, slots=True)
class Combination:
    """A system, a stack and conditions under which something is stored.

    Attributes:
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache state and precision.
        count: Number of distinct items (bricks, models) that have a finished measurement there.
    """

    system: str
    stack: str
    conditions: Conditions
    count: int


MODELS = "models"
"""Under this name a run stores the names of its models, by key."""


@dataclass(frozen=True, slots=True)
class Run:
    """Provenance of one ``run`` or ``measure``: everything needed to say where a number came from."""

    id: str
    started: str
    """ISO 8601, UTC."""
    tool: str
    """Version of dlbricks."""
    command: str
    """``run`` or ``measure``."""
    suite: str | None
    """Suite hash, where there was one."""
    system: str
    stack: str
    options: Mapping[str, object] = field(default_factory=dict)
    before: Mapping[str, object] = field(default_factory=dict)
    """System state before: governor, frequency_mhz, load_1m, kernel."""
    after: Mapping[str, object] | None = None
    finished: str | None = None
    node: str = ""
    """What the owner calls the machine that it ran on; empty where it has no name. Never its host name by itself."""
    campaign: str = ""
    """What it was part of, in the owner's words; empty for nothing."""

    def measured(self, name: str) -> str | None:
        """Key of the model that had this name in the run; None if there was none."""
        names = self.options.get(MODELS)
        found = [key for key, other in names.items() if other == name] if isinstance(names, Mapping) else []
        return found[0] if found else None


def earlier_version(runs: Iterable[Run], name: str, key: str) -> str:
    """Text on the latest run in which another model had this name; empty if there is none.

    Args:
        runs: Oldest first.
        name: Of the model.
        key: Of the model, as it is now.
    """
    known = [run for run in runs if run.measured(name) not in {None, key}]
    if not known:
        return ""
    last = known[-1]
    return f"{name} is a new version: run {last.id[:8]} of {last.started[:10]} measured another model of this name"
