"""cuDNN: convolutions and their fusions, products, norms, attention, pointwise operations and reductions.

A brick is one operation graph, executed by one of the plans that the library offers for it. What the graph API has not
is refused, and no operator is ever replaced by another one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ....errors import UnsupportedBrick
from ...device.device import Device
from ...network.network import Network
from ..algorithms import Algorithm, PlanTime
from ..base import TF32, Option, Settings
from ..library import CUPY, MODE, PLAN, LibraryBackend, later_plans
from ..memory import Loaded, Memory
from ..wording import Wording

__all__ = ["CudnnBackend"]

_LAYOUTS = {"contiguous": "images with their channels first", "channels_last": "images with their channels last"}

_OPTIONS = (
    Option("layout", "contiguous", tuple(_LAYOUTS), "memory format of images and of their weights"),
    MODE,
    PLAN,
    TF32,
)


class CudnnBackend(LibraryBackend):
    """cuDNN through its Python frontend, on memory of CuPy."""

    name = "cudnn"
    module = "cudnn"
    distributions = ("nvidia-cudnn-frontend", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", *CUPY)
    install = "pip install nvidia-cudnn-frontend nvidia-cudnn-cu13 cupy-cuda13x"
    wording = Wording(
        "cuDNN",
        unsupported=re.compile(r"no engine|not.support|no valid engine|no plan|is not supported", re.I),
        memory=re.compile(r"ALLOC_FAILED"),
    )

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Those of the one device."""
        return _OPTIONS

    def others(self, options: Mapping[str, str]) -> Sequence[Algorithm]:
        """The other layout, and the library's next plans (see ``LibraryBackend``)."""
        layout = next(each for each in _LAYOUTS if each != options["layout"])
        return (Algorithm(layout, {"layout": layout}, _LAYOUTS[layout]), *later_plans(options))

    def open(self) -> None:
        """Load the frontend, which loads the library."""
        import cudnn

        if not cudnn.backend_version():
            raise ImportError("the frontend finds no libcudnn.so.9")

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> Loaded:
        """The brick with the plan that the options choose (see ``LibraryBackend``)."""
        from .execution import Execution

        execution = Execution(network, settings, memory, device, _handle(device.stream))
        return execution.loaded(int(settings.options[PLAN.name]))

    def plans(self, network: Network, settings: Settings, most: int) -> tuple[PlanTime, ...]:
        """All plans of all heuristics (see ``PlanBackend``)."""
        from .execution import Execution

        if network.model is None or network.unroll > 1:
            raise UnsupportedBrick("cuDNN: plans are those of one brick")
        device = self.device(settings)
        try:
            return Execution(network, settings, Memory(device), device, _handle(device.stream)).plans(most)
        except Exception as error:  # the library's exceptions share no base class
            raise self.wording.meaning(error) from error


@cache
def _handle(stream: int) -> Any:
    """The one handle of this process: the library enqueues in the stream."""
    import cudnn

    handle = cudnn.create_handle()
    cudnn.set_stream(handle, stream)
    return handle
