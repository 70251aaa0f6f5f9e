"""The stored combination of system, stack and conditions of an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from ..db import Conditions, Stack, System

MODEL = "model"
"""The cache state of all levels of reuse distance; each model's own level is looked up."""

COLD = "cold"
"""The cache state with everything evicted before each execution of a brick or model."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One stored combination.

    Attributes:
        system_key: Key of the system.
        stack_key: Key of the stack.
        system: The system.
        stack: The stack.
        conditions: Threads, cache state, precision; cache state ``model`` means all stored levels.
        count: Number of requested bricks with a measurement.
    """

    system_key: str
    stack_key: str
    system: System
    stack: Stack
    conditions: Conditions
    count: int


@dataclass(frozen=True, slots=True)
class Query:
    """Requested system, stack and conditions of measurements; None leaves a property open.

    Attributes:
        system: Key of the system, or a prefix.
        stack: Key of the stack, or a prefix.
        backend: Name of the backend.
        device: Its device.
        threads: Threads; 0 means the most stored threads of a system, up to one per physical core, as in a run without
            this option.
        cache: Cache state: ``model`` (bricks at the model's own reuse distance), ``hot``, ``cold``, or the name of one
            level.
        dtype: Precision.
    """

    system: str | None = None
    stack: str | None = None
    backend: str | None = None
    device: str | None = None
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None


def narrows(stack: Stack) -> bool:
    """Return True if the stack computes float32 products and convolutions in TF32, which is a different function."""
    return dict(stack.options).get("tf32") == "on"


def in_parallel(stack: Stack) -> bool:
    """Return True if the stack runs independent branches of a model in parallel (an option of ONNX Runtime)."""
    options = dict(stack.options)
    return options.get("execution") == "parallel" and int(options.get("inter_op", "1")) > 1
