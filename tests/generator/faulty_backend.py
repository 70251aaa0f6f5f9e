"""ONNX Runtime as a backend that fails on request: the fixture ``faulty`` installs this file as a plug-in."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, ClassVar

import numpy as np
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.base import Executable, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.network.network import Network


class FaultyBackend(OrtBackend):
    """Networks that hold an operator named in ``DLBRICKS_TEST_FAULTS`` fail as it says there."""

    name = "faulty"

    def prepare(self, network: Network, settings: Settings) -> Executable:
        faults = json.loads(os.environ["DLBRICKS_TEST_FAULTS"])
        operators = [node.op_type for node in network.model.graph.node] if network.model is not None else []
        fault = next((faults[name] for name in operators if name in faults), None)
        when, _, what = (fault or "").partition(":")
        if when == "prepare":
            fail(what)
        return Faulty(super().prepare(network, settings), what if when == "run" else fault)


class Faulty:
    """An executable that fails when it runs, or when it is closed."""

    ruined_by: ClassVar[Faulty | None] = None

    def __init__(self, executable: Executable, fault: str | None) -> None:
        self._executable, self._fault = executable, fault

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
        fail(self._fault)
        self._executable.run()


def fail(fault: str | None) -> None:
    if fault == "crash":
        sys.stderr.write("something broke inside\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault == "exit":
        os._exit(3)
    elif fault == "slow":
        time.sleep(0.25)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "memory":
        held = [np.ones(1 << 24) for _ in range(1 << 12)]
        del held
    elif fault == "unsupported":
        raise UnsupportedBrick("no kernel for this")
