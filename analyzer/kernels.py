"""The kernels that ran for a model: summed over its bricks, or of the whole model as it was profiled."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Unpack

from ..bricks.decomposition import Decomposition
from ..bricks.layer import LayerState
from ..bricks.suite.suite import GRAPHS
from ..constructor.choice import Choice, Query
from ..constructor.remedies import Task
from ..db import Kernel, KernelView, Store, Subject
from ..db.queries import Filter
from ..db.values import PROFILED_CACHE
from ..errors import BackendUnavailable, UsageError
from ..generator.decomposition.cut import Cut
from ..generator.decomposition.decompose import decompose, readable
from ..models import ModelSource
from ..tabular import Records, Row, Tabular, fields, nested_rows, record_of
from .comparison.results import ModelBrick, bricks_of
from .comparison.sides import place_record
from .estimation.estimate import settle
from .estimation.query import QueryFields, asked, matching, require_one, stored_under
from .estimation.tasks import Tasks
from .shell import shell_command

# Which units of a processor a kernel uses, by its name.
#
# Matrix units are NVIDIA's Tensor Cores and Intel's AMX. Nobody documents the names. These rules were learnt from
# public profiles (listed in ``tests/analyzer/kernels/kernel_names.tsv``), and none was verified on a GPU here. A name
# that says nothing is ``UNKNOWN``, which is never counted as ``NO``.
#
# Evidence on a GPU: the shape of the instruction (``s16816gemm`` multiplies 16 x 8 x 16), the operation class of
# CUTLASS (``tensorop``, ``simt``), the instruction itself (``hmma``, ``wgmma``, ``ffma``). ``xmma`` alone says nothing:
# the same generator writes ``…_tensor16x8x8_…`` and ``…_ffma``.


class Use(StrEnum):
    """The use of matrix units by a kernel."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


KernelUnits = tuple[Use, str]
"""Use of matrix units by a kernel, and the name of its units, for example ``Tensor Cores`` or ``AVX-512``; the name of
the units is empty if the name of the kernel does not say."""

_TENSOR_CORES: KernelUnits = (Use.YES, "Tensor Cores")
_CUDA_CORES: KernelUnits = (Use.NO, "CUDA cores")
_UNKNOWN: KernelUnits = (Use.UNKNOWN, "")
_NONE: KernelUnits = (Use.NO, "")

_GPU_ARCHITECTURE = r"(?:fermi|maxwell|pascal|volta|turing|ampere|hopper|blackwell|sm\d+)"

_RULES: tuple[tuple[str, KernelUnits], ...] = (
    # CPU: names of oneDNN, of frameworks that call it, and of OpenVINO. Upper case in older versions of the latter.
    (r"^reorder|^aten::(?:mkldnn_)?reorder", (Use.NO, "")),
    (r"(?<![a-z0-9])amx(?![a-z])", (Use.YES, "AMX")),
    (r"(?<![a-z])avx(?:512|10)", (Use.NO, "AVX-512")),
    (r"(?<![a-z])avx2", (Use.NO, "AVX2")),
    (r"(?:jit|brg\w*|gemm|uni)[_:]\w*avx(?![0-9])", (Use.NO, "AVX")),
    (r"(?:jit|uni)\w*[_:]sse4", (Use.NO, "SSE")),
    # GPU. CUDA cores first: such a name may also hold that of the generator.
    (r"simt|[_:]ffma|(?:implicit|explicit|precomputed)_convolve_sgemm|gemv|gemmk1|gemmSN_|splitKreduce", _CUDA_CORES),
    (rf"{_GPU_ARCHITECTURE}_(?:fp16_)?(?:[sdczh]gemm|[sdh]cudnn)", _CUDA_CORES),
    (r"fermi[SDCZ]gemm|winograd::|winograd_nonfused|fft2d|conv_depthwise|conv2d_grouped_direct", _CUDA_CORES),
    (r"tensorop|tensor\d+x\d+x\d+|[hi]mma|dmma|wmma|gmma|umma|tcgen05|nvjet_", _TENSOR_CORES),
    (r"(?<![a-z0-9])(?:tf32|bf16|f16)?[a-z](?:884|1688|16816|8816|16832|8832|16864)(?=[a-z_])", _TENSOR_CORES),
    (r"sm(?:90|1\d\d)\w*_xmma_\w*warpgroupsize|tf32f32", _TENSOR_CORES),
    (r"flash_(?:fwd|bwd|fprop|bprop)|fmha_cutlass[FB]_b?f16", _TENSOR_CORES),
)
"""The first rule that matches a name decides."""

_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), units) for pattern, units in _RULES)

_SINGLE = re.compile(r"^(?:jit|brg|gemm|ref|uni|simple|onednn|matmul|convolution|inner_product)\w*.*[_:]f32$")
"""A primitive of the CPU in single precision, in which AMX has no products."""

_PRODUCTS = re.compile(
    r"gemm|gemv|conv|matmul|linear|[^m]mm(?:[^a-z]|$)|attention|sdpa|fmha|flash|lstm|gru|rnn|einsum|dot|fullyconnected|"
    r"inner_product",
    re.IGNORECASE,
)
_OTHER_WORK = re.compile(
    r"elementwise|element_wise|eltwise|pointwise|relu|gelu|sigmoid|clamp|softmax|pool|reduce|norm|CatArray|concat|"
    r"memcpy|memset|copy|nchwToNhwc|nhwcToNchw|transpose|reorder|permute|reshape|flatten|gather|index|embedding|"
    r"fill|scatter|resize|interpolat|shuffle|slice|cpp_fused|triton_(?:poi|red|per)_",
    re.IGNORECASE,
)
"""Names of work that no matrix unit does, unless they also contain a product."""

_WHOLE = re.compile(
    r"^(?:aten::|com\.microsoft(?:\.nchwc)?\.)?(?:add|sub|mul|div|erf|exp|log|pow|sqrt|tanh|where|cast|sum|mean|max|min|"
    r"abs|neg|argmax|cat|equal|expand|unsqueeze|squeeze|split|tile|identity|clip|hardswish|hardsigmoid|dropout|clone|convert|"
    r"not|and|or|less|greater|shape|range|tril|triu|topk|t|view|_unsafe_view|_to_copy|contiguous)_?$",
    re.IGNORECASE,
)
"""The same for operator names that are too short to be looked for within others: the whole name must match."""


def units_of(name: str, operator: str = "") -> KernelUnits:
    """Return the units of a kernel, by its name.

    Args:
        name: The name from the runtime.
        operator: The operator that launched it; one without products uses no matrix units.
    """
    for pattern, units in _COMPILED:
        if pattern.search(name):
            return units
    if _SINGLE.match(name) or _is_other_work(name) or _is_other_work(operator):
        return _NONE
    return _UNKNOWN


def _is_other_work(name: str) -> bool:
    return bool(_WHOLE.match(name) or (_OTHER_WORK.search(name) and not _PRODUCTS.search(name)))


# The kernels of one or several views together, each with its share of the time.


_NS_PER_MS = 1e6

_DEVICES = {"tensorrt": "cuda", "nvtensorrtrtx": "cuda"}
"""Execution providers that run on a device which is called otherwise."""


@dataclass(frozen=True, slots=True)
class KernelShare:
    """One kernel and its part of a model or brick.

    Attributes:
        kernel: The kernel; calls and time are per execution of the model or brick.
        share: Share of the time of all kernels; None if it is unknown.
        matrix: Use of matrix units, according to its name.
        units: Name of its units; empty if its name does not say.
        elsewhere: True if it ran on another device than the device of its stack.
        layers: Its bricks, most time first; empty for a whole model.
    """

    kernel: Kernel
    share: float | None
    matrix: Use
    units: str
    elsewhere: bool
    layers: tuple[ModelBrick, ...] = ()

    @property
    def time_ms(self) -> float | None:
        """Time of all calls together, under a profiler (not a latency); None if it is unknown."""
        return None if self.kernel.time_ns is None else self.kernel.time_ns / _NS_PER_MS

    def record(self) -> Row:
        """As a JSON object."""
        return {
            "name": self.kernel.name,
            "operator": self.kernel.operator or None,
            **record_of(self, fields("place=kernel.place calls=kernel.calls time_ms share matrix")),
            "units": self.units or None,
            "elsewhere": self.elsewhere,
            "layers": [
                {"key": brick.key, "count": brick.occurrences, "names": brick.names, "op_types": brick.operators}
                | {"form": asdict(brick.form)}
                for brick in self.layers
            ],
        }


_Ran = tuple[str, str, str]
"""Name, operator and place of a kernel; kernels that are equal in these are added up."""


def _ran(kernel: Kernel) -> _Ran:
    return kernel.name, kernel.operator, kernel.place


def shares_of(views: Iterable[tuple[KernelView, int]], device: str) -> tuple[tuple[KernelShare, ...], float | None]:
    """Return the kernels of several views together, and their time in ms.

    Args:
        views: The views, each with its number of occurrences.
        device: Device of the stack.

    Returns:
        The kernels, most time first, and the time of all; None if a time is unknown.
    """
    summed: dict[_Ran, Kernel] = {}
    for view, count in views:
        for kernel in view.kernels:
            key = _ran(kernel)
            subtotal = summed.get(key, Kernel(*key, calls=0, time_ns=0))
            unknown = subtotal.time_ns is None or kernel.time_ns is None
            time_ns = None if unknown else (subtotal.time_ns or 0) + count * (kernel.time_ns or 0)
            summed[key] = Kernel(*key, subtotal.calls + count * kernel.calls, time_ns)
    times = [kernel.time_ns for kernel in summed.values() if kernel.time_ns is not None]
    total_ns = sum(times) if len(times) == len(summed) else None
    rows = [
        KernelShare(
            kernel,
            None if not total_ns or kernel.time_ns is None else kernel.time_ns / total_ns,
            *units_of(kernel.name, kernel.operator),
            elsewhere=device_of(kernel.place) != device,
        )
        for kernel in summed.values()
    ]
    rows.sort(key=lambda row: -1 if row.kernel.time_ns is None else row.kernel.time_ns, reverse=True)
    return tuple(rows), None if total_ns is None else total_ns / _NS_PER_MS


def device_of(provider: str) -> str:
    """Return the device of an execution provider: ``cpu`` for ``CPUExecutionProvider``."""
    name = provider.lower().removesuffix("executionprovider")
    return _DEVICES.get(name, name)


def matrix_share(kernels: Iterable[KernelShare], use: Use) -> float | None:
    """Return the share of time in kernels with a given use of matrix units.

    Args:
        kernels: All kernels of a model or brick.
        use: The use of matrix units.

    Returns:
        None without kernels, or if a time is unknown.
    """
    rows = list(kernels)
    shares = [kernel.share or 0.0 for kernel in rows if kernel.matrix is use]
    return sum(shares) if rows and all(kernel.share is not None for kernel in rows) else None


def use_shares(kernels: Iterable[KernelShare]) -> dict[str, float | None]:
    """Return the share of time of each use, by name."""
    rows = list(kernels)
    return {str(use): matrix_share(rows, use) for use in Use}


_NOT_FLAT = frozenset({"kernels", "elsewhere", "missing"})
"""Fields with separate rows in JSON, which a row of CSV leaves out."""


class MissingView(NamedTuple):
    """A brick of the model, a layer that cannot be one, or the model itself: its kernels are not known.

    Attributes:
        key: Of the brick or model; None for a layer that cannot be a brick.
        op_types: Its operators; empty for a whole model.
        copies: How often the model holds it.
    """

    key: str | None
    op_types: tuple[str, ...]
    copies: int


_PLACE = ("system", "stack", "backend", "device", "threads", "dtype")
"""Keys that say where kernels ran."""


@dataclass(frozen=True, slots=True)
class ModelKernels:
    """The kernels of one model.

    Attributes:
        name: The model.
        whole: True for a profile of the whole model; false for the sum over its bricks.
        batch: Requested batch size.
        choice: System, stack and conditions; None if nothing matches.
        source: The profiler; several if bricks differ.
        kernels: Most time first; kernels without a time last.
        time_ms: Time of all kernels; None if one is unknown.
        missing: Bricks without a view; ``kernels`` does not include their kernels.
        remedy: The task that profiles them; None if this machine cannot.
        error: Reason for a missing result.
    """

    name: str
    whole: bool
    batch: int | None = None
    choice: Choice | None = None
    source: str = ""
    kernels: tuple[KernelShare, ...] = ()
    time_ms: float | None = None
    missing: tuple[MissingView, ...] = ()
    remedy: Task | None = None
    error: str | None = None

    @property
    def complete(self) -> bool:
        """True if every kernel is known."""
        return self.error is None and not self.missing and self.choice is not None

    @property
    def elsewhere(self) -> tuple[KernelShare, ...]:
        """Kernels that ran on another device than the device of the stack."""
        return tuple(kernel for kernel in self.kernels if kernel.elsewhere)

    def matrix_share(self, use: Use) -> float | None:
        """Return the share of time in kernels with a given use of matrix units; None if a time is unknown."""
        return matrix_share(self.kernels, use)

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        combination = dict.fromkeys(_PLACE) if self.choice is None else place_record(self.choice, *_PLACE)
        return {
            **record_of(self, fields("name batch whole")),
            **combination,
            "source": self.source or None,
            "profiled_ms": self.time_ms,
            "matrix_shares": use_shares(self.kernels),
            **record_of(self, fields("kernels elsewhere")),
            "missing": [{"key": key, "op_types": names, "count": copies} for key, names, copies in self.missing],
            "command": None if self.remedy is None else shell_command(self.remedy),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Kernels(Tabular):
    """The kernels of some models; iterating goes over its rows.

    Attributes:
        rows: One per model.
    """

    ANSWER = "report.answers.bricks.kernels_answer"

    rows: tuple[ModelKernels, ...]

    def __iter__(self) -> Iterator[ModelKernels]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def complete(self) -> bool:
        """True if every kernel of every model is known."""
        return all(row.complete for row in self.rows)

    def records(self) -> Records:
        """One row per model; flat, one per kernel."""
        rows = [row.record() for row in self.rows]
        flat = [line for row in rows for line in nested_rows(row, "kernel", row["kernels"], without=_NOT_FLAT)]
        return Records(rows, flat=flat)


def kernels(
    models: Sequence[ModelSource],
    *,
    store: Store,
    query: Query | None = None,
    whole: bool = False,
    granularity: int = 1,
    connected: bool = False,
    graph: str | None = None,
    **fields: Unpack[QueryFields],
) -> Kernels:
    """Return the kernels of models, from stored views (``run --kernels``, ``measure --kernels``).

    Args:
        models: The models, from ``find_models``.
        store: Database of the views.
        query: Which of the stored views; without a cache state, since kernels do not depend on it.
        whole: Profiles of whole models, instead of the sum over their bricks.
        granularity: Most layers in a sequence; the value of the profiled suite.
        connected: Sequences may be weakly connected windows.
        graph: Graph to decompose; None: the first of source, runtime and fused with the fewest missing views, by share;
            for whole models, source.
        **fields: Fields of a ``Query``; they replace the fields of ``query``.

    Returns:
        One row per model, in their order; a model that cannot be decomposed has ``error``.

    Raises:
        AmbiguousQuery: Several stored combinations match; the message lists them.
        UsageError: A cache state, a wrong granularity or graph, a dimension that no model has, a system or stack that
            is not stored.
        StoreError: The database cannot be read.
    """
    query = asked(query, fields)
    if query.cache is not None:
        raise UsageError("kernels do not depend on the cache state", remedy="leave the cache state out")
    names = [graph] if graph else GRAPHS[:1] if whole else ("source", "runtime", "fused")
    along = partial(_kernels_along, models, store, query, whole=whole)
    chosen, missing = along(Cut(granularity, connected=connected, graph=names[0]))
    for name in names[1:]:
        if not missing:
            break
        try:
            others, lacking = along(Cut(granularity, connected=connected, graph=name))
        except (BackendUnavailable, UsageError):
            continue  # this graph is unknown here, or in this precision
        if lacking < missing:
            chosen, missing = others, lacking
    return chosen


def _kernels_along(
    models: Sequence[ModelSource], store: Store, query: Query, cut: Cut, *, whole: bool
) -> tuple[Kernels, float]:
    """Return the kernels of models along one graph, and the share of views that are missing; raises as ``kernels``."""
    settled = settle(store, query, cut)
    cut, query = settled.cut, settled.query
    if settled.why_not is not None:
        errors = [ModelKernels(model.name, whole, model.batch, error=settled.why_not) for model in models]
        return Kernels(tuple(errors)), 1.0
    decompositions = decompose(models, cut)
    parts = {model.own.key: _parts(model, whole=whole) for model in readable(decompositions)}
    keys = {key for counts in parts.values() for key, _ in counts if key is not None}
    subject = Subject.MODEL if whole else Subject.BRICK
    choice, views = _choose(store, keys, query, subject)
    tasks = Tasks(store, choice, query, cut)
    rows = [
        _kernels_of(model, parts[model.own.key], choice, views, tasks, whole=whole)
        if isinstance(model, Decomposition)
        else ModelKernels(model.source.name, whole, model.source.batch, error=model.reason)
        for model in decompositions
    ]
    asked_for = sum(counts.total() for counts in parts.values())
    lacking = sum(view.copies for row in rows for view in row.missing)
    return Kernels(tuple(rows)), lacking / asked_for if asked_for else 0.0


def _parts(model: Decomposition, *, whole: bool) -> Counter[tuple[str | None, tuple[str, ...]]]:
    """Count the required views by key and operators: bricks, or the whole model.

    The key of a layer that cannot be a brick is None.
    """
    if whole:
        return Counter([(model.own.key, ())])
    layers = model.graph.layers
    return Counter([
        *((part.key, tuple(layers[index].op_type for index in part.layers)) for part in model.sequences),
        *((None, (layer.op_type,)) for layer in layers if layer.state is LayerState.SKIPPED),
    ])  # fmt: skip


def _choose(
    store: Store, keys: set[str], query: Query, subject: Subject
) -> tuple[Choice | None, Mapping[str, KernelView]]:
    """Return the only stored combination in any cache state, and its views; combinations with views first."""
    combinations: dict[Filter, Choice] = {}
    for choice in matching(store, keys, query, subject):
        combinations.setdefault(stored_under(choice), choice)
    views = {
        combination: store.kernels(combination, subject=subject, keys=keys, cache=PROFILED_CACHE)
        for combination in combinations
    }
    chosen = {combination: choice for combination, choice in combinations.items() if views[combination]} or combinations
    alike = [replace(choice, conditions=replace(choice.conditions, cache="")) for choice in chosen.values()]
    if require_one(alike) is None:
        return None, {}
    ((combination, choice),) = chosen.items()
    return choice, {identity.key: view for identity, view in views[combination].items()}


def _kernels_of(
    model: Decomposition,
    parts: Counter[tuple[str | None, tuple[str, ...]]],
    choice: Choice | None,
    views: Mapping[str, KernelView],
    tasks: Tasks,
    *,
    whole: bool,
) -> ModelKernels:
    missing = tuple(MissingView(*part, count) for part, count in parts.items() if part[0] not in views)
    counted_views = [(views[key], count) for (key, _), count in parts.items() if key is not None and key in views]
    rows, time_ms = shares_of(counted_views, choice.stack.device if choice is not None else "cpu")
    remedy = None
    if any(part.key is not None for part in missing):
        remedy = tasks.truth(model.source) if whole else tasks.measure(model.source)
    return ModelKernels(
        model.source.name,
        whole,
        model.source.batch,
        choice,
        ", ".join(sorted({view.source for view, _ in counted_views})),
        rows if whole else _with_layers(rows, model, views),
        time_ms if counted_views else None,
        missing,
        None if remedy is None else replace(remedy, kernels=True),
    )


def _with_layers(
    rows: Sequence[KernelShare], model: Decomposition, views: Mapping[str, KernelView]
) -> tuple[KernelShare, ...]:
    """Kernels with the bricks that they ran for, the longest time first."""
    ran: defaultdict[_Ran, list[tuple[int, ModelBrick]]] = defaultdict(list)
    bricks = bricks_of(model)
    for key in dict.fromkeys(part.key for part in reversed(model.sequences) if part.key in views):
        brick, times = bricks[key], Counter[_Ran]()
        for kernel in views[key].kernels:
            times[_ran(kernel)] += kernel.time_ns or 0
        for identity, time_ns in times.items():
            ran[identity].append((brick.occurrences * time_ns, brick))
    ordered = {identity: sorted(timed, key=lambda item: -item[0]) for identity, timed in ran.items()}
    return tuple(replace(row, layers=tuple(brick for _, brick in ordered.get(_ran(row.kernel), ()))) for row in rows)
