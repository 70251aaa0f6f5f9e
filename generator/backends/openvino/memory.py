"""Memory that the bricks of a pass write their outputs to, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import openvino

__all__ = ["SharedMemory"]

_LINE = 64
"""Bytes that OpenVINO aligns its own memory to."""


class SharedMemory:
    """Places for outputs, each for all of about one size.

    In a model OpenVINO plans the memory of all layers together: a layer writes where another one of about its size was
    a moment before. Networks that were compiled apart have memory of their own, which nothing has touched since their
    last run: what a layer of a model finds in the cache, each of them would miss.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], npt.NDArray[Any]] = {}

    def tensor(self, index: int, like: openvino.Tensor) -> openvino.Tensor:
        """A tensor of the same type and shape.

        Args:
            index: Place among the outputs of the network, which do not share memory with each other.
            like: What the runtime allocated for it; it holds at least a byte.
        """
        from openvino import Tensor

        size = 1 << (like.byte_size - 1).bit_length()
        place = self._places.get((index, size))
        if place is None:
            room = np.zeros(size + _LINE, np.uint8)
            begin = -room.ctypes.data % _LINE
            place = self._places[index, size] = room[begin : begin + size]
        return Tensor(place[: like.byte_size], like.shape, like.element_type)
