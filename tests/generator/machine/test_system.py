"""The machine as recorded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import psutil
from dlbricks.db.values import content_key
from dlbricks.generator.machine.system import free_cores, machine_state, probe_system, quietness


def test_the_system_is_this_machine():
    system = probe_system()

    assert system.cpu
    assert system.logical_cores == os.cpu_count()
    assert 1 <= system.physical_cores <= system.logical_cores
    assert system.memory_gib >= 1
    assert all(size > 0 for _, size in system.cache_bytes)
    assert socket.gethostname() not in str(system).split("'")
    script = "from dlbricks.generator.machine.system import probe_system; print(probe_system().key)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == system.key  # the same in every process


def test_the_state_can_be_stored():
    state = machine_state()

    assert json.loads(json.dumps(state)) == state
    assert state["cpus_allowed"] == len(os.sched_getaffinity(0))
    assert content_key(state)


def test_load_is_noticed():
    """A process that spins on every CPU makes the machine loud; watching needs no thread."""
    before = threading.active_count()
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        found = quietness(watch_s=1.0)
        free = free_cores(watch_s=1.0)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()

    assert threading.active_count() == before
    assert not found.quiet
    assert found.busy > 0.5
    assert free == 0
    assert any("other processes use" in reason for reason in found.reasons)


def test_a_short_watch_sees_idle_processors(monkeypatch):
    """Shares are of the time that passed, also if that is less than a second."""
    begun = [times._replace(idle=1000.0) for times in psutil.cpu_times(percpu=True)]
    readings = iter([begun, [times._replace(idle=times.idle + 0.01) for times in begun]] * 2)
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: next(readings))

    assert quietness(watch_s=0.01).busy == 0.0
    assert free_cores(watch_s=0.01) > 0
