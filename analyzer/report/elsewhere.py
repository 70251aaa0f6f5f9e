"""Where what an estimate advises is to be run: its latencies may be of another machine than this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..shell import shell_command, shell_steps
from .units import short

if TYPE_CHECKING:
    from ...constructor.remedies import Task
    from ...constructor.result import Estimate

__all__ = ["advised_for"]


def advised_for(entry: Estimate, task: Task) -> str:
    """The command of a task where it measures the system that the estimate is of; else what to do on which machine.

    Run here, it would put a second system into the database, and the estimate would have two answers.
    """
    from ...generator.machine.system import probe_system

    if entry.system is None or entry.system == probe_system().key:
        return shell_command(task)
    *here, there = shell_steps(task, database=False)
    steps = [f"here, {step}" for step in here]
    steps.append(f"on system {short(entry.system)}, {there}")
    return "; ".join([*steps, "then export and merge what it stores"])
