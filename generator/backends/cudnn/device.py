"""The GPU that plans are asked for: its properties as cuDNN wants them; it need not be here.

cuDNN 9.8 and newer plan for a device that is described to them
(https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/utilities/deviceless-ahead-of-time-compilation.html). On a
machine with the GPU, ``cudnn.create_device_properties(0).serialize()`` writes such a description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UsageError

__all__ = ["KNOWN", "Gpu", "find_gpu"]

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
    # Written by cuDNN 9.19 on an H100 (docs/results/gpu/h100.json).
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "multiProcessorCount": 132, "warpSize": 32, "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536,
    "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 6, "isTccDriver": 0,
    "supportCoopLaunch": 1, "totalGlobalMem": 85017493504, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
    "l2CacheSize": 52428800, "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
    "deviceName": "NVIDIA H100 80GB HBM3",
}  # fmt: skip

KNOWN: Mapping[str, Mapping[str, Any]] = {"h100": _H100, "h200": _H200}
"""Descriptions by name. That of the H200 was put together from documents and readings, not written by cuDNN there."""


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
    """A GPU by name, or from a file that cuDNN wrote.

    Args:
        text: One of ``KNOWN``, or the path of a JSON file.

    Raises:
        UsageError: It is neither, or the file holds something else.
    """
    if text in KNOWN:
        return _gpu(KNOWN[text], text)
    path = Path(text)
    remedy = f"known are {', '.join(KNOWN)}; a file is what cudnn.create_device_properties(0).serialize() gives"
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_FILE))
    except OSError as error:
        raise UsageError(f"GPU {text!r} is not known, and no file: {error.strerror}", remedy=remedy) from error
    except ValueError as error:
        raise UsageError(f"{path.name} is no description of a GPU: {error}", remedy=remedy) from error
    return _gpu(found, path.name)


def _gpu(found: Any, name: str) -> Gpu:
    for field, kind in _NEEDED.items():
        if not isinstance(found, Mapping) or not isinstance(found.get(field), kind):
            raise UsageError(
                f"{name} is no description of a GPU: it has no {field}",
                remedy="write one with cudnn.create_device_properties(0).serialize()",
            )
    return Gpu(found["deviceName"], found["deviceVer"], found["multiProcessorCount"], json.dumps(found))
