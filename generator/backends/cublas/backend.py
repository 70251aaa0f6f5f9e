"""cuBLAS: bricks that are one matrix product, with a bias and an activation where its epilogues have them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....errors import UnsupportedBrick
from ...device.device import Device
from ...network.network import Network
from ..algorithms import Algorithm, PlanTime
from ..base import TF32, Option, Settings
from ..library import CUPY, MODE, PLAN, LibraryBackend, later_plans
from ..memory import Loaded, Memory
from ..wording import Wording

__all__ = ["CublasBackend"]

_LIBRARY = Option("library", "lt", ("lt", "cublas"), "cuBLASLt with a choice of algorithms, or cuBLAS with its own one")


class CublasBackend(LibraryBackend):
    """cuBLASLt through nvmath-python, and cuBLAS through CuPy, on memory of CuPy."""

    name = "cublas"
    module = "nvmath"
    distributions = ("nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", *CUPY)
    install = "pip install nvmath-python nvidia-cublas cupy-cuda13x"
    wording = Wording("cuBLAS", unsupported=re.compile(r"NOT_SUPPORTED"), memory=re.compile(r"ALLOC_FAILED"))

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """Those of the one device."""
        return (_LIBRARY, MODE, PLAN, TF32)

    def others(self, options: Mapping[str, str]) -> Sequence[Algorithm]:
        """The other library, and the next algorithms of cuBLASLt (see ``LibraryBackend``)."""
        if options[_LIBRARY.name] == "cublas":
            return [Algorithm("lt", {_LIBRARY.name: "lt"}, "cuBLASLt's first algorithm for each brick")]
        plain = {_LIBRARY.name: "cublas", PLAN.name: "0"}
        return (Algorithm("cublas", plain, "cuBLAS itself, which chooses"), *later_plans(options))

    def open(self) -> None:
        """Load the bindings of both."""
        from cupy_backends.cuda.libs import cublas
        from nvmath.bindings import cublasLt

        _ = cublas, cublasLt.get_version()

    def load(self, network: Network, settings: Settings, memory: Memory, device: Device) -> Loaded:
        """The brick with the algorithm that the options choose (see ``LibraryBackend``)."""
        from .light import Light
        from .operands import Operands
        from .plain import plain_run

        wanted, tf32 = int(settings.options[PLAN.name]), _allows_tf32(settings)
        operands = Operands(network, settings.dtype, memory)
        if settings.options[_LIBRARY.name] == "cublas":
            if wanted:
                raise UnsupportedBrick(f"cuBLAS has one plan, not plan {wanted}; pass plan=0 or library=lt")
            return replace(operands.loaded(), run=plain_run(operands, memory, tf32=tf32))
        light = Light(operands, memory, device.stream, tf32=tf32)
        if wanted >= light.count:
            raise UnsupportedBrick(
                f"cuBLASLt has {light.count} algorithm(s) for this brick, not plan {wanted}; pass a lower plan=N"
            )
        return replace(operands.loaded(), run=light.run(wanted))

    def plans(self, network: Network, settings: Settings, most: int) -> tuple[PlanTime, ...]:
        """The algorithms of cuBLASLt, and last cuBLAS itself (see ``PlanBackend``).

        Places are those among the algorithms of cuBLASLt; that of cuBLAS is executed by ``library=cublas``.
        """
        from ..plan_times import Candidate, measured
        from .light import Light
        from .operands import Operands
        from .plain import ROW, plain_starter

        if network.model is None or network.unroll > 1:
            raise UnsupportedBrick("cuBLAS: plans are those of one brick")
        device, tf32 = self.device(settings), _allows_tf32(settings)
        memory = Memory(device)
        try:
            operands = Operands(network, settings.dtype, memory)
            light = Light(operands, memory, device.stream, tf32=tf32)
            found = [
                Candidate(light.row(place), light.starter(place)) for place in range(min(light.count, max(most - 1, 1)))
            ]
            if operands.problem.is_plain:
                found.append(Candidate(ROW, plain_starter(operands, memory, tf32=tf32)))
            return measured(
                found,
                operands.loaded(),
                memory,
                device,
                lambda error: str(self.wording.meaning(error)),
                most=most,
            )
        except Exception as error:  # the library's exceptions share no base class
            raise self.wording.meaning(error) from error


def _allows_tf32(settings: Settings) -> bool:
    return settings.options[TF32.name] == "on"
