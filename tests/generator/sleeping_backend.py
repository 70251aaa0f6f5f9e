"""A backend that computes nothing and sleeps: many nodes of a fleet fit on one machine with it.

Installed as any plug-in is: a folder on the path with this file and the entry point that names ``SleepingBackend``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dlbricks.db.values import Stack
from dlbricks.errors import UnsupportedBrick, UsageError
from dlbricks.generator.backends.base import Availability, Backend, Executable, Option, Settings
from dlbricks.generator.network.network import Network

SLEEP = Option("sleep_us", "2000", help="microseconds that each execution sleeps")


_NEVER = "DLBRICKS_SLEEPLESS"
"""Environment variable: networks with this operator are refused."""


class SleepingBackend(Backend):
    """A backend with a latency that an option sets, independent of the machine."""

    name = "sleeping"
    options = (SLEEP,)

    def probe(self) -> Availability:
        return Availability(ok=True, versions={"sleeping": "1.0"})

    def declared(self, device: str) -> Sequence[Option]:
        return self.options

    def resolve(self, device: str, options: Mapping[str, str]) -> dict[str, str]:
        if device not in self.devices or set(options) - {SLEEP.name}:
            raise UsageError(f"sleeping has no device {device!r}, or not all of the options {sorted(options)}")
        return {SLEEP.name: SLEEP.default} | dict(options)

    def stack(self, device: str, options: Mapping[str, str]) -> Stack:
        return Stack(self.name, device, (("sleeping", "1.0"),), tuple(sorted(self.resolve(device, options).items())))

    def setup(self, settings: Settings) -> None:
        pass

    def prepare(self, network: Network, settings: Settings) -> Sleeping:
        if network.model is not None and any(
            node.op_type == os.environ.get(_NEVER) for node in network.model.graph.node
        ):
            raise UnsupportedBrick("it cannot fall asleep")
        return Sleeping(network, int(settings.options[SLEEP.name]) / 1e6)


class Sleeping(Executable):
    """A network that is asleep."""

    def __init__(self, network: Network, seconds: float) -> None:
        self._network, self._seconds = network, seconds

    def run(self) -> None:
        time.sleep(self._seconds)

    def outputs(self) -> list[npt.NDArray[Any]]:
        return [np.ones(1, np.float32) for _ in self._network.outputs]

    def output_bytes(self) -> int:
        return 4 * len(self._network.outputs)

    def close(self) -> None:
        pass
