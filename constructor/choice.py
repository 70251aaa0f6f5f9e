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
class Cutting:
    """The settings of a decomposition.

    Attributes:
        granularity: Most layers in a sequence.
        graph: Decomposed graph: ``source``, ``runtime`` or ``fused``.
        overlap: True if sequences may begin at every layer.
        connected: True if sequences may be connected windows.
    """

    granularity: int
    graph: str = "source"
    overlap: bool = False
    connected: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredPlace:
    """System, stack and conditions of an estimate's measurements; the request, if no measurement matches.

    Attributes:
        system: Key of the system; None if no measurement matches.
        stack: Key of the stack; None if no measurement matches.
        backend: Backend.
        device: Device.
        threads: Threads.
        cache: Cache state. ``model``: bricks at the model's own reuse distance.
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
