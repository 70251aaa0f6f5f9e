"""Memory of a GPU for one network: bytes, filled and read in the order of a device's stream, by CuPy.

What lies there is for libraries that take addresses. It is bytes, whatever the type: CuPy need not know bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.device import Device, Run
from ..network.types import narrowed_to

__all__ = ["Buffer", "Loaded", "Memory", "narrowed"]

Array = npt.NDArray[Any]

_WORD = 4
_ABSENT = 255
"""Every byte of what has not been written: no number in any type of floating point."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A piece of memory.

    Attributes:
        bytes: As an array of CuPy, in whole words.
        size: Bytes that are used.
    """

    bytes: Any
    size: int

    @property
    def address(self) -> int:
        """Where it begins on the device; a multiple of 256."""
        return int(self.bytes.data.ptr)

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Any:
        """The same memory as an array of CuPy."""
        return self.bytes[: self.size].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """A brick in memory of the device, ready to be run.

    Attributes:
        run: Enqueues one execution; holds all that it needs.
        inputs: Memory of the inputs.
        outputs: Memory of the outputs.
        read: Copies the outputs to the host, in the network's own types and shapes, in its order.
    """

    run: Run
    inputs: Sequence[Buffer]
    outputs: Sequence[Buffer]
    read: Callable[[], list[Array]]


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A stream by its handle, in the protocol of CUDA's Python packages."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Memory:
    """Memory of a network.

    Args:
        device: A GPU; all copies and kernels are enqueued in its stream.
    """

    def __init__(self, device: Device) -> None:
        import cupy

        self._cupy = cupy
        self._device = device
        self.stream = cupy.cuda.Stream.from_external(_Foreign(device.stream))

    def holding(self, values: Array) -> Buffer:
        """Memory with the elements of an array, row by row."""
        found = self.empty(values.nbytes)
        if values.nbytes:
            flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            with self.stream:
                found.bytes[: found.size].set(flat)
            self._device.synchronize()  # the array may go when this returns
        return found

    def empty(self, size: int) -> Buffer:
        """Memory for so many bytes.

        Raises:
            MemoryError: The device has not enough.
        """
        words = max(math.ceil(size / _WORD), _WORD)
        with self.stream:
            return Buffer(self._cupy.empty(_WORD * words, dtype=self._cupy.uint8), size)

    def read(self, buffer: Buffer, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        """A copy of its elements on the host, when all that was enqueued is done."""
        if not buffer.size:
            return np.zeros(shape, dtype)
        with self.stream:
            found = self._cupy.asnumpy(buffer.bytes[: buffer.size])
        return np.asarray(found).view(dtype).reshape(shape)

    def erase(self, buffer: Buffer) -> None:
        """Enqueue what makes its elements no numbers: whatever should write them is then seen not to."""
        with self.stream:
            buffer.bytes.fill(_ABSENT)

    def rewrite(self, buffer: Buffer) -> None:
        """Enqueue what reads every word and writes it again, as it is."""
        with self.stream:
            words = buffer.bytes.view(self._cupy.uint32)
            self._cupy.bitwise_xor(words, self._cupy.uint32(0), out=words)


def narrowed(values: Array, dtype: str) -> Array:
    """An array in the precision that it is computed in; only float32 is changed.

    Finite values stay finite: masks use the largest number of float32, which has no neighbour in other types.
    """
    if values.dtype != np.float32 or dtype == "float32":
        return values
    import ml_dtypes

    return narrowed_to(values, np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
