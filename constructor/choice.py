"""The stored combination of system, stack and conditions that an estimate is made from."""

from __future__ import annotations

from dataclasses import dataclass

from ..db import Conditions, Stack, System

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


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a model was decomposed.

    Attributes:
        granularity: Most layers in a sequence.
        graph: Which graph was decomposed: ``source``, ``runtime`` or ``fused``.
        overlap: Whether sequences could begin at every layer.
        connected: Whether sequences could be connected windows.
    """

    granularity: int
    graph: str = "source"
    overlap: bool = False
    connected: bool = False


@dataclass(frozen=True, slots=True)
class MeasuredPlace:
    """Where the bricks of an estimate were measured; where nothing is stored, what was asked for.

    Attributes:
        system: Key of the system; None where nothing that matches is stored.
        stack: Key of the stack; None likewise.
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
    """Whether products and convolutions of float32 are computed in TF32: another function than the exact one."""
    return dict(stack.options).get("tf32") == "on"


def in_parallel(stack: Stack) -> bool:
    """Whether a stack runs independent branches of a model at once, as ONNX Runtime does on request."""
    options = dict(stack.options)
    return options.get("execution") == "parallel" and int(options.get("inter_op", "1")) > 1
