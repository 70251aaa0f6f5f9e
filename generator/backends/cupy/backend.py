"""CuPy: bricks of one operator that moves data, pools, or computes element by element."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...device.device import Device
from ...network.network import Network
from ..base import Option, Settings
from ..library import CUPY, MODE, LibraryBackend
from ..memory import Loaded, Memory
from ..wording import Wording

__all__ = ["CupyBackend"]


class CupyBackend(LibraryBackend):
    """Kernels of CuPy and of this room."""

    name = "cupy"
    module = "cupy"
    distributions = CUPY
    install = "pip install cupy-cuda13x"
    wording = Wording("CuPy", unsupported=re.compile(r"not supported for the input types"))

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Those of the one device."""
        return (MODE,)

    def open(self) -> None:
        """Load CuPy."""
        import cupy

        _ = cupy.__version__

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> Loaded:  # noqa: ARG002
        """The brick's one operator (see ``LibraryBackend``)."""
        from .call import Call, refused
        from .movers import MOVERS
        from .pointwise import POINTWISE
        from .pooling import POOLINGS

        call = Call(network, settings.dtype, memory)
        make = {**MOVERS, **POINTWISE, **POOLINGS}.get(call.node.op_type)
        if make is None:
            raise refused(call.node, "has no kernel here")
        with memory.stream:
            enqueue = make(call)

        def run() -> None:
            with memory.stream:
                enqueue()

        return Loaded(run, call.inputs, call.outputs, call.read)
