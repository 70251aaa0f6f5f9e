"""Compile models in advance, one per core at once, so that later measurements find the code.

    python benchmarks/visit_compiling.py BACKEND DEVICE DTYPE BATCH OPTIONS MODEL

compiles one; the folder that ``DLBRICKS_COMPILED`` names keeps it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.registry import get
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import find_models
from visit_plan import Stage
from visit_state import Visit

FOLDER = "DLBRICKS_COMPILED"


def compile_ahead(visit: Visit, stage: Stage, names: Sequence[str], until: float) -> dict[str, str]:
    """Compile models until some time; the last line that each wrote which could not be."""
    os.environ.setdefault(FOLDER, str(visit.work / "compiled"))
    options = json.dumps({**visit.options(stage), "pinning": "off"})  # side by side, on all cores
    chosen = [visit.backend(stage), visit.settings["device"], stage.dtype, str(stage.batch or 0), options]
    waiting, failed = [*names], {}
    running: dict[str, subprocess.Popen[bytes]] = {}
    logs = {name: visit.work / f"compiling-{place}.log" for place, name in enumerate(names)}
    most = psutil.cpu_count(logical=False) or 1
    with ExitStack() as files:
        files.callback(_end, running)
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < most:
                name = waiting.pop(0)
                log = files.enter_context(logs[name].open("wb"))
                running[name] = subprocess.Popen([sys.executable, __file__, *chosen, name], stdout=log, stderr=log)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    failed[name] = _last(logs[name])
            time.sleep(0.1)
    return failed


def _end(running: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for process in running.values():
        process.kill()
        process.wait()


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it ended without a word"


def _child() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("backend", "device", "dtype", "batch", "options", "model"):
        parser.add_argument(name)
    asked = parser.parse_args()
    backend = get(asked.backend)
    (source,) = find_models([asked.model], batches=[int(asked.batch)] if int(asked.batch) else [])
    settings = Settings(asked.device, 1, backend.resolve(asked.device, json.loads(asked.options)), dtype=asked.dtype)
    backend.setup(settings)
    backend.prepare(synthetic_network(source.skeleton().model), settings).close()


if __name__ == "__main__":
    _child()
