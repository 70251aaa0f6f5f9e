"""CuPy: bricks of one operator that moves data, pools, or computes element by element."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...device.device import Device
from ...network.network import Network
from ..base import Option, Settings
from ..library import CUPY, MODE, LibraryBackend, LoadedBrick, Memory
from ..reports import Wording


class CupyBackend(LibraryBackend):
    """Kernels of CuPy and of this room."""

    name = "cupy"
    module = "cupy"
    distributions = CUPY
    install = "pip install cupy-cuda13x"
    wording = Wording("CuPy", unsupported=re.compile(r"not supported for the input types"))

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Return the options of its only device."""
        return (MODE,)

    def open(self) -> None:
        """Load CuPy."""
        import cupy

        _ = cupy.__version__

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> LoadedBrick:  # noqa: ARG002
        """Load the brick's operator (see ``LibraryBackend``)."""
        from .kernel_call import POINTWISE, DeviceCall, refused
        from .raw_kernels import MOVERS, POOLINGS

        call = DeviceCall(network, settings.dtype, memory)
        make = {**MOVERS, **POINTWISE, **POOLINGS}.get(call.node.op_type)
        if make is None:
            raise refused(call.node, "has no kernel here")
        with memory.stream:
            enqueue = make(call)

        def run() -> None:
            with memory.stream:
                enqueue()

        return LoadedBrick(run, call.inputs, call.outputs, call.read)
