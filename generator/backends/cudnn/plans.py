"""cuDNN's execution plans for an operation graph, and their availability here.

A plan is an engine with its knobs. The heuristics of mode A and B rank plans by expected speed; ``FALLBACK`` adds
engines that support much and promise nothing. A plan's numerical notes, not its name, show the use of Tensor Cores:
with float32 tensors such a plan multiplies in TF32.

The GPU need not be present: cuDNN 9.8 and newer plan for a device from a description of its properties
(https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/utilities/deviceless-ahead-of-time-compilation.html). On a
machine with the GPU, ``cudnn.create_device_properties(0).serialize()`` writes the description.
"""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ....errors import BackendError, BackendUnavailable, DlbricksError, UsageError
from ...machine.nvml import DRIVER_LIBRARY, can_load
from ..base import Availability, PlanTime, installed
from .operations import Operation, OperationGraph, Tensor, TensorRole

DTYPES: Mapping[str, str] = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
"""Precision of all tensors in memory to the library's name of it; sums and values in between are of float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Precision, layout and device of the library's graphs.

    Attributes:
        dtype: Precision of all tensors in memory, one of ``DTYPES``.
        channels_last: Images and the weights of convolutions have their channels fastest in memory.
        place: ``device_property`` or ``handle`` of the library's graph class.
        exact: Leave out plans that multiply float32 in TF32 or narrower.
    """

    dtype: str
    channels_last: bool
    place: Mapping[str, Any]
    exact: bool = False


def lower(graph: OperationGraph, target: Target) -> Any:
    """Build and validate the library's graph.

    Returns:
        A validated ``cudnn.pygraph`` with its non-virtual tensors under their names.

    Raises:
        BackendError: The library infers other dimensions than the translation has.
        Exception: Any exception of the library for an unsupported graph.
    """
    import cudnn

    single, memory = cudnn.data_type.FLOAT, getattr(cudnn.data_type, DTYPES[target.dtype])
    built = cudnn.pygraph(io_data_type=memory, intermediate_data_type=single, compute_data_type=single, **target.place)
    library_tensors: dict[str, Any] = {}
    for name, tensor in graph.of(TensorRole.INPUT, TensorRole.WEIGHT, TensorRole.SCALAR):
        library_tensors[name] = _declared(
            built, name, tensor, single if tensor.role is TensorRole.SCALAR else memory, target.channels_last
        )
    for operation in graph.operations:
        written = graph.tensors[operation.output]
        result = library_tensors[operation.output] = _applied(built, operation, library_tensors, written.shape)
        if written.role is TensorRole.OUTPUT:
            strides = written.strides(channels_last=target.channels_last)
            result.set_output(True).set_data_type(memory).set_dim(list(written.shape)).set_stride(list(strides))
            result.set_name(operation.output)
    built.validate()
    for operation in graph.operations:
        inferred, expected = tuple(library_tensors[operation.output].get_dim()), graph.tensors[operation.output].shape
        if inferred != expected:
            raise BackendError(f"cuDNN infers {inferred} for {operation.kind}, where {expected} is expected")
    return built


def _declared(built: Any, name: str, tensor: Tensor, kind: Any, channels_last: bool) -> Any:  # noqa: FBT001
    return built.tensor(
        name=name,
        dim=list(tensor.shape),
        stride=list(tensor.strides(channels_last=channels_last)),
        data_type=kind,
        is_pass_by_value=tensor.role is TensorRole.SCALAR,
    )


def _applied(built: Any, operation: Operation, library_tensors: Mapping[str, Any], shape: tuple[int, ...]) -> Any:
    import cudnn

    inputs = {port: library_tensors[name] for port, name in operation.inputs.items()}
    settings = dict(operation.settings)
    if operation.kind == "reduction":
        settings["mode"] = getattr(cudnn.reduction_mode, settings["mode"])
        settings["out_dims"] = list(shape)
    if operation.kind in {"layernorm", "rmsnorm"}:
        settings["norm_forward_phase"] = cudnn.norm_forward_phase.INFERENCE
    if operation.kind == "sdpa":
        settings["generate_stats"] = False
    result = getattr(built, operation.kind)(**inputs, **settings)
    return result[0] if isinstance(result, (list, tuple)) else result


_FRONTEND = "nvidia-cudnn-frontend"
_LIBRARIES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def availability() -> Availability:
    """Find out if plans are available; import nothing, load only the driver's library.

    cuDNN links against the library of the GPU's driver but needs no GPU. NVIDIA's toolkits have a stub of the library
    for machines without a driver (``lib64/stubs/libcuda.so``).
    """
    if importlib.util.find_spec("cudnn") is None:
        return Availability(ok=False, reason=f"not installed; pip install {_FRONTEND} {_LIBRARIES[0]}")
    versions = dict(installed((_FRONTEND, *_LIBRARIES)))
    if not versions.keys() & set(_LIBRARIES):
        return Availability(ok=False, reason=f"cuDNN itself is missing; pip install {' or '.join(_LIBRARIES)}")
    if not can_load(DRIVER_LIBRARY):
        reason = (
            f"{DRIVER_LIBRARY} is missing: no NVIDIA driver, and no stub of it from a CUDA toolkit in LD_LIBRARY_PATH"
        )
        return Availability(ok=False, reason=reason)
    return Availability(ok=True, versions=versions)


def require_library() -> Availability:
    """Make sure that plans are available.

    Raises:
        BackendUnavailable: They are not; the message names the missing part.
    """
    status = availability()
    if not status.ok:
        raise BackendUnavailable(f"cuDNN's plans cannot be asked for here: {status.reason}")
    return status


_LARGEST_FILE = 1 << 16
_NEEDED = {"deviceName": str, "deviceVer": int, "multiProcessorCount": int}

_H200: dict[str, Any] = {
    # Limits of compute capability 9.0: CUDA C++ Programming Guide, "Compute Capabilities".
    "deviceVer": 900, "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": 1024, "supportCoopLaunch": 1,
    # Read from one H200 with nvidia-smi and PyTorch; the width of its bus is that of six stacks of HBM3e.
    "deviceName": "NVIDIA H200", "multiProcessorCount": 132, "smCountOrigin": 0, "l2CacheSize": 62914560,
    "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "memoryBusWidth": 6144, "totalGlobalMem": 150754820096,
    "driverVer": 13000, "cudaDeviceId": 0, "deviceId": 0, "pciDeviceId": 0, "isTccDriver": 0,
}  # fmt: skip

_H100: dict[str, Any] = {
    # Written by cuDNN 9.19 on an H100 (docs/results/gpu/h100.json); newer ones ask for the width of its bus too, which
    # is that of five stacks of HBM3.
    "memoryBusWidth": 5120,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 6, "isTccDriver": 0,
    "supportCoopLaunch": 1, "totalGlobalMem": 85017493504, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
    "l2CacheSize": 52428800, "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
    "deviceName": "NVIDIA H100 80GB HBM3",
}  # fmt: skip

KNOWN: Mapping[str, Mapping[str, Any]] = {"h100": _H100, "h200": _H200}
"""Descriptions by name. The H200's was compiled from documents and readings, not written by cuDNN."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as cuDNN sees it.

    Attributes:
        name: Product name.
        capability: Compute capability times 100.
        multiprocessors: How many it has.
        description: JSON, for the library.
    """

    name: str
    capability: int
    multiprocessors: int
    description: str


def find_gpu(text: str) -> Gpu:
    """Find a GPU by name, or from a file that cuDNN wrote.

    Args:
        text: One of ``KNOWN``, or the path of a JSON file.

    Raises:
        UsageError: The text is neither, or the file is invalid.
    """
    if text in KNOWN:
        return _gpu(KNOWN[text], text)
    path = Path(text)
    remedy = f"known are {', '.join(KNOWN)}; a file is what cudnn.create_device_properties(0).serialize() gives"
    try:
        with path.open("rb") as file:
            properties = json.loads(file.read(_LARGEST_FILE))
    except OSError as error:
        raise UsageError(f"GPU {text!r} is not known, and no file: {error.strerror}", remedy=remedy) from error
    except ValueError as error:
        raise UsageError(f"{path.name} is no description of a GPU: {error}", remedy=remedy) from error
    return _gpu(properties, path.name)


def _gpu(properties: Any, name: str) -> Gpu:
    for field, kind in _NEEDED.items():
        if not isinstance(properties, Mapping) or not isinstance(properties.get(field), kind):
            raise UsageError(
                f"{name} is no description of a GPU: it has no {field}",
                remedy="write one with cudnn.create_device_properties(0).serialize()",
            )
    return Gpu(
        properties["deviceName"], properties["deviceVer"], properties["multiProcessorCount"], json.dumps(properties)
    )


MODES = ("A", "B", "FALLBACK")
"""The library's heuristics, as Benanza's "best against first suggestion" needs them: in order of trust."""

NOTES = (
    "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "NONDETERMINISTIC", "FFT", "WINOGRAD",
)  # fmt: skip
"""Numerical notes that are asked for."""

RUNTIME_COMPILATION = "RUNTIME_COMPILATION"
"""The behaviour note of an engine that compiles its kernel when the plan is built."""
NOT_BUILT = "compiled when it is built, which needs the driver of a GPU"
_NARROWING = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS")
"""Notes of plans that do not multiply in full float32. The engine of graphs without a product has the first as well:
it narrows nothing there."""
_PRODUCTS = frozenset({"conv_fprop", "matmul", "sdpa"})
_USUAL = frozenset({"TENSOR_CORE"})
"""Notes that most engines have."""
UNSUPPORTED = "cuDNN: no engine supports this graph"
DESELECTED = "Deselecting execution plan"
"""The library's message for a plan that was excluded because of a note."""
FOREIGN = "an engine of the Python frontend, not of the library"
OF_THE_LIBRARY = re.compile(r"eng\d")
"""Names of the library's plans; the Python frontend adds other engines to the list."""
_DECLINED = "the backend declined:"
_NONE = ("No valid engine configs", "CUDNN_STATUS_NOT_SUPPORTED")
"""The library's message for a graph that no engine can run."""
_DEVICE = "cuda_get_device"
"""The library's calls that fail with a description of the device only."""
_QUOTED = re.compile(r"\{.*", re.DOTALL)
_REASON_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Offer:
    """All plans for one brick in one precision and layout.

    Attributes:
        operations: Operations of the graph, in order.
        plans: The plans, mode A first, in the library's order; each once.
        reason: Why there are no plans; empty with plans.
        planning_ns: Time in nanoseconds for graphs, heuristics, and building every plan; None if it was not asked.
    """

    operations: tuple[str, ...] = ()
    plans: tuple[PlanTime, ...] = ()
    reason: str = ""
    planning_ns: int | None = None


def offered(graph: OperationGraph, target: Target) -> Offer:
    """Ask for every plan of every heuristic, and build each.

    Args:
        graph: A brick with merged dimensions (``merged``).
        target: Precision, layout and device.

    Raises:
        BackendError: The library infers other dimensions than the translation has.

    Returns:
        The offer. An unsupported graph gives a reason instead of plans; a plan that cannot be built keeps its row, with
        the reason.
    """
    begun = time.perf_counter_ns()
    kinds = tuple(operation.kind for operation in graph.operations)
    try:
        built = planned(graph, MODES, target)
    except DlbricksError:
        raise  # it is the translation that is wrong, not the library that has nothing
    except Exception as error:  # noqa: BLE001  # the library's exceptions share no base class; the reason is kept
        return Offer(kinds, (), reason_of(error), time.perf_counter_ns() - begun)
    examined = [
        _examined(built, index, row) for index, row in enumerate(listed(built, graph, target)) if not row.reason
    ]
    engines = engine_notes(graph, {row.engine: row.name for row in reversed(examined)}, target)
    plans = tuple(replace(row, notes=engines[row.engine]) for row in examined)
    return Offer(kinds, plans, "" if plans else "no heuristic offers a plan", time.perf_counter_ns() - begun)


def listed(built: Any, graph: OperationGraph, target: Target) -> list[PlanTime]:
    """Return a row for each plan of the library's graph, in its order, without building it.

    Args:
        built: The library's graph with the plans of all heuristics (``planned``).
        graph: The brick.
        target: Precision, layout and device. Each heuristic is asked for its own plans.
    """
    offers: dict[str, list[str]] = {}
    for mode in MODES:
        try:
            offers[mode] = names_of(planned(graph, [mode], target))
        except Exception:  # noqa: BLE001  # as above: a heuristic that offers nothing raises
            offers[mode] = []
    rows = []
    for index, name in enumerate(names_of(built)):
        if not OF_THE_LIBRARY.match(name):
            rows.append(PlanTime(name, -1, reason=FOREIGN))
            continue
        engine, knobs = built.get_engine_and_knobs_at_index(index)
        named = tuple(sorted((knob.name, int(value)) for knob, value in knobs.items()))
        modes = tuple(mode for mode in MODES if name in offers[mode])
        rank = offers[MODES[0]].index(name) if name in offers[MODES[0]] else None
        notes = tuple(sorted(note.name for note in built.get_behavior_notes_for_plan_at_index(index)))
        rows.append(PlanTime(name, int(engine), named, modes, rank, behavior=notes))
    return rows


def names_of(built: Any) -> list[str]:
    """Return the names of the plans of the library's graph."""
    return [built.get_plan_name_at_index(index) for index in range(built.get_execution_plan_count())]


def planned(graph: OperationGraph, modes: Sequence[str], target: Target) -> Any:
    """Return the library's graph with the plans of some heuristics, all of them unbuilt."""
    import cudnn

    built = lower(graph, target)
    built.build_operation_graph()
    built.create_execution_plans([getattr(cudnn.heur_mode, mode) for mode in modes])
    if target.exact and any(operation.kind in _PRODUCTS for operation in graph.operations):
        built.deselect_numeric_notes([getattr(cudnn.numerical_note, note) for note in _NARROWING])
    return built


def _examined(built: Any, index: int, plan: PlanTime) -> PlanTime:
    """Return one plan of a graph, built if possible here."""
    if RUNTIME_COMPILATION in plan.behavior:
        return replace(plan, reason=NOT_BUILT)
    try:
        built.build_plan_at_index(index)
        return replace(plan, workspace_bytes=int(built.get_workspace_size_plan_at_index(index)))
    except Exception as error:  # noqa: BLE001  # as above: an engine that refuses is a row, not the end
        return replace(plan, reason=reason_of(error))


def engine_notes(graph: OperationGraph, examples: Mapping[int, str], target: Target) -> dict[int, tuple[str, ...]]:
    """Return the numerical notes of each engine, which do not depend on its knobs.

    The Python frontend does not report notes, but it can exclude plans with or without a note, and refuses to build
    these. Other plans are built, which takes a second if a kernel is compiled. The question is therefore asked so that
    a refusal is likely.

    Args:
        graph: A brick.
        examples: Tag of one plan, by engine.
        target: Precision, layout and device.
    """
    import cudnn

    notes_by_engine: dict[int, tuple[str, ...]] = dict.fromkeys(examples, ())
    for note in NOTES if examples else ():
        built = planned(graph, MODES, replace(target, exact=False))
        chosen = [getattr(cudnn.numerical_note, note)]
        refuses_with = note in _USUAL
        if refuses_with:
            built.deselect_numeric_notes(chosen)
        else:
            built.select_numeric_notes(chosen)
        places = {name: at for at, name in enumerate(names_of(built))}
        for engine, tag in examples.items():
            if _refused(built, places[tag]) == refuses_with:
                notes_by_engine[engine] = (*notes_by_engine[engine], note)
    return notes_by_engine


def _refused(built: Any, index: int) -> bool:
    """Return True if a plan was excluded."""
    try:
        built.build_plan_at_index(index)
    except Exception as error:  # noqa: BLE001  # as above; any other failure comes after the question was answered
        return DESELECTED in str(error)
    return False


def reason_of(error: Exception) -> str:
    """One line of an exception of the library, without the plans that it quotes."""
    text = " ".join(str(error).split())
    reason = _QUOTED.sub("", text.rpartition(_DECLINED)[2]).rstrip(" :_")[:_REASON_LENGTH]
    if any(words in reason for words in _NONE):
        return UNSUPPORTED
    if _DEVICE in reason:
        return "cuDNN: this graph is not planned without a device"
    return f"cuDNN: {reason or type(error).__name__}"
