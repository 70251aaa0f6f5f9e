"""Stand-ins to rehearse a visit on the CPU: small models, CuPy's calls in NumPy, and a library with plans."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
import onnx.parser
from dlbricks.generator.backends.base import PlanTime, Settings, released
from dlbricks.generator.backends.library import LibraryBackend, LoadedBrick, Memory, measured
from dlbricks.generator.backends.reports import Wording
from dlbricks.generator.device.device import Device
from dlbricks.generator.device.host import open_device
from dlbricks.generator.network.network import Network

_WEIGHT = ",".join(map(str, range(16)))
_MODELS = {
    "convolutions": (
        f"(float[1,4,16,16] x) => (float[1,4,16,16] y) <float[4,4,1,1] w = {{{_WEIGHT}}}, float[4] s = {{1,2,3,4}}>"
        " { c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) r = Relu(n) y = Add(r, x) }"
    ),
    "attention": (
        "(float[1,2,8,4] q, float[1,2,4,8] k, float[1,2,8,4] v) => (float[1,2,8,4] y) <float h = {2}>"
        " { a = MatMul(q, k) b = Div(a, h) p = Softmax(b) y = MatMul(p, v) }"
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


class Rehearsed(LibraryBackend):
    """A library with three plans for every brick; the first is the slowest."""

    name = "rehearsal"
    wording = Wording("the rehearsal", unsupported=re.compile("never"))

    def open(self) -> None:
        """Nothing has to be loaded."""

    def setup(self, settings: Settings) -> None:  # noqa: ARG002
        """Take NumPy for CuPy in this process."""
        sys.modules["cupy"] = cupy_in_numpy()

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> LoadedBrick:
        """Load inputs, and memory for their sum as the output."""
        raise NotImplementedError

    def plans(self, network: Network, settings: Settings, most: int, footprint: int) -> tuple[PlanTime, ...]:  # noqa: ARG002
        """Time three plans that add up the inputs more or less often."""
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
