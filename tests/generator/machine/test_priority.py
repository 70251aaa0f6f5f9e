"""The priority of a process that times networks."""

import json
import os
import subprocess
import sys

import pytest
from dlbricks.generator.machine import priority
from dlbricks.generator.machine.priority import USUAL, Priority

PROGRAM = """
import json, os, sys, threading
from dlbricks.generator.machine.priority import Priority

def seen():
    return sorted({(os.getpriority(os.PRIO_PROCESS, int(name)), os.sched_getscheduler(int(name)))
                   for name in os.listdir("/proc/self/task")})

threading.Thread(target=threading.Event().wait, daemon=True).start()
priority = Priority(sys.argv[1])
steps = [seen()]
for change in (priority.high, priority.high, priority.usual, priority.usual):
    change()
    steps.append(seen())
print(json.dumps([priority.granted, steps]))
"""


@pytest.mark.parametrize("asked", priority.PRIORITIES)
def test_all_threads_have_the_priority_that_was_granted_and_give_it_back(asked):
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=True)

    granted, steps = json.loads(done.stdout)
    usual = [[os.getpriority(os.PRIO_PROCESS, 0), os.SCHED_OTHER]]
    high = {"fifo": [[usual[0][0], os.SCHED_FIFO]], "nice": [[-20, os.SCHED_OTHER]], USUAL: usual}[granted.split()[0]]
    assert steps == [usual, high, high, usual, usual]
    assert asked != "off" or granted == USUAL


@pytest.mark.parametrize("asked", ["high", "fifo"])
def test_a_system_that_grants_nothing_is_no_error(monkeypatch, asked):
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(priority.os, "setpriority", refused)
    monkeypatch.setattr(priority.os, "sched_setscheduler", refused)

    found = Priority(asked)
    found.high()
    found.usual()

    assert found.granted == USUAL
