"""The value types that the database stores: System, Stack, Measurement, Failure, Run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, TypedDict


def content_key(value: object) -> str:
    """Return the SHA-256 (hexadecimal) of a value's canonical JSON, equal on every machine and run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Subject(StrEnum):
    """The kind of a timed network."""

    BRICK = "brick"
    MODEL = "model"
    """Ground truth; its key is ``ModelGraph.key``."""
    REFERENCE = "reference"
    """A built-in network that measures the cost of a call, or a ceiling of the machine."""


PROTOCOL = 3
"""Version of the sampling method (docs/explanation/measuring.md). Rows of different protocols are never combined."""

NATIVE = "float32"
"""The precision of every backend: each value in the network's own type, float32 in most models."""

INNER = "inner"
"""The variant of a brick without the layout changes at its edges; measured together with the brick."""

HOST = "host"
"""The variant with the processor's time to enqueue a brick; measured together with the brick."""

PARTS = (INNER, HOST)
"""Variants that are parts of a brick."""

PROFILED_CACHE = "hot"
"""Cache state of recorded kernels, which do not depend on caches."""

TRIED_CACHE = "hot"
"""Cache state of trials of remedies: a model and its changed form alternate, for any cache state of their bricks."""

QUIET = 0.8
"""Share of quiet visits from which a machine was quiet."""

_SMALL_LAST_LEVEL = 64 << 20
"""A last-level cache up to this size is evicted completely; larger ones are shared by many cores (``Evictor``)."""


class Stop(StrEnum):
    """The reason that sampling of an item ended."""

    VISITS = "visits"
    """All requested visits were made."""
    BUDGET = "budget"
    """The time budget was spent."""


class Verdict(StrEnum):
    """The reliability of a measurement."""

    STABLE = "stable"
    """Half-width of the mean at most 2 %, from at least two processes."""
    NOISY = "noisy"
    """Half-width at most 10 %."""
    UNSTABLE = "unstable"
    """Half-width above 10 %."""
    TIMED_OUT = "timed-out"
    """Fewer than the minimum number of samples."""


def evicted_bytes(last_level: int, private: int) -> int:
    """Return the bytes to stream through for cold caches, by the sizes of the last-level cache and one core's L2."""
    return 2 * last_level if last_level <= _SMALL_LAST_LEVEL else 4 * private


@dataclass(frozen=True, slots=True)
class System:
    """The hardware that decides a latency; no host name.

    ``key`` covers all fields, so that equal machines are one system.
    """

    cpu: str
    architecture: str
    physical_cores: int
    logical_cores: int
    cache_bytes: tuple[tuple[str, int], ...]
    """Cache name (``L1d``, ``L2``, ``L3``) to bytes, per instance."""
    memory_gib: int
    """Rounded to whole GiB, so that a kernel's reservation does not change the system."""
    isa: tuple[str, ...] = ()
    """The instruction sets that runtimes dispatch on, sorted (``avx2``, ``avx512f``, ``amx_tile``…)."""
    gpus: tuple[str, ...] = ()
    """Names, the one in use first; with the size of a slice, and with a power limit other than the default."""

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
        """The runtime with every option."""
        return Runtime(self.backend, self.device, self.options)


@dataclass(frozen=True, slots=True)
class Runtime:
    """A requested backend with device and options, without versions.

    Attributes:
        backend: Name of the backend.
        device: One of its devices.
        options: Sorted (option, value); other options have their defaults.
    """

    backend: str = "onnxruntime"
    device: str = "cpu"
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, backend: str, device: str = "cpu", options: Mapping[str, str] | None = None) -> Runtime:
        """Return a runtime with options by name."""
        return cls(backend, device, tuple(sorted((options or {}).items())))


DEFAULT_RUNTIME = Runtime()
"""The default runtime."""


class RuntimeFields(TypedDict, total=False):
    """A ``Runtime`` as keywords of a function, with options by name."""

    backend: str
    device: str
    options: Mapping[str, str] | None


def runtime_from(fields: Mapping[str, Any]) -> Runtime:
    """Return the runtime that the keywords of ``RuntimeFields`` describe."""
    usual = DEFAULT_RUNTIME
    return Runtime.of(fields.get("backend", usual.backend), fields.get("device", usual.device), fields.get("options"))


@dataclass(frozen=True, slots=True)
class Conditions:
    """The options of a measurement that are the same for every backend (docs/reference/cli.md)."""

    threads: int
    cache: str = "hot"
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a measurement; measurements of one identity are comparable.

    Attributes:
        subject: Brick, model or reference.
        key: Key of the brick or model.
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache state and precision.
        variant: Name of an algorithm or of a separately measured part; empty for the whole with the runtime's choice.
    """

    subject: Subject
    key: str
    system: str
    stack: str
    conditions: Conditions
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """A system, a stack and conditions of many measurements.

    Attributes:
        system: Key of the system.
        stack: Key of the stack.
        conditions: Threads, cache state and precision.
    """

    system: str
    stack: str
    conditions: Conditions

    def identity(self, subject: Subject, key: str, *, cache: str | None = None, variant: str = "") -> Identity:
        """Return the identity of a brick, model or reference here, optionally in another cache state."""
        here = self.conditions if cache is None else replace(self.conditions, cache=cache)
        return Identity(subject, key, self.system, self.stack, here, variant)


class _Identified:
    """A value with an identity, and the identity's fields as properties."""

    __slots__ = ()
    identity: Identity

    @property
    def subject(self) -> Subject:
        """The kind of the timed network."""
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
        """Name of an algorithm or part; empty for the whole with the runtime's choice."""
        return self.identity.variant


@dataclass(frozen=True, slots=True)
class Visit:
    """The time of a sample, and the quietness of the machine around it.

    Attributes:
        begun_us: Microseconds since 1970, UTC.
        compute_ns: The slower of two probes of arithmetic, just before and just after.
        memory_ns: The slower of two probes of memory, likewise.
        cpu_ns: CPU time of the executing process; None if the system does not report it.
        switches: Number of times that the kernel gave a core of that process to another program; likewise.
        waited_ns: Total waiting time of the process's threads for a core; likewise.
    """

    begun_us: int
    compute_ns: int
    memory_ns: int
    cpu_ns: int | None = None
    switches: int | None = None
    waited_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """The samples of one item from one session of a worker, as replied by the worker.

    Attributes:
        process: Number of the worker process within the run's group, from 0, counted over all runs of an item.
        round: Number of the session within that process, from 0.
        samples: (elapsed_ns, loops) in order, without warm-ups. The clock's cost is subtracted, so that very short ones
            may be negative.
        warmups: Number of warm-up executions before.
        visits: Time of each sample. Items of one group with a common process and round were visited alternately: sample
            i of one belongs to sample i of the other.
    """

    process: int
    round: int
    samples: tuple[tuple[int, int], ...]
    warmups: int = 0
    visits: tuple[Visit, ...] = ()

    def beside(self, other: Block) -> bool:
        """Return True if the visits of both overlap in time; False if one has unknown times."""
        if not self.visits or not other.visits:
            return False
        return (
            self.visits[0].begun_us <= other.visits[-1].begun_us
            and other.visits[0].begun_us <= self.visits[-1].begun_us
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of samples: all times are of *one* execution, in nanoseconds."""

    median_ns: float
    mean_ns: float
    trimmed_mean_ns: float
    """20 % trimmed at each end (DLBricks)."""
    min_ns: float
    p90_ns: float
    p99_ns: float
    ci95_ns: tuple[float, float]
    """Interval of the mean, from differences between time blocks and processes."""
    samples: int
    block_medians_ns: tuple[float, ...]
    """Median of each block in (process, round) order."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Measurement(_Identified):
    """The samples of one subject on one stack and system, with statistics, verdict and the reason for stopping.

    All times are of *one* execution of the subject, in nanoseconds. ``unroll`` copies ran per loop; the statistics are
    divided by it, the raw samples are not.
    """

    id: str
    """UUID."""
    run: str
    """UUID of its run."""
    identity: Identity
    unroll: int
    summary: Summary
    stop: Stop
    load_ns: int | None = None
    """Time to create the session; None if unknown."""
    first_run_ns: int | None = None
    protocol: int = PROTOCOL
    """Version of the sampling method."""
    footprint_bytes: int | None = None
    """Bytes touched between two visits of the same weights; 0 if it ran alone; None if unknown."""
    undisturbed_ns: float | None = None
    """Latency on a quiet machine (docs/explanation/measuring.md), compared across runs; None if unknown."""
    quiet: float | None = None
    """Share of quiet visits, from the probes around them; None if unknown."""

    @property
    def busy(self) -> bool:
        """True if less than ``QUIET`` of its visits were quiet."""
        return self.quiet is not None and self.quiet < QUIET

    @property
    def latency_ns(self) -> float:
        """The mean: unlike medians, means of alternating visits add up."""
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
        """The mean in milliseconds."""
        return self.latency_ns / 1e6

    @property
    def ci95_ms(self) -> tuple[float, float]:
        """95 % interval of ``latency_ms``."""
        low, high = self.ci95_ns
        return low / 1e6, high / 1e6


@dataclass(frozen=True, slots=True)
class Failure(_Identified):
    """A brick or model that could not be measured, stored with its reason."""

    id: str
    run: str
    identity: Identity
    kind: str
    """``unsupported``, ``error``, ``crashed``, ``timeout`` or ``memory``."""
    reason: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function that a runtime executed under one name, in one execution of a network.

    Attributes:
        name: Its name from the runtime, for example ``aten::addmm`` or ``brgconv_avx512_f32``.
        operator: The framework's operator that launched it; empty if unknown.
        place: Its device or execution provider, as printed by the runtime.
        calls: The number of calls.
        time_ns: Time of all its calls together, the median over the profiled executions; None if the profiler does not
            report it. Profilers add overhead: use these as shares, not as latencies.
    """

    name: str
    operator: str
    place: str
    calls: int
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class KernelView:
    """The kernels that ran for a network, from a pass separate from timing.

    Attributes:
        kernels: By name, operator and place, in the order of their first starts.
        wall_ns: Median time of a profiled execution, which is longer than an unprofiled one.
        executions: Number of profiled executions.
        source: Name of the profiler, for example ``torch.profiler``.
    """

    kernels: tuple[Kernel, ...]
    wall_ns: int
    executions: int
    source: str


@dataclass(frozen=True, slots=True)
class Proofs:
    """Results of trials of remedies for a model under one combination.

    Attributes:
        contents: Digest of the model's file, since a proof holds for its weights too.
        form: Version of the analyses and of the form of ``findings``.
        findings: The tried findings, as JSON.
        untried: Names of remedies and analyses that were not tried.
    """

    contents: str
    form: int
    findings: tuple[Mapping[str, Any], ...]
    untried: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Combination(Circumstances):
    """A system, a stack and conditions with stored results.

    Attributes:
        count: Number of distinct items (bricks, models) with a finished measurement.
    """

    count: int


LABEL = "label"
"""Name under which a run stores the owner's name of the measured state, such as a commit."""

SIZES, GIVEN = "dims", "given"
"""Options of a run with the sizes of its models' dimensions, and digests of the values given for their inputs."""

CACHES = "caches"
"""Option of a run with the bytes that the machine's caches hold from one use to the next: a core's own, all."""

MODELS = "models"
"""Name under which a run stores the names of its models, by key."""


@dataclass(frozen=True, slots=True)
class Run:
    """Provenance of one ``run`` or ``measure``, for every number that came from it."""

    id: str
    started: str
    """ISO 8601, UTC."""
    tool: str
    """Version of dlbricks."""
    command: str
    """``run`` or ``measure``."""
    suite: str | None
    """Suite hash; None without a suite."""
    system: str
    stack: str
    options: Mapping[str, object] = field(default_factory=dict)
    before: Mapping[str, object] = field(default_factory=dict)
    """System state before: governor, frequency_mhz, load_1m, kernel."""
    after: Mapping[str, object] | None = None
    finished: str | None = None
    node: str = ""
    """The owner's name of the machine; empty without a name. The host name is never used instead."""
    campaign: str = ""
    """The owner's name of the campaign; empty without one."""

    @property
    def models(self) -> Mapping[str, str]:
        """Names of the models in the run, by key."""
        names = self.options.get(MODELS)
        return names if isinstance(names, Mapping) else {}

    def measured(self, name: str) -> str | None:
        """Return the key of the model with this name in the run; None for an unknown name."""
        return next((key for key, other in self.models.items() if other == name), None)

    def of_model(self, what: str, key: str) -> object:
        """Return what the run noted of one of its models; None if it noted nothing.

        Args:
            what: ``SIZES`` or ``GIVEN``.
            key: The model's key.
        """
        noted = self.options.get(what)
        return noted.get(key) if isinstance(noted, Mapping) else None

    @property
    def label(self) -> str:
        """The owner's name of the measured state; empty without one."""
        return str(self.options.get(LABEL, ""))


def earlier_version(runs: Iterable[Run], name: str, key: str) -> str:
    """Return text on the latest run that measured another model of this name; empty without such a run.

    Args:
        runs: Runs, oldest first.
        name: The model's name.
        key: The model's current key.
    """
    earlier_runs = [run for run in runs if run.measured(name) not in {None, key}]
    if not earlier_runs:
        return ""
    last = earlier_runs[-1]
    return f"{name} is a new version: run {last.id[:8]} of {last.started[:10]} measured another model of this name"
