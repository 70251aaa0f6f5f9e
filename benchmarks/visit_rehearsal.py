"""Stand-ins to rehearse a visit on the CPU: small models, CuPy's calls in NumPy, and backends of their own.

Each library and PyTorch have a stand-in that takes a GPU's options, so that every stage has a stack of its own, and
executes all that it would execute on a GPU.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
import onnx.parser
from dlbricks.generator.backends.base import Option, PlanTime, Settings, released
from dlbricks.generator.backends.library import (
    MODE,
    PLAN,
    LibraryBackend,
    LoadedBrick,
    Memory,
    described,
    measured,
    narrowed,
    values_of,
)
from dlbricks.generator.backends.registry import GROUP
from dlbricks.generator.backends.reports import Wording
from dlbricks.generator.backends.torch.backend import TorchBackend
from dlbricks.generator.device.device import Device, Run
from dlbricks.generator.device.host import open_device
from dlbricks.generator.network.network import Network
from dlbricks.models.subgraphs import declared_shape, infer_shapes
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator
from visit_plan import Stage

_PREFIX = "rehearsal-"
_LAYOUT = Option("layout", "contiguous", ("contiguous", "channels_last"), "memory format of images")

_WEIGHT = ",".join(map(str, range(16)))
_MODELS = {
    "convolutions": (
        f"(float[1,4,16,16] x) => (float[1,4,16,16] y) <float[4,4,1,1] w = {{{_WEIGHT}}}, float[4] s = {{1,2,3,4}}>"
        " { c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) r = Relu(n) y = Add(r, x) }"
    ),
    "attention": (
        "(float[1,2,8,4] q, float[1,2,8,4] k, float[1,2,8,4] v) => (float[1,2,8,4] y) <float h = {2}>"
        " { t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, t) b = Div(a, h) p = Softmax(b) y = MatMul(p, v) }"
    ),
}


def write_models(folder: Path) -> list[str]:
    """Write the models of a rehearsal; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in _MODELS.items():
        paths.append(str(folder / f"{name}.onnx"))
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {name} {text}'), paths[-1])
    return paths


_captured: list[Callable[[], object]] | None = None


def enqueue(work: Callable[[], object]) -> None:
    """Do some work, or keep it for the graph that is captured."""
    if _captured is None:
        work()
    else:
        _captured.append(work)


class _Array(np.ndarray[Any, Any]):
    """An array with the further methods of CuPy's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)

    def set(self, values: Any) -> None:
        self[...] = values

    def fill(self, value: Any) -> None:
        enqueue(lambda: np.copyto(self, value))


class _Stream:
    ptr = 0

    def __init__(self, **_: Any) -> None:
        pass

    @classmethod
    def from_external(cls, _: object) -> Self:
        return cls()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def begin_capture(self) -> None:
        global _captured  # noqa: PLW0603  # CuPy has one, too: the state of the stream
        _captured = []

    def end_capture(self) -> Any:
        global _captured
        work, _captured = _captured or [], None
        return SimpleNamespace(launch=lambda _: [each() for each in work])


class _Event:
    done = True

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, _: object) -> None:
        pass


def _kernel(_: str, name: str) -> Callable[..., None]:
    """Return a kernel of ``generator/device/cuda.py`` by its name."""

    def stamp(place: Any) -> None:
        place[0] = time.perf_counter_ns()

    def step(place: Any) -> None:
        place[0] = 1

    def spin(cycles: Any) -> None:
        time.sleep(int(cycles) / 1e9)

    kernels: dict[str, Callable[[Any], None]] = {"stamp": stamp, "step": step, "spin": spin}
    return lambda _grid, _block, arguments: enqueue(lambda: kernels[name](*arguments))


def cupy_in_numpy() -> ModuleType:
    """Return a module with the calls of CuPy that devices and libraries make. Its GPU has a cache of 1 MiB."""

    def filled(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda size, dtype: make(size, dtype).view(_Array)

    runtime = SimpleNamespace(
        getDeviceProperties=lambda _: {"l2CacheSize": 1 << 20, "clockRate": 1e6, "totalGlobalMem": 1 << 30},
        CUDARuntimeError=RuntimeError,
    )
    module = ModuleType("cupy")
    vars(module).update(
        cuda=SimpleNamespace(Stream=_Stream, runtime=runtime, Event=_Event),
        zeros=filled(np.zeros), empty=filled(np.empty), asnumpy=np.array, RawKernel=_kernel,
        uint8=np.uint8, uint32=np.uint32, uint64=np.uint64, int64=np.int64,
        bitwise_xor=lambda first, second, out: enqueue(lambda: np.bitwise_xor(first, second, out=out)),
    )  # fmt: skip
    return module


class _Library(LibraryBackend):
    """A library on the CPU: ONNX's reference computes its bricks, and each has three plans, the first the slowest."""

    devices = ("cpu",)
    module = "numpy"
    distributions = ("numpy",)
    wording = Wording("the rehearsal", unsupported=re.compile("never"))

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options that stages give to libraries."""
        return (MODE, PLAN, _LAYOUT)

    def missing(self, device: str) -> str:  # noqa: ARG002
        """Nothing is missing."""
        return ""

    def open(self) -> None:
        """Nothing has to be loaded."""

    def setup(self, settings: Settings) -> None:  # noqa: ARG002
        """Take NumPy for CuPy in this process."""
        sys.modules["cupy"] = cupy_in_numpy()

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> LoadedBrick:  # noqa: ARG002
        """Load inputs; a run computes in float32 and rounds to the precision of the settings."""
        model = infer_shapes(described(network), strict=True)
        values = values_of(network)
        feeds = {value.name: narrowed(values[value.name], settings.dtype).astype(values[value.name].dtype)
                 for value in model.graph.input}  # fmt: skip
        inputs = {name: memory.holding(feeds[name]) for name in network.feeds}
        kinds = [(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type), declared_shape(value.type) or ())
                 for value in model.graph.output]  # fmt: skip
        outputs = [memory.empty(math.prod(shape) * kind.itemsize) for kind, shape in kinds]
        evaluator = ReferenceEvaluator(model)

        def compute() -> None:
            given = {name: buffer.array(feeds[name].dtype, feeds[name].shape) for name, buffer in inputs.items()}
            for buffer, kind, values in zip(outputs, kinds, evaluator.run(None, {**feeds, **given}), strict=True):
                buffer.array(*kind)[...] = narrowed(np.asarray(values), settings.dtype)

        def read() -> list[Any]:
            return [memory.read(buffer, *kind) for buffer, kind in zip(outputs, kinds, strict=True)]

        return LoadedBrick(lambda: enqueue(compute), [*inputs.values()], outputs, read)

    def plans(self, network: Network, settings: Settings, most: int, footprint: int) -> tuple[PlanTime, ...]:  # noqa: ARG002
        """Time three plans that add up the inputs more or less often, on a GPU in NumPy."""
        device = open_device("cuda")
        memory = Memory(device)
        inputs = [memory.holding(values) for values in network.feeds.values()]
        output = memory.empty(4)

        def started(times: int) -> Callable[[], Any]:
            def add() -> None:
                for _ in range(times):
                    output.array(np.float32, (1,))[0] = sum(float(each.bytes.sum()) for each in inputs)

            return lambda: (lambda: enqueue(add), 0)

        loaded = LoadedBrick(released, inputs, [output], lambda: [memory.read(output, np.float32, (1,))])
        candidates = [(PlanTime(f"plan{times}", times), started(times)) for times in (9, 1, 3)]
        return measured(candidates, loaded, memory, device, str, most=most, footprint=footprint)


class Cudnn(_Library):
    """In the place of cuDNN."""

    name = f"{_PREFIX}cudnn"


class Cublas(_Library):
    """In the place of cuBLAS."""

    name = f"{_PREFIX}cublas"


class Cupy(_Library):
    """In the place of CuPy."""

    name = f"{_PREFIX}cupy"


class Torch(TorchBackend):
    """PyTorch on the CPU with a GPU's options: each is a stack of its own, and nothing is captured."""

    name = f"{_PREFIX}torch"
    devices = ("cpu",)

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options of both devices."""
        of_gpu = super().declared("cuda")
        known = {option.name for option in of_gpu}
        return (*of_gpu, *(option for option in super().declared("cpu") if option.name not in known))

    def prepare(self, network: Network, settings: Settings) -> Any:
        """Prepare without a CUDA graph."""
        return super().prepare(network, _uncaptured(settings))

    def prepare_streamed(self, network: Network, settings: Settings) -> Any:
        """Prepare without streams."""
        return super().prepare_streamed(network, _uncaptured(settings))

    def captured(self, run: Run, settings: Settings) -> Run:  # noqa: ARG002
        """Return the run."""
        return run


def _uncaptured(settings: Settings) -> Settings:
    mode = "compile" if "compile" in settings.options["mode"] else "eager"
    return replace(settings, options={**settings.options, "mode": mode})


def rehearsed(stage: Stage, backend: str) -> Stage:
    """Return the stage as it is rehearsed: with its options and precision in the stand-in of its backend.

    Args:
        stage: The stage.
        backend: Of stages without one; another one than PyTorch's stand-in keeps its own options and precision.
    """
    if stage.threads:
        return replace(stage, threads=min(stage.threads // 4, 2))
    if stage.backend is not None:
        return replace(stage, backend=f"{_PREFIX}{stage.backend}")
    return stage if backend == Torch.name else replace(stage, options={}, dtype="float32")


def usual_backend() -> str:
    """Return the backend of stages without one."""
    return Torch.name if find_spec("torch") else "onnxruntime"


def plug_in(folder: Path) -> None:
    """Make the stand-ins backends of this process and its children: entry points of a package in a folder.

    Args:
        folder: Is created.
    """
    described_in = folder / "dlbricks_rehearsal-1.dist-info"
    described_in.mkdir(parents=True, exist_ok=True)
    (described_in / "METADATA").write_text("Metadata-Version: 2.1\nName: dlbricks-rehearsal\nVersion: 1\n")
    points = [f"{each.name} = {__name__}:{each.__name__}" for each in (Cudnn, Cublas, Cupy, Torch)]
    (described_in / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points, ""]))
    places = [str(folder.resolve()), str(Path(__file__).resolve().parent)]
    sys.path[:0] = [place for place in places if place not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
