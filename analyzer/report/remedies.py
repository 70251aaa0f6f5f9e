"""Where a command that an estimate advises is to be run: its latencies may be of another machine than this one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .units import short

if TYPE_CHECKING:
    from ...constructor.result import Estimate

__all__ = ["advised_for"]

_DATABASE = re.compile(r" --db (?:'[^']*'|\S+)")


def advised_for(entry: Estimate, command: str) -> str:
    """The command as it stands where it measures the system that the estimate is of; else what to do on which machine.

    Run here, it would put a second system into the database, and the estimate would have two answers.
    """
    from ...generator.machine.system import probe_system

    if entry.system is None or entry.system == probe_system().key:
        return command
    *here, there = _DATABASE.sub("", command).split(" && ")
    steps = [f"here, {step}" for step in here]
    steps.append(f"on system {short(entry.system)}, {there}")
    return "; ".join([*steps, "then export and merge what it stores"])
