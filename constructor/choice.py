"""The stored combination of system, stack and conditions that an estimate is made from."""

from __future__ import annotations

from dataclasses import dataclass

from ..db import Conditions, Stack, System

__all__ = ["COLD", "MODEL", "Choice", "in_parallel", "narrows"]

MODEL = "model"
"""The cache state that stands for all levels of reuse distance together: of each model its own is looked up."""

COLD = "cold"
"""The cache state in which everything is evicted before each execution, of bricks and of whole models."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One stored combination, with what its keys stand for.

    Attributes:
        system_key: Key of the system.
        stack_key: Key of the stack.
        system: The system.
        stack: The stack.
        conditions: Threads, cache state, precision; ``model`` as cache state stands for all levels that are stored.
        count: Bricks, of those asked for, that are measured there.
    """

    system_key: str
    stack_key: str
    system: System
    stack: Stack
    conditions: Conditions
    count: int


def narrows(stack: Stack) -> bool:
    """Whether products and convolutions of float32 are computed in TF32: another function than the exact one."""
    return dict(stack.options).get("tf32") == "on"


def in_parallel(stack: Stack) -> bool:
    """Whether a stack runs independent branches of a model at once, as ONNX Runtime does on request."""
    options = dict(stack.options)
    return options.get("execution") == "parallel" and int(options.get("inter_op", "1")) > 1
