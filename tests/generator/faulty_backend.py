"""ONNX Runtime as a backend that fails on request: the fixture ``faulty`` installs this file as a plug-in."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, ClassVar

import numpy as np
import onnx
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.base import Executable, PackedExecutable, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import Network


class FaultyBackend(OrtBackend):
    """Networks that hold an operator named in ``DLBRICKS_TEST_FAULTS`` fail as it says there, packs and files too."""

    name = "faulty"

    def prepare(self, network: Network, settings: Settings) -> Executable:
        fault = _fault(network, "prepare")
        return Faulty(super().prepare(network, settings), fault)

    def prepare_packed(self, network: Network, settings: Settings) -> PackedExecutable:
        fault = _fault(network, "prepare")
        return Faulty(super().prepare_packed(network, settings), fault)

    def optimised(self, network: Network, settings: Settings) -> Network:
        _fault(network, "optimise")
        return super().optimised(network, settings)


def _fault(network: Network, now: str) -> str | None:
    """Fail now, where the network is to; else what it is to do later."""
    faults = json.loads(os.environ["DLBRICKS_TEST_FAULTS"])
    model = onnx.load(network.path) if network.model is None else network.model
    operators = [node.op_type for node in model.graph.node]
    fault = next((faults[name] for name in operators if name in faults), None)
    when, _, what = (fault or "").partition(":")
    if when == now:
        fail(what)
    return what if when == "run" else fault


class Faulty:
    """An executable that fails when it runs, or when it is closed."""

    ruined_by: ClassVar[Faulty | None] = None
    timed_ns = Executable.timed_ns  # else the time of the executable inside, which does not fail

    def __init__(self, executable: Executable, fault: str | None) -> None:
        self._executable, self._fault = executable, fault
        self._runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executable, name)

    def close(self) -> None:
        fail(self._fault.partition("close:")[2] if self._fault else None)
        self._executable.close()

    def run(self) -> None:
        if Faulty.ruined_by not in (None, self):
            fail("crash")
        if self._fault == "later":
            Faulty.ruined_by = self
        self._runs += 1
        fault, _, runs = (self._fault or "").partition("@")
        if self._runs > int(runs or 0):
            fail(fault)
        self._executable.run()


def fail(fault: str | None) -> None:
    if fault == "crash":
        sys.stderr.write("something broke inside\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "exit":
        os._exit(3)
    elif fault == "slow":
        time.sleep(0.5)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "memory":
        held = [np.ones(1 << 24) for _ in range(1 << 12)]
        del held
    elif fault == "unsupported":
        raise UnsupportedBrick("no kernel for this")
